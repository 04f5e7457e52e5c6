"""A draft model with the state of one sequence, kept in step with a session's contexts."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.draft.base import Kept
from outrider.draft.model.sync import DraftSync, Reset, Restorable, Trim, between
from outrider.draft.model.vocab import Rows
from outrider.models.base import Model
from outrider.models.pass_plan import Span
from outrider.records import Commit, Context
from outrider.state.rollback import Rollback
from outrider.state.sequence import Checkpoint
from outrider.state.spec import Policy

PASS_ROWS = 256
"""Rows of a catch-up pass at most; passes end on this absolute grid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftStateSettings:
    """How the draft's state takes rows back; `capacity` should cover suffix and draft length.

    What exceeds it is still right, by a checkpoint and a pass over the kept rows.
    """

    policy: Policy = "log"
    capacity: int = 64


class DraftRunner:
    """Runs a draft model over a context and then token by token, taking back what was rejected.

    Committed tokens are consumed for good. What comes after them can be taken back by settling,
    or, where the capacity is too small for it, from a checkpoint at the last committed token.
    """

    def __init__(
        self, decoder: Model, settings: DraftStateSettings, rows: Rows | None = None
    ) -> None:
        """`rows` say which ids the model knows; by default as many as it has logits."""
        self._decoder = decoder
        self._rows = rows or Rows(decoder.vocab_size)
        self._state = decoder.new_state(settings.policy, settings.capacity)
        self._sync = DraftSync()
        self._saved: Checkpoint | None = None
        self._newest: Tensor | None = None
        self._revocable = True
        self._rollback_ms = 0.0

    @property
    def max_length(self) -> int:
        """Number of tokens that the model can consume."""
        return self._decoder.max_length

    def follow(self, context: Context, steps: int) -> Tensor:
        """Consume `context` and nothing else; return the logits [1, rows] of its last token.

        Up to `steps` calls of `step` may follow. All but the last token are what the plan of
        `DraftSync` catches up on; the last one runs in the same pass.
        """
        self._recover()
        end = len(context) + steps
        if self._newest is None or not self._sync.holds(context):
            known = min(self._sync.length, len(context) - 1)
            self._go_back(context)
            start, began = self._sync.length, time.perf_counter()
            self._consume(context, end)
            if start < known:  # rows that had run before, and were taken back with rejected ones
                share = (known - start) / (len(context) - start)
                self._rollback_ms += share * (time.perf_counter() - began) * 1e3
        else:
            self._secure(context, end)
        assert self._newest is not None
        return self._newest

    def spent_on_rollback(self) -> float:
        """Milliseconds since the last call that went into taking rows back: checkpoints, settling,
        and rows that ran again."""
        spent, self._rollback_ms = self._rollback_ms, 0.0
        return spent

    def step(self, token: int) -> Tensor:
        """Consume one drafted token; return its logits [1, rows]."""
        return self._logits(self._run([token], self._revocable))

    def observe(self, commit: Commit) -> None:
        """Advance the floor over consumed tokens that became final."""
        self._sync.observe(commit)
        self._raise_floor()

    def keep(self) -> Kept | None:
        """The committed tokens that were consumed and a copy of their state."""
        self._recover()
        # What stands below the floor was committed, too, whether its commit was observed or not.
        length = self._restorable().at_or_below(max(self._sync.final, self._state.floor))
        if not length:
            return None
        self._trim(length)
        state = self._state.copy()
        return Kept((self._sync.consumed, state), state.nbytes())

    def resume(self, kept: Kept) -> None:
        """Stand where another runner of the same model stood."""
        assert isinstance(kept.value, tuple)
        tokens, state = kept.value
        self._state = state.copy()
        self._sync.record(tokens)

    def _go_back(self, context: Context) -> None:
        """Take back consumed tokens that are not the context's."""
        plan = self._sync.plan(context, self._restorable())
        if isinstance(plan, Reset):
            self._reset()
        elif isinstance(plan, Trim):
            self._trim(plan.length)
        self._raise_floor()

    def _consume(self, context: Context, end: int) -> None:
        """Consume the rest of the context; rows up to `end` will be wanted back."""
        start, stop = self._sync.length, len(context)
        final = min(len(context.committed), stop)
        if start < final < stop and self._can_settle(end):
            final = start  # One pass for committed and optimistic rows: all can be taken back.
        hidden = self._run_between(context, start, final, revocable=False)
        self._secure(context, end)
        start = max(start, final)
        rest = self._run_between(context, start, stop, revocable=self._revocable)
        newest = hidden if rest is None else rest
        assert newest is not None, "the last token of the context was still to be consumed"
        self._logits(newest)

    def _secure(self, context: Context, end: int) -> None:
        """Make sure of a way back from `end` to the rows consumed now, all of the context."""
        self._revocable = self._can_settle(end)
        if self._revocable:
            return
        if self._saved is None or self._state.length <= len(context.committed):
            began = time.perf_counter()
            self._saved = self._state.checkpoint()
            self._rollback_ms += (time.perf_counter() - began) * 1e3

    def _can_settle(self, end: int) -> bool:
        """True if the state can give up rows from the floor to `end` without a checkpoint."""
        rows = end - self._state.floor
        return rows <= 0 or self._state.rollback(rows) is not Rollback.CHECKPOINT

    def _run_between(
        self, context: Context, start: int, stop: int, *, revocable: bool
    ) -> Tensor | None:
        """Run context tokens `start` .. `stop - 1`; return the last row, hidden [1, width]."""
        hidden = None
        while start < stop:
            end = min(stop, start - start % PASS_ROWS + PASS_ROWS)
            hidden = self._run(between(context, start, end), revocable)
            start = end
        return hidden

    def _run(self, tokens: Sequence[int], revocable: bool) -> Tensor:
        """One pass over tokens of the target; return the last row, hidden [1, width]."""
        self._newest = None
        ids = torch.tensor(self._rows.of(tokens), device=self._decoder.device)
        span = Span(self._state, len(tokens), revocable=revocable, wanted=1)
        hidden, _ = self._decoder.run(self._decoder.embed(ids), [span])
        self._sync.record(tokens)
        return hidden[-1:]

    def _logits(self, hidden: Tensor) -> Tensor:
        # A copy: the next pass of a model may write over what it gave, for whomever it runs.
        self._newest = self._decoder.logits(hidden).clone()
        return self._newest

    def _restorable(self) -> Restorable:
        saved = self._saved.length if self._saved else None
        return Restorable(lowest=max(self._state.restorable, self._state.floor), saved=saved)

    def _recover(self) -> None:
        """Drop the rows of a pass that failed on the way, or all rows if it cannot be undone."""
        if self._state.length == self._sync.length:
            return
        self._newest = None
        if self._sync.length >= self._restorable().lowest:
            self._state.settle(self._sync.length)
        else:
            self._reset()

    def _reset(self) -> None:
        self._sync.record_reset()
        self._newest = self._saved = None
        self._state.reset()

    def _trim(self, length: int) -> None:
        """Settle at `length`, or restore the checkpoint that stands there."""
        self._newest, began = None, time.perf_counter()
        if length >= self._restorable().lowest:
            self._state.settle(length)
        else:
            assert self._saved is not None
            self._state.restore(self._saved)
        self._rollback_ms += (time.perf_counter() - began) * 1e3
        self._sync.record_trim(length)
        if self._saved and self._saved.length > length:
            self._saved = None

    def _raise_floor(self) -> None:
        if self._state.length == self._sync.length:
            self._state.raise_floor(self._sync.final)
