"""Environment variables that Kubernetes and Docker set for a service or a link. Torch-free.

A service named `outrider-server` puts `OUTRIDER_SERVER_PORT=tcp://10.0.0.1:8000` and more into
every container of its namespace: no setting, and nobody's mistake.
"""

import re
from collections.abc import Mapping
from ipaddress import ip_address

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
