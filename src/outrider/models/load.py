"""From a Hugging Face folder to a `Decoder`, or a range of its layers."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from outrider.errors import CheckpointError
from outrider.models.attention import AttentionLayer
from outrider.models.checkpoint import Checkpoint
from outrider.models.config import ModelConfig
from outrider.models.decoder import Decoder, DecoderLayer, Mlp
from outrider.models.delta_net import DeltaLayer
from outrider.models.hf_config import read_config
from outrider.models.pass_plan import Tiles
from outrider.models.rope import rope_tables
from outrider.models.weights import WeightReader
from outrider.ops.linear import Linear
from outrider.ops.selftest import Kernels

MTP_PREFIX = "mtp."


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """How to load: layers [first, last) (None: to the end), device, dtype, exactness, length."""

    first: int = 0
    last: int | None = None
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    dtype: torch.dtype = torch.float32
    max_length: int | None = None


def load_decoder(folder: Path, kernels: Kernels, options: LoadOptions) -> Decoder:
    """Load `folder`; every tensor is used, left for another part by name, or an error."""
    config = read_config(folder)
    length = _max_length(config, options)
    with Checkpoint(folder) as checkpoint:
        reader = WeightReader(
            checkpoint,
            config.tensor_prefix,
            options.dtype,
            options.device,
            config.zero_centred_norm,
        )
        decoder = _build(config, reader, kernels, options, length)
        _account(checkpoint, config, options)
        return decoder


def _max_length(config: ModelConfig, options: LoadOptions) -> int:
    wanted = options.max_length or config.max_length
    if wanted > config.max_length:
        raise CheckpointError(
            f"target.max_length {wanted} exceeds the {config.max_length} positions that the model "
            "was trained for; lower it."
        )
    return wanted


def _build(
    config: ModelConfig,
    reader: WeightReader,
    kernels: Kernels,
    options: LoadOptions,
    length: int,
) -> Decoder:
    last = config.num_layers if options.last is None else options.last
    tiles = _tiles(config, kernels)
    layers = tuple(
        _layer(config, layer, options.first, reader, kernels, tiles)
        for layer in range(options.first, last)
    )
    embedding, norm, head = _ends(config, reader, kernels, options.first == 0, last)
    cos, sin = rope_tables(config.attention.rope, length)
    return Decoder(
        config=config,
        first=options.first,
        layers=layers,
        rope=(cos.to(options.device), sin.to(options.device)),
        tiles=tiles,
        dtype=options.dtype,
        exact=kernels.exact,
        embedding=embedding,
        norm=norm,
        head=head,
    )


def _tiles(config: ModelConfig, kernels: Kernels) -> Tiles:
    attention, delta = config.attention, config.delta
    group = attention.heads // attention.kv_heads
    rows = 1
    if delta:
        rows = kernels.tile_for_delta(
            delta.key_heads, delta.value_heads, delta.key_width, delta.value_width
        )
    return Tiles(kernels.tile_for_attention(attention.kv_heads, group, attention.width), rows)


def _layer(
    config: ModelConfig,
    layer: int,
    first: int,
    reader: WeightReader,
    kernels: Kernels,
    tiles: Tiles,
) -> DecoderLayer:
    weights = reader.below(f"layers.{layer}")
    width, eps = config.hidden_size, config.norm_eps
    # Position among layers of its kind *in this range*: a stage's state holds only its own layers.
    index = config.layer_kinds[first:layer].count(config.layer_kinds[layer])
    mixer: AttentionLayer | DeltaLayer
    if config.layer_kinds[layer] == "attention":
        below = weights.below("self_attn")
        window = config.attention.windows[config.index_in_kind(layer)]
        mixer = AttentionLayer(config.attention, width, eps, index, window, below, kernels)
    else:
        assert config.delta is not None
        below = weights.below("linear_attn")
        mixer = DeltaLayer(config.delta, width, eps, index, below, kernels, tiles.delta)
    return DecoderLayer(
        mixer=mixer,
        mlp=_mlp(config, weights.below("mlp"), kernels),
        mixer_norm=weights.norm("input_layernorm", width),
        mlp_norm=weights.norm("post_attention_layernorm", width),
        eps=eps,
    )


def _mlp(config: ModelConfig, weights: WeightReader, kernels: Kernels) -> Mlp:
    hidden, inner = config.hidden_size, config.intermediate_size
    gate_up = [weights.matrix(f"{name}_proj", inner, hidden) for name in ("gate", "up")]
    biases: list[Tensor] = []
    down_bias = None
    if config.mlp_bias:
        biases = [weights.vector(f"{name}_proj.bias", inner) for name in ("gate", "up")]
        down_bias = weights.vector("down_proj.bias", hidden)
    down = weights.matrix("down_proj", hidden, inner)
    return Mlp(
        kernels.make_linear(torch.cat(gate_up), torch.cat(biases) if biases else None),
        kernels.make_linear(down, down_bias),
    )


def _ends(
    config: ModelConfig, reader: WeightReader, kernels: Kernels, is_first: bool, last: int
) -> tuple[Tensor | None, Tensor | None, Linear | None]:
    """Embedding for the first range, norm and head for the last."""
    is_last = last == config.num_layers
    shape = config.vocab_size, config.hidden_size
    embedding = reader.matrix("embed_tokens", *shape) if is_first else None
    if not is_last:
        return embedding, None, None
    norm = reader.norm("norm", config.hidden_size)
    if config.tied_embeddings:
        matrix = embedding if embedding is not None else reader.matrix("embed_tokens", *shape)
    else:
        top = WeightReader(reader.checkpoint, "", reader.dtype, reader.device)
        matrix = top.matrix("lm_head", *shape)
    return embedding, norm, kernels.make_linear(matrix)


def _account(checkpoint: Checkpoint, config: ModelConfig, options: LoadOptions) -> None:
    """Leave what other parts use: MTP layers, vision towers, other stages' layers, tied heads."""
    skipped: Sequence[str] = (MTP_PREFIX, *config.skipped_prefixes)
    names = checkpoint.names
    checkpoint.leave(name for name in names if name.startswith(tuple(skipped)))
    if config.tied_embeddings:
        checkpoint.leave({"lm_head.weight"} & names)
    checkpoint.leave(name for name in names if name.endswith("rotary_emb.inv_freq"))
    if options.first or options.last is not None:
        ours = range(options.first, options.last or config.num_layers)
        stem = f"{config.tensor_prefix}layers."
        checkpoint.leave(
            name
            for name in names
            if name.startswith(stem) and int(name.removeprefix(stem).split(".")[0]) not in ours
        )
        ends = ("embed_tokens.weight", "norm.weight")
        checkpoint.leave({config.tensor_prefix + end for end in ends} & names)
        checkpoint.leave({"lm_head.weight"} & names)
    checkpoint.finish()
