"""From a model folder or GGUF file to a `Decoder`, or a range of its layers."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from outrider.errors import CheckpointError
from outrider.formats.tensors import TensorSource, WeightReader
from outrider.kernels.compiled import CompiledKernels
from outrider.kernels.loading import has_numba
from outrider.kernels.norm import RmsNorm, rms_norm
from outrider.kernels.operations import Kernels, Linear
from outrider.kernels.reference import ReferenceKernels
from outrider.models.attention import AttentionLayer
from outrider.models.config import ModelConfig
from outrider.models.decoder import Decoder, DecoderLayer, Mlp
from outrider.models.delta_net import DeltaLayer
from outrider.models.model_file import open_tensors
from outrider.models.rope import longest, rope_tables

LOG = logging.getLogger(__name__)
MTP_PREFIX = "mtp."
HEAD = "lm_head.weight"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """How to load: layers [first, last) (None: to the end), device, max_length.

    dtype: what weights are rounded to; compiled kernels widen them again. reference: by torch's
    operations where compiled kernels would do.
    """

    first: int = 0
    last: int | None = None
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    dtype: torch.dtype = torch.float32
    max_length: int | None = None
    reference: bool = False


def choose_kernels(options: LoadOptions) -> Kernels:
    """Compiled kernels on a CPU, torch's operations elsewhere."""
    if options.device.type != "cpu" or options.reference:
        return ReferenceKernels()
    if has_numba():
        return CompiledKernels()
    LOG.warning("not exact, and several times slower: numba, which compiles kernels, is missing")
    return ReferenceKernels()


def load_decoder(folder: Path, options: LoadOptions) -> Decoder:
    """Load `folder`; every tensor is used, left for another part by name, or an error."""
    config, opened = open_tensors(folder)
    length = _max_length(config, options)
    with opened as checkpoint:
        config = _as_stored(checkpoint, config)
        kernels = choose_kernels(options)
        reader = WeightReader(
            checkpoint,
            config.tensor_prefix,
            torch.float32 if kernels.exact else options.dtype,
            options.device,
            config.zero_centred_norm,
            options.dtype,
        )
        decoder = _build(config, reader, kernels, options, length)
        _account(checkpoint, config, options)
        return decoder


def _max_length(config: ModelConfig, options: LoadOptions) -> int:
    wanted, rope = options.max_length or config.max_length, config.attention.rope
    if wanted <= (most := longest(rope, config.max_length)):
        return wanted
    if rope.kind == "dynamic":
        raise CheckpointError(
            f"target.max_length {wanted} exceeds max_position_embeddings {most}, beyond which rope "
            "type 'dynamic' rotates all earlier positions anew at each length: lower it."
        )
    raise CheckpointError(
        f"target.max_length {wanted} exceeds the {most} positions that the model was trained for; "
        "lower it."
    )


def _build(
    config: ModelConfig,
    reader: WeightReader,
    kernels: Kernels,
    options: LoadOptions,
    length: int,
) -> Decoder:
    last = config.num_layers if options.last is None else options.last
    embedding, norm, head = _ends(config, reader, kernels, options.first == 0, last)
    attention, layers = config.attention, range(options.first, last)
    return Decoder(
        config=config,
        first=options.first,
        layers=tuple(build_layer(config, n, options.first, reader, kernels) for n in layers),
        rope=rope_tables(attention.rope, attention.width, length).to(options.device),
        dtype=reader.dtype,
        kernels=kernels,
        exact=kernels.exact,
        embedding=embedding,
        norm=norm,
        head=head,
    )


def build_layer(
    config: ModelConfig,
    layer: int,
    first: int,
    reader: WeightReader,
    kernels: Kernels,
) -> DecoderLayer:
    """The layer `layers.{layer}` below the reader, in a range of layers that begins at `first`."""
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
        mixer = DeltaLayer(config.delta, width, eps, index, below, kernels)
    return DecoderLayer(
        norm=rms_norm(weights.norm("input_layernorm", width), eps),
        mixer=mixer,
        mlp_norm=rms_norm(weights.norm("post_attention_layernorm", width), eps),
        mlp=build_mlp(config, weights.below("mlp"), kernels),
        kernels=kernels,
    )


def build_mlp(config: ModelConfig, weights: WeightReader, kernels: Kernels) -> Mlp:
    """A layer's feed-forward network."""
    hidden, inner = config.hidden_size, config.intermediate_size
    gate_up = torch.cat([weights.matrix(f"{name}_proj", inner, hidden) for name in ("gate", "up")])
    bias = down_bias = None
    if config.mlp_bias:
        bias = torch.cat([weights.vector(f"{name}_proj.bias", inner) for name in ("gate", "up")])
        down_bias = weights.vector("down_proj.bias", hidden)
    down = weights.matrix("down_proj", hidden, inner)
    return Mlp(kernels.linear(gate_up, bias), kernels.linear(down, down_bias), kernels)


def _as_stored(checkpoint: TensorSource, config: ModelConfig) -> ModelConfig:
    """The config with the head that the file has: its own, or the embedding where it has none.

    Raises CheckpointError where the config says untied and there is no head.
    """
    own = HEAD in checkpoint.names
    if not own and not config.tied_embeddings:
        raise CheckpointError(
            f"tie_word_embeddings is false in the {checkpoint.explains} of {checkpoint.folder}, "
            f"but tensor {HEAD} is missing: fetch the weights again, or set the flag to true if "
            "the model was trained with its embedding as the head."
        )
    if own and config.tied_embeddings:
        LOG.info("tie_word_embeddings is true, but the file has a head of its own: it is used")
    return replace(config, tied_embeddings=not own)


def _ends(
    config: ModelConfig, reader: WeightReader, kernels: Kernels, is_first: bool, last: int
) -> tuple[Tensor | None, RmsNorm | None, Linear | None]:
    """Embedding for the first range, norm and head for the last."""
    is_last = last == config.num_layers
    shape = config.vocab_size, config.hidden_size
    embedding = reader.matrix("embed_tokens", *shape) if is_first else None
    if not is_last:
        return embedding, None, None
    norm = rms_norm(reader.norm("norm", config.hidden_size), config.norm_eps)
    if config.tied_embeddings:
        matrix = embedding if embedding is not None else reader.matrix("embed_tokens", *shape)
    else:
        matrix = replace(reader, prefix="").take(HEAD, *shape)
    return embedding, norm, kernels.linear(matrix)


def _account(checkpoint: TensorSource, config: ModelConfig, options: LoadOptions) -> None:
    """Leave what other parts use: MTP layers, vision towers, other stages' layers and ends."""
    skipped: Sequence[str] = (MTP_PREFIX, *config.skipped_prefixes)
    names = checkpoint.names
    checkpoint.leave(name for name in names if name.startswith(tuple(skipped)))
    for prefix in config.skipped_prefixes:
        if count := sum(name.startswith(prefix) for name in names):
            LOG.warning("text only: %d tensors under %s* are not loaded", count, prefix)
    checkpoint.leave(name for name in names if name.endswith("rotary_emb.inv_freq"))
    if options.first or options.last is not None:
        ours = range(options.first, options.last or config.num_layers)
        stem = f"{config.tensor_prefix}layers."
        others = {f"{stem}{layer}." for layer in range(config.num_layers) if layer not in ours}
        checkpoint.leave(name for name in names if name.startswith(tuple(others)))
        ends = ("embed_tokens.weight", "norm.weight")
        checkpoint.leave({config.tensor_prefix + end for end in ends} & names)
        checkpoint.leave({HEAD} & names)
    checkpoint.finish()
