"""Where settings come from: defaults < TOML file < environment < flags. Torch-free.

The environment is read as `OUTRIDER_SECTION__KEY`, nested sections as
`OUTRIDER_SPECULATIVE__VERIFY_WINDOW__DEPTH`. Keys and sections that do not exist are errors, but
for the variables that Kubernetes and Docker set: a service named `outrider-server` puts
`OUTRIDER_SERVER_PORT=tcp://10.0.0.1:8000` and more into every container of its namespace.
"""

import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from itertools import groupby
from pathlib import Path
from typing import Any

from outrider.config import keys
from outrider.config.checks import check
from outrider.config.settings import RunConfig
from outrider.config.values import parse
from outrider.errors import ConfigError

_PORT = r"PORT_\d+_(TCP|UDP|SCTP)"
_URL = r"(tcp|udp|sctp)://(?P<address>\[[^\]]+\]|[^:\]]+):\d+"
_NUMBER = r"\d{1,5}"
_ADDRESS = r"(?P<address>[0-9A-Fa-f.:]+)"
_FORMS: tuple[tuple[str, str], ...] = (
    ("SERVICE_HOST", _ADDRESS),
    (r"SERVICE_PORT(_[A-Z0-9_]+)?", _NUMBER),
    ("PORT", _URL),
    (rf"{_PORT}(_START|_END)?", _URL),
    (f"{_PORT}_ADDR", _ADDRESS),
    (rf"{_PORT}_PORT(_START|_END)?", _NUMBER),
    (f"{_PORT}_PROTO", "tcp|udp|sctp"),
    ("NAME", r"/[^/]+/[^/]+"),
)
"""Ends of a name, after that of the service, and the whole value that belongs to each."""


def is_link(name: str, variables: Mapping[str, str]) -> bool:
    """True if a variable has a name and a value that Kubernetes or Docker give it.

    Docker's copies of the other container's variables, `ALIAS_ENV_...`, have any value: they
    count where `ALIAS_NAME` is a link.
    """
    alias, found, _ = name.partition("_ENV_")
    if found and _has_form(f"{alias}_NAME", variables.get(f"{alias}_NAME", "")):
        return True
    return _has_form(name, variables[name])


def _has_form(name: str, value: str) -> bool:
    return any(
        re.fullmatch(rf"[A-Z0-9_]*[A-Z0-9]_{end}", name)
        and (held := re.fullmatch(shape, value))
        and _is_address(held.groupdict().get("address"))
        for end, shape in _FORMS
    )


def _is_address(text: str | None) -> bool:
    """True if `text` is an IP address, bare or in brackets; None is not asked for."""
    if text is None:
        return True
    try:
        ip_address(text.strip("[]"))
    except ValueError:
        return False
    return True


PREFIX = "OUTRIDER_"

