"""From a configuration to what drafts for each session."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from outrider.assemble.budget import controls
from outrider.assemble.calibration import Paid
from outrider.assemble.target import LoadedTarget, sha256
from outrider.config.settings import BLOCK_METHODS, RunConfig, SpeculativeConfig
from outrider.draft.base import Drafter
from outrider.draft.block.drafter import BlockDrafter
from outrider.draft.block.load import holds_block_drafter, load_block
from outrider.draft.block.model import BlockModel
from outrider.draft.chain import ChainDrafter
from outrider.draft.choice import Chooser, GreedyChooser, SampledChooser
from outrider.draft.heads.eagle3 import load_eagle3
from outrider.draft.heads.head_drafter import HeadDrafter
from outrider.draft.heads.mtp import load_mtp
from outrider.draft.heads.one_token import Head
from outrider.draft.lookup.ngram_cache import NgramCacheDrafter, NgramSettings
from outrider.draft.lookup.suffix import SuffixDrafter, SuffixSettings
from outrider.draft.model.ahead import Ahead
from outrider.draft.model.drafter import DraftModelDrafter
from outrider.draft.model.runner import DraftStateSettings
from outrider.draft.model.vocab import Rows, lacking, make_rows, shared_vocabulary
from outrider.draft.reach import Reach
from outrider.engine.budget import Budget
from outrider.engine.engine import DrafterFactory, WindowLimits
from outrider.errors import CheckpointError, ConfigError
from outrider.formats.files import read_json_or_empty
from outrider.formats.hub import resolve
from outrider.formats.tokenizer import Tokenizer
from outrider.models.base import Model
from outrider.models.decoder import Decoder
from outrider.models.load import load_decoder
from outrider.models.model_file import load_tokenizer
from outrider.sampling.params import SamplingParams
from outrider.sampling.rng import Key
from outrider.state.spec import StateSpec

LOG = logging.getLogger(__name__)
SHORTEST = 2
"""Tokens that a draft model must at least take in: a prompt's and the target's first answer."""
CHAINED_MIN_MATCH = 3
"""A short match ahead of a draft model would keep the better drafter from being asked. Where a
controller weighs each draft against what the model after it promises, any match may be offered."""


@dataclass(frozen=True, slots=True)
class DraftModel:
    """A draft model and how many ids, from 0 on, it shares with the target; the rows that its
    embedding has for them, and where its context ends."""

    decoder: Model
    shared: int
    rows: Rows
    reach: Reach

    def drafter(
        self, chooser: Chooser, settings: DraftStateSettings, ahead: Ahead | None
    ) -> DraftModelDrafter:
        """One for one session."""
        return DraftModelDrafter(
            self.decoder, chooser, settings, ahead, rows=self.rows, reach=self.reach
        )


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
    weighed = draft is None or controls(config, windows)
    makers = [_LOOKUPS[name] for name in method.split("+") if name in _LOOKUPS]
    if draft is None:
        return lambda sampling, budget: _chain(budget, makers[0](weighed))

    settings = draft_state(config, windows)

    def make(sampling: SamplingParams, budget: Budget) -> Drafter:
        if isinstance(draft, Head):
            chooser = _chooser(config.speculative, sampling, rows, rows)
            return _chain(budget, HeadDrafter(draft, chooser))
        if isinstance(draft, BlockModel):
            return _chain(budget, _block(draft, config.speculative, sampling))
        chooser = _chooser(config.speculative, sampling, draft.shared, rows)
        ahead = None if windows.serial else Ahead()
        model = draft.drafter(chooser, settings, ahead)
        return _chain(budget, *[lookup(weighed) for lookup in makers], model)

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
    settings = draft_state(config, windows)
    if not isinstance(draft.decoder, Decoder):
        return ()  # its memory was taken at the start
    return (draft.decoder.state_spec(settings.policy, settings.capacity),)


def draft_state(config: RunConfig, windows: WindowLimits) -> DraftStateSettings:
    """How a draft model's state takes back what is in flight and what it drafts."""
    capacity = windows.width * (windows.depth + 1) + (windows.runahead or 0)
    return DraftStateSettings(policy=config.state.policy, capacity=capacity)


