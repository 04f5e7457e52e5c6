"""Types of configuration values: what a key allows, and how text becomes a value.

A key's type is a plain annotation made of str, int, float, bool, None and Literal members. Ranges
stand in the field's metadata as `low` and `high`, both inclusive.
"""

from collections.abc import Mapping
from dataclasses import fields
from difflib import get_close_matches
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from outrider.errors import ConfigError

_NAMES = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}
_BOOLEANS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def members(hint: Any) -> tuple[Any, ...]:
    """Alternatives of a type hint: `int | None` gives (int, NoneType)."""
    if get_origin(hint) in (Union, UnionType):
        return tuple(member for part in get_args(hint) for member in members(part))
    return (hint,)


def describe(hint: Any) -> str:
    """Values that a hint allows, in words for a message; None is never offered."""
    words: list[str] = []
    for member in members(hint):
        if get_origin(member) is Literal:
            words.extend(repr(choice) for choice in get_args(member))
        elif member is not NoneType:
            words.append(_NAMES.get(member, f"a {member.__name__}"))
    return " or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def fits(hint: Any, value: object) -> bool:
    """True if `value` is of the hinted type; a bool is no int, an int is a float."""
    return any(_fits_one(member, value) for member in members(hint))


def _fits_one(member: Any, value: object) -> bool:
    if get_origin(member) is Literal:
        return value in get_args(member)
    if member is float:
        return type(value) in (int, float)
    return type(value) is member


def parse(hint: Any, text: str) -> object:
    """Turn text into a value of the hinted type, or return the text itself where none fits."""
    parsed = (_parse_one(member, text) for member in members(hint))
    return next((value for found, value in parsed if found), text)


def _parse_one(member: Any, text: str) -> tuple[bool, object]:
    if get_origin(member) is Literal:
        return text in get_args(member), text
    if member is NoneType:
        return text.lower() == "none", None
    if member is bool:
        return text.lower() in _BOOLEANS, _BOOLEANS.get(text.lower())
    try:
        return True, member(text)
    except ValueError:
        return False, None


def check_fields(config: Any, section: str) -> None:
    """Check every field of a configuration dataclass against its hint and range.

    Raises ConfigError naming the key, the value and what is allowed.
    """
    hints = get_type_hints(type(config))
    for item in fields(config):
        value, key = getattr(config, item.name), f"{section}.{item.name}"
        if not fits(hints[item.name], value):
            raise ConfigError(wrong_value(key, hints[item.name], value))
        _check_range(key, value, item.metadata)


def wrong_value(key: str, hint: Any, value: object) -> str:
    """Sentence for a value of the wrong type or not among the choices."""
    choices = [c for m in members(hint) if get_origin(m) is Literal for c in get_args(m)]
    near = get_close_matches(str(value), choices, n=1)
    meant = f" (did you mean {near[0]!r}?)" if near else ""
    return f"{key} = {value!r} is not allowed: use {describe(hint)}{meant}."


def _check_range(key: str, value: object, metadata: Mapping[str, Any]) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool) or not metadata:
        return
    low, high = metadata["low"], metadata.get("high")
    if not (low <= value and (high is None or value <= high)):
        span = f"from {low} to {high}" if high is not None else f"of at least {low}"
        raise ConfigError(f"{key} = {value} is out of range: use a number {span}.")
