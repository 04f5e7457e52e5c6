"""Which rows a recurrent sequence of llama.cpp can take back. Pure.

A context made for `n_rs_seq` snapshots writes, in a pass of T rows, the states after the last
min(T, 1 + n_rs_seq) of them; older ones stay where they are, of other rows, and would be read
without a word. So at most T - 1 rows can be taken back, and not twice: a removal moves the end,
from which the library counts, while the snapshots stay.
"""

from dataclasses import dataclass


@dataclass(slots=True)
class Snapshots:
    """`rows` can be taken back now, of the `capacity` that a context is made for."""

    capacity: int
    rows: int = 0

    def reaches(self, lost: int, rows: int) -> bool:
        """True if, after a pass of `rows` rows, the last `lost` of them could be taken back."""
        return lost <= self._written(rows)

    def ran(self, rows: int) -> None:
        """A pass of `rows` rows was run."""
        self.rows = self._written(rows)

    def _written(self, rows: int) -> int:
        return min(rows - 1, self.capacity)

    def forget(self) -> None:
        """Rows were removed, or a state was brought back: until a pass, no more can be."""
        self.rows = 0
