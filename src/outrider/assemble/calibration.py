"""What passes of target and draft model cost here and now, measured in under a second at start."""

import time
from collections.abc import Callable, Sequence
from functools import partial

import torch

from outrider.engine.controller import Costs
from outrider.models.decoder import Decoder
from outrider.models.head import Head
from outrider.models.pass_plan import Span
from outrider.state.sequence import SequenceState

CONTEXT = 64
"""Tokens in front of the measured rows; longer contexts are learned as they come."""

ROUNDS = 5
"""Passes of each width at most, interleaved, so that a slow moment hits all widths."""

Clock = Callable[[], float]
Pass = Callable[[int], object]
"""Runs a number of rows."""


def measure_costs(
    target: Decoder,
    draft: Decoder | Head | None,
    sources: Sequence[str],
    *,
    drafts: int,
    rows: int | None = None,
    seconds: float = 0.8,
    clock: Clock = time.perf_counter,
) -> Costs:
    """Time passes of 1 to `drafts` + 1 rows (or `rows`); `sources` in the order of asking.

    Milliseconds. Stops after about `seconds`, each width measured once at least. With a `draft` the
    last source is paid for, all others are free. Drafting k tokens is one pass of two rows, since
    the last token of a round is caught up on in the next, and k - 1 passes of one.
    """
    share = seconds if draft is None else seconds / 2
    verify = per_rows(passes(target), _widths(rows or drafts + 1), share, clock)
    paid: Sequence[float] = ()
    if draft is not None and drafts:
        single, double = per_rows(passes(draft), [1, 2], share, clock)
        paid = [double + single * more for more in range(drafts)]
    return Costs(
        verify=verify,
        draft={source: paid if source == sources[-1] else () for source in sources},
        drafts=drafts,
    )


def _widths(most: int) -> list[int]:
    """1, 2, 4, ... and `most`."""
    return sorted({most, *(2**power for power in range(most.bit_length()))})


@torch.inference_mode()
def per_rows(run: Pass, widths: Sequence[int], seconds: float, clock: Clock) -> list[float]:
    """Milliseconds of a pass of 1, 2, ... widths[-1] rows, linear between those measured."""
    run(CONTEXT)
    run(widths[-1])  # Allocations and first calls are no measure.
    times: dict[int, list[float]] = {rows: [] for rows in widths}
    end = clock() + seconds
    for number in range(ROUNDS):
        if number and clock() >= end:
            break
        for rows in widths:
            begin = clock()
            run(rows)
            times[rows].append((clock() - begin) * 1e3)
    # The least, not the median: what else the machine does only ever adds, and an estimate that it
    # spoiled would keep the controller from ever drafting, and so from finding out.
    return _filled({rows: min(found) for rows, found in times.items()})


def passes(model: Decoder | Head, whole: Decoder | None = None) -> Pass:
    """Passes of `model`; of a decoder whose layers are some of those of `whole`, on its state."""
    if isinstance(model, Head):
        return partial(_run, model, model.new_state())
    return partial(_run, model, (whole or model).new_state("log", 0))


def _run(model: Decoder | Head, state: SequenceState, rows: int) -> None:
    layers = model.layers if isinstance(model, Head) else model
    tokens = torch.zeros(rows, dtype=torch.int64, device=layers.device)
    if isinstance(model, Head):
        features = torch.zeros_like(layers.embed(tokens))
        logits, _ = model.conclude(model.run(features, tokens, state)[-1:])
    else:
        hidden, _ = model.run(model.embed(tokens), [Span(state, rows, revocable=False)])
        logits = model.logits(hidden)
    logits.argmax(-1).tolist()  # Reading waits for an accelerator, too.


def _filled(points: dict[int, float]) -> list[float]:
    """Values at 1, 2, ..., linear between the points; more rows never cost less."""
    filled: list[float] = []
    known = sorted(points.items())
    for (low, first), (high, last) in zip(known, [*known[1:], known[-1]], strict=True):
        first = max([first, *filled[-1:]])
        rise = max(last - first, 0.0) / max(high - low, 1)
        filled += [first + rise * step for step in range(max(high - low, 1))]
    return filled
