"""From a configuration to what drafts for each session."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from outrider.assemble.decisions import who_drafts
from outrider.assemble.target import LoadedTarget, sha256
from outrider.config.settings import BLOCK_METHODS, RunConfig, SpeculativeConfig
from outrider.costs.timing import Paid
from outrider.draft.base import ChainDrafter, Drafter
from outrider.draft.block.block_drafter import BlockDrafter, BlockModel
from outrider.draft.block.block_loader import holds_block_drafter, load_block
from outrider.draft.heads.eagle3 import load_eagle3
from outrider.draft.heads.mtp import load_mtp
from outrider.draft.heads.one_token import Head, HeadDrafter
from outrider.draft.lookup.ngram_cache import NgramCacheDrafter
from outrider.draft.lookup.suffix import SuffixDrafter
from outrider.draft.model.draft_model import (
    DraftModel,
    DraftModelDrafter,
    RunAhead,
    make_draft_model,
)
from outrider.draft.token_choice import Chooser, GreedyChooser, SampledChooser
from outrider.engine.draft_budget import Budget
from outrider.engine.facade import DrafterFactory, WindowLimits
from outrider.errors import CheckpointError, ConfigError
from outrider.formats.files import read_json_or_empty
from outrider.formats.hub import resolve
from outrider.models.decoder import Decoder
from outrider.models.load import load_decoder
from outrider.models.model_file import load_tokenizer
from outrider.sampling.params import SamplingParams
from outrider.sampling.rng import Key
from outrider.state.spec import StateSpec

CHAINED_MIN_MATCH = 3
"""A short match ahead of a draft model would keep the better drafter from being asked. Where a
controller weighs each draft against what the model after it promises, any match may be offered."""
LOOKUPS: dict[str, Callable[[], Drafter]] = {
    "suffix": SuffixDrafter,
    "ngram-cache": NgramCacheDrafter,
}
"""Drafters without a network, by method."""

Drafting = DraftModel | Head | BlockModel
"""Networks that are loaded for drafting, and shared by all sessions."""


def drafter_factory(
    config: RunConfig, rows: int, windows: WindowLimits, draft: Drafting | None
) -> DrafterFactory | None:
    """Return what makes a session's drafter for a target with `rows` logits; None for plain
    decoding."""
    method = config.speculative.method
    if method == "off":
        return None
    weighed = draft is None or who_drafts(config) == "controller"
    lookups = [name for name in method.split("+") if name in LOOKUPS]

    def make(sampling: SamplingParams, budget: Budget) -> Drafter:
        drafters = [_lookup(name, weighed) for name in lookups]
        if isinstance(draft, Head):
            chooser = _chooser(config.speculative, sampling, rows, rows)
            drafters.append(HeadDrafter(draft, chooser))
        elif isinstance(draft, BlockModel):
            drafters.append(_block(draft, config.speculative, sampling))
        elif draft is not None:
            chooser = _chooser(config.speculative, sampling, draft.shared, rows)
            ahead = None if windows.serial else RunAhead()
            capacity = draft_capacity(windows)
            drafters.append(DraftModelDrafter(draft, chooser, config.state.policy, capacity, ahead))
        return ChainDrafter(*drafters, limit=budget.limit, keep=budget.keep)

    return make


def drafting_specs(
    config: RunConfig, windows: WindowLimits, draft: Drafting | None
) -> tuple[StateSpec, ...]:
    """The state of its own that each session's drafter has, if it has one."""
    if draft is None:
        return ()
    if isinstance(draft, Head):
        return (draft.state_spec,)
    if isinstance(draft, BlockModel):
        return (draft.trunk.state_spec,)
    if not isinstance(draft.decoder, Decoder):
        return ()  # its memory was taken at the start
    return (draft.decoder.state_spec(config.state.policy, draft_capacity(windows)),)


def draft_capacity(windows: WindowLimits) -> int:
    """Rows that a draft model's state can take back: those in flight and those that it drafts."""
    return windows.width * (windows.depth + 1) + (windows.runahead or 0)


