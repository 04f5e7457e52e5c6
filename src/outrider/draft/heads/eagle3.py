"""EAGLE-3 drafters (Li et al. 2025, arXiv 2503.01840): their config.json, network and loader.

fc makes a feature of the taps. The first layer reads embedding and feature side by side, each
normed; the feature is its residual stream. Further layers, where a file has them, are ordinary.
How layer ids count is found from the file, because three packagings disagree:
docs/decisions/eagle-packagings.md.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from outrider.draft.heads.one_token import Head
from outrider.errors import CheckpointError
from outrider.formats.files import read_json
from outrider.formats.folder import WeightFolder
from outrider.formats.tensors import WeightReader
from outrider.kernels.norm import RmsNorm, rms_norm
from outrider.kernels.operations import Kernels
from outrider.kernels.pass_plan import PassPlan
from outrider.models.attention import AttentionLayer
from outrider.models.config import ModelConfig
from outrider.models.decoder import Decoder, Layer, Mlp
from outrider.models.hf_config import parse_config
from outrider.models.load import build_layer, build_mlp
from outrider.models.rope import rope_tables

IDS = "eagle_aux_hidden_state_layer_ids"
FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")


@dataclass(frozen=True, slots=True, kw_only=True)
class Eagle3Config:
    """The description that an EAGLE-3 file gives.

    layers: its decoder layers; `vocab_size` is the target's. layer_ids: as written, None for the
    default. outputs: ids are 0-based layer outputs; else boundaries (the input of layer i, which is
    the output of i - 1). The norm flags: see `_first_layer`,
    `_projection` and `Head.feeds_normed`.
    """

    origin: str
    packaging: str
    layers: ModelConfig
    draft_vocab: int
    layer_ids: tuple[int, ...] | None
    outputs: bool
    target_hidden: int | None
    norm_before_residual: bool
    norm_before_fc: bool
    fc_norm: bool
    norm_output: bool

    def taps_for(self, target: ModelConfig) -> tuple[int, ...]:
        """The target's layers to tap, ascending; CheckpointError where the two do not fit."""
        self._check_sizes(target)
        count = target.num_layers
        ids = self.layer_ids
        taps = (1, count // 2 - 1, count - 4) if ids is None else ids
        if ids is not None and not self.outputs:
            taps = tuple(one - 1 for one in ids)
        if list(taps) != sorted(set(taps)) or taps[0] < -1 or taps[-1] >= count:
            raise CheckpointError(
                f"{self.origin}: layer ids {list(ids or taps)} ask for the outputs of layers "
                f"{list(taps)}, but the target has layers 0 to {count - 1}: use the target that "
                "the drafter was trained for."
            )
        return taps

    def _check_sizes(self, target: ModelConfig) -> None:
        expected = {
            "hidden size": (self.target_hidden or self.layers.hidden_size, target.hidden_size),
            "vocabulary": (self.layers.vocab_size, target.vocab_size),
        }
        for what, (made_for, found) in expected.items():
            if made_for != found:
                raise CheckpointError(
                    f"{self.origin}: the drafter was made for a target with a {what} of "
                    f"{made_for}, but this one's is {found}: use the target that it was trained "
                    "for."
                )


def is_eagle3(raw: Mapping[str, Any]) -> bool:
    """True if a config.json describes an EAGLE-3 drafter.

    SafeAILab's own files say only that their vocabulary is reduced; block drafters may say so too.
    """
    if kind := raw.get("speculators_model_type"):
        return bool(kind == "eagle3")
    named = any("eagle3" in str(name).lower() for name in raw.get("architectures") or ())
    is_block = "dflash_config" in raw or "block_size" in raw
    return named or ("draft_vocab_size" in raw and not is_block)


def read_eagle3_config(folder: Path) -> Eagle3Config:
    """Read `folder`/config.json; CheckpointError where it describes no EAGLE-3 drafter."""
    origin = str(folder / "config.json")
    raw = read_json(folder / "config.json")
    if not is_eagle3(raw):
        raise CheckpointError(
            f"{origin}: architectures {raw.get('architectures')} is no EAGLE-3 drafter; method "
            "eagle3 reads the files of SafeAILab, SpecForge and speculators."
        )
    nested = raw.get("eagle_config") or {}
    flags = {**raw, **nested}
    speculators = raw.get("speculators_model_type") is not None
    body = dict(raw.get("transformer_layer_config") or raw) if speculators else dict(raw)
    body.pop("auto_map", None)  # code of its author, which is not needed
    body.setdefault("model_type", "qwen3" if speculators else "llama")
    layers = parse_config({"num_hidden_layers": 1, **body}, origin=origin)
    ids = tuple(flags[IDS]) if flags.get(IDS) else None
    return Eagle3Config(
        origin=origin,
        packaging="speculators" if speculators else "SpecForge" if nested else "SafeAILab",
        layers=layers,
        draft_vocab=raw.get("draft_vocab_size") or layers.vocab_size,
        layer_ids=ids,
        # SpecForge counts outputs and begins at 1; everybody else counts boundaries.
        outputs=bool(nested.get(IDS)) and nested[IDS][0] == 1,
        target_hidden=raw.get("target_hidden_size"),
        **{name: bool(flags.get(name)) for name in FLAGS},
    )


@dataclass(frozen=True, slots=True)
class FirstLayer:
    """Takes embedding and feature [N, 2 x hidden], gives [N, hidden].

    norm: scale [2, hidden] of embedding and feature. starts_normed: True if the residual stream
    begins after the feature's norm.
    """

    norm: RmsNorm
    starts_normed: bool
    mixer: AttentionLayer
    mlp_norm: RmsNorm
    mlp: Mlp
    kernels: Kernels

    def __call__(self, rows: Tensor, plan: PassPlan) -> Tensor:
        halves = rows.unflatten(-1, (2, -1))
        normed = self.norm(halves)
        x = (normed if self.starts_normed else halves)[:, 1]
        mixed = self.mixer(normed.flatten(1), plan)
        x, normed = self.kernels.add_norm(x, mixed, self.mlp_norm)
        return self.kernels.add(x, self.mlp(normed))


def load_eagle3(folder: Path, target: Decoder) -> Head:
    """The drafter in `folder`; CheckpointError says what of it does not fit the target."""
    config = read_eagle3_config(folder)
    taps = config.taps_for(target.config)
    with WeightFolder(folder) as checkpoint:
        reader = WeightReader(checkpoint, "", target.dtype, target.device)
        ids = _target_ids(config, reader)
        head = Head(
            name="eagle3",
            taps=taps,
            layers=_decoder(config, reader, target),
            read=_projection(config, len(taps), target, reader),
            join=lambda embeddings, features: torch.cat([embeddings, features], -1),
            feeds_normed=config.norm_output,
            vocab_size=config.layers.vocab_size,
            ids=ids,
        )
        checkpoint.finish()
    return head


def _decoder(config: Eagle3Config, reader: WeightReader, target: Decoder) -> Decoder:
    layers, names, kernels = config.layers, reader.checkpoint.names, target.kernels
    attention = layers.attention
    first = reader.below("midlayer" if "midlayer.hidden_norm.weight" in names else "layers.0")
    embedding = _embedding(config, reader, target)
    shape = config.draft_vocab, layers.hidden_size
    head = target.head
    if "lm_head.weight" in names or shape != (layers.vocab_size, target.config.hidden_size):
        head = kernels.linear(reader.matrix("lm_head", *shape))
    return Decoder(
        config=layers,
        first=0,
        layers=(
            _first_layer(config, first, kernels),
            *(build_layer(layers, n, 0, reader, kernels) for n in range(1, layers.num_layers)),
        ),
        rope=rope_tables(attention.rope, attention.width, target.max_length).to(reader.device),
        dtype=reader.dtype,
        kernels=kernels,
        exact=False,
        embedding=embedding,
        norm=rms_norm(reader.norm("norm", layers.hidden_size), layers.norm_eps),
        head=head,
    )


def _embedding(config: Eagle3Config, reader: WeightReader, target: Decoder) -> Tensor | None:
    """The drafter's own embedding, or the target's."""
    layers = config.layers
    if "embed_tokens.weight" in reader.checkpoint.names:
        return reader.matrix("embed_tokens", layers.vocab_size, layers.hidden_size)
    if layers.hidden_size != target.config.hidden_size:
        raise CheckpointError(
            f"the drafter's hidden size {layers.hidden_size} is not the target's "
            f"{target.config.hidden_size}, and it has no embed_tokens of its own: use the target "
            "that it was trained for."
        )
    return target.embedding


def _first_layer(config: Eagle3Config, reader: WeightReader, kernels: Kernels) -> Layer:
    layers = config.layers
    width, eps = layers.hidden_size, layers.norm_eps
    norms = [reader.norm(name, width) for name in ("input_layernorm", "hidden_norm")]
    mixer = AttentionLayer(
        layers.attention,
        2 * width,
        eps,
        0,
        layers.attention.windows[0],
        reader.below("self_attn"),
        kernels,
        out_width=width,
    )
    return FirstLayer(
        norm=rms_norm(torch.stack(norms), eps),
        starts_normed=config.norm_before_residual,
        mixer=mixer,
        mlp_norm=rms_norm(reader.norm("post_attention_layernorm", width), eps),
        mlp=build_mlp(layers, reader.below("mlp"), kernels),
        kernels=kernels,
    )


def _projection(
    config: Eagle3Config, taps: int, target: Decoder, reader: WeightReader
) -> Callable[[Tensor], Tensor]:
    """fc of taps [n, taps x hidden] after norms: one over all taps, one for each, or none."""
    width = target.config.hidden_size
    fc = target.kernels.linear(reader.matrix("fc", config.layers.hidden_size, taps * width))
    weights: list[Tensor] = []
    if config.norm_before_fc:
        weights = [reader.norm("input_norm", taps * width)]
    elif config.fc_norm:
        weights = [reader.norm(f"fc_norm.{tap}", width) for tap in range(taps)]
    if not weights:
        return fc
    norm = rms_norm(torch.stack(weights), config.layers.norm_eps)
    return lambda rows: fc(norm(rows.unflatten(-1, (len(weights), -1))).flatten(1))


def _target_ids(config: Eagle3Config, reader: WeightReader) -> Tensor | None:
    """Target ids of the draft vocabulary: draft id + d2t. None where both are the same."""
    draft, rows, names = config.draft_vocab, config.layers.vocab_size, reader.checkpoint.names
    if draft == rows and "d2t" not in names:
        return None
    offsets = reader.take("d2t", draft, dtype=torch.int64)
    if draft < rows and not offsets.any():
        raise CheckpointError(
            f"d2t is all zero, so the {draft} draft tokens would be the target's first {draft}: "
            "the map was never filled in; get the drafter from its author again."
        )
    ids = offsets + torch.arange(draft, device=offsets.device)
    if int(ids.min()) < 0 or int(ids.max()) >= rows or len(ids.unique()) != draft:
        raise CheckpointError(
            f"d2t does not map the {draft} draft tokens to as many of the target's {rows}: offsets "
            "(target id - draft id) are needed."
        )
    if "t2d" in names:
        members = reader.take("t2d", rows, dtype=torch.bool)
        if int(members.sum()) != draft or not bool(members[ids].all()):
            raise CheckpointError("t2d and d2t name different tokens: the file is damaged.")
    return ids if offsets.any() else None
