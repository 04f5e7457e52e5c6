"""From a configuration to a running engine, and to a scheduler that many callers share."""

import logging
from collections.abc import Mapping
from os import PathLike

import torch

from outrider.assemble.auto import pick
from outrider.assemble.decisions import Decision, Decisions, capacity_for, decide, names_gguf
from outrider.assemble.drafter import drafter_factory, drafting_specs, load_drafting, model_of
from outrider.assemble.gguf_target import load_by_llama_cpp
from outrider.assemble.limits import budget_factory, fit, window_limits
from outrider.assemble.memory_check import check_fits, free_bytes, held_bytes
from outrider.assemble.parts import Parts
from outrider.assemble.stages import make_stage
from outrider.assemble.target import LoadedTarget, load_target
from outrider.config.checks import check
from outrider.config.keys import section
from outrider.config.settings import (
    RunConfig,
    SpeculativeConfig,
    StagesConfig,
    StateConfig,
    TargetConfig,
)
from outrider.engine.facade import EngineFacade, Speculation
from outrider.engine.prefix import PrefixCache
from outrider.engine.scheduler import Admission, Scheduler
from outrider.formats.tokenizer import Tokenizer
from outrider.sampling.params import sampling_defaults
from outrider.state.spec import StateSpec


class Engine(EngineFacade):
    """An engine with its parts chosen by configuration."""

    tokenizer: Tokenizer

    def __init__(self, parts: Parts, decisions: Decisions) -> None:
        super().__init__(parts.stage, parts.tokenizer, parts.speculation, parts.defaults)
        self.parts, self.backend = parts, decisions.backend
        self.decisions: tuple[Decision, ...] = decisions.explained

    @classmethod
    def load(
        cls,
        target: str | PathLike[str] | Mapping[str, object] | TargetConfig = "demo",
        *,
        speculative: str | Mapping[str, object] | SpeculativeConfig | None = None,
        state: Mapping[str, object] | StateConfig | None = None,
        stages: Mapping[str, object] | StagesConfig | None = None,
    ) -> "Engine":
        """Load a target by name, folder, GGUF file or `ID@REVISION`, with its drafter.

        Each section is its record or a mapping of its keys, `speculative` also a method's name.
        Raises ConfigError for settings that are unknown, out of range or contradict each other, and
        CheckpointError for files that do not fit.
        """
        return cls.load_run(
            RunConfig(
                target=section("target", target),
                speculative=section("speculative", speculative),
                state=section("state", state),
                stages=section("stages", stages),
            )
        )

    @classmethod
    def load_run(
        cls, config: RunConfig, sequences: int = 1, drafters: int | None = None
    ) -> "Engine":
        """Load everything that a whole configuration names, for `sequences` side by side, and
        `drafters` where these are more."""
        check(config)
        decisions = decide(config)
        _tell(config, decisions)
        if decisions.backend == "llama.cpp":
            parts = load_by_llama_cpp(config, sequences, drafters or sequences)
        else:
            parts = _load_by_torch(config, sequences)
        return cls(parts, decisions)

    @property
    def picked(self) -> str | None:
        """Choice of the method "auto", and why, in a sentence; None where one was named."""
        return self.parts.picked

    @property
    def specs(self) -> tuple[StateSpec, ...]:
        """State that a sequence holds: the target's state and, where it has one, its drafter's."""
        return self.parts.specs

    def describe(self) -> dict[str, object]:
        """Choices at load: exactness, the backend, its kernels, and why each was made."""
        reasons = {one.name: {"value": one.value, "reason": one.reason} for one in self.decisions}
        return {"exact": self.stage.exact, **self.parts.facts, "decisions": reasons}


def _tell(config: RunConfig, decisions: Decisions) -> None:
    """Log the list; what "auto" chose for a GGUF file is said aloud."""
    for one in decisions.explained:
        LOG.info("%s", one)
    if config.target.backend == "auto" and names_gguf(config.target.path):
        backend, why = decisions.backend, decisions.explained[0].reason
        because = f": {why}" if backend == "torch" else ""
        LOG.warning("target.backend = 'auto' picked %r%s", backend, because)


def _load_by_torch(config: RunConfig, sequences: int) -> Parts:
    target = load_target(config.target, config.stages)
    picked = None
    if config.speculative.method == "auto":
        picked = pick(config, target)
        config, draft = picked.config, picked.draft
    else:
        draft = load_drafting(config.speculative, target)
    windows = fit(window_limits(config.speculative), config.speculative, draft)
    capacity = capacity_for(config, windows.width)
    spec = target.state_spec(config.state.policy, capacity)
    _check_memory(target, spec)
    costs = target.decoder, model_of(draft)
    speculation = Speculation(
        method=config.speculative.method,
        drafter=drafter_factory(config, target.vocab_size, windows, draft),
        budget=budget_factory(config, *costs, windows, target.decoder.max_length, sequences),
        windows=windows,
        fallback="draft" if config.speculative.ngram_fallback == "draft" else None,
    )
    return Parts(
        stage=make_stage(config, target, capacity),
        tokenizer=target.tokenizer,
        speculation=speculation,
        defaults=sampling_defaults(target.folder),
        facts={"backend": "torch", "kernels": {"layers": target.decoder.kernels.name}},
        picked=picked.reason if picked else None,
        specs=(spec, *drafting_specs(config, windows, draft)),
    )


def _check_memory(target: LoadedTarget, spec: StateSpec) -> None:
    """Refuse a state that cannot fit, where the system says how much memory is free."""
    device, free = target.decoder.device, free_bytes()
    if device.type == "cuda":
        free = int(torch.cuda.mem_get_info(device)[0])
    if free is not None:
        check_fits(spec, target.decoder.max_length, free)


LOG = logging.getLogger(__name__)
UNKNOWN_MEMORY = 4 * 2**30
"""Bytes for states where the system does not say what is free."""


def load_scheduler(config: RunConfig) -> Scheduler:
    """Load an engine and start its thread; half of what memory is free may hold states."""
    server = config.server
    engine = _load(config)
    specs = engine.specs
    free = (free_bytes() or UNKNOWN_MEMORY) // 2
    admission = Admission(
        max_sequences=server.max_sequences,
        max_queue=server.max_queue,
        max_bytes=free if server.state_mib is None else server.state_mib << 20,
        prompt_rows=server.prompt_rows,
        state_bytes=lambda length: sum(held_bytes(spec, length) for spec in specs),
    )
    return Scheduler(engine, engine.tokenizer, admission, remake=lambda: _load(config))


def _load(config: RunConfig) -> Engine:
    """The engine with its cache of prompts."""
    server = config.server
    engine = Engine.load_run(config, server.max_sequences)
    if server.prefix_mib and engine.stage.has_snapshots:
        engine.prefixes = PrefixCache(engine.stage, server.prefix_mib << 20)
    return engine
