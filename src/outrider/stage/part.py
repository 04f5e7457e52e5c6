"""A range of layers that runs windows: a whole model, or one stage of a chain.

Each `run` is one packed pass over the oldest window of every session that has one. The first range
starts from token ids, later ones from the hidden states of the one before; the last picks tokens.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from outrider.kernels.likeliest import likeliest
from outrider.kernels.pass_plan import Span
from outrider.models.base import Model
from outrider.records import Window
from outrider.sampling.params import SamplingParams
from outrider.stage.base import Picked, Picker, PickerFactory
from outrider.stage.frame import Frame, Void
from outrider.stage.slot import Row, Slot
from outrider.state.base import State
from outrider.state.rollback import Rollback
from outrider.state.spec import Policy

Live = list[tuple[Slot, Frame]]
COSTS = list(Rollback)
"""Ways back, cheapest first."""


@dataclass(frozen=True, slots=True)
class Returned:
    """Kind and time of settling a session before its window."""

    kind: Rollback | None
    ms: float


@dataclass(frozen=True, slots=True)
class Due:
    """A window that is ready to run as the `span` of a pass."""

    slot: Slot
    frame: Frame
    back: Returned
    span: Span


class Part:
    """Runs frames on a `Model`; states roll back under one policy and capacity.

    A failure that is one session's own ends as the `fault` of its frame, and of all later ones.
    """

    def __init__(
        self, decoder: Model, policy: Policy, capacity: int, picker: PickerFactory
    ) -> None:
        self._decoder = decoder
        self._policy = policy
        self._capacity = capacity
        self._picker = picker
        self._slots: dict[int, Slot] = {}

    @property
    def vocab_size(self) -> int:
        return self._decoder.vocab_size

    @property
    def max_length(self) -> int:
        return self._decoder.max_length

    @property
    def exact(self) -> bool:
        return self._decoder.exact

    @property
    def is_tail(self) -> bool:
        """True if the last layer is among its own."""
        return self._decoder.is_tail

    @property
    def num_sessions(self) -> int:
        return len(self._slots)

    @property
    def waiting(self) -> bool:
        """True if a frame is there to be run."""
        return any(slot.queue for slot in self._slots.values())

    def open(
        self, session: int, sampling: SamplingParams, prompt_len: int, taps: Sequence[int] = ()
    ) -> None:
        """As `Stage.open`; of the taps it hands over those that are its own."""
        state = self._decoder.new_state(self._policy, self._capacity)
        self._open(session, state, self._picker(sampling, prompt_len), taps)

    def _open(self, session: int, state: State, picker: Picker, taps: Sequence[int]) -> None:
        own = tuple(tap for tap in taps if tap in self._decoder.taps)
        self._slots[session] = Slot(state, picker, own)

    def has(self, session: int) -> bool:
        """True if a session is open."""
        return session in self._slots

    def close(self, session: int) -> None:
        slot = self._slots.pop(session, None)
        if slot is None:
            return
        slot.state.free()

    def clear(self) -> None:
        """Close all sessions."""
        self._slots.clear()

    def take(self, message: Frame | Void) -> None:
        """Queue a frame, or void at once; what belongs to a closed session is dropped.

        Raises StageError for a frame out of order.
        """
        slot = self._slots.get(
            message.session if isinstance(message, Void) else message.window.session
        )
        if slot is None:
            return
        if isinstance(message, Void):
            slot.void_epoch = message.epoch
        else:
            slot.add(message)

    def check(self, session: int | None = None) -> None:
        """As `Stage.check`, of all sessions or of one."""
        for number, slot in self._slots.items():
            if session in (None, number):
                slot.state.check()

    @torch.inference_mode()
    def run(self) -> list[Frame]:
        """Run what is oldest in each session; its frames for the next stage, or picked.

        Raises what a pass of several sessions failed with: nobody can tell whose failure it was,
        and the states of all of them are lost.
        """
        passed, live = list[Frame](), Live()
        for slot in self._slots.values():
            if not slot.queue:
                continue
            frame = slot.queue.popleft()
            if slot.is_stale(frame):
                passed.append(replace(frame, hidden=None, skipped=True))
            elif fault := frame.fault or slot.fault:
                passed.append(_failed(slot, frame, fault))
            else:
                live.append((slot, frame))
        return passed + self._run(live)

    def _run(self, live: Live) -> list[Frame]:
        failed: list[Frame] = []
        settled = self._settle(live, failed)
        began = time.perf_counter()
        due = _due(settled, failed)
        if not due:
            return failed
        try:
            hidden, taps = self._pass(due)
        except Exception as error:
            if len(due) > 1:
                raise
            return [*failed, _failed(due[0].slot, due[0].frame, error)]
        picked = self._pick(due, hidden, failed) if self.is_tail else None
        elapsed = (time.perf_counter() - began) * 1e3
        return failed + _frames(due, None if picked else hidden, taps, picked, elapsed)

    def _settle(self, live: Live, failed: list[Frame]) -> list[tuple[Slot, Frame, Returned]]:
        """Bring every session to its window's start; `failed` takes those where that fails."""
        settled = []
        for slot, frame in live:
            try:
                settled.append((slot, frame, self._return(slot, frame.window)))
            except Exception as error:
                failed.append(_failed(slot, frame, error))
        return settled

    def _pass(self, due: list[Due]) -> tuple[Tensor, Tensor | None]:
        if all(one.frame.hidden is None for one in due):
            hidden = self._start([token for one in due for token in one.frame.window.tokens])
        else:
            parts = [one.frame.hidden for one in due if one.frame.hidden is not None]
            hidden = parts[0] if len(parts) == 1 else torch.cat(parts)
        taps = next((one.slot.taps for one in due if one.slot.taps), ())
        return self._decoder.run(hidden, [one.span for one in due], taps)

    def _start(self, rows: Sequence[Row]) -> Tensor:
        """Hidden states [n, hidden] that rows start from."""
        if isinstance(rows[0], Tensor):
            return torch.stack([row for row in rows if isinstance(row, Tensor)])
        return self._decoder.embed(torch.tensor(rows, device=self._decoder.device))

    def _pick(self, due: list[Due], hidden: Tensor, failed: list[Frame]) -> list[Picked | None]:
        """The tokens of each window; None, and a frame in `failed`, where picking fails."""
        logits, counts = self._logits(due, hidden), [one.frame.window.wanted for one in due]
        largest = self._likeliest(logits)  # None: who holds NaN says so
        picked, done = list[Picked | None](), 0
        for one, part in zip(due, logits.split(counts), strict=True):
            own = largest[done : done + len(part)] if largest is not None else None
            done += len(part)
            try:
                picked.append(one.slot.picker.pick(one.frame.window, part, own))
            except Exception as error:
                failed.append(_failed(one.slot, one.frame, error))
                picked.append(None)
        return picked

    def _logits(self, due: list[Due], hidden: Tensor) -> Tensor:
        """Logits [R, vocab] of the rows that are wanted, from the hidden states of all."""
        wanted, done = [], 0
        for window in (one.frame.window for one in due):
            done += len(window.tokens)
            wanted.append(hidden[done - window.wanted : done])
        rows = wanted[0] if len(wanted) == 1 else torch.cat(wanted)
        return self._decoder.logits(rows) if len(rows) else torch.empty(0, self.vocab_size)

    def _likeliest(self, logits: Tensor) -> list[int] | None:
        return likeliest(logits)

    def _return(self, slot: Slot, window: Window) -> Returned:
        """Bring a session's state to its window's start, running kept rows again if need be."""
        began = time.perf_counter()
        kind, again = slot.return_to(window.start)
        self._run_again(slot, again)
        if rows := slot.cover(window):
            self._run_again(slot, rows)
            kind = kind or Rollback.CHECKPOINT
        return Returned(kind, (time.perf_counter() - began) * 1e3 if kind else 0.0)

    def _run_again(self, slot: Slot, rows: Sequence[Row]) -> None:
        if rows:
            span = Span(slot.state, len(rows), revocable=False, wanted=0)
            self._decoder.run(self._start(rows), [span])


