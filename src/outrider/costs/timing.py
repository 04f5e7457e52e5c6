"""Costs of passes of target and draft model here and now, measured in under a second at start."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch

from outrider.costs.batch_model import Costs
from outrider.costs.curve import MeasuredCurve
from outrider.draft.base import Drafter
from outrider.draft.block.block_drafter import BlockModel
from outrider.draft.block.block_trunk import BlockContext
from outrider.draft.heads.one_token import Head
from outrider.draft.token_choice import GreedyChooser
from outrider.kernels.pass_plan import Span
from outrider.models.decoder import Decoder
from outrider.records import Commit, Context, Window
from outrider.sampling.params import SamplingParams
from outrider.stage.base import Stage
from outrider.state.sequence import SequenceState

CONTEXT = 64
"""Tokens in front of the measured rows, where the context has room; longer ones are learned."""

ROUNDS = 5
"""Passes of each width at most, interleaved, so that a slow moment hits all widths."""

Clock = Callable[[], float]
"""Seconds that only grow; `time.perf_counter` or a scripted one."""
GREEDY = SamplingParams(temperature=0.0, seed=0)
Pass = Callable[[int], object]
"""Runs a number of rows, or as many as the context holds where that is fewer."""

Paid = Decoder | Head | BlockModel | Pass
"""A source that takes time to draft: a model, a one-token head, a block drafter, or drafting
itself."""

TIMED = -21
"""The session of a stage that is timed; an engine's own are counted from 0."""


