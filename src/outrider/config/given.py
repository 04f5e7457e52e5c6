"""Sections of the configuration as a caller in Python gives them. Torch-free."""

from collections.abc import Mapping
from os import PathLike, fspath
from typing import Any, get_type_hints

from outrider.config import keys
from outrider.config.settings import RunConfig
from outrider.errors import ConfigError

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
    values = {key: _plain(value) for key, value in keys.leaves(given, origin, f"{name}.")}
    return keys.build(values, record, f"{name}.")


def _plain(value: object) -> object:
    """A path as text, anything else as it is."""
    return fspath(value) if isinstance(value, PathLike) else value
