"""From a model folder or GGUF file to a `Decoder`, or a range of its layers."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from outrider.errors import CheckpointError
from outrider.formats.tensors import TensorSource, WeightReader
from outrider.kernels.attention import BiasTable, Heads
from outrider.kernels.delta import chunk_table
from outrider.kernels.linear import Linear
from outrider.kernels.norm import RmsNorm, fold_norm, length_eps, rms_norm
from outrider.kernels.selftest import Kernels
from outrider.models.attention import AttentionLayer
from outrider.models.config import ModelConfig
from outrider.models.decoder import Decoder, DecoderLayer, Layer, Mlp, state_spec
from outrider.models.delta_net import DeltaLayer
from outrider.models.model_file import open_tensors
from outrider.models.pass_plan import PassTables, Span, plan_pass
from outrider.models.rope import longest, rope_tables
from outrider.state.sequence import SequenceState
from outrider.state.spec import LOG_CHUNK

LOG = logging.getLogger(__name__)
MTP_PREFIX = "mtp."
HEAD = "lm_head.weight"
CALIBRATION_ROWS = 256


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
    config, opened = open_tensors(folder)
    length = _max_length(config, options)
    with opened as checkpoint:
        config = _as_stored(checkpoint, config)
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
    like = torch.empty(0, dtype=options.dtype, device=options.device)
    tables = build_tables(config, kernels, like, length)
    send = _sender(config, tables, options, last, embedding) if kernels.quantize != "none" else None
    layers: list[Layer] = []
    for number in range(options.first, last):
        layers.append(build_layer(config, number, options.first, reader, kernels))
        if send is not None:
            send(layers[-1])
    return Decoder(
        config=config,
        first=options.first,
        layers=tuple(layers),
        tables=tables,
        dtype=options.dtype,
        exact=kernels.exact,
        embedding=embedding,
        norm=norm,
        head=head,
    )


def _sender(
    config: ModelConfig,
    tables: PassTables,
    options: LoadOptions,
    last: int,
    embedding: Tensor | None,
) -> Callable[[Layer], None]:
    """Make a function that sends rows through one layer after another, each before the next one is
    read.

    Layers that round themselves learn from these rows which inputs are large, and let go of their
    weights. Random tokens show it as well as text does (docs/models.md); a range of layers without
    the embedding begins with random rows, so its rounding is not that of the whole model.
    """
    rows, seed = min(CALIBRATION_ROWS, tables.cos.shape[0]), torch.Generator().manual_seed(0)
    if embedding is not None:
        tokens = torch.randint(0, config.vocab_size, (rows,), generator=seed)
        hidden = functional.embedding(tokens.to(options.device), embedding)
    else:
        hidden = torch.randn(rows, config.hidden_size, generator=seed)
        hidden = hidden.to(options.device, options.dtype)
    kinds = config.layer_kinds[options.first : last]
    spec = state_spec(config, kinds, "log", 0, options.dtype.itemsize)
    state = SequenceState(spec, dtype=options.dtype, device=options.device)
    plan = plan_pass([Span(state, rows, revocable=False)], tables, hidden)

    @torch.inference_mode()
    def send(layer: Layer) -> None:
        nonlocal hidden
        hidden = layer(hidden, plan)

    return send


def build_tables(config: ModelConfig, kernels: Kernels, like: Tensor, length: int) -> PassTables:
    """Tables for passes of `length` positions at most, with weights `like` this one."""
    attention, delta = config.attention, config.delta
    shape = attention.kv_heads, attention.heads // attention.kv_heads, attention.width
    fused, device = kernels.fuse(like) is not None, like.device
    tile = 1 if fused else kernels.tile_for_attention(*shape)
    cos, sin = rope_tables(attention.rope, attention.width, length)
    recurrent = None
    if delta and not fused:
        recurrent = delta.key_heads, delta.value_heads, delta.key_width, delta.value_width
    return PassTables(
        cos=cos.to(device),
        sin=sin.to(device),
        windows=frozenset(attention.windows),
        heads=Heads(*shape, max(tile, 1)),
        attention_alone=tile == 0,
        full=BiasTable(shape[1], max(tile, 1), device),
        chunks={chunk: chunk_table(chunk, device) for chunk in (1, LOG_CHUNK)},
        delta_tile=kernels.tile_for_delta(*recurrent) if recurrent else 1,
        turns=torch.stack([cos, sin]).numpy() if fused else None,
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
    norm = weights.norm("input_layernorm", width)
    mixer: AttentionLayer | DeltaLayer
    if config.layer_kinds[layer] == "attention":
        below = weights.below("self_attn")
        window = config.attention.windows[config.index_in_kind(layer)]
        mixer = AttentionLayer(config.attention, norm, eps, index, window, below, kernels)
    else:
        assert config.delta is not None
        below = weights.below("linear_attn")
        mixer = DeltaLayer(config.delta, norm, eps, index, below, kernels)
    return DecoderLayer(
        mixer=mixer,
        mlp=build_mlp(config, weights, kernels),
        eps=length_eps(eps, width).to(norm.device),
    )


def build_mlp(config: ModelConfig, layer: WeightReader, kernels: Kernels) -> Mlp:
    """A layer's feed-forward network with the norm before it folded in."""
    hidden, inner = config.hidden_size, config.intermediate_size
    weights = layer.below("mlp")
    gate_up = torch.cat([weights.matrix(f"{name}_proj", inner, hidden) for name in ("gate", "up")])
    gate_up = fold_norm(-gate_up, layer.norm("post_attention_layernorm", hidden))
    bias = down_bias = None
    if config.mlp_bias:
        bias = -torch.cat([weights.vector(f"{name}_proj.bias", inner) for name in ("gate", "up")])
        down_bias = weights.vector("down_proj.bias", hidden)
    down = weights.matrix("down_proj", hidden, inner)
    products = kernels.make_linear(gate_up, bias), kernels.make_linear(down, down_bias)
    return Mlp(*products, kernels.fuse(down))


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
        top = WeightReader(reader.checkpoint, "", reader.dtype, reader.device)
        matrix = top.take(HEAD, *shape)
    return embedding, norm, kernels.make_linear(matrix, use="head")


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
