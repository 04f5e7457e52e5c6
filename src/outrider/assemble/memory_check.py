"""Check that a sequence's state fits in memory, once at load and not in the middle of a text."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocated:
    """States that llama.cpp makes room for at the start: `spec.capacity` snapshots of each of
    `sequences`, and keys and values of `length` positions of each. `name` is whose they are."""

    name: str
    spec: StateSpec
    length: int
    sequences: int

    @property
    def bytes(self) -> int:
        """As the library allocates it: no log, and as many convolution columns as states."""
        delta, states = self.spec.delta, 1 + self.spec.row_capacity
        one = delta.base_bytes() + (delta.taps - 1) * delta.column_bytes() if delta else 0
        return self.sequences * (states * one + self.spec.attention_bytes(self.length))

    def __str__(self) -> str:
        sizes = f"{self.length} positions, {self.spec.row_capacity} snapshots"
        return f"{_mib(self.bytes)} MiB of {self.name} ({self.sequences} sequences of {sizes})"


def check_allocations_fit(allocations: Sequence[Allocated], available: int) -> None:
    """Raise ConfigError unless all of them fit in `available` bytes together."""
    needed = sum(one.bytes for one in allocations) + MARGIN_BYTES
    if needed > available:
        raise ConfigError(
            f"the states do not fit: {' and '.join(map(str, allocations))} need {_mib(needed)} "
            f"MiB, and {_mib(available)} MiB are free; lower target.max_length, state.capacity or "
            "server.max_sequences."
        )


def held_bytes(spec: StateSpec, length: int) -> int:
    """Bytes that a state of `length` positions may come to hold: its pages grow by doubling."""
    return spec.recurrent_bytes() + 2 * spec.attention_bytes(length)


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
