"""From a block drafter's files to a `BlockModel` for one target, or a refusal that says why.

A drafter is a folder or a GGUF file, whose words and tensors are read as those of a folder.
Architecture `dflash` has the keys and tensors of llama.cpp, and of PrismML's fork for log-SNR
conditioning; its target layers count as entries of transformers' `hidden_states` do. `dspark` is
that fork's older form: the drafter's own keys have the prefix twice, target layers count from the
output of the first, and there is no vocabulary. Blocks are not causal in either.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from outrider.draft.base import LengthWarning
from outrider.draft.block.block_config import (
    CONFIDENCE,
    GGUF,
    LOG_SNR,
    MARKOV_CODE,
    BlockConfig,
    Shapes,
    check_method,
    is_block_drafter,
    parse_block,
)
from outrider.draft.block.block_drafter import BlockModel
from outrider.draft.block.block_heads import (
    FREQUENCIES,
    ConfidenceHead,
    MarkovHead,
    greedy_rows,
    log_snr_rows,
)
from outrider.draft.block.block_trunk import Trunk, compiled_trunk
from outrider.errors import CheckpointError
from outrider.formats.files import read_json, read_json_or_empty
from outrider.formats.folder import WeightFolder
from outrider.formats.gguf_file import GgufFile, open_gguf
from outrider.formats.tensors import TensorSource, WeightReader
from outrider.kernels.norm import rms_norm
from outrider.kernels.operations import Kernels, Linear
from outrider.kernels.rotary import paired
from outrider.models.config import ModelConfig
from outrider.models.decoder import Decoder
from outrider.models.families.family import LAYER_TENSORS
from outrider.models.gguf_config import dense_words
from outrider.models.gguf_tensors import GgufTensors, Stored
from outrider.models.load import build_layer
from outrider.models.model_file import is_gguf
from outrider.models.rope import rope_tables

LOG = logging.getLogger(__name__)
EMBEDDING, HEAD = "embed_tokens.weight", "lm_head.weight"
MASK_VECTOR = "mask_embedding.pt"
ARCHITECTURE, OLDER = "dflash", "dspark"
MAP = "d2t"
NAMES = {
    "fc": "fc",
    "enc.output_norm": "hidden_norm",
    "output_norm": "norm",
    "token_embd": "embed_tokens",
    "output": "lm_head",
    "markov_w1": "markov_head.markov_w1",
    "markov_w2": "markov_head.markov_w2",
    "conf_proj": "confidence_head.proj",
    "log_snr_fc1": "log_snr_embed.fc1",
    "log_snr_fc2": "log_snr_embed.fc2",
    "dspark.fc": "fc",
    "dspark.hidden_norm": "hidden_norm",
    "dspark.markov_head_a": "markov_head.markov_w1",
    "dspark.markov_head_b": "markov_head.markov_w2",
    "dspark.confidence_head": "confidence_head.proj",
    "dspark.log_snr_fc1": "log_snr_embed.fc1",
    "dspark.log_snr_fc2": "log_snr_embed.fc2",
}
"""Tensors outside layers: names in GGUF files, and those in folders."""
LAYER_NAMES = {stored: name for name, stored in LAYER_TENSORS.items()}
OWN_KEYS = ("block_size", "sample_from_anchor", "markov_rank", "min_log_snr", "max_log_snr")


def _gguf_words(file: GgufFile) -> dict[str, Any]:
    """The file's metadata in the words of a config.json."""
    kind = file.text("general.architecture")
    older = kind == OLDER
    own = f"{OLDER}.{OLDER}" if older else kind
    shape = dense_words(file, kind, "dspark.markov_head_a.weight" if older else "token_embd.weight")
    found = {**shape, "architectures": [GGUF], "is_causal": False}
    layers = file.numbers(f"{own}.target_layers")
    found["aux_hidden_state_layer_ids"] = [int(layer) + older for layer in layers]
    mask = f"{own}.mask_token_id" if older else "tokenizer.ggml.mask_token_id"
    found["mask_token_id"] = file.number(mask)
    for key in OWN_KEYS:
        if (name := f"{own}.{key}") in file.values:
            found[key] = file.values[name]
    if window := file.number(f"{kind}.attention.sliding_window", 0):
        pattern = file.numbers(f"{kind}.attention.sliding_window_pattern")
        kinds = ["sliding_attention" if slides else "full_attention" for slides in pattern]
        found |= {"sliding_window": window, "layer_types": kinds}
    return found


