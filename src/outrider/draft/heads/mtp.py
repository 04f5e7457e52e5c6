"""The MTP layer that Qwen3-Next and Qwen3.5 targets carry as `mtp.*` tensors.

fc takes the normed embedding and the normed hidden state side by side, in this order; then comes
one full-attention layer of the target's own shape and a norm. Embedding and head are the target's.
Drafting more than one token feeds the normed output back (as vLLM does).
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from outrider.draft.heads.one_token import Head
from outrider.errors import CheckpointError
from outrider.formats.tensors import TensorSource, WeightReader
from outrider.kernels.norm import rms_norm
from outrider.kernels.operations import Kernels
from outrider.models.config import ModelConfig
from outrider.models.decoder import Decoder
from outrider.models.load import MTP_PREFIX, build_layer
from outrider.models.model_file import is_gguf, open_tensors

READS_NORMED = True
"""True if the hidden state is read after the target's final norm: docs/decisions/mtp-hidden.md."""


def mtp_tap(config: ModelConfig) -> int:
    """The target's hidden state that its MTP layer reads, as `records.Needs` numbers it."""
    return config.num_layers if READS_NORMED else config.num_layers - 1


def mtp_fault(config: ModelConfig, tensors: TensorSource) -> str | None:
    """Why the MTP layer of a model cannot be used, in half a sentence; None where it can."""
    if config.mtp_layers != 1:
        return (
            f"{tensors.folder} has {config.mtp_layers} MTP layers (mtp_num_hidden_layers), and "
            "method mtp needs a target with exactly one"
        )
    if is_gguf(tensors.folder):
        return f"{tensors.folder} is a GGUF file, and MTP layers of GGUF files are not read"
    if f"{MTP_PREFIX}fc.weight" not in tensors.names:
        return (
            f"{tensors.folder} was saved without the tensors of the MTP layer that its config.json "
            f"names ({MTP_PREFIX}fc.weight is missing)"
        )
    return None


def holds_mtp(path: Path) -> bool:
    """True if the model at `path` has an MTP layer that `load_mtp` can read; reads headers only."""
    config, opened = open_tensors(path)
    with opened as tensors:
        return mtp_fault(config, tensors) is None


def load_mtp(folder: Path, target: Decoder) -> Head:
    """The MTP layer of the target in `folder`; CheckpointError where `mtp_fault` finds one."""
    config, opened = open_tensors(folder)
    with opened as checkpoint:
        if fault := mtp_fault(config, checkpoint):
            raise CheckpointError(f"{fault}: use another method, such as suffix.")
        reader = WeightReader(
            checkpoint, MTP_PREFIX, target.dtype, target.device, config.zero_centred_norm
        )
        checkpoint.leave(name for name in checkpoint.names if not name.startswith(MTP_PREFIX))
        head = Head(
            name="mtp",
            taps=(mtp_tap(config),),
            layers=_layers(config, reader, target),
            read=lambda taps: taps,
            join=_join(config, reader, target.kernels),
            feeds_normed=True,
            vocab_size=config.vocab_size,
        )
        checkpoint.finish()
    return head


def _layers(config: ModelConfig, reader: WeightReader, target: Decoder) -> Decoder:
    attention = replace(config.attention, windows=(None,))
    one = replace(config, layer_kinds=("attention",), attention=attention, delta=None)
    return replace(
        target,
        config=one,
        first=0,
        layers=(build_layer(one, 0, 0, reader, target.kernels),),
        norm=rms_norm(reader.norm("norm", config.hidden_size), config.norm_eps),
    )


def _join(
    config: ModelConfig, reader: WeightReader, kernels: Kernels
) -> Callable[[Tensor, Tensor], Tensor]:
    """fc of embedding and feature, each normed."""
    width = config.hidden_size
    norms = [reader.norm(f"pre_fc_norm_{half}", width) for half in ("embedding", "hidden")]
    norm = rms_norm(torch.stack(norms), config.norm_eps)
    fc = kernels.linear(reader.matrix("fc", width, 2 * width))
    return lambda embeddings, features: fc(norm(torch.stack([embeddings, features], 1)).flatten(1))
