"""JSON in parts: CPython's encoder holds the interpreter's lock until it is done, so that a long
answer would stop all others; and memory that was freed, given back to the system.
"""

import ctypes
import json
import sys
from collections.abc import Iterable, Iterator
from typing import Any


def give_back() -> None:
    """Have the C library return what it keeps of freed memory, where it is one that keeps much.

    glibc keeps the hundreds of MiB that a long text took for as long as anything above them in the
    heap lives.
    """
    if sys.platform == "linux" and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)):
        trim(0)


ITEMS = 64
"""Items of a list that are written at once."""
PART = 1 << 18
"""Letters of a part, roughly."""


def parts(value: Any) -> list[bytes]:
    """The JSON of `value` as UTF-8, in parts of some hundred kilobytes."""
    return [part.encode() for part in _gathered(_written(value))]


def event(value: Any) -> list[bytes]:
    """A server-sent event that holds `value`, in parts."""
    return [b"data: ", *parts(value), b"\n\n"]


def _gathered(texts: Iterable[str]) -> Iterator[str]:
    held: list[str] = []
    size = 0
    for text in texts:
        held.append(text)
        size += len(text)
        if size >= PART:
            yield "".join(held)
            held, size = [], 0
    if held:
        yield "".join(held)


def _written(value: Any) -> Iterator[str]:
    if isinstance(value, dict) and _nested(value.values()):
        for place, (key, item) in enumerate(value.items()):
            yield f"{', ' if place else '{'}{_dumps(key)}: "
            yield from _written(item)
        yield "}"
    elif isinstance(value, list) and value:
        for start in range(0, len(value), ITEMS):
            yield ", " if start else "["
            yield from _slice(value[start : start + ITEMS])
        yield "]"
    else:
        yield _dumps(value)


def _slice(items: list[Any]) -> Iterator[str]:
    """A few items of a list: at once where they hold no others in turn."""
    if not any(isinstance(item, list) or _holds(item) for item in items):
        yield _dumps(items)[1:-1]
        return
    for place, item in enumerate(items):
        if place:
            yield ", "
        yield from _written(item)


def _holds(item: Any) -> bool:
    return isinstance(item, dict) and _nested(item.values())


def _nested(values: Iterable[Any]) -> bool:
    return any(isinstance(value, dict | list) for value in values)


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
