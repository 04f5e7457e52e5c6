"""A range of layers that runs windows: a whole model, or one stage of a chain.

Each `run` is one packed pass over the oldest window of every session that has one. The first range
starts from token ids, later ones from the hidden states of the one before; the last picks tokens.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from outrider.core_types import Window
from outrider.models.base import Model
from outrider.models.group import LEAST, in_one_chunk
from outrider.models.pass_plan import Span
from outrider.ops.likeliest import likeliest
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
    """What settling a session before its window took."""

    kind: Rollback | None
    ms: float


class Part:
    """Runs frames on a `Model`; states roll back under one policy and capacity."""

    def __init__(
        self, decoder: Model, policy: Policy, capacity: int, picker: PickerFactory
    ) -> None:
        self._decoder = decoder
        self._policy = policy
        self._capacity = capacity
        self._picker = picker
        self._slots: dict[int, Slot] = {}
        self._seats = decoder.new_seats(policy, capacity)

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
        """Whether the last layer is among its own."""
        return self._decoder.is_tail

    @property
    def num_sessions(self) -> int:
        return len(self._slots)

    @property
    def waiting(self) -> bool:
        """Whether a frame is there to be run."""
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
        """Whether a session is open."""
        return session in self._slots

    def close(self, session: int) -> None:
        slot = self._slots.pop(session, None)
        if slot and self._seats and slot.state.delta:
            self._seats.free(slot.state.delta)

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

    def check(self) -> None:
        """As `Stage.check`."""
        for slot in self._slots.values():
            slot.state.check()

    @torch.inference_mode()
    def run(self) -> list[Frame]:
        """Run what is oldest in each session; its frames for the next stage, or picked."""
        passed, live = list[Frame](), Live()
        for slot in self._slots.values():
            if not slot.queue:
                continue
            frame = slot.queue.popleft()
            if slot.is_stale(frame):
                passed.append(replace(frame, hidden=None, skipped=True))
            else:
                live.append((slot, frame))
        return passed + (self._run(live) if live else [])

    def _run(self, live: Live) -> list[Frame]:
        live = self._side_by_side(live)
        returned = [self._return(slot, frame.window) for slot, frame in live]
        began = time.perf_counter()
        spans = [
            Span(
                slot.state,
                len(frame.window.tokens),
                slot.prepare(frame.window, _rows(frame)),
                frame.window.wanted,
            )
            for slot, frame in live
        ]
        hidden, taps = self._pass(live, spans)
        picked = self._pick(live, hidden) if self.is_tail else None
        elapsed = (time.perf_counter() - began) * 1e3
        sizes = [span.rows for span in spans]
        decoded = [len(f.window.tokens) for _, f in live if not f.window.is_prompt]
        ahead = _split(hidden, sizes) if picked is None else None
        tapped = _split(taps, sizes) if taps is not None else None
        return [
            Frame(
                window=frame.window,
                hidden=ahead[index] if ahead else None,
                taps=_beside(frame.taps, tapped[index] if tapped and slot.taps else None),
                picked=picked[index] if picked else None,
                verify_ms=frame.verify_ms + elapsed,
                pass_rows=sum(decoded),
                pass_sessions=len(decoded),
                pass_prompts=sum(sizes) - sum(decoded),
                rollback_ms=frame.rollback_ms + back.ms,
                rollback=_costlier(frame.rollback, back.kind),
            )
            for index, ((slot, frame), back) in enumerate(zip(live, returned, strict=True))
        ]

    def _side_by_side(self, live: Live) -> Live:
        """Give seats to windows that can share operations, and put these first: narrow ones
        before wide ones, of which too many would be padded, and then as they sit."""
        if len(live) < LEAST:
            return live
        chunk = self._seats.spec.chunk if self._seats else 0
        stores = [slot.state.delta for slot, frame in live if _in_one_chunk(frame.window, chunk)]
        together = [store for store in stores if store]
        if self._seats and len(together) >= LEAST:
            self._seats.take(together)
        return sorted(live, key=lambda one: _order(one[0], one[1].window, chunk))

    def _pass(self, live: Live, spans: list[Span]) -> tuple[Tensor, Tensor | None]:
        if all(frame.hidden is None for _, frame in live):
            hidden = self._start([token for _, frame in live for token in frame.window.tokens])
        else:
            parts = [frame.hidden for _, frame in live if frame.hidden is not None]
            hidden = parts[0] if len(parts) == 1 else torch.cat(parts)
        taps = next((slot.taps for slot, _ in live if slot.taps), ())
        return self._decoder.run(hidden, spans, taps, self._seats)

    def _start(self, rows: Sequence[Row]) -> Tensor:
        """Hidden states [n, hidden] that rows start from."""
        if isinstance(rows[0], Tensor):
            return torch.stack([row for row in rows if isinstance(row, Tensor)])
        return self._decoder.embed(torch.tensor(rows, device=self._decoder.device))

    def _pick(self, live: Live, hidden: Tensor) -> list[Picked]:
        logits, counts = self._logits(live, hidden), [frame.window.wanted for _, frame in live]
        largest = self._likeliest(logits)  # None: who holds NaN says so
        if len(live) == 1:
            slot, frame = live[0]
            return [slot.picker.pick(frame.window, logits, largest)]
        picked, done = [], 0
        for (slot, frame), part in zip(live, logits.split(counts), strict=True):
            own = largest[done : done + len(part)] if largest is not None else None
            picked.append(slot.picker.pick(frame.window, part, own))
            done += len(part)
        return picked

    def _logits(self, live: Live, hidden: Tensor) -> Tensor:
        """Logits [R, vocab] of the rows that are wanted, from the hidden states of all."""
        wanted, done = [], 0
        for _, frame in live:
            done += len(frame.window.tokens)
            wanted.append(hidden[done - frame.window.wanted : done])
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


def _rows(frame: Frame) -> Sequence[int] | Tensor:
    """What the rows of a frame start from, in case they must run again."""
    return frame.window.tokens if frame.hidden is None else frame.hidden


def _split(rows: Tensor, sizes: list[int]) -> Sequence[Tensor]:
    return (rows,) if len(sizes) == 1 else rows.split(sizes)


def _in_one_chunk(window: Window, chunk: int) -> bool:
    return in_one_chunk(window.start, len(window.tokens), chunk)


def _order(slot: Slot, window: Window, chunk: int) -> tuple[bool, int, int]:
    """Sorts the windows of a pass; see `Part._side_by_side`."""
    seat = slot.state.delta.seat if slot.state.delta else None
    alone = seat is None or not _in_one_chunk(window, chunk)
    return alone, len(window.tokens), seat.number if seat else 0


def _beside(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    if one is None or other is None:
        return other if one is None else one
    return torch.cat([one, other], -1)


def _costlier(one: str | None, other: Rollback | None) -> str | None:
    if one is None or other is None:
        return other if one is None else one
    return max(Rollback(one), other, key=COSTS.index)
