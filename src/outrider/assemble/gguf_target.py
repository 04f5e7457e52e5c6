"""From a configuration to a GGUF target that llama.cpp runs, with what drafts for it."""

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path

from outrider.assemble.drafter import draft_capacity, drafter_factory
from outrider.assemble.limits import budget_factory, window_limits
from outrider.assemble.memory_check import Allocated, check_allocations_fit, free_bytes
from outrider.assemble.parts import Parts
from outrider.assemble.target import load_options
from outrider.config.settings import Method, RunConfig, TargetConfig
from outrider.costs.timing import drafts_of, windows_of
from outrider.draft.model.draft_model import (
    DraftModel,
    DraftModelDrafter,
    make_draft_model,
    shared_vocabulary,
)
from outrider.draft.token_choice import GreedyChooser
from outrider.engine.facade import Speculation, WindowLimits
from outrider.errors import CheckpointError, ConfigError
from outrider.formats.gguf_file import GgufFile, open_gguf
from outrider.formats.gguf_tokenizer import read_gguf_tokenizer
from outrider.formats.hub import resolve
from outrider.formats.tokenizer import Tokenizer
from outrider.llamacpp.library import probe
from outrider.llamacpp.llama_context import ContextSettings, LlamaContext, LlamaWeights
from outrider.llamacpp.llama_model import LlamaModel, LlamaStage
from outrider.models.config import ModelConfig
from outrider.models.decoder import state_spec
from outrider.models.gguf_config import read_gguf_config
from outrider.models.load import load_decoder
from outrider.models.model_file import is_gguf, load_tokenizer
from outrider.sampling.params import sampling_defaults
from outrider.state.spec import Policy

LOG = logging.getLogger(__name__)
PROBED_LENGTH = 256
SNAPSHOT_SHARE = 8
"""Snapshots of a window as wide as was left open may take one part in so many of free memory."""
LEAST_ROWS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufModel:
    """A file that llama.cpp lives through, and the context that it is to have; `name` is for
    messages."""

    name: str
    file: GgufFile
    tokenizer: Tokenizer
    weights: LlamaWeights
    settings: ContextSettings

    def context(self) -> LlamaModel:
        """A context of it: allocates."""
        return LlamaModel(LlamaContext(self.weights, self.settings))

    def allocated(self) -> Allocated | None:
        """Memory of a context; None, and said so, for an architecture that is not known here."""
        settings, config = self.settings, self._config()
        if config is None:
            LOG.warning("%s: what its states take in memory is not known", self.file.path)
            return None
        size = 4 if settings.kv == "f32" else 2
        return Allocated(
            name=self.name,
            spec=state_spec(config, config.layer_kinds, "snapshots", settings.rollback, size),
            length=settings.length,
            sequences=settings.sequences,
        )

    def snapshot_bytes(self, count: int) -> int:
        """Bytes of so many snapshots of each sequence; 0 where that is not known."""
        if (config := self._config()) is None:
            return 0
        spec = state_spec(config, config.layer_kinds, "snapshots", count, 4)
        return Allocated(
            name=self.name, spec=spec, length=0, sequences=self.settings.sequences
        ).bytes

    def _config(self) -> ModelConfig | None:
        try:
            return read_gguf_config(self.file)
        except CheckpointError:
            return None


def load_by_llama_cpp(config: RunConfig, sequences: int, drafters: int) -> Parts:
    """Load the target for `sequences` side by side and the draft model for `drafters`; any failure
    ends the start."""
    config, picked = _pick(config)
    target = _open(resolve(config.target.path), config.target, sequences)
    draft = _open_draft(config, target, drafters)
    windows = window_limits(config.speculative)
    target, windows = _with_snapshots(config, target, windows)
    contexts = [target, *([draft] if isinstance(draft, GgufModel) else [])]
    _check_memory(contexts)
    model = target.context()
    drafting = _drafting(draft, config.speculative.draft_model, target)
    policy: Policy = "snapshots" if model.context.snapshots else "checkpoint"
    stage = LlamaStage(model, policy)
    return Parts(
        stage=stage,
        tokenizer=target.tokenizer,
        speculation=_speculation(config, stage, windows, drafting, sequences),
        defaults=sampling_defaults(target.file.path),
        facts=_facts(model, drafting),
        picked=picked,
    )


def _pick(config: RunConfig) -> tuple[RunConfig, str | None]:
    """The method "auto": with a draft model both draft, and the controller weighs each round."""
    speculative = config.speculative
    if speculative.method != "auto":
        return config, None
    method: Method = "suffix+draft" if speculative.draft_model else "suffix"
    reason = f"speculative.method = 'auto' picked {method!r}, for the files that were given."
    LOG.warning("%s", reason)
    return replace(config, speculative=replace(speculative, method=method)), reason


def _open(path: Path, target: TargetConfig, sequences: int, name: str = "the target") -> GgufModel:
    """Read a file's head and vocabulary, let llama.cpp try it elsewhere, then load it."""
    file = open_gguf(path)
    tokenizer = read_gguf_tokenizer(file)
    kinds = {entry.kind.name for entry in file.tensors.values()}
    settings = ContextSettings(
        length=PROBED_LENGTH,
        batch=target.batch,
        micro_batch=target.micro_batch,
        threads=target.threads,
        kv="f32" if kinds == {"F32"} else "f16",
    )
    probe(path, {"n_ctx": PROBED_LENGTH, "n_seq_max": 1, "n_gpu_layers": target.gpu_layers})
    weights = LlamaWeights(path, gpu_layers=target.gpu_layers)
    if (target.max_length or 0) > weights.max_length:
        raise ConfigError(
            f"target.max_length = {target.max_length} exceeds the {weights.max_length} positions "
            f"that {path} was trained for: lower it."
        )
    length = target.max_length or weights.max_length
    return GgufModel(
        name=name,
        file=file,
        tokenizer=tokenizer,
        weights=weights,
        settings=replace(settings, length=length, sequences=sequences),
    )


