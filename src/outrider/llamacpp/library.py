"""llama.cpp's C interface by llama-cpp-python, loaded when it is first needed; its log is ours."""

import ctypes
import logging
from functools import cache
from typing import Any

from outrider.errors import ConfigError

LOG = logging.getLogger("outrider.llama.cpp")
LEVELS = {1: logging.DEBUG, 2: logging.DEBUG, 3: logging.INFO, 4: logging.WARNING}
"""Its debug, info, warning and error. It is loud: what matters here is raised, not logged."""


class Library:
    """`call` has the functions of `llama.h`. Lives as long as the process, as its log does."""

    def __init__(self, call: Any) -> None:
        self.call = call
        self._line = ""
        # The library calls it until it ends, so it must not be freed before.
        self._listener = call.llama_log_callback(self._listen)
        call.llama_log_set(self._listener, ctypes.c_void_p(0))
        call.llama_backend_init()

    def _listen(self, level: int, text: bytes, _: object) -> None:
        """Log whole lines; one may come in pieces."""
        self._line += text.decode("utf-8", "replace")
        if self._line.endswith("\n"):
            LOG.log(LEVELS.get(level, logging.DEBUG), "%s", self._line.rstrip())
            self._line = ""


@cache
def library() -> Library:
    """The one library of this process; raises ConfigError where it is not installed."""
    try:
        from llama_cpp import llama_cpp
    except ImportError as error:
        raise ConfigError(
            f"target.backend = 'llama.cpp' cannot be used ({error}): install the extra with "
            "pip install 'outrider[llama-cpp]'."
        ) from error
    return Library(llama_cpp)
