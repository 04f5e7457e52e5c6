"""Whether a sequence's state fits in memory, asked once at load and not in the middle of a text."""

import os
from pathlib import Path

from outrider.errors import ConfigError
from outrider.state.spec import StateSpec

MARGIN_BYTES = 64 * 2**20
"""For the rows of a pass, beside the state."""


def check_fits(spec: StateSpec, max_length: int, available: int) -> None:
    """Raise ConfigError unless one state of `max_length` positions fits in `available` bytes."""
    needed = spec.bytes(max_length) + MARGIN_BYTES
    if needed > available:
        raise ConfigError(
            f"the state of one sequence does not fit: target.max_length = {max_length} and "
            f"state.capacity = {spec.capacity} under state.rollback = {spec.policy!r} need "
            f"{_mib(needed)} MiB and {_mib(available)} MiB are free; lower target.max_length, "
            "or state.capacity."
        )


def held_bytes(spec: StateSpec, length: int) -> int:
    """Bytes that a state of `length` positions may come to hold: its pages grow by doubling, and
    beside others it has a seat."""
    return spec.recurrent_bytes() + spec.seat_bytes() + 2 * spec.attention_bytes(length)


def free_bytes(meminfo: Path = Path("/proc/meminfo")) -> int | None:
    """Memory that can still be used without swapping; None where the system does not tell."""
    if meminfo.exists():
        for line in meminfo.read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    if "SC_AVPHYS_PAGES" in os.sysconf_names:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def _mib(size: int) -> str:
    return f"{size / 2**20:,.0f}"