def measure_costs(
    target: Decoder | Pass,
    draft: Paid | None,
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
    the last token of a round is caught up on in the next, and k - 1 passes of one; of a block
    drafter, it is one pass over features and one over a block.
    """
    share = seconds if draft is None else seconds / 2
    verify = per_rows(passes(target), widths_to(rows or drafts + 1), share, clock)
    paid: Sequence[float] = ()
    if isinstance(draft, BlockModel) and drafts:
        paid = _per_block(draft, drafts, share, clock)
    elif isinstance(draft, Decoder | Head) and drafts:
        single, double = per_rows(passes(draft), [1, 2], share, clock)
        paid = [double + single * more for more in range(drafts)]
    elif callable(draft) and drafts:
        draft(drafts)  # the first is no measure
        paid = _least(draft, sorted({1, drafts}), share, clock)
    return Costs(
        verify=verify,
        draft={source: paid if source == sources[-1] else () for source in sources},
        drafts=drafts,
    )


def widths_to(most: int) -> list[int]:
    """The rows of the passes that are timed: 1, 2, 4, ... and `most`."""
    return sorted({most, *(2**power for power in range(most.bit_length()))})


@torch.inference_mode()
def per_rows(run: Pass, widths: Sequence[int], seconds: float, clock: Clock) -> list[float]:
    """Milliseconds of a pass of 1, 2, ... widths[-1] rows, linear between those measured."""
    run(CONTEXT)
    run(widths[-1])  # Allocations and first calls are no measure.
    return _least(run, widths, seconds, clock)


@torch.inference_mode()
def _per_block(model: BlockModel, drafts: int, seconds: float, clock: Clock) -> list[float]:
    """Milliseconds of drafting 1, 2, ... `drafts` tokens after two new features; 0 where the
    drafter's length holds no block after them, as it never drafts then."""
    most, trunk = min(drafts, model.config.max_drafts), model.trunk
    context, chooser = BlockContext(trunk), GreedyChooser(vocab_size=model.vocab_size)
    known = min(CONTEXT, trunk.max_length - model.config.block_size - 2)
    if known < 0:
        return [0.0] * drafts
    features = torch.zeros(known + 2, trunk.read.in_features, dtype=trunk.dtype)
    features = features.to(trunk.cos_sin.device)
    trunk.consume(features, context)

    def run(count: int) -> None:
        context.length = known
        trunk.consume(features[:2], context)
        model.draft(context, 0, count, chooser)

    run(most)
    costs = _least(run, sorted({1, most}), seconds, clock)
    return costs + costs[-1:] * (drafts - most)


def _least(run: Pass, sizes: Sequence[int], seconds: float, clock: Clock) -> list[float]:
    """Milliseconds of `run` at 1, 2, ... sizes[-1], linear between the sizes that are measured."""
    times: dict[int, list[float]] = {size: [] for size in sizes}
    end = clock() + seconds
    for number in range(ROUNDS):
        if number and clock() >= end:
            break
        for size in sizes:
            begin = clock()
            run(size)
            times[size].append((clock() - begin) * 1e3)
    # The least, not the median: what else the machine does only ever adds, and an estimate that it
    # spoiled would keep the controller from ever drafting, and so from finding out.
    return MeasuredCurve({size: min(found) for size, found in times.items()}).rising()


def timed_window(start: int, rows: int, *, session: int = 0, final: bool = False) -> Window:
    """A window of a session that only times a stage, numbered by where it starts; every row is
    wanted, and `final` where none will be taken back."""
    return Window(
        session=session,
        id=start,
        epoch=0,
        start=start,
        floor=start + rows if final else start,
        tokens=(0,) * rows,
        wanted=rows,
    )


@contextmanager
def windows_of(stage: Stage, *, final: bool = False) -> Iterator[Pass]:
    """Passes of a stage: windows of a session of its own, each row with its token. The session
    begins anew where its context is full. `final`: no row will be taken back."""
    place = 0
    stage.open(TIMED, SamplingParams(), 1)

    def run(rows: int) -> None:
        nonlocal place
        rows = min(rows, stage.max_length)
        if place + rows > stage.max_length:
            stage.close(TIMED)
            stage.open(TIMED, SamplingParams(), 1)
            place = 0
        stage.submit(timed_window(place, rows, session=TIMED, final=final))
        stage.run_batch()
        place += rows

    try:
        yield run
    finally:
        stage.close(TIMED)


@contextmanager
def drafts_of(make: Callable[[], Drafter], max_length: int) -> Iterator[Pass]:
    """Rounds of a drafter: so many drafts, of which the first is kept and the next corrected. A
    new one begins where its context of `max_length` tokens is full."""
    known = min(CONTEXT, max(max_length // 2, 1))
    drafter, tokens = make(), [0] * known

    def run(drafts: int) -> None:
        nonlocal drafter
        drafts = min(drafts, max_length - known)
        if len(tokens) + drafts > max_length:
            drafter.close()
            drafter = make()
            del tokens[known:]
        if len(tokens) == known:
            drafter.observe(Commit(position=0, tokens=tuple(tokens)))
        draft = drafter.propose(Context(tokens), drafts)
        kept = (*(draft.tokens[:1] if draft else ()), 0)
        drafter.observe(Commit(position=len(tokens), tokens=kept, accepted=len(kept) - 1))
        tokens.extend(kept)

    try:
        yield run
    finally:
        drafter.close()


def passes(
    model: Decoder | Head | Pass, whole: Decoder | None = None, *, head: bool = True
) -> Pass:
    """Passes of `model`; of a decoder whose layers are some of those of `whole`, on its state, and
    without logits where `head` is False."""
    if not isinstance(model, Decoder | Head):
        return model
    if isinstance(model, Head):
        return partial(_run, model, model.new_state())
    return partial(_run, model, (whole or model).new_state("log", 0), head=head)


def _run(model: Decoder | Head, state: SequenceState, rows: int, *, head: bool = True) -> None:
    layers = model.layers if isinstance(model, Head) else model
    rows = min(rows, layers.max_length)
    if state.length + rows > layers.max_length:
        state.reset()
    tokens = torch.zeros(rows, dtype=torch.int64, device=layers.device)
    if isinstance(model, Head):
        features = torch.zeros_like(layers.embed(tokens))
        logits, _ = model.predict(model.run(features, tokens, state)[-1:])
    else:
        hidden, _ = model.run(model.embed(tokens), [Span(state, rows, revocable=False)])
        if not head:
            return
        logits = model.logits(hidden)
    logits.argmax(-1).tolist()  # Reading waits for an accelerator, too.
