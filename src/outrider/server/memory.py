"""Memory that was freed, given back to the system."""

import ctypes
import sys


def give_back() -> None:
    """Have the C library return what it keeps of freed memory, where it is one that keeps much.

    glibc keeps the hundreds of MiB that a long text took for as long as anything above them in the
    heap lives.
    """
    if sys.platform == "linux" and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)):
        trim(0)