def _block(model: BlockModel, speculative: SpeculativeConfig, sampling: SamplingParams) -> Drafter:
    """A block drafter; where it has a confidence head, that head decides what is unlikely."""
    min_confidence = 0.0
    if model.confidence is not None:
        min_confidence = speculative.min_probability
        speculative = replace(speculative, min_probability=0.0)
    chooser = _chooser(speculative, sampling, model.vocab_size, model.vocab_size)
    return BlockDrafter(model, chooser, min_confidence)


def _lookup(name: str, weighed: bool) -> Drafter:
    if name == "suffix" and not weighed:
        return SuffixDrafter(min_match=CHAINED_MIN_MATCH)
    return LOOKUPS[name]()


def model_of(draft: Drafting | None) -> Paid | None:
    """The part of what was loaded that takes time to draft."""
    if isinstance(draft, DraftModel):
        assert isinstance(draft.decoder, Decoder)
        return draft.decoder
    return draft


def load_drafting(speculative: SpeculativeConfig, target: LoadedTarget) -> Drafting | None:
    """Load and check what drafts; any failure ends the start, never the speculation alone."""
    name = speculative.draft_model
    if speculative.method == "mtp":
        return load_mtp(target.folder, target.ends)
    if name is None:
        return None
    try:
        folder = resolve(name)
        _check_recorded_target(folder, target)
        if speculative.method in BLOCK_METHODS or holds_block_drafter(folder):
            return _block_model(folder, speculative, target)
        if speculative.method == "eagle3":
            return load_eagle3(folder, target.ends)
        return _draft_model(name, folder, target)
    except CheckpointError as error:
        raise CheckpointError(
            f"speculative.draft_model = {name!r} cannot be loaded: {error}"
        ) from None


def _block_model(folder: Path, speculative: SpeculativeConfig, target: LoadedTarget) -> BlockModel:
    model = load_block(folder, target.ends, speculative.method)
    wanted, most = speculative.max_draft_tokens, model.config.max_drafts
    if wanted != "auto" and wanted > most:
        raise ConfigError(
            f"speculative.max_draft_tokens = {wanted} is more than a block of {folder} drafts: "
            f"lower it to {most}, or leave it out."
        )
    return model


def _draft_model(name: str, folder: Path, target: LoadedTarget) -> DraftModel:
    tokenizer, decoder = load_tokenizer(folder), _decoder(folder, target)
    made = make_draft_model(name, decoder, tokenizer, target.tokenizer, target.vocab_size)
    same = decoder is target.decoder  # then rows that no tokenizer names mean the same, too
    return replace(made, shared=decoder.vocab_size) if same else made


def _decoder(folder: Path, target: LoadedTarget) -> Decoder:
    if target.is_whole and folder.resolve() == target.folder.resolve():
        return target.decoder
    return load_decoder(folder, replace(target.options, max_length=None))


def _check_recorded_target(folder: Path, target: LoadedTarget) -> None:
    """A drafter that was trained for one target, and says which, refuses every other."""
    raw = read_json_or_empty(folder / "config.json")  # a GGUF file has none
    recorded = raw.get("outrider", {}).get("target_sha256")
    if recorded is None:
        return
    found = sha256(target.folder) if (target.folder / "model.safetensors").exists() else "unknown"
    if recorded != found:
        raise CheckpointError(
            f"{folder} was trained for the target with SHA-256 {recorded[:12]}…, but the weights "
            f"of {target.folder} have {found[:12]}…; use the target that it belongs to."
        )


def _chooser(
    speculative: SpeculativeConfig, sampling: SamplingParams, shared: int, target_rows: int
) -> Chooser:
    if speculative.draft_temperature == 0.0:
        return GreedyChooser(vocab_size=shared, min_probability=speculative.min_probability)
    return SampledChooser(
        vocab_size=shared,
        target_rows=target_rows,
        temperature=speculative.draft_temperature,
        key=Key(seed=sampling.seed or 0, choice=sampling.choice),
        min_probability=speculative.min_probability,
    )