class BlockTensors(GgufTensors):
    """The tensors of such a file."""

    def __init__(self, file: GgufFile) -> None:
        TensorSource.__init__(self, file.path)
        self._file = file
        self._stored = {_named(name): Stored(name, torch.clone) for name in file.tensors}
        self._others = set()

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of all tensors by name; a single output row is no dimension here."""
        shapes = {name: self._file.tensors[own.name].shape for name, own in self._stored.items()}
        if shape := shapes.get(CONFIDENCE):
            shapes[CONFIDENCE] = (1, shape[-1])
        return shapes

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """The tensor `name` in `dtype`; the map as offsets, which a GGUF file has as ids."""
        if name != MAP or name not in self._stored:
            return super().take(name, shape, dtype).reshape(shape)
        self.leave([name])
        return (self._file.integers(name) - torch.arange(shape[0])).to(dtype)


def _named(stored: str) -> str:
    """A stored name's counterpart in a folder, or itself where there is none."""
    stem, _, kind = stored.rpartition(".")
    if stem in NAMES:
        return f"{NAMES[stem]}.{kind}"
    number, _, part = stem.removeprefix("blk.").partition(".")
    return f"layers.{number}.{LAYER_NAMES[part]}.{kind}" if part in LAYER_NAMES else stored


def holds_block_drafter(path: Path) -> bool:
    """True if a folder or GGUF file holds a block drafter, of a supported kind or not."""
    if is_gguf(path):
        return open_gguf(path).text("general.architecture") in (ARCHITECTURE, OLDER)
    return is_block_drafter(read_json_or_empty(path / "config.json"))


def open_block(path: Path) -> tuple[Mapping[str, Any], WeightFolder | BlockTensors]:
    """A drafter's configuration in a folder's words, and its tensors, to be entered."""
    if is_gguf(path):
        file = open_gguf(path)
        return _gguf_words(file), BlockTensors(file)
    return read_json(path / "config.json"), WeightFolder(path)


def read_block(folder: Path, num_target_layers: int | None = None) -> BlockConfig:
    """Read a drafter's configuration and tensor headers; see `parse_block`."""
    if (folder / MASK_VECTOR).exists():
        raise CheckpointError(
            f"{folder} has a {MASK_VECTOR}, a pickle file, which can run code when loaded: "
            "drafters with a mask vector of their own are not supported."
        )
    raw, opened = open_block(folder)
    with opened as checkpoint:
        return parse_block(raw, checkpoint.shapes, num_target_layers)


def load_block(folder: Path, target: Decoder, method: str | None = None) -> BlockModel:
    """Load and check a drafter for `target`; every tensor is used or an error.

    Raises ConfigError where the file is of another kind than `method`, if one was asked for.
    """
    config = read_block(folder, target.config.num_layers)
    if method is not None:
        check_method(method, config, str(folder))
    _check_target(config, target.config)
    with open_block(folder)[1] as checkpoint:
        reader = WeightReader(checkpoint, "", target.dtype, target.device)
        model = _Builder(config, checkpoint.shapes, target, reader).build()
        checkpoint.leave({"t2d"} & checkpoint.names)
        checkpoint.finish()
    LOG.info("block drafter %s: %s", folder, model.describe())
    return model


