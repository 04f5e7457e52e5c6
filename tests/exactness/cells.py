"""One cell of the suite: a method, a policy, a sampling and a target, judged by the oracle."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from outrider.assemble.drafter import LOOKUPS
from outrider.draft.base import Drafter
from outrider.draft.block.block_drafter import BlockDrafter
from outrider.draft.heads.one_token import HeadDrafter
from outrider.draft.token_choice import GreedyChooser
from outrider.engine.facade import Generation
from outrider.sampling.params import SamplingParams
from outrider.stage.base import Stage
from outrider.stage.link import LinkSettings
from outrider.stage.local import ChainStage
from outrider.state.spec import Policy
from outrider.telemetry.counters import Counters, merge
from tests.exactness.targets import SAMPLINGS, Target, engine, finished, prompts
from tests.helpers.blocks import LIKELY_BLOCKS
from tests.helpers.checkpoints import VOCAB
from tests.helpers.clock import VirtualClock
from tests.helpers.scripted import SCRIPTS, LateStage, ScriptedDrafter
from tests.oracle.decoder import Output

TOKENS = 48
MOST_ROUNDING = 1e-4
LINK = LinkSettings(delay_ms=50.0, jitter_ms=20.0, mbps=1.0)
"""In virtual time, so that nothing sleeps."""
HEADS = ("mtp", "eagle3")
BLOCKS = tuple(LIKELY_BLOCKS)
METHODS = ("off", *LOOKUPS, *SCRIPTS, *HEADS, *BLOCKS)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What is tested together. `late` puts a slow link before the stage; `sizes` are the layers
    of stages with links between them."""

    method: str
    policy: Policy = "log"
    sampling: str = "greedy"
    width: int = 8
    depth: int = 1
    runahead: int | None = None
    capacity: int | None = None
    late: bool = False
    sizes: tuple[int, ...] = ()
    alone: bool = False
    count: int = 6
    tokens: int = TOKENS


def run_cell(target: Target, cell: Cell, stage: Stage | None = None) -> Counters:
    """Assert that every output equals the oracle's; returns all counts together.

    All prompts run at once through one engine, unless the cell has them `alone`. `stage`, where
    given, is one that runs already.
    """
    outputs = target.oracle(cell.sampling, prompts(cell.count), cell.tokens)
    groups = [[output] for output in outputs] if cell.alone else [outputs]
    return merge([counters for group in groups for counters in _run(target, cell, group, stage)])


def _run(
    target: Target, cell: Cell, outputs: Sequence[Output], stage: Stage | None
) -> list[Counters]:
    truths = iter([output.all_tokens for output in outputs])
    made = engine(
        stage or make_stage(target, cell),
        drafter_for(target, cell.method, truths),
        width=cell.width,
        depth=cell.depth,
        runahead=cell.runahead,
    )
    settings = SamplingParams(**SAMPLINGS[cell.sampling], logprobs=0)
    requests = [
        made.generate(output.prompt, sampling=settings, max_tokens=cell.tokens)
        for output in outputs
    ]
    for request, output in zip(requests, outputs, strict=True):
        finished(request)
        assert request.result.token_ids == output.tokens, first_difference(request, output)
        # A state that is a little wrong may still give the same tokens: these show it.
        logprobs = np.array([entry.logprob for entry in request.result.logprobs])
        assert np.abs(logprobs - output.logprobs).max() < MOST_ROUNDING
    assert made.stage.num_sessions == 0
    return [request.counters for request in requests]


def make_stage(target: Target, cell: Cell) -> Stage:
    ahead = cell.runahead + 1 if cell.runahead else cell.width * cell.depth + 1
    if cell.sizes:
        parts = target.parts(cell.sizes, cell.policy, cell.capacity or ahead)
        return ChainStage(parts, LINK, clock=VirtualClock())
    stage = target.stage(cell.policy, cell.capacity or ahead)
    return LateStage(stage) if cell.late else stage


def drafter_for(
    target: Target, method: str, truths: Iterator[Sequence[int]]
) -> Callable[[], Drafter] | None:
    """Makes drafters; a scripted one knows the next of `truths`."""
    if method in HEADS:
        return lambda: HeadDrafter(target.heads[method], GreedyChooser(vocab_size=VOCAB))
    if method in BLOCKS:
        return lambda: BlockDrafter(target.blocks[method], GreedyChooser(vocab_size=VOCAB))
    if method in SCRIPTS:
        return lambda: ScriptedDrafter(next(truths), SCRIPTS[method], VOCAB)
    return LOOKUPS.get(method)


def first_difference(generation: Generation, output: Output) -> str:
    tokens = generation.result.token_ids
    pairs = enumerate(zip(tokens, output.tokens, strict=False))
    place = next((at for at, (mine, theirs) in pairs if mine != theirs), None)
    return f"differs at {place} of {len(tokens)}, oracle margin {output.margin:.2e}"


def check_cell(target: Target, cell: Cell, stage: Stage | None = None) -> None:
    """`run_cell`, and the counters show that the cell tested what it claims to."""
    counts = run_cell(target, cell, stage)
    if cell.method == "off":
        assert counts.proposed == 0
        assert not counts.rollbacks
        return
    assert counts.verified > 0
    _check_acceptance(cell, counts)
    if target.name == "hybrid" and cell.method != "right":
        kinds = {cell.policy} if cell.capacity is None else {cell.policy, "checkpoint"}
        assert counts.rollbacks.get(cell.policy, 0) > 0
        assert set(counts.rollbacks) <= kinds
    if target.name != "hybrid":
        assert not counts.rollbacks


def _check_acceptance(cell: Cell, counts: Counters) -> None:
    if cell.method == "right":
        assert counts.accepted == counts.verified
        assert counts.windows_voided == 0
    elif cell.method == "wrong":
        assert counts.accepted == 0
    else:
        assert 0 < counts.accepted < counts.verified
        two = (cell.runahead or cell.width) > 2  # fewer rows hold one draft, which is right or not
        assert any(_partly(counts)) or not two, "no window was partly accepted"


def _partly(counts: Counters) -> list[bool]:
    """By draft position: windows that kept all drafts before it and lost this one."""
    pairs = zip(counts.reached_at[1:], [*counts.accepted_at[1:], 0], strict=False)
    return [reached > accepted for reached, accepted in pairs]
