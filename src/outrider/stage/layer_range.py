"""A range of layers that runs windows: a whole model, or one stage of a chain.

Each `run` is one packed pass over the oldest window of every session that has one. The first range
starts from token ids, later ones from the hidden states of the one before; the last picks tokens.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from outrider.errors import StageError
from outrider.kernels.argmax import argmax_rows
from outrider.kernels.pass_plan import Span
from outrider.models.base import Model
from outrider.records import SamplerOutput, Window
from outrider.sampling.params import SamplingParams
from outrider.stage.base import Frame, Void
from outrider.state.base import State
from outrider.state.sequence import Checkpoint
from outrider.state.spec import Policy, Rollback
from outrider.verify.sampler import Sampler, make_sampler

SamplerFactory = Callable[[SamplingParams, int], Sampler]
"""Makes the sampler of a session from its settings and the length of its prompt."""
Row = int | Tensor
"""Input of a row on a stage: a token id, or the hidden state [hidden] of the stage before."""


@dataclass(slots=True)
class Replay:
    """Checkpoints of windows that cannot be taken back otherwise, oldest first, and the rows
    from position `first` on: all that a settle could keep of what is in flight."""

    first: int = 0
    checkpoints: list[Checkpoint] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)

    def reaches(self, length: int) -> bool:
        """True if a checkpoint lies at or below `length`."""
        return bool(self.checkpoints) and self.checkpoints[0].length <= length

    def drop_below(self, floor: int) -> None:
        """Forget what no settle can need: all checkpoints but the newest at or below `floor`.

        This is the floor of the session, below which no window starts. The state's own may be
        higher: it also counts rows whose way back is a checkpoint.
        """
        while len(self.checkpoints) > 1 and self.checkpoints[1].length <= floor:
            self.checkpoints.pop(0)
        first = min(floor, self.checkpoints[0].length) if self.checkpoints else floor
        del self.rows[: max(first - self.first, 0)]
        self.first = max(first, self.first)

    def cut(self, length: int) -> None:
        """Forget what lies after `length`; a state that stands there needs no checkpoint of it."""
        while self.checkpoints and self.checkpoints[-1].length >= length:
            self.checkpoints.pop()
        del self.rows[max(length - self.first, 0) :]

    def restart(self, length: int) -> None:
        """Forget everything: what lies below `length` is final."""
        self.checkpoints.clear()
        self.rows.clear()
        self.first = length


@dataclass(slots=True)
class StageSession:
    """A session's state with everything that its windows need; `void_epoch` and below are stale,
    `newest` is the window that came last. After a `fault` nothing runs here any more."""

    state: State
    sampler: Sampler
    taps: tuple[int, ...]
    queue: deque[Frame] = field(default_factory=deque)
    void_epoch: int = -1
    newest: int = -1
    replay: Replay = field(default_factory=Replay)
    fault: Exception | None = None

    def add(self, frame: Frame) -> None:
        """Queue a frame; StageError for a window that came after a later one.

        Windows of the prompt share one number below 0.
        """
        number = frame.window.id
        if 0 <= number <= self.newest:
            raise StageError(
                f"the stage before it sent window {number} of session {frame.window.session} "
                f"behind window {self.newest}, out of order."
            )
        self.newest = number
        self.queue.append(frame)

    def is_stale(self, frame: Frame) -> bool:
        return frame.reply.skipped or frame.window.epoch <= self.void_epoch

    def judge_oldest(self) -> None:
        """Take the oldest window's predecessors as judged: it is stale, or all of them stay and so
        does its first row, as if it began an epoch."""
        window = self.queue[0].window if self.queue else None
        if window and not window.opens_epoch and not self.is_stale(self.queue[0]):
            judged = replace(window, floor=window.start, opens_epoch=True)
            self.queue[0] = replace(self.queue[0], window=judged)

    def roll_back(self, start: int) -> tuple[Rollback | None, Sequence[Row]]:
        """Settle the state at `start`, or as close below as it can be brought without a pass.

        Returns how rows were taken back (None: nothing was) and the rows to run again.
        """
        state = self.state
        if state.length < start:
            raise StageError(f"a window starts at {start}, but only {state.length} tokens came.")
        if state.length == start:
            return None, ()
        if start >= max(state.restorable, state.floor):
            kind = state.rollback(state.length - state.floor)
            state.settle(start)
            self.replay.cut(start)
            return kind, ()
        return Rollback.CHECKPOINT, self.restore_to(start)

    def restore_to(self, start: int) -> Sequence[Row]:
        """Bring the newest checkpoint at or below `start` back; returns the rows up to there."""
        replay = self.replay
        usable = [saved for saved in replay.checkpoints if saved.length <= start]
        if not usable:
            raise StageError(f"no checkpoint reaches back to {start}.")
        self.state.restore(usable[-1])
        replay.checkpoints = usable
        del replay.rows[start - replay.first :]
        return replay.rows[usable[-1].length - replay.first :]

    def cover(self, window: Window) -> Sequence[Row]:
        """Give rows in flight a checkpoint if this window would put them out of the state's reach.

        The state then stands at that checkpoint; returns the rows to run again.
        """
        state, replay = self.state, self.replay
        state.raise_floor(min(window.floor, state.length))
        replay.drop_below(window.floor)
        if not self._needs_checkpoint(window):
            return ()
        # What could not be taken back by now will not have to be: it began an epoch.
        low = max(window.floor, state.floor, state.restorable)
        if state.length <= low or replay.reaches(low):
            return ()
        state.settle(low)
        replay.checkpoints.append(state.checkpoint())
        return replay.rows[low - replay.first :]

    def _needs_checkpoint(self, window: Window) -> bool:
        end = window.end
        if end <= window.floor:
            return False
        # An epoch begins with the pending token, which is not a draft.
        way = self.state.rollback(end - self.state.floor, int(window.opens_epoch))
        return way is Rollback.CHECKPOINT

    def prepare(self, window: Window, rows: Sequence[Row] | Tensor) -> bool:
        """Take a checkpoint if this window needs one; returns whether its rows count as revocable
        by the state itself. `cover` went before."""
        state, replay = self.state, self.replay
        if window.end <= window.floor:
            replay.restart(window.end)  # final rows: no settle goes back after them
            return False
        revocable = not self._needs_checkpoint(window)
        if not revocable:
            replay.checkpoints.append(state.checkpoint())
        if not replay.rows:
            replay.first = window.start
        replay.rows.extend(rows)
        return revocable


Live = list[tuple[StageSession, Frame]]
COSTS = list(Rollback)
"""Ways back, cheapest first."""


@dataclass(frozen=True, slots=True)
class Settled:
    """Kind and time of settling a session before its window."""

    kind: Rollback | None
    ms: float


@dataclass(frozen=True, slots=True)
class Due:
    """A window that is ready to run as the `span` of a pass."""

    held: StageSession
    frame: Frame
    back: Settled
    span: Span


class LayerRange:
    """Runs frames on a `Model`; states roll back under one policy and capacity.

    A failure that is one session's own ends as the `fault` of its frame, and of all later ones.
    """

    def __init__(
        self,
        decoder: Model,
        policy: Policy,
        capacity: int,
        sampler: SamplerFactory = make_sampler,
    ) -> None:
        self.decoder = decoder
        self._policy = policy
        self._capacity = capacity
        self.make_sampler = sampler
        self.vocab_size = decoder.vocab_size
        self.max_length = decoder.max_length
        self.exact = decoder.exact
        self.held: dict[int, StageSession] = {}

    @property
    def is_tail(self) -> bool:
        """True if the last layer is among its own."""
        return self.decoder.is_tail

    @property
    def num_sessions(self) -> int:
        return len(self.held)

    @property
    def waiting(self) -> bool:
        """True if a frame is there to be run."""
        return any(held.queue for held in self.held.values())

    def open(
        self, session: int, sampling: SamplingParams, prompt_len: int, taps: Sequence[int] = ()
    ) -> None:
        """As `Stage.open`; of the taps it hands over those that are its own."""
        state = self.decoder.new_state(self._policy, self._capacity)
        self._open(session, state, self.make_sampler(sampling, prompt_len), taps)

    def _open(self, session: int, state: State, sampler: Sampler, taps: Sequence[int]) -> None:
        own = tuple(tap for tap in taps if tap in self.decoder.taps)
        self.held[session] = StageSession(state, sampler, own)

    def has(self, session: int) -> bool:
        """True if a session is open."""
        return session in self.held

    def close(self, session: int) -> None:
        held = self.held.pop(session, None)
        if held is None:
            return
        held.state.free()

    def clear(self) -> None:
        """Close all sessions."""
        self.held.clear()

    def take(self, message: Frame | Void) -> None:
        """Queue a frame, or void at once; what belongs to a closed session is dropped.

        Raises StageError for a frame out of order.
        """
        held = self.held.get(
            message.session if isinstance(message, Void) else message.window.session
        )
        if held is None:
            return
        if isinstance(message, Void):
            held.void_epoch = message.epoch
        else:
            held.add(message)

    def check(self, session: int | None = None) -> None:
        """As `Stage.check`, of all sessions or of one."""
        for number, held in self.held.items():
            if session in (None, number):
                held.state.check()

    @torch.inference_mode()
    def run(self) -> list[Frame]:
        """Run what is oldest in each session; its frames for the next stage, or picked.

        Raises what a pass of several sessions failed with: nobody can tell whose failure it was,
        and the states of all of them are lost.
        """
        passed, live = list[Frame](), Live()
        for held in self.held.values():
            if not held.queue:
                continue
            frame = held.queue.popleft()
            if held.is_stale(frame):
                passed.append(frame.ended(skipped=True))
            elif fault := frame.reply.fault or held.fault:
                passed.append(_failed(held, frame, fault))
            else:
                live.append((held, frame))
        return passed + self._run(live)

    def _run(self, live: Live) -> list[Frame]:
        failed: list[Frame] = []
        settled = self._settle_all(live, failed)
        began = time.perf_counter()
        due = _due(settled, failed)
        if not due:
            return failed
        try:
            hidden, taps = self.run_pass(due)
        except Exception as error:
            if len(due) > 1:
                raise
            return [*failed, _failed(due[0].held, due[0].frame, error)]
        picked = self._pick(due, hidden, failed) if self.is_tail else None
        elapsed = (time.perf_counter() - began) * 1e3
        return failed + _frames(due, None if picked else hidden, taps, picked, elapsed)

    def _settle_all(
        self, live: Live, failed: list[Frame]
    ) -> list[tuple[StageSession, Frame, Settled]]:
        """Bring every session to its window's start; `failed` takes those where that fails."""
        settled = []
        for held, frame in live:
            try:
                settled.append((held, frame, self.settle(held, frame.window)))
            except Exception as error:
                failed.append(_failed(held, frame, error))
        return settled

    def run_pass(self, due: list[Due]) -> tuple[Tensor, Tensor | None]:
        if all(one.frame.hidden is None for one in due):
            hidden = self._start([token for one in due for token in one.frame.window.tokens])
        else:
            parts = [one.frame.hidden for one in due if one.frame.hidden is not None]
            hidden = parts[0] if len(parts) == 1 else torch.cat(parts)
        taps = next((one.held.taps for one in due if one.held.taps), ())
        return self.decoder.run(hidden, [one.span for one in due], taps)

    def _start(self, rows: Sequence[Row]) -> Tensor:
        """Hidden states [n, hidden] that rows start from."""
        if isinstance(rows[0], Tensor):
            return torch.stack([row for row in rows if isinstance(row, Tensor)])
        return self.decoder.embed(torch.tensor(rows, device=self.decoder.device))

    def _pick(
        self, due: list[Due], hidden: Tensor, failed: list[Frame]
    ) -> list[SamplerOutput | None]:
        """The tokens of each window; None, and a frame in `failed`, where picking fails."""
        logits, counts = self._logits(due, hidden), [one.frame.window.wanted for one in due]
        largest = self._likeliest(logits)  # None: who holds NaN says so
        picked, done = list[SamplerOutput | None](), 0
        for one, part in zip(due, logits.split(counts), strict=True):
            own = largest[done : done + len(part)] if largest is not None else None
            done += len(part)
            try:
                picked.append(one.held.sampler.pick(one.frame.window, part, own))
            except Exception as error:
                failed.append(_failed(one.held, one.frame, error))
                picked.append(None)
        return picked

    def _logits(self, due: list[Due], hidden: Tensor) -> Tensor:
        """Logits [R, vocab] of the rows that are wanted, from the hidden states of all."""
        wanted, done = [], 0
        for window in (one.frame.window for one in due):
            done += len(window.tokens)
            wanted.append(hidden[done - window.wanted : done])
        rows = wanted[0] if len(wanted) == 1 else torch.cat(wanted)
        return self.decoder.logits(rows) if len(rows) else torch.empty(0, self.vocab_size)

    def _likeliest(self, logits: Tensor) -> list[int] | None:
        return argmax_rows(logits)

    def settle(self, held: StageSession, window: Window) -> Settled:
        """Bring a session's state to its window's start, running kept rows again if need be."""
        began = time.perf_counter()
        kind, again = held.roll_back(window.start)
        self._run_again(held, again)
        if rows := held.cover(window):
            self._run_again(held, rows)
            kind = kind or Rollback.CHECKPOINT
        return Settled(kind, (time.perf_counter() - began) * 1e3 if kind else 0.0)

    def _run_again(self, held: StageSession, rows: Sequence[Row]) -> None:
        if rows:
            span = Span(held.state, len(rows), revocable=False, wanted=0)
            self.decoder.run(self._start(rows), [span])


