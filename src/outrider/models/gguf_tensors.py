"""A GGUF file's tensors under the names, and in the layouts, of a Hugging Face checkpoint.

llama.cpp's converter changes some of them; a family says how that is undone.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.errors import CheckpointError
from outrider.formats.gguf_file import GgufFile
from outrider.formats.tensors import TensorSource
from outrider.models.config import ModelConfig
from outrider.models.families.family import Restore, families
from outrider.models.gguf_config import ROPE_DIVISORS


@dataclass(frozen=True, slots=True)
class Stored:
    """Where a tensor lies, and what undoes the converter's changes to it."""

    name: str
    restore: Restore


TOP = {
    "embed_tokens.weight": "token_embd.weight",
    "norm.weight": "output_norm.weight",
}


class GgufTensors(TensorSource):
    """The tensors of a GGUF file."""

    explains = "metadata"

    def __init__(self, file: GgufFile, config: ModelConfig) -> None:
        super().__init__(file.path)
        self._file = file
        _check_heads(file, config)
        self._stored = {
            name: stored
            for name, stored in _layout(file, config).items()
            if stored.name in file.tensors
        }
        known = {stored.name for stored in self._stored.values()} | {ROPE_DIVISORS}
        self._others = {_other(name, config) for name in file.tensors if name not in known}

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._stored) | frozenset(self._others)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: entry.shape for name, entry in self._file.tensors.items()}

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """The tensor `name`, dequantised, in `dtype` and the layout of a Hugging Face folder."""
        if name not in self._stored:
            raise CheckpointError(f"tensor {name} is missing from {self.folder}.")
        stored = self._stored[name]
        _check_shape(self._file, stored.name, shape)
        self._taken.add(name)
        return stored.restore(self._file.read(stored.name)).to(dtype)


def _check_shape(file: GgufFile, name: str, wanted: tuple[int, ...]) -> None:
    """GGUF leaves out dimensions of one, as that of a convolution over each channel alone."""
    found = file.tensors[name].shape
    if [size for size in found if size != 1] != [size for size in wanted if size != 1]:
        raise file.fault(f"tensor {name} has shape {found}, but the metadata implies {wanted}.")


def _check_heads(file: GgufFile, config: ModelConfig) -> None:
    """Compare head counts with the tensors before anything of their size is made."""
    attention, delta, hidden = config.attention, config.delta, config.hidden_size
    gates = 2 if attention.output_gate else 1
    wanted: dict[str, tuple[int, ...]] = {
        "attn_q.weight": (gates * attention.heads * attention.width, hidden),
        "attn_k.weight": (attention.kv_heads * attention.width, hidden),
    }
    if delta:
        wanted |= {
            "attn_qkv.weight": (delta.channels, hidden),
            "attn_gate.weight": (delta.value_heads * delta.value_width, hidden),
            "ssm_a": (delta.value_heads,),
        }
    for name in file.tensors:
        if (shape := wanted.get(name.partition(".")[2].partition(".")[2])) is not None:
            _check_shape(file, name, shape)


def _other(name: str, config: ModelConfig) -> str:
    """Layers after the last are the MTP part, which the loader knows by its prefix."""
    block, _, rest = name.removeprefix("blk.").partition(".")
    if config.mtp_layers and block.isdigit() and int(block) >= config.num_layers:
        return f"mtp.{block}.{rest}"
    return name


def _layout(file: GgufFile, config: ModelConfig) -> dict[str, Stored]:
    """Every tensor that a config of this kind may have."""
    prefix, gguf = config.tensor_prefix, families()[config.architecture].gguf
    assert gguf is not None
    layout = {f"{prefix}{name}": Stored(stored, _same) for name, stored in TOP.items()}
    layout["lm_head.weight"] = Stored("output.weight", _same)
    restores = gguf.restores(config)
    for layer in range(config.num_layers):
        for name, stored in gguf.tensors.items():
            layout[f"{prefix}layers.{layer}.{name}"] = Stored(
                f"blk.{layer}.{stored}", restores.get(name, _same)
            )
    return layout


def _same(tensor: Tensor) -> Tensor:
    return tensor
