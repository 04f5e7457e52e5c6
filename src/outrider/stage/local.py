"""The whole model in this process, as a one-stage chain.

Each `poll` runs one packed pass over the oldest window of every session that has one.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.core_types import Reply, Window
from outrider.models.decoder import Decoder
from outrider.models.pass_plan import Span
from outrider.sampling.params import SamplingParams
from outrider.stage.base import Picked, PickerFactory
from outrider.stage.slot import Slot
from outrider.state.rollback import Rollback
from outrider.state.spec import Policy


@dataclass(frozen=True, slots=True)
class Returned:
    """What settling a session before its window took."""

    kind: Rollback | None
    ms: float


class LocalStage:
    """Runs windows on a `Decoder`; states roll back under one policy and capacity."""

    def __init__(
        self, decoder: Decoder, policy: Policy, capacity: int, picker: PickerFactory
    ) -> None:
        self._decoder = decoder
        self._policy = policy
        self._capacity = capacity
        self._picker = picker
        self._slots: dict[int, Slot] = {}

    @property
    def vocab_size(self) -> int:
        return self._decoder.config.vocab_size

    @property
    def max_length(self) -> int:
        return self._decoder.max_length

    @property
    def exact(self) -> bool:
        return self._decoder.exact

    @property
    def num_sessions(self) -> int:
        return len(self._slots)

    def open(
        self, session: int, sampling: SamplingParams, prompt_len: int, taps: Sequence[int] = ()
    ) -> None:
        state = self._decoder.new_state(self._policy, self._capacity)
        self._slots[session] = Slot(state, self._picker(sampling, prompt_len), tuple(taps))

    def close(self, session: int) -> None:
        self._slots.pop(session, None)

    def submit(self, window: Window) -> None:
        self._slots[window.session].queue.append(window)

    def void(self, session: int, epoch: int) -> None:
        self._slots[session].void_epoch = epoch

    def check(self) -> None:
        for slot in self._slots.values():
            slot.state.check()

    @torch.inference_mode()
    def poll(self) -> list[Reply]:
        due = [(slot, slot.queue.popleft()) for slot in self._slots.values() if slot.queue]
        stale = [window for slot, window in due if slot.is_stale(window)]
        live = [(slot, window) for slot, window in due if not slot.is_stale(window)]
        replies = [Reply(session=w.session, id=w.id, skipped=True) for w in stale]
        return replies + (self._run(live) if live else [])

    def _run(self, live: list[tuple[Slot, Window]]) -> list[Reply]:
        returned = [self._return(slot, window) for slot, window in live]
        began = time.perf_counter()
        spans = [
            Span(slot.state, len(window.tokens), slot.prepare(window)) for slot, window in live
        ]
        hidden, taps = self._pass(live, spans)
        picked = self._pick(live, hidden)
        elapsed = (time.perf_counter() - began) * 1e3
        parts = taps.split([span.rows for span in spans]) if taps is not None else None
        return [
            Reply(
                session=window.session,
                id=window.id,
                tokens=tokens.tokens,
                logprobs=tokens.logprobs,
                taps=parts[index] if parts and slot.taps else None,
                verify_ms=elapsed,
                rollback_ms=back.ms,
                rollback=back.kind,
            )
            for index, ((slot, window), tokens, back) in enumerate(
                zip(live, picked, returned, strict=True)
            )
        ]

    def _pass(
        self, live: list[tuple[Slot, Window]], spans: list[Span]
    ) -> tuple[Tensor, Tensor | None]:
        tokens = [token for _, window in live for token in window.tokens]
        rows = torch.tensor(tokens, device=self._decoder.device)
        taps = next((slot.taps for slot, _ in live if slot.taps), ())
        return self._decoder.run(self._decoder.embed(rows), spans, taps)

    def _pick(self, live: list[tuple[Slot, Window]], hidden: Tensor) -> list[Picked]:
        wanted, done = [], 0
        for _, window in live:
            done += len(window.tokens)
            wanted.append(hidden[done - window.wanted : done])
        counts = [window.wanted for _, window in live]
        if sum(counts):
            logits = self._decoder.logits(wanted[0] if len(wanted) == 1 else torch.cat(wanted))
        else:
            logits = hidden.new_zeros(0, self.vocab_size)
        parts = logits.split(counts)
        pairs = zip(live, parts, strict=True)
        return [slot.picker.pick(window, part) for (slot, window), part in pairs]

    def _return(self, slot: Slot, window: Window) -> Returned:
        """Bring a session's state to its window's start, running kept rows again if need be."""
        began = time.perf_counter()
        kind, again = slot.return_to(window.start)
        self._run_again(slot, again)
        if rows := slot.cover(window):
            self._run_again(slot, rows)
            kind = kind or Rollback.CHECKPOINT
        return Returned(kind, (time.perf_counter() - began) * 1e3 if kind else 0.0)

    def _run_again(self, slot: Slot, tokens: Sequence[int]) -> None:
        if tokens:
            rows = torch.tensor(tokens, device=self._decoder.device)
            span = Span(slot.state, len(tokens), revocable=False)
            self._decoder.run(self._decoder.embed(rows), [span])
