"""A stage as the engine sees it: something that runs windows and answers them in order.

The whole model in one process is the one-stage case. A stage owns its part of every sequence's
state, settles it to each window's `start` and forgets what lies below `floor`; the last stage of
a chain picks the tokens.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from torch import Tensor

from outrider.records import Reply, TokenLogprob, Window
from outrider.sampling.params import SamplingParams


class Picked(Protocol):
    """The target's token after each wanted row, with log-probabilities where asked for."""

    @property
    def tokens(self) -> tuple[int, ...]: ...
    @property
    def logprobs(self) -> tuple[TokenLogprob, ...]: ...


class Picker(Protocol):
    """Turns one session's logits into tokens; keeps its randomness, history and counts."""

    def pick(self, window: Window, logits: Tensor, largest: Sequence[int] | None = None) -> Picked:
        """The tokens after the wanted rows, from their logits [wanted, vocab], fp32.

        `largest`, if known: the lowest id among the largest logits of each row, none of them NaN.
        """


PickerFactory = Callable[[SamplingParams, int], Picker]
"""Makes the picker of a session from its sampling settings and the length of its prompt."""


class Stage(Protocol):
    """Runs windows of many sessions; replies to the windows of one session keep their order."""

    @property
    def vocab_size(self) -> int:
        """Rows of the target's head."""

    @property
    def max_length(self) -> int:
        """Positions that a sequence can have."""

    @property
    def exact(self) -> bool:
        """True if a verify row has bit for bit the logits of plain decoding."""

    def open(
        self, session: int, sampling: SamplingParams, prompt_len: int, taps: Sequence[int] = ()
    ) -> None:
        """Begin a session; `sampling` has its seed. `taps` are handed over for all rows."""

    def submit(self, window: Window) -> None:
        """Queue a window; returns at once."""

    def void(self, session: int, epoch: int) -> None:
        """Windows of `session` up to `epoch` need not run; each is still answered, as skipped."""

    @property
    def replied(self) -> bool:
        """True if a reply that was under way has come, so that issuing more should wait."""

    def poll(self) -> list[Reply]:
        """Run what is due and return what came of it, one reply of a session at most; blocks until
        there is one, if any is owed.

        A failure that belongs to one session is a reply with a `fault`. Raises only where it cannot
        be told whose failure it was: the states of all sessions with windows in flight are lost
        then, and they must be closed.
        """

    def close(self, session: int) -> None:
        """End a session and free its state; its windows in flight are not answered any more.

        Harmless for a session that is not open. A stage that turns out to be lost here says so at
        the next `poll`.
        """

    def check(self) -> None:
        """Raise if a session's state contradicts its bookkeeping (tests, idle checks)."""

    @property
    def num_sessions(self) -> int:
        """Sessions open now."""

    def shutdown(self) -> None:
        """End what the stage started, its processes for one; harmless if done twice."""


@runtime_checkable
class KeepingStage(Stage, Protocol):
    """A stage that can begin a session where another one stood."""

    def copy_nbytes(self, session: int) -> int:
        """Bytes that a copy of a session's state would have."""

    def keep(self, session: int, key: int) -> int:
        """Copy the state of a session that has nothing in flight under `key`; returns its bytes."""

    def open_kept(
        self,
        session: int,
        sampling: SamplingParams,
        prompt: Sequence[int],
        key: int,
        taps: Sequence[int] = (),
    ) -> None:
        """As `open`, from a copy of what is kept under `key`: a state with a part of `prompt`."""

    def forget(self, key: int) -> None:
        """Free what was kept under `key`."""