def _check_target(config: BlockConfig, target: ModelConfig) -> None:
    """Raise where the drafter was made for a target of another shape."""
    trunk = config.trunk
    for key, mine, theirs in (
        ("num_target_layers", config.target_layers or target.num_layers, target.num_layers),
        ("vocab_size", trunk.vocab_size, target.vocab_size),
        ("hidden_size", trunk.hidden_size, target.hidden_size),
    ):
        if mine != theirs:
            raise CheckpointError(
                f"the drafter's {key} = {mine}, but the target has {theirs}: it was made for "
                "another target."
            )
    if trunk.max_length <= config.block_size:
        raise CheckpointError(
            f"the drafter's context of {trunk.max_length} tokens has no room for a token and a "
            f"block of {config.block_size}, so it could never draft: use another drafter."
        )
    for tap in config.taps:
        if not -1 <= tap <= target.num_layers:
            raise CheckpointError(
                f"the drafter taps layer {tap}, but the target has layers 0 to "
                f"{target.num_layers - 1}: it was made for another target."
            )
    if config.mask_token >= target.vocab_size:
        raise CheckpointError(
            f"the drafter's mask_token_id = {config.mask_token} is outside the target's vocabulary "
            f"of {target.vocab_size}: it was made for another target."
        )


@dataclass(frozen=True, slots=True)
class _Builder:
    """Makes a drafter's parts from its tensors, one after the other."""

    config: BlockConfig
    shapes: Shapes
    target: Decoder
    reader: WeightReader

    @property
    def kernels(self) -> Kernels:
        return self.target.kernels

    def build(self) -> BlockModel:
        ids, trunk = self._ids(), self._trunk()
        markov, confidence = self._markov(ids), self._confidence()
        return BlockModel(
            config=self.config,
            trunk=trunk,
            embedding=self._embedding(),
            head=self._head(ids),
            vocab_size=self.target.config.vocab_size,
            markov=markov,
            confidence=confidence,
            added=self._log_snr(),
            ids=ids,
            greedy=greedy_rows(markov, confidence, ids) if self.kernels.exact else None,
            warning=LengthWarning(f"the drafter {self.reader.checkpoint.folder}"),
        )

    def _has(self, name: str) -> bool:
        return name in self.shapes

    def _trunk(self) -> Trunk:
        config, reader, shape = self.config.trunk, self.reader, self.config.trunk.attention
        width, taps = config.hidden_size, len(self.config.taps)
        length = self.target.max_length + self.config.block_size
        cos_sin = rope_tables(shape.rope, shape.width, min(length, config.max_length))
        cos_sin = cos_sin.to(reader.device)
        layers = range(config.num_layers)
        key_norms = [
            reader.below(f"layers.{n}.self_attn").norm("k_norm", shape.width) for n in layers
        ]
        heads = [norm.expand(shape.kv_heads, -1) for norm in key_norms]
        built = tuple(build_layer(config, n, 0, reader, self.kernels) for n in layers)
        read = self.kernels.linear(reader.matrix("fc", width, taps * width))
        keep = self._keep()
        key_norm = rms_norm(paired(torch.cat(heads), shape.rope.width), config.norm_eps)
        keep_norm, norm = (
            rms_norm(reader.norm(name, width), config.norm_eps) for name in ("hidden_norm", "norm")
        )
        return Trunk(
            layers=built,
            views=self.config.views,
            read=read,
            keep=keep,
            key_norm=key_norm,
            keep_norm=keep_norm,
            norm=norm,
            cos_sin=cos_sin,
            dtype=reader.dtype,
            compiled=compiled_trunk(built, (read, keep), (key_norm, keep_norm, norm), cos_sin),
        )

    def _keep(self) -> Linear:
        """All layers' projections to keys, then all to values."""
        config, shape = self.config.trunk, self.config.trunk.attention
        size = shape.kv_heads * shape.width
        parts: list[Tensor] = []
        biases: list[Tensor] = []
        for name in ("k_proj", "v_proj"):
            for number in range(config.num_layers):
                below = self.reader.below(f"layers.{number}.self_attn")
                parts.append(self._ordered(below.matrix(name, size, config.hidden_size), name))
                if shape.qkv_bias:
                    biases.append(self._ordered(below.vector(f"{name}.bias", size), name))
        bias = torch.cat(biases) if biases else None
        return self.kernels.linear(torch.cat(parts), bias)

    def _ordered(self, rows: Tensor, name: str) -> Tensor:
        """Rows of a key projection in the order of columns that `rotate` works on."""
        shape = self.config.trunk.attention
        if name == "v_proj":
            return rows
        heads = rows.view(shape.kv_heads, shape.width, *rows.shape[1:])
        return paired(heads, shape.rope.width).flatten(0, 1)

    def _embedding(self) -> Tensor:
        """The drafter's own embedding, or the target's where it has none or a copy."""
        mine, theirs = self._own(EMBEDDING, self.target.config.vocab_size), self.target.embedding
        assert theirs is not None
        return theirs if mine is None or torch.equal(mine, theirs) else mine

    def _own(self, name: str, rows: int) -> Tensor | None:
        width = self.config.trunk.hidden_size
        return self.reader.take(name, rows, width) if self._has(name) else None

    def _head(self, ids: Tensor | None) -> Linear:
        """The drafter's own head, or the target's where it has none or a copy of a tied one."""
        target = self.target
        mine = self._own(HEAD, target.config.vocab_size if ids is None else len(ids))
        assert target.head is not None
        assert target.embedding is not None
        tied = target.config.tied_embeddings
        if mine is None and ids is not None:
            raise CheckpointError(f"the drafter has a vocabulary map, {MAP}, but no {HEAD}.")
        if mine is None or (ids is None and tied and torch.equal(mine, target.embedding)):
            return target.head
        return self.kernels.linear(mine)

    def _ids(self) -> Tensor | None:
        """Target ids of the rows of a reduced vocabulary, checked."""
        if not self._has(MAP):
            return None
        size = self.shapes[MAP][0]
        offsets = self.reader.take(MAP, size, dtype=torch.int64)
        ids = offsets + torch.arange(size, device=offsets.device)
        vocab = self.target.config.vocab_size
        if int(ids.min()) < 0 or int(ids.max()) >= vocab or len(ids.unique()) != size:
            raise CheckpointError(
                f"the drafter's vocabulary map {MAP} is damaged: its {size} rows must lead to "
                f"different ids of the target's {vocab}."
            )
        if self._has("t2d"):
            kept = self.reader.take("t2d", vocab, dtype=torch.bool)
            if not torch.equal(kept.nonzero().squeeze(-1), ids.sort().values):
                raise CheckpointError(
                    f"the drafter's vocabulary maps contradict each other: {MAP} and t2d must name "
                    "the same ids."
                )
        return ids

    def _markov(self, ids: Tensor | None) -> MarkovHead | None:
        config, below = self.config, self.reader.below("markov_head")
        if config.markov is None:
            return None
        vocab, rank = self.target.config.vocab_size, config.rank
        width, mix = self.config.trunk.hidden_size, None
        if config.markov != "vanilla":
            name, out, inner = "gate_proj", rank, width + rank
            if config.markov == "rnn":
                name, out, inner = "joint_proj", 3 * rank, 2 * rank + width
            bias = below.vector(f"{name}.bias", out)
            mix = self.kernels.linear(below.matrix(name, out, inner), bias)
        rows = vocab if ids is None else len(ids)
        return MarkovHead(
            kind=config.markov,
            code=self.reader.take(MARKOV_CODE, vocab, rank),
            out=self.kernels.linear(below.matrix("markov_w2", rows, rank)),
            mix=mix,
        )

    def _confidence(self) -> ConfidenceHead | None:
        kind, width = self.config.confidence, self.config.trunk.hidden_size
        if kind is None:
            return None
        rank = self.config.rank if kind == "hidden+markov" else 0
        weight = self.reader.take(CONFIDENCE, 1, width + rank, dtype=torch.float32)[0]
        name = CONFIDENCE.replace("weight", "bias")
        offset = float(self.reader.take(name, 1)) if self._has(name) else 0.0
        by_token = None
        if rank:
            code = self.reader.take(MARKOV_CODE, self.target.config.vocab_size, rank)
            by_token = code.float() @ weight[width:]
        return ConfidenceHead(weight=weight[:width], offset=offset, by_token=by_token)

    def _log_snr(self) -> Tensor | None:
        span, width = self.config.log_snr, self.config.trunk.hidden_size
        if span is None:
            return None
        below = self.reader.below(LOG_SNR.split(".")[0])
        pairs = [
            (below.matrix(name, width, inner), below.vector(f"{name}.bias", width))
            for name, inner in (("fc1", 2 * FREQUENCIES), ("fc2", width))
        ]
        return log_snr_rows(*span, *pairs)
