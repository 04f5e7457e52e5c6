"""Loading a model for a device and a claim of exactness."""

import hashlib
import logging
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from outrider.config.run import TargetConfig
from outrider.errors import ConfigError
from outrider.models.decoder import Decoder
from outrider.models.hub import resolve
from outrider.models.load import LoadOptions, load_decoder
from outrider.models.model_file import load_tokenizer
from outrider.models.selfcheck import rows_are_invariant
from outrider.models.tokenizer import Tokenizer
from outrider.ops.selftest import Kernels

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedTarget:
    """The target with everything that drafters are checked against."""

    folder: Path
    decoder: Decoder
    tokenizer: Tokenizer
    kernels: Kernels
    options: LoadOptions


def load_target(config: TargetConfig) -> LoadedTarget:
    """Load the authoritative model; ConfigError or CheckpointError say what does not fit."""
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    folder, options = resolve(config.path), load_options(config)
    exact = config.device == "cpu" if config.exact is None else config.exact
    kernels = Kernels(exact=exact, quantize=config.quantize)
    decoder = _proven(load_decoder(folder, kernels, options), config)
    return LoadedTarget(
        folder=folder,
        decoder=decoder,
        tokenizer=load_tokenizer(folder),
        kernels=kernels,
        options=options,
    )


def load_options(config: TargetConfig) -> LoadOptions:
    """Device and dtype in torch's words; refuses a device that is not there."""
    device = torch.device(config.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            f"target.device = {config.device!r} needs a CUDA device and a CUDA build of torch; "
            "none was found, use 'cpu'."
        )
    half = config.dtype == "bfloat16" or (config.dtype == "auto" and device.type == "cuda")
    dtype = torch.bfloat16 if half else torch.float32
    return LoadOptions(device=device, dtype=dtype, max_length=config.max_length)


def sha256(folder: Path) -> str:
    """Digest of a single-file checkpoint's weights, by which drafters know their target."""
    with (folder / "model.safetensors").open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _proven(decoder: Decoder, config: TargetConfig) -> Decoder:
    """The decoder, with its claim of exactness put to the test on this processor."""
    if not decoder.exact or rows_are_invariant(decoder):
        return decoder
    if config.exact:
        raise ConfigError(
            "target.exact = true cannot be kept: on this processor a row's bits depend on the "
            "rows beside it, whichever kernels are used; leave target.exact out or set it false."
        )
    LOG.warning("not exact: on this processor a row's bits depend on the rows beside it")
    return replace(decoder, exact=False)
