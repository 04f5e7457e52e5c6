"""Checks of what a message from another process holds: a value of the right type, or ValueError."""

import math
from collections.abc import Callable, Mapping
from typing import Any

Check = Callable[[Any], Any]
"""Returns the value as the record holds it; raises ValueError for another type or range."""
MOST = 1 << 63
MOST_TEXT = 2000
"""Characters of a reason or a fault."""


def read(fields: Any, checks: Mapping[str, Check]) -> dict[str, Any]:
    """The fields that `checks` name, each checked; there must be no others."""
    if not isinstance(fields, dict) or fields.keys() != checks.keys():
        raise ValueError(f"the fields are not {', '.join(checks)}")
    return {name: check(fields[name]) for name, check in checks.items()}


def integer(value: Any) -> int:
    """A whole number of 64 bits."""
    if type(value) is not int or not -MOST <= value < MOST:
        raise ValueError("no whole number of 64 bits")
    return value


def count(value: Any) -> int:
    """A whole number that is not negative."""
    if integer(value) < 0:
        raise ValueError("a negative number")
    return int(value)


def size(value: Any) -> int:
    """A whole number above 0."""
    if integer(value) < 1:
        raise ValueError("no size")
    return int(value)


def flag(value: Any) -> bool:
    if type(value) is not bool:
        raise ValueError("neither true nor false")
    return value


def milliseconds(value: Any) -> float:
    """A finite number that is not negative."""
    if type(value) not in (int, float) or not 0 <= value < math.inf:
        raise ValueError("no time")
    return float(value)


def logprob(value: Any) -> float:
    """A number below infinity; minus infinity is one of them, NaN is not."""
    if type(value) not in (int, float) or not value < math.inf:
        raise ValueError("no log-probability")
    return float(value)


def text(value: Any) -> str:
    """At most `MOST_TEXT` characters that can be written anywhere."""
    if not isinstance(value, str) or len(value) > MOST_TEXT:
        raise ValueError("no text, or too long a one")
    value.encode()  # Half a surrogate pair is a ValueError.
    return value


def listed(check: Check) -> Check:
    """A list, as a tuple of values that pass `check`."""

    def whole(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise ValueError("no list")
        return tuple(check(one) for one in value)

    return whole


def optional(check: Check) -> Check:
    """None, or what passes `check`."""
    return lambda value: None if value is None else check(value)
