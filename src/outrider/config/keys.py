"""The dotted keys (`speculative.verify_window.depth`) of the configuration records, and sections of
them as a caller in Python gives them. Torch-free.
"""

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from os import PathLike, fspath
from typing import Any, get_type_hints

from outrider.config.settings import RunConfig
from outrider.errors import ConfigError


def hints(record: Any = RunConfig, prefix: str = "") -> dict[str, Any]:
    """Type hint of every dotted key, in the order of the records."""
    found: dict[str, Any] = {}
    for name, hint in get_type_hints(record).items():
        if is_dataclass(hint):
            found |= hints(hint, f"{prefix}{name}.")
        else:
            found[prefix + name] = hint
    return found


def sections() -> set[str]:
    """Dotted names of all sections."""
    return {key[: key.rindex(".")] for key in hints()}


def flatten(record: Any, prefix: str = "") -> Iterator[tuple[str, object]]:
    """Every dotted key of a record with its value."""
    for item in fields(record):
        value = getattr(record, item.name)
        if is_dataclass(value):
            yield from flatten(value, f"{prefix}{item.name}.")
        else:
            yield prefix + item.name, value


def leaves(
    table: Mapping[str, object], origin: str, prefix: str = ""
) -> Iterator[tuple[str, object]]:
    """Every dotted key of nested mappings, or of records in them, with its value.

    Raises ConfigError, with `origin` in front, for keys that do not exist, and for a section that
    is neither.
    """
    for name, value in table.items():
        key = f"{prefix}{name}"
        if key not in sections():
            check_known(key, origin)
            yield key, value
        elif isinstance(value, Mapping):
            yield from leaves(value, origin, key + ".")
        elif is_dataclass(value):
            nested = {item.name: getattr(value, item.name) for item in fields(value)}
            yield from leaves(nested, origin, key + ".")
        else:
            raise ConfigError(
                f"{origin}: {key} = {value!r} is a section: give its keys, under [{key}] in a file."
            )


def build(values: Mapping[str, object], record: Any = RunConfig, prefix: str = "") -> Any:
    """Make a record from dotted keys; keys that are absent keep their defaults.

    Raises ConfigError, from the records, for values out of type or range.
    """
    arguments: dict[str, object] = {}
    for name, hint in get_type_hints(record).items():
        if is_dataclass(hint):
            arguments[name] = build(values, hint, f"{prefix}{name}.")
        elif prefix + name in values:
            arguments[name] = values[prefix + name]
    return record(**arguments)


def check_known(key: str, origin: str) -> None:
    """Raise ConfigError, naming the nearest known key, unless `key` is one."""
    known = hints()
    if key in known:
        return
    near = nearest(key)
    meant = f"did you mean {near}?" if near else f"use one of {', '.join(known)}."
    raise ConfigError(f"{origin}: {key} is not a configuration key: {meant}")


def nearest(key: str) -> str | None:
    """The key or section most like `key`, by its last part or its whole; None if none is near."""
    known = [*hints(), *sections()]
    last = {name.rpartition(".")[2]: name for name in known}
    part = get_close_matches(key.rpartition(".")[2], list(last), n=1, cutoff=0.8)
    whole = get_close_matches(key, known, n=1, cutoff=0.75)
    return last[part[0]] if part else (whole[0] if whole else None)


SHORT: Mapping[str, str] = {"target": "path", "speculative": "method"}
"""Sections that one text says enough of, and the key that it is."""


def section(name: str, given: object) -> Any:
    """Return the record of section `name`.

    `given` is the record itself, a mapping of its keys (sections within it likewise), the text of
    its one key in `SHORT`, or None for the defaults. Raises ConfigError for anything else, for
    unknown keys and for wrong values.
    """
    record = get_type_hints(RunConfig)[name]
    if isinstance(given, record):
        return given
    if given is None:
        return record()
    if name in SHORT and isinstance(given, str | PathLike):
        given = {SHORT[name]: given}
    if not isinstance(given, Mapping):
        raise ConfigError(
            f"{name} = {given!r} is no {record.__name__}: give one, or a mapping of its keys"
            f"{f', or its {SHORT[name]}' if name in SHORT else ''}."
        )
    origin = f"{name} of Engine.load"
    values = {key: _plain(value) for key, value in leaves(given, origin, f"{name}.")}
    return build(values, record, f"{name}.")


def _plain(value: object) -> object:
    """A path as text, anything else as it is."""
    return fspath(value) if isinstance(value, PathLike) else value
