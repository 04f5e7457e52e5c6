"""Loading a model for a device and a claim of exactness."""

import hashlib
import logging
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from outrider.assemble.decisions import cut
from outrider.config.settings import StagesConfig, TargetConfig
from outrider.errors import ConfigError
from outrider.formats.hub import resolve
from outrider.formats.tokenizer import Tokenizer
from outrider.models.decoder import Decoder, state_spec
from outrider.models.load import LoadOptions, load_decoder
from outrider.models.model_file import load_tokenizer, open_tensors
from outrider.models.selfcheck import rows_are_invariant
from outrider.state.spec import Policy, StateSpec

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedTarget:
    """The target with everything that drafters are checked against.

    `parts` are the stages in this process. `decoder` is the first of them, the whole model where
    it is the only one; where the stages run elsewhere it has no layers and no weights.
    """

    folder: Path
    decoder: Decoder
    parts: tuple[Decoder, ...]
    tokenizer: Tokenizer
    options: LoadOptions

    def state_spec(self, policy: Policy, capacity: int) -> StateSpec:
        """The state of one sequence in all stages together."""
        config, size = self.decoder.config, self.decoder.dtype.itemsize
        return state_spec(config, config.layer_kinds, policy, capacity, size)

    @property
    def vocab_size(self) -> int:
        """Rows of the head."""
        return self.decoder.vocab_size

    @property
    def ends(self) -> Decoder:
        """Embedding, final norm and head in one decoder, for drafters that share them."""
        if not self.parts:
            raise ConfigError(
                "stages.processes and stages.address leave the target's embedding and head in "
                "other processes, but drafters of its hidden states share them: set neither, or "
                "use a method such as 'suffix'."
            )
        return replace(self.decoder, norm=self.parts[-1].norm, head=self.parts[-1].head)

    @property
    def is_whole(self) -> bool:
        """True if `decoder` is the whole model."""
        return self.decoder.embedding is not None and self.decoder.head is not None


def load_target(config: TargetConfig, stages: StagesConfig | None = None) -> LoadedTarget:
    """Load the authoritative model; ConfigError or CheckpointError say what does not fit.

    Of `stages` in processes of their own, only what the model is like is read.
    """
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    folder, options = resolve(config.path), load_options(config)
    stages = stages or StagesConfig()
    ranges = cut(stages, open_tensors(folder)[0].num_layers)
    if stages.is_apart:
        parts: tuple[Decoder, ...] = ()
        decoder = load_decoder(folder, replace(options, first=1, last=1))
    else:
        parts = tuple(load_part(folder, options, config, span) for span in ranges)
        decoder = parts[0]
    return LoadedTarget(
        folder=folder,
        decoder=decoder,
        parts=parts,
        tokenizer=load_tokenizer(folder),
        options=options,
    )


def load_part(
    folder: Path,
    options: LoadOptions,
    config: TargetConfig,
    span: tuple[int, int],
) -> Decoder:
    """Load the layers [first, last) of `span`, put to the test if they are to be exact."""
    first, last = span
    return _proven(load_decoder(folder, replace(options, first=first, last=last)), config)


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
    if config.exact is False or not decoder.exact:
        if config.exact:
            raise ConfigError(
                "target.exact = true cannot be kept without numba, which compiles the kernels that "
                "keep a row's bits: install numba (it has wheels for 64-bit x86 and ARM), or leave "
                "target.exact out."
            )
        return replace(decoder, exact=False)
    if rows_are_invariant(decoder):
        return decoder
    if config.exact:
        raise ConfigError(
            "target.exact = true cannot be kept: on this processor a row's bits depend on the "
            "rows beside it; leave target.exact out or set it false."
        )
    LOG.warning("not exact: on this processor a row's bits depend on the rows beside it")
    return replace(decoder, exact=False)
