"""From a configuration to a running engine."""

from dataclasses import replace

import torch

from outrider.assemble.auto import pick
from outrider.assemble.budget import budget_factory
from outrider.assemble.drafter import (
    Drafting,
    drafter_factory,
    drafting_specs,
    load_drafting,
    paid_for,
)
from outrider.assemble.memory import check_fits, free_bytes
from outrider.assemble.stages import make_stage
from outrider.assemble.target import LoadedTarget, load_target
from outrider.config.checks import check
from outrider.config.run import (
    RunConfig,
    SpeculativeConfig,
    StagesConfig,
    StateConfig,
    TargetConfig,
)
from outrider.draft.block.model import BlockModel
from outrider.engine.engine import Engine as EngineFacade
from outrider.engine.engine import Speculation, WindowLimits
from outrider.models.generation import sampling_defaults
from outrider.models.tokenizer import Tokenizer
from outrider.ops.selftest import Kernels
from outrider.state.spec import StateSpec

SERIAL_ROWS = 16
"""Rows of a window that the controller may use up when windows run one at a time."""
PIPELINED_ROWS = 8


class Engine(EngineFacade):
    """An engine with its parts chosen by configuration."""

    tokenizer: Tokenizer
    kernels: Kernels
    picked: str | None
    """What `auto` chose, and why, in a sentence; None where a method was named."""
    specs: tuple[StateSpec, ...]
    """What a sequence holds: the target's state and, where it has one, its drafter's."""

    @classmethod
    def load(
        cls,
        target: str | TargetConfig = "demo",
        *,
        speculative: SpeculativeConfig | None = None,
        state: StateConfig | None = None,
        stages: StagesConfig | None = None,
    ) -> "Engine":
        """Load a target by name, folder or `ID@REVISION`, with its drafter."""
        return cls.load_run(
            RunConfig(
                target=TargetConfig(path=target) if isinstance(target, str) else target,
                speculative=speculative or SpeculativeConfig(),
                state=state or StateConfig(),
                stages=stages or StagesConfig(),
            )
        )

    @classmethod
    def load_run(cls, config: RunConfig, sequences: int = 1) -> "Engine":
        """Load everything that a whole configuration names, for `sequences` side by side."""
        check(config)
        target = load_target(config.target, config.stages)
        picked = None
        if config.speculative.method == "auto":
            picked = pick(config, target)
            config, draft = picked.config, picked.draft
        else:
            draft = load_drafting(config.speculative, target)
        windows = fit(window_limits(config.speculative), config.speculative, draft)
        speculation = _speculation(config, target, windows, draft, sequences)
        capacity = _capacity(config, windows)
        spec = target.state_spec(config.state.rollback, capacity)
        _check_memory(target, spec)
        defaults = sampling_defaults(target.folder)
        stage = make_stage(config, target, capacity)
        engine = cls(stage, target.tokenizer, speculation, defaults)
        engine.kernels = target.kernels
        engine.picked = picked.reason if picked else None
        engine.specs = (spec, *drafting_specs(config, windows, draft))
        return engine

    def describe(self) -> dict[str, object]:
        """What was chosen at load: exactness and the kernels by shape."""
        return {"exact": self.stage.exact, "kernels": self.kernels.report()}


def _speculation(
    config: RunConfig,
    target: LoadedTarget,
    windows: WindowLimits,
    draft: Drafting | None,
    sequences: int,
) -> Speculation:
    speculative = config.speculative
    return Speculation(
        method=speculative.method,
        drafter=drafter_factory(config, target, windows, draft),
        budget=budget_factory(config, target, paid_for(draft), windows, sequences),
        windows=windows,
        fallback="draft" if speculative.ngram_fallback == "draft" else None,
    )


def window_limits(speculative: SpeculativeConfig) -> WindowLimits:
    """Rows per window, windows in flight, run-ahead; what "auto" leaves open is filled in."""
    window, drafts = speculative.verify_window, speculative.max_draft_tokens
    serial = window.depth == 1 and window.runahead_tokens is None
    width = window.max_tokens
    if width is None and serial:
        width = SERIAL_ROWS if drafts == "auto" else drafts + 1
    return WindowLimits(
        width=PIPELINED_ROWS if width is None else width,
        depth=window.depth,
        runahead=window.runahead_tokens,
    )


def fit(
    windows: WindowLimits, speculative: SpeculativeConfig, draft: Drafting | None
) -> WindowLimits:
    """Windows no wider than what drafts can fill, where the width was left open."""
    opened = speculative.verify_window.max_tokens is None and windows.serial
    if not isinstance(draft, BlockModel) or not opened:
        return windows
    return replace(windows, width=min(windows.width, draft.layout.max_drafts + 1))


def _capacity(config: RunConfig, windows: WindowLimits) -> int:
    """Rows that may be taken back: all that may be in flight, unless the user set it."""
    if config.state.capacity is not None:
        return config.state.capacity
    if windows.runahead:
        return windows.runahead + 1
    # While a window is in flight, the last row of the one before it may be pending.
    return windows.width * windows.depth + (windows.depth > 1)


def _check_memory(target: LoadedTarget, spec: StateSpec) -> None:
    """Refuse a state that cannot fit, where the system says how much memory is free."""
    device, free = target.decoder.device, free_bytes()
    if device.type == "cuda":
        free = int(torch.cuda.mem_get_info(device)[0])
    if free is not None:
        check_fits(spec, target.decoder.max_length, free)