def _chain(budget: Budget, *drafters: Drafter) -> Drafter:
    return ChainDrafter(*drafters, limit=budget.limit, keep=budget.keep)


def _block(model: BlockModel, speculative: SpeculativeConfig, sampling: SamplingParams) -> Drafter:
    """A block drafter; where it has a confidence head, that head decides what is unlikely."""
    least = 0.0
    if model.confidence is not None:
        least, speculative = speculative.min_probability, replace(speculative, min_probability=0.0)
    chooser = _chooser(speculative, sampling, model.vocab_size, model.vocab_size)
    return BlockDrafter(model, chooser, least)


def _suffix(weighed: bool) -> Drafter:
    return SuffixDrafter(None if weighed else SuffixSettings(min_match=CHAINED_MIN_MATCH))


def _ngram_cache(weighed: bool) -> Drafter:
    del weighed  # it asks for enough evidence of itself
    return NgramCacheDrafter(NgramSettings())


_LOOKUPS: dict[str, Callable[[bool], Drafter]] = {"suffix": _suffix, "ngram-cache": _ngram_cache}
"""N-gram drafters by name; told whether what they offer is weighed against other choices."""


def paid_for(draft: Drafting | None) -> Paid | None:
    """The part of what was loaded that takes time to draft."""
    if isinstance(draft, DraftModel):
        assert isinstance(draft.decoder, Decoder)
        return draft.decoder
    return draft


def load_drafting(speculative: SpeculativeConfig, target: LoadedTarget) -> Drafting | None:
    """Load and check what drafts; any failure ends the start, never the speculation alone."""
    name = speculative.draft_model
    if speculative.method == "mtp":
        return load_mtp(target.folder, target.ends, target.kernels.whole(), target.options)
    if name is None:
        return None
    try:
        folder = resolve(name)
        _check_recorded_target(folder, target)
        if speculative.method in BLOCK_METHODS or holds_block_drafter(folder):
            return _block_model(folder, speculative, target)
        if speculative.method == "eagle3":
            return load_eagle3(folder, target.ends, target.kernels.whole(), target.options)
        return _draft_model(name, folder, target)
    except CheckpointError as error:
        raise CheckpointError(
            f"speculative.draft_model = {name!r} cannot be loaded: {error}"
        ) from None


def _block_model(folder: Path, speculative: SpeculativeConfig, target: LoadedTarget) -> BlockModel:
    model = load_block(folder, target.ends, target.kernels.whole(), speculative.method)
    wanted, most = speculative.max_draft_tokens, model.layout.max_drafts
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


def make_draft_model(
    name: str, decoder: Model, own: Tokenizer, target: Tokenizer, target_rows: int
) -> DraftModel:
    """The draft model `name`, whose tokenizer is its `own`, for a target with so many logits.

    Says once which of the target's tokens it lacks. ConfigError where the vocabularies contradict
    each other, or where it could never draft.
    """
    if decoder.max_length < SHORTEST:
        raise ConfigError(
            f"speculative.draft_model = {name!r} has a context of {decoder.max_length} token, so "
            "it could never draft: use a draft model with a longer one."
        )
    ids, known = target.vocabulary(), own.vocabulary()
    rows = make_rows(decoder.vocab_size, own.end_tokens)
    shared = min(shared_vocabulary(ids, known), decoder.vocab_size, target_rows)
    if missing := lacking(ids, rows.count):
        LOG.warning(
            "speculative.draft_model = %r lacks %d of the target's tokens, %r first: it never "
            "drafts them, and reads %r where one stands in a text.",
            *(name, len(missing), ids[missing[0]], known.get(rows.instead)),
        )
    return DraftModel(decoder, shared, rows, Reach(f"speculative.draft_model = {name!r}"))


def _decoder(folder: Path, target: LoadedTarget) -> Decoder:
    if target.is_whole and folder.resolve() == target.folder.resolve():
        return target.decoder
    return load_decoder(folder, target.kernels, replace(target.options, max_length=None))


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