SERVER_FLAGS: Mapping[str, str] = {
    "--host": "server.host",
    "--port": "server.port",
    "--api-key": "server.api_key",
    "--model-name": "server.model_name",
    "--max-sequences": "server.max_sequences",
}
STAGES = "--stages"
"""Takes a number of stages, or a file that holds the keys of that section."""
FLAGS: Mapping[str, str] = {
    **SERVER_FLAGS,
    "--target": "target.path",
    "--backend": "target.backend",
    "--device": "target.device",
    "--dtype": "target.dtype",
    "--quantize": "target.quantize",
    "--max-length": "target.max_length",
    "--exact": "target.exact",
    "--threads": "target.threads",
    "--gpu-layers": "target.gpu_layers",
    "--method": "speculative.method",
    "--draft-model": "speculative.draft_model",
    "--draft-temperature": "speculative.draft_temperature",
    "--ngram-fallback": "speculative.ngram_fallback",
    "--min-probability": "speculative.min_probability",
    "--max-draft-tokens": "speculative.max_draft_tokens",
    "--window": "speculative.verify_window.max_tokens",
    "--depth": "speculative.verify_window.depth",
    "--runahead-tokens": "speculative.verify_window.runahead_tokens",
    "--rollback": "state.rollback",
    "--capacity": "state.capacity",
    STAGES: "stages.count",
    "--stage-layers": "stages.layers",
    "--stage-processes": "stages.processes",
    "--link-delay-ms": "stages.link.delay_ms",
    "--link-jitter-ms": "stages.link.jitter_ms",
    "--link-mbps": "stages.link.mbps",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A checked configuration and, for every dotted key, where its value came from."""

    config: RunConfig
    origins: Mapping[str, str]


def load(
    file: Path | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, object] | None = None,
) -> Loaded:
    """Compose a configuration from all its sources.

    `environment` None reads that of the process. `flags` maps flags (`--depth`) to values; None
    values were not given. Raises ConfigError for unknown keys, wrong values and contradictions.
    """
    values: dict[str, object] = {}
    origins = {key: "default" for key, _ in keys.flatten(RunConfig())}
    variables = os.environ if environment is None else environment
    for source in (_from_file(file), _from_environment(variables), _from_flags(flags or {})):
        for key, value, origin in source:
            _check_alone(key, value, origin)
            values[key], origins[key] = value, origin
    if "stages.layers" in values and "stages.count" not in values:
        values["stages.count"] = str(values["stages.layers"]).count(",") + 1
        origins["stages.count"] = origins["stages.layers"]
    return Loaded(config=check(keys.build(values)), origins=origins)


def _check_alone(key: str, value: object, origin: str) -> None:
    """Raise the record's own error for this one value, with the place it came from."""
    try:
        keys.build({key: value})
    except ConfigError as error:
        raise ConfigError(f"{origin}: {error}") from None


def _from_file(file: Path | None) -> Iterator[tuple[str, object, str]]:
    if file is None:
        return
    origin = f"file {file}"
    for key, value in keys.leaves(_read(file, f"--config {file}"), origin):
        yield key, value, origin


def _read(file: Path, named: str) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(f"{named} cannot be read ({reason}): name a TOML file.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{named} is not valid TOML ({error}): correct it.") from None


def _from_environment(variables: Mapping[str, str]) -> Iterator[tuple[str, object, str]]:
    sections = tuple(f"{PREFIX}{key.partition('.')[0].upper()}_" for key in keys.hints())
    for name in sorted(variables):
        meant = name.startswith(PREFIX) and ("__" in name or name.startswith(sections))
        if meant and not is_link(name, variables):
            key = name.removeprefix(PREFIX).lower().replace("__", ".")
            origin = f"environment variable {name}"
            keys.check_known(key, origin)
            yield key, parse(keys.hints()[key], variables[name]), origin


def _from_flags(flags: Mapping[str, object]) -> Iterator[tuple[str, object, str]]:
    for flag, value in flags.items():
        if flag == STAGES and isinstance(value, str) and not value.isdigit():
            origin = f"{STAGES} {value}"
            for key, leaf in keys.leaves({"stages": _read(Path(value), origin)}, origin):
                yield key, leaf, origin
        elif value is not None:
            key = FLAGS[flag]
            text = isinstance(value, str)
            yield key, parse(keys.hints()[key], str(value)) if text else value, f"flag {flag}"


SECRET = "api_key"


def lines(loaded: Loaded) -> Iterator[str]:
    """Lines of a TOML file; a key without a value appears as a comment."""
    items = list(keys.flatten(loaded.config))
    for section, group in groupby(items, key=lambda item: item[0].rpartition(".")[0]):
        yield f"[{section}]"
        for key, value in group:
            yield _line(key.rpartition(".")[2], value, loaded.origins[key])
        yield ""


def _line(name: str, value: object, origin: str) -> str:
    if name == SECRET and value is not None:
        return f"# {name} is set, and not shown".ljust(38) + f"# {origin}"
    if value is None:
        return f"# {name} is not set".ljust(38) + f"# {origin}"
    # JSON's strings, numbers and booleans are valid TOML.
    return f"{name} = {json.dumps(value)}".ljust(38) + f"# {origin}"