def _due(settled: Sequence[tuple[StageSession, Frame, Settled]], failed: list[Frame]) -> list[Due]:
    """Windows made ready to run; `failed` takes those where that fails."""
    due = []
    for held, frame, back in settled:
        window = frame.window
        try:
            revocable = held.prepare(window, _rows(frame))
        except Exception as error:
            failed.append(_failed(held, frame, error))
        else:
            span = Span(held.state, len(window.tokens), revocable, window.wanted)
            due.append(Due(held, frame, back, span))
    return due


def _failed(held: StageSession, frame: Frame, error: Exception) -> Frame:
    """The answer to a window that failed, after which its session runs nothing more here."""
    held.fault = error
    return frame.ended(taps=None, fault=error)


def _frames(
    due: list[Due],
    hidden: Tensor | None,
    taps: Tensor | None,
    picked: list[SamplerOutput | None] | None,
    elapsed: float,
) -> list[Frame]:
    """Frames of the windows of a pass that took `elapsed` ms, but for those that failed in it:
    `hidden` states for the next stage, or `picked` tokens."""
    sizes = [one.span.rows for one in due]
    decoded = [one.span.rows for one in due if not one.frame.window.is_prompt]
    ahead = _split(hidden, sizes) if hidden is not None else None
    tapped = _split(taps, sizes) if taps is not None else None
    frames = []
    for index, one in enumerate(due):
        if one.held.fault is not None:
            continue
        reply, output = one.frame.reply, picked[index] if picked else None
        answer = replace(
            reply,
            tokens=output.tokens if output else (),
            logprobs=output.logprobs if output else (),
            taps=_beside(one.frame.taps, tapped[index] if tapped and one.held.taps else None),
            verify_ms=reply.verify_ms + elapsed,
            pass_rows=sum(decoded),
            pass_sessions=len(decoded),
            pass_prompts=sum(sizes) - sum(decoded),
            rollback_ms=reply.rollback_ms + one.back.ms,
            rollback=_costlier(reply.rollback, one.back.kind),
        )
        hidden_rows = ahead[index] if ahead else None
        frames.append(Frame(window=one.frame.window, reply=answer, hidden=hidden_rows))
    return frames


def _rows(frame: Frame) -> Sequence[int] | Tensor:
    """Inputs of the rows of a frame, in case they must run again."""
    return frame.window.tokens if frame.hidden is None else frame.hidden


def _split(rows: Tensor, sizes: list[int]) -> Sequence[Tensor]:
    return (rows,) if len(sizes) == 1 else rows.split(sizes)


def _beside(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    if one is None or other is None:
        return other if one is None else one
    return torch.cat([one, other], -1)


def _costlier(one: str | None, other: Rollback | None) -> str | None:
    if one is None or other is None:
        return other if one is None else one
    return max(Rollback(one), other, key=COSTS.index)
