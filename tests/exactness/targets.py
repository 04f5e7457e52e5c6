"""Tiny targets with what the oracle says about them, and engines made around them."""

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from outrider.draft.base import Drafter
from outrider.draft.block.block_drafter import BlockModel
from outrider.draft.block.block_loader import load_block
from outrider.draft.heads.eagle3 import load_eagle3
from outrider.draft.heads.mtp import load_mtp
from outrider.draft.heads.one_token import Head
from outrider.engine.draft_budget import FixedBudget
from outrider.engine.facade import EngineFacade, Generation, Speculation, WindowLimits
from outrider.engine.scheduler import Admission
from outrider.models.decoder import Decoder
from outrider.models.load import LoadOptions, load_decoder
from outrider.sampling.params import SamplingParams
from outrider.stage.base import Stage
from outrider.stage.layer_range import LayerRange
from outrider.stage.local import LocalStage
from outrider.state.spec import Policy
from tests.helpers.blocks import LIKELY_BLOCKS, write
from tests.helpers.checkpoints import VOCAB, build_model
from tests.helpers.heads import add_mtp, likely_eagle3, mtp_tensors
from tests.helpers.runs import random_tokens
from tests.oracle.decoder import Output, decode

ARCHITECTURES = {"hybrid": "qwen3_5", "dense": "qwen3", "deep": "qwen3-deep"}
SAMPLINGS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "seeded": {
        "temperature": 0.2,
        "top_p": 0.95,
        "top_k": 40,
        "min_p": 0.01,
        "repetition_penalty": 1.03,
        "presence_penalty": 0.05,
        "frequency_penalty": 0.02,
        "logit_bias": {3: 1.5, 7: -2.0},
        "seed": 20,
    },
}
MIXING = 0.1
LENGTHS = (1, 20, 31, 64, 65, 90)


class Letters:
    """A tokenizer whose token n is one to three letters, so that texts cross token borders."""

    spelling = None

    def __init__(self, end_tokens: Sequence[int] = ()) -> None:
        self.end_tokens = frozenset(end_tokens)

    def encode(self, text: str, *, add_special: bool = True, most: int | None = None) -> list[int]:
        return [ord(letter) % VOCAB for letter in text]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join("abcdefg"[token % 7] * (token % 3 + 1) for token in ids)


@dataclass
class Target:
    """A checkpoint as both sides load it."""

    name: str
    oracle_model: PreTrainedModel
    decoder: Decoder
    folder: Path
    heads: dict[str, Head] = field(default_factory=dict)
    blocks: dict[str, BlockModel] = field(default_factory=dict)
    _known: dict[object, list[Output]] = field(default_factory=dict)

    def oracle(self, sampling: str, prompts: Sequence[Sequence[int]], size: int) -> list[Output]:
        """What plain decoding gives, computed once per set of prompts."""
        key = (sampling, size, tuple(map(tuple, prompts)))
        if key not in self._known:
            self._known[key] = decode(self.oracle_model, prompts, SAMPLINGS[sampling], size)
        return self._known[key]

    def stage(self, policy: Policy, capacity: int) -> LocalStage:
        return LocalStage(self.decoder, policy, capacity)

    def parts(self, sizes: Sequence[int], policy: Policy, capacity: int) -> list[LayerRange]:
        """Parts of `sizes` layers each, loaded one by one."""
        ends = list(itertools.accumulate(sizes))
        ranges = zip([0, *ends], ends, strict=False)
        return [
            LayerRange(_load(self.folder, first, last), policy, capacity) for first, last in ranges
        ]


@functools.cache
def prompts(count: int = len(LENGTHS)) -> list[list[int]]:
    """`count` prompts whose lengths lie on and around the grids of chunks and pages.

    Each repeats its own beginning, so that there is something to look up.
    """
    lengths = [LENGTHS[place % len(LENGTHS)] for place in range(count)]
    return [
        (random_tokens(7, seed=100 + place) * length)[:length]
        for place, length in enumerate(lengths)
    ]


def make_target(name: str, folder: Path) -> Target:
    """A model whose tokens follow mostly from the one before, so that lookup has something to
    find, and from its memory often enough that a wrong state shows."""
    model = build_model(ARCHITECTURES[name])
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if key.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight")):
                parameter.mul_(MIXING)
            elif key.endswith("A_log"):  # As it comes, the recurrent layers forget at once.
                parameter.copy_(torch.linspace(-6.0, -2.0, len(parameter)))
    model.save_pretrained(folder)
    if name == "hybrid":
        add_mtp(folder, mtp_tensors(model, likely=True))
    target = Target(name, model, _load(folder), folder)
    _load_heads(target)
    _load_blocks(target)
    return target


def _load_blocks(target: Target) -> None:
    """Block drafters that guess right now and then."""
    layers = target.decoder.config.num_layers
    for name, kind in LIKELY_BLOCKS.items():
        kind = replace(kind, taps=(0, layers - 2)).changed(num_target_layers=layers)
        folder = target.folder / name
        write(kind, folder, likely_for=target.oracle_model)
        target.blocks[name] = load_block(folder, target.decoder)


def _load_heads(target: Target) -> None:
    """Heads that guess right now and then; the dense family has no MTP layer."""
    layers = target.decoder.config.num_layers
    taps = (-1, *range(layers - 1))[-3:]
    file = likely_eagle3(target.folder / "eagle3", target.oracle_model, taps)
    target.heads["eagle3"] = load_eagle3(file, target.decoder)
    if target.name == "hybrid":
        target.heads["mtp"] = load_mtp(target.folder, target.decoder)


@functools.cache
def _load(folder: Path, first: int = 0, last: int | None = None) -> Decoder:
    return load_decoder(folder, LoadOptions(first=first, last=last))


def admission(**limits: Any) -> Admission:
    """Wide limits but for those given; a sequence costs a byte a token."""
    wide = {
        "max_sequences": 16,
        "max_queue": 64,
        "max_bytes": 1 << 40,
        "prompt_rows": 64,
        "state_bytes": lambda length: length,
    }
    return Admission(**{**wide, **limits})


def engine(
    stage: Stage,
    drafter: Callable[[], Drafter] | None,
    *,
    width: int = 8,
    depth: int = 1,
    runahead: int | None = None,
    tokenizer: Letters | None = None,
    budget: int | None = None,
) -> EngineFacade:
    size = width if budget is None else budget
    return EngineFacade(
        stage,
        tokenizer or Letters(),
        Speculation(
            method="tested" if drafter else "off",
            drafter=(lambda *given: drafter()) if drafter else None,
            budget=lambda: FixedBudget(size),
            windows=WindowLimits(width=width, depth=depth, runahead=runahead),
        ),
    )


def generate(
    engine: EngineFacade,
    prompt: Sequence[int],
    sampling: Mapping[str, Any],
    max_tokens: int,
    **more: Any,
) -> Generation:
    """A request that has run to its end, checked for what must hold of every request."""
    generation = engine.generate(
        prompt, sampling=SamplingParams(**sampling), max_tokens=max_tokens, **more
    )
    finished(generation)
    assert engine.stage.num_sessions == 0
    return generation


def finished(generation: Generation) -> None:
    """Run a request to its end and check what must hold of every request."""
    pieces = list(generation)
    result = generation.result
    generation.counters.check()
    assert tuple(token for piece in pieces for token in piece.tokens) == result.token_ids
    assert "".join(piece.text for piece in pieces) == result.text
    assert all(len(piece.sources) == len(piece.tokens) for piece in pieces)
