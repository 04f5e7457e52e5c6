"""Limits of drafting: rows of windows in flight, and who chooses the number of drafts."""

from collections.abc import Callable
from dataclasses import replace

from outrider.assemble.decisions import is_serial, who_drafts, window_rows
from outrider.config.settings import RunConfig, SpeculativeConfig
from outrider.costs.batch_model import BatchCostModel, Costs
from outrider.costs.timing import Paid, Pass, measure_costs
from outrider.draft.block.block_drafter import BlockModel
from outrider.engine.controller import Controller
from outrider.engine.draft_budget import Budget, FixedBudget, LinkBudget
from outrider.engine.facade import WindowLimits
from outrider.models.decoder import Decoder

MOST_ROWS = 128
"""Rows of the widest pass that is measured for several sequences side by side."""
ROUNDS_LENGTH = 16
"""Measuring passes of up to n rows needs a sequence of fewer than this times n."""


class LentController(Controller):
    """A controller that goes back to its pool when its session ends."""

    def __init__(self, costs: Costs, pool: list["LentController"], company: BatchCostModel) -> None:
        super().__init__(costs, company=company)
        self._pool = pool

    def close(self) -> None:
        """Let the next session go on with what was learned."""
        self.leave_round()
        self._company.leave(id(self))
        self._pool.append(self)


def window_limits(speculative: SpeculativeConfig) -> WindowLimits:
    """Rows per window, windows in flight, run-ahead; what was left open is filled in."""
    window = speculative.verify_window
    return WindowLimits(
        width=window_rows(speculative), depth=window.depth, runahead=window.runahead_tokens
    )


def fit(windows: WindowLimits, speculative: SpeculativeConfig, draft: object) -> WindowLimits:
    """Windows no wider than what drafts can fill, where the width was left open."""
    opened = speculative.verify_window.max_tokens is None and is_serial(speculative)
    if not isinstance(draft, BlockModel) or not opened:
        return windows
    return replace(windows, width=min(windows.width, draft.config.max_drafts + 1))


def budget_factory(
    config: RunConfig,
    target: Decoder | Pass,
    draft: Paid | None,
    windows: WindowLimits,
    max_length: int,
    sequences: int = 1,
) -> Callable[[], Budget]:
    """Return what makes a session's budget.

    With several windows in flight the drafts are as many as the windows hold; with one at a time,
    and no number asked for, a controller chooses. Sessions that follow each other share one, up to
    `sequences` that run side by side have their own and are a `BatchCostModel`.
    """
    speculative, stages, drafts = config.speculative, config.stages, who_drafts(config)
    if drafts == "link":
        return lambda: LinkBudget(
            windows.width,
            windows.depth,
            stages=stages.count,
            parallel=stages.is_apart,
            round_trip_ms=stages.link.delay_ms * (2 if stages.count == 1 else stages.count),
        )
    if drafts != "controller":
        wanted = speculative.max_draft_tokens
        tokens = windows.width if wanted == "auto" else wanted
        return lambda: FixedBudget(tokens)
    sources = speculative.method.split("+")
    fits = max_length // ROUNDS_LENGTH
    width = min(windows.width, max_length)
    rows = max(width, min(width * sequences, MOST_ROWS, fits))
    costs = measure_costs(target, draft, sources, drafts=width - 1, rows=rows)
    company = BatchCostModel(costs)
    pool: list[LentController] = []

    def lend() -> Budget:
        company.join()
        return pool.pop() if pool else LentController(costs, pool, company)

    return lend
