"""States in llama.cpp against a naive model of its memory, which hands out stale snapshots."""

import itertools
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.errors import StateError
from outrider.llamacpp.llama_context import Snapshots
from outrider.llamacpp.llama_state import LlamaState
from outrider.state.spec import Rollback

Tokens = tuple[int, ...]


@dataclass
class Memory:
    """One sequence as the library has it: planes behind the newest row, and where it stands.

    A pass of T rows writes the planes of its own rows. A removal only says which plane comes next,
    counted from the end as it is then, and never asks whether that plane was written.
    """

    planes: list[Tokens]
    end: int = 0
    pending: int = 0

    def ran(self, tokens: Tokens) -> None:
        base = self.planes[self.pending]
        states = [base + tokens[: count + 1] for count in range(len(tokens))][::-1]
        self.planes[: len(states)] = states[: len(self.planes)]
        self.end, self.pending = self.end + len(tokens), 0


@dataclass
class Library:
    """What `LlamaState` asks of a context, for recurrent layers with `snapshots` planes more."""

    snapshots: int
    recurrent: bool = True
    batch: int = 5
    memories: dict[int, Memory] = field(default_factory=dict)

    @property
    def weights(self) -> Any:
        return SimpleNamespace(is_recurrent=self.recurrent)

    def take(self) -> int:
        number = next(n for n in itertools.count() if n not in self.memories)
        self.memories[number] = Memory([()] * (1 + self.snapshots))
        return number

    def give_back(self, number: int) -> None:
        del self.memories[number]

    def end(self, number: int) -> int:
        return self.memories[number].end

    def clear(self, number: int) -> None:
        memory = self.memories[number]
        memory.planes[0], memory.end, memory.pending = (), 0, 0

    def cut(self, number: int, length: int) -> bool:
        memory = self.memories[number]
        lost = memory.end - length
        if lost and not self.recurrent:
            memory.planes[0] = memory.planes[0][:length]
        elif lost > self.snapshots:
            return False
        elif lost:
            memory.pending = lost
        memory.end = length
        return True

    def save(self, number: int, flags: int = 0) -> bytearray:
        memory = self.memories[number]
        return bytearray(memory.planes[memory.pending])

    def load(self, number: int, copy: bytearray, flags: int = 0) -> None:
        memory = self.memories[number]
        memory.planes[0], memory.end, memory.pending = tuple(copy), len(copy), 0

    def run(self, state: LlamaState, tokens: Tokens, *, revocable: bool) -> None:
        piece = state.begin(len(tokens), 1, revocable=revocable)
        for row in range(0, len(tokens), self.batch):
            self.memories[piece.sequence].ran(tokens[row : row + self.batch])
        state.advance(len(tokens), revocable=revocable)

    def holds(self, state: LlamaState) -> Tokens:
        """What the next pass of a state would go on from."""
        state.check()
        memory = self.memories[state._occupy()]
        return memory.planes[memory.pending]


@dataclass
class Script:
    """A library, the state under test, and all that it should have consumed."""

    library: Library
    state: LlamaState
    tokens: list[int] = field(default_factory=list)
    settled: int = 0
    replayed: int = 0

    def window(self, tokens: Tokens, keep: int) -> None:
        """Run a window and keep some rows, as a slot does: by the way that the state names."""
        state, start = self.state, len(self.tokens)
        state.raise_floor(start)
        way = state.rollback(len(tokens), 1)
        saved = state.checkpoint() if way is Rollback.CHECKPOINT else None
        self.library.run(state, tokens, revocable=saved is None)
        self.tokens += tokens[:keep]
        if keep == len(tokens):
            return
        if saved is None:
            state.settle(start + keep)
            self.settled += 1
        else:
            state.restore(saved)
            self.library.run(state, tokens[:keep], revocable=False)
            self.replayed += 1


def begin(snapshots: int, *, recurrent: bool = True) -> Script:
    library: Any = Library(snapshots, recurrent)
    return Script(library, LlamaState(library, snapshots))


rows = st.lists(st.integers(1, 250), min_size=1, max_size=9).map(tuple)
windows = st.lists(st.tuples(rows, st.integers(1, 9), st.booleans()), max_size=12)


@settings(max_examples=300, deadline=None)
@given(snapshots=st.integers(0, 4), recurrent=st.booleans(), script=windows)
def test_a_state_holds_what_was_kept(snapshots, recurrent, script):
    run = begin(snapshots, recurrent=recurrent)
    for tokens, keep, copied in script:
        run.window(tokens, min(keep, len(tokens)))
        if copied:
            run.state = run.state.copy()
        assert run.library.holds(run.state) == tuple(run.tokens)
        assert run.state.length == len(run.tokens)


def test_every_short_script_is_right_and_both_ways_back_are_used():
    """All pairs of windows of up to 7 rows with all that can be kept, around batches of 5."""
    sizes = [(size, keep) for size in range(1, 8) for keep in range(1, size + 1)]
    settled = replayed = 0
    for first, second in itertools.product(sizes, sizes):
        run = begin(3)
        for base, (size, keep) in ((1, first), (101, second)):
            run.window(tuple(range(base, base + size)), keep)
            assert run.library.holds(run.state) == tuple(run.tokens), (first, second)
        settled, replayed = settled + run.settled, replayed + run.replayed
    assert settled > 100
    assert replayed > 100


def test_a_second_removal_before_a_pass_is_refused():
    run = begin(4)
    run.library.run(run.state, (1, 2, 3, 4, 5), revocable=True)
    run.state.settle(4)
    with pytest.raises(StateError, match="restorable from 4"):
        run.state.settle(3)
    assert run.library.holds(run.state) == (1, 2, 3, 4)


def test_steps_of_one_row_leave_no_snapshot():
    run = begin(4)
    for token in (1, 2, 3):
        run.library.run(run.state, (token,), revocable=True)
        run.state.raise_floor(run.state.length)
    assert run.state.rollback(2, 0) is Rollback.CHECKPOINT
    assert run.state.restorable == 3


def test_a_snapshot_that_was_never_written_would_show(monkeypatch):
    """The planted fault: believing what the library says of its capacity."""
    monkeypatch.setattr(Snapshots, "ran", lambda self, rows: setattr(self, "rows", self.capacity))
    run = begin(3)
    run.library.run(run.state, (1, 2, 3, 4), revocable=True)
    run.library.run(run.state, (5,), revocable=False)
    run.state.floor = 0
    run.state.settle(3)
    assert run.library.holds(run.state) != (1, 2, 3)
