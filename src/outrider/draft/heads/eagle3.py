"""EAGLE-3 drafters (Li et al. 2025, arXiv 2503.01840) for one target.

fc makes a feature of the taps. The first layer reads embedding and feature side by side, each
normed; the feature is its residual stream. Further layers, where a file has them, are ordinary.
"""

import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from outrider.draft.heads.eagle3_config import Eagle3Config, read_eagle3_config
from outrider.draft.heads.one_token import Head
from outrider.errors import CheckpointError
from outrider.formats.safetensors_folder import Checkpoint
from outrider.formats.tensors import WeightReader
from outrider.kernels.linear import Linear
from outrider.kernels.norm import RmsNorm, fold_norm, length_eps, rms_norm, unit_rows
from outrider.kernels.selftest import Kernels
from outrider.models.attention import AttentionLayer
from outrider.models.decoder import Decoder, Layer, Mlp
from outrider.models.load import LoadOptions, build_layer, build_mlp, build_tables
from outrider.models.pass_plan import PassPlan


@dataclass(frozen=True, slots=True)
class FeatureProjection:
    """fc of the taps [n, taps x hidden], in `groups` unit rows each where they are normed."""

    fc: Linear
    groups: int
    eps: Tensor

    def __call__(self, taps: Tensor) -> Tensor:
        if self.groups:
            taps = unit_rows(taps.unflatten(-1, (self.groups, -1)), self.eps).flatten(1)
        return self.fc(taps)


@dataclass(frozen=True, slots=True)
class FirstLayer:
    """Takes embedding and feature [N, 2 x hidden], gives [N, hidden].

    `norm`: the feature's, where the residual stream begins after it.
    """

    mixer: AttentionLayer
    mlp: Mlp
    eps: Tensor
    norm: RmsNorm | None

    def __call__(self, rows: Tensor, plan: PassPlan) -> Tensor:
        halves = rows.unflatten(-1, (2, -1))
        feature = halves[:, 1]
        x = feature if self.norm is None else self.norm(feature)
        x = x + self.mixer(unit_rows(halves, self.eps).flatten(1), plan)
        return x + self.mlp(unit_rows(x, self.eps))


def load_eagle3(folder: Path, target: Decoder, kernels: Kernels, options: LoadOptions) -> Head:
    """The drafter in `folder`; CheckpointError says what of it does not fit the target."""
    config = read_eagle3_config(folder)
    taps = config.taps_for(target.config)
    with Checkpoint(folder) as checkpoint:
        reader = WeightReader(checkpoint, "", options.dtype, options.device)
        ids = _target_ids(config, reader)
        head = Head(
            name="eagle3",
            taps=taps,
            layers=_decoder(config, reader, target, kernels),
            read=_projection(config, len(taps), target.config.hidden_size, reader, kernels),
            join=lambda embeddings, features: torch.cat([embeddings, features], -1),
            feeds_normed=config.norm_output,
            vocab_size=config.layers.vocab_size,
            ids=ids,
        )
        checkpoint.finish()
    return head


def _decoder(
    config: Eagle3Config, reader: WeightReader, target: Decoder, kernels: Kernels
) -> Decoder:
    layers, names = config.layers, reader.checkpoint.names
    shape = config.draft_vocab, layers.hidden_size
    first = reader.below("midlayer" if "midlayer.hidden_norm.weight" in names else "layers.0")
    own_embedding = "embed_tokens.weight" in names
    if not own_embedding and layers.hidden_size != target.config.hidden_size:
        raise CheckpointError(
            f"the drafter's hidden size {layers.hidden_size} is not the target's "
            f"{target.config.hidden_size}, and it has no embed_tokens of its own: use the target "
            "that it was trained for."
        )
    embedding = target.embedding
    like = torch.empty(0, dtype=reader.dtype, device=reader.device)
    if own_embedding:
        embedding = reader.matrix("embed_tokens", layers.vocab_size, layers.hidden_size)
    shared = "lm_head.weight" not in names and shape == (
        layers.vocab_size,
        target.config.hidden_size,
    )
    return Decoder(
        config=layers,
        first=0,
        layers=(
            _first_layer(config, first, kernels),
            *(build_layer(layers, n, 0, reader, kernels) for n in range(1, layers.num_layers)),
        ),
        tables=build_tables(layers, kernels, like, target.max_length),
        dtype=reader.dtype,
        exact=False,
        embedding=embedding,
        norm=rms_norm(reader.norm("norm", layers.hidden_size), layers.norm_eps),
        head=target.head
        if shared
        else kernels.make_linear(reader.matrix("lm_head", *shape), use="head"),
    )


def _first_layer(config: Eagle3Config, reader: WeightReader, kernels: Kernels) -> Layer:
    layers = config.layers
    width, eps = layers.hidden_size, layers.norm_eps
    feature = reader.norm("hidden_norm", width)
    # Each half has a length of its own, so the root of its width, not of both.
    norm = torch.cat([reader.norm("input_layernorm", width), feature]) * math.sqrt(0.5)
    mixer = AttentionLayer(
        layers.attention,
        norm,
        eps,
        0,
        layers.attention.windows[0],
        reader.below("self_attn"),
        kernels,
        out_width=width,
    )
    mlp = build_mlp(layers, reader, kernels)
    before = rms_norm(feature, eps) if config.norm_before_residual else None
    return FirstLayer(mixer, mlp, length_eps(eps, width).to(norm.device), before)


def _projection(
    config: Eagle3Config, taps: int, width: int, reader: WeightReader, kernels: Kernels
) -> FeatureProjection:
    """fc with the norms before it: one over all taps, one for each, or none."""
    fc = reader.matrix("fc", config.layers.hidden_size, taps * width)
    groups = taps if config.fc_norm else int(config.norm_before_fc)
    if config.norm_before_fc:
        fc = fold_norm(fc, reader.norm("input_norm", taps * width))
    elif config.fc_norm:
        norms = torch.cat([reader.norm(f"fc_norm.{tap}", width) for tap in range(taps)])
        fc = fold_norm(fc, norms / math.sqrt(taps))
    eps = length_eps(config.layers.norm_eps, taps * width // max(groups, 1))
    return FeatureProjection(kernels.make_linear(fc), groups, eps.to(fc.device))


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