def _with_snapshots(
    config: RunConfig, target: GgufModel, windows: WindowLimits
) -> tuple[GgufModel, WindowLimits]:
    """The target with as many snapshots as a window can lose; windows left open fit them.

    A pass writes the snapshots of its own rows only, but the stage runs in step: each window in
    flight is judged before the next one runs, and its first row is certain by then.
    """
    speculative, capacity = config.speculative, config.state.capacity
    drafts = speculative.method != "off" and speculative.max_draft_tokens != 0
    bounded = target.weights.is_recurrent and drafts
    if not bounded or config.state.policy == "checkpoint":
        return target, windows
    width, free = windows.width, free_bytes()
    if speculative.max_draft_tokens == "auto" and speculative.verify_window.max_tokens is None:
        if capacity is not None:
            width = min(width, capacity + 1)
        while free and width > LEAST_ROWS and target.snapshot_bytes(width) > free // SNAPSHOT_SHARE:
            width //= 2
    wanted = replace(target.settings, rollback=width - 1 if capacity is None else capacity)
    if not wanted.holds_snapshots and capacity is None:
        LOG.warning(
            "target.micro_batch = %d runs %d rows at once, and taking %d back by snapshots needs "
            "%d: checkpoints are used; raise it, target.batch or target.max_length.",
            *(wanted.micro_batch, wanted.effective_micro_batch, wanted.rollback),
            wanted.rollback + 2,
        )
        wanted = target.settings
    return replace(target, settings=wanted), replace(windows, width=width)


def _open_draft(
    config: RunConfig, target: GgufModel, sequences: int
) -> GgufModel | DraftModel | None:
    """The draft model: by llama.cpp a GGUF file, by torch a folder."""
    name = config.speculative.draft_model
    if name is None:
        return None
    try:
        path = resolve(name)
        if is_gguf(path):
            return _open_draft_file(path, config.target, target, sequences)
        options = replace(load_options(config.target), max_length=None)
        decoder = load_decoder(path, options)
        tokenizer, rows = load_tokenizer(path), target.weights.vocab_size
        return make_draft_model(name, decoder, tokenizer, target.tokenizer, rows)
    except CheckpointError as error:
        raise CheckpointError(
            f"speculative.draft_model = {name!r} cannot be loaded: {error}"
        ) from None


def _open_draft_file(
    path: Path, config: TargetConfig, target: GgufModel, sequences: int
) -> GgufModel:
    """A draft model's context is as long as its own training allows and the target needs; rows
    run one at a time leave no snapshots, so it has none."""
    name = "the draft model"
    if path.resolve() == target.file.path.resolve():
        settings = replace(target.settings, sequences=sequences)
        return replace(target, name=name, settings=settings)
    draft = _open(path, replace(config, max_length=None), sequences, name)
    shared_vocabulary(target.tokenizer.vocabulary(), draft.tokenizer.vocabulary())
    length = min(draft.settings.length, target.settings.length)
    return replace(draft, settings=replace(draft.settings, length=length))


def _drafting(
    draft: GgufModel | DraftModel | None, name: str | None, target: GgufModel
) -> DraftModel | None:
    if not isinstance(draft, GgufModel):
        return draft
    tokenizer, rows = target.tokenizer, target.weights.vocab_size
    return make_draft_model(str(name), draft.context(), draft.tokenizer, tokenizer, rows)


def _check_memory(models: Sequence[GgufModel]) -> None:
    """Refuse what does not fit, before any of it is allocated."""
    allocations = [one for model in models if (one := model.allocated())]
    free = free_bytes()
    if free is not None:
        check_allocations_fit(allocations, free)


def _speculation(
    config: RunConfig,
    stage: LlamaStage,
    windows: WindowLimits,
    draft: DraftModel | None,
    sequences: int,
) -> Speculation:
    """Costs are measured on the stage and with the drafter that will be used."""
    with ExitStack() as measured:
        paid = None
        if draft is not None:
            chooser = GreedyChooser(vocab_size=draft.shared)
            make = partial(
                DraftModelDrafter, draft, chooser, config.state.policy, draft_capacity(windows)
            )
            paid = measured.enter_context(drafts_of(make, draft.decoder.max_length))
        passes = measured.enter_context(windows_of(stage))
        budget = budget_factory(config, passes, paid, windows, stage.max_length, sequences)
    return Speculation(
        method=config.speculative.method,
        drafter=drafter_factory(config, stage.vocab_size, windows, draft),
        budget=budget,
        windows=windows,
        fallback="draft" if config.speculative.ngram_fallback == "draft" else None,
    )


def _facts(target: LlamaModel, draft: DraftModel | None) -> dict[str, object]:
    by = "llama.cpp" if draft and isinstance(draft.decoder, LlamaModel) else "torch"
    return {
        "backend": "llama.cpp",
        "llama_cpp_python": version("llama_cpp_python"),
        "architecture": target.context.weights.architecture,
        "snapshots": target.context.snapshots,
        **({"draft_backend": by} if draft else {}),
    }