def _due(settled: Sequence[tuple[Slot, Frame, Returned]], failed: list[Frame]) -> list[Due]:
    """Windows made ready to run; `failed` takes those where that fails."""
    due = []
    for slot, frame, back in settled:
        window = frame.window
        try:
            revocable = slot.prepare(window, _rows(frame))
        except Exception as error:
            failed.append(_failed(slot, frame, error))
        else:
            span = Span(slot.state, len(window.tokens), revocable, window.wanted)
            due.append(Due(slot, frame, back, span))
    return due


def _failed(slot: Slot, frame: Frame, error: Exception) -> Frame:
    """The answer to a window that failed, after which its session runs nothing more here."""
    slot.fault = error
    return replace(frame, hidden=None, taps=None, fault=error)


def _frames(
    due: list[Due],
    hidden: Tensor | None,
    taps: Tensor | None,
    picked: list[Picked | None] | None,
    elapsed: float,
) -> list[Frame]:
    """Frames of the windows of a pass that took `elapsed` ms, but for those that failed in it:
    `hidden` states for the next stage, or `picked` tokens."""
    sizes = [one.span.rows for one in due]
    decoded = [one.span.rows for one in due if not one.frame.window.is_prompt]
    ahead = _split(hidden, sizes) if hidden is not None else None
    tapped = _split(taps, sizes) if taps is not None else None
    return [
        Frame(
            window=frame.window,
            hidden=ahead[index] if ahead else None,
            taps=_beside(frame.taps, tapped[index] if tapped and one.slot.taps else None),
            picked=picked[index] if picked else None,
            verify_ms=frame.verify_ms + elapsed,
            pass_rows=sum(decoded),
            pass_sessions=len(decoded),
            pass_prompts=sum(sizes) - sum(decoded),
            rollback_ms=frame.rollback_ms + one.back.ms,
            rollback=_costlier(frame.rollback, one.back.kind),
        )
        for index, one in enumerate(due)
        if (frame := one.frame) and one.slot.fault is None
    ]


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
