"""The composition root: from a configuration to a running engine.

The only file that names concrete targets, stages and drafters.
"""

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from outrider.config.checks import check
from outrider.config.run import (
    RunConfig,
    SpeculativeConfig,
    StateConfig,
    TargetConfig,
)
from outrider.draft.base import Drafter
from outrider.draft.lookup.ngram_cache import NgramCacheDrafter
from outrider.draft.lookup.suffix import SuffixDrafter
from outrider.engine.budget import FixedBudget
from outrider.engine.engine import Engine as EngineFacade
from outrider.engine.engine import Speculation, WindowLimits
from outrider.errors import ConfigError
from outrider.models.checkpoint import Checkpoint
from outrider.models.decoder import Decoder, state_spec
from outrider.models.generation import sampling_defaults
from outrider.models.hf_config import read_config
from outrider.models.hub import resolve
from outrider.models.load import LoadOptions, load_decoder
from outrider.models.selfcheck import rows_are_invariant
from outrider.models.tokenizer import Tokenizer
from outrider.ops.selftest import Kernels
from outrider.sampling.params import SamplingParams
from outrider.stage.local import LocalStage
from outrider.state.spec import POLICIES
from outrider.verify.tail import Tail

LOG = logging.getLogger(__name__)

DRAFTERS: dict[str, Callable[[], Drafter]] = {
    "suffix": SuffixDrafter,
    "ngram-cache": NgramCacheDrafter,
}


class Engine(EngineFacade):
    """An engine with its parts chosen by configuration."""

    tokenizer: Tokenizer
    kernels: Kernels

    @classmethod
    def load(
        cls,
        target: str | TargetConfig = "demo",
        *,
        speculative: SpeculativeConfig | None = None,
        state: StateConfig | None = None,
    ) -> "Engine":
        """Load a target by name, folder or `ID@REVISION`, with its drafter."""
        return cls.load_run(
            RunConfig(
                target=TargetConfig(path=target) if isinstance(target, str) else target,
                speculative=speculative or SpeculativeConfig(),
                state=state or StateConfig(),
            )
        )

    @classmethod
    def load_run(cls, config: RunConfig) -> "Engine":
        """Load everything that a whole configuration names."""
        check(config)
        if config.target.threads is not None:
            torch.set_num_threads(config.target.threads)
        folder = resolve(config.target.path)
        kernels = Kernels(exact=_exact(config.target))
        decoder = _proven(load_decoder(folder, kernels, _options(config.target)), config.target)
        speculation = _speculation(config.speculative)
        capacity = _capacity(config, speculation.windows)
        stage = LocalStage(decoder, config.state.rollback, capacity, make_picker)
        engine = cls(stage, Tokenizer.load(folder), speculation, sampling_defaults(folder))
        engine.kernels = kernels
        return engine

    def describe(self) -> dict[str, object]:
        """What was chosen at load: exactness and the kernels by shape."""
        return {"exact": self.stage.exact, "kernels": self.kernels.report()}


def make_picker(sampling: SamplingParams, prompt_len: int) -> Tail:
    """The verifier of one session."""
    return Tail(sampling, prompt_len=prompt_len)


def _exact(target: TargetConfig) -> bool:
    return target.device == "cpu" if target.exact is None else target.exact


def _proven(decoder: Decoder, target: TargetConfig) -> Decoder:
    """The decoder, with its claim of exactness put to the test on this processor."""
    if not decoder.exact or rows_are_invariant(decoder):
        return decoder
    if target.exact:
        raise ConfigError(
            "target.exact = true cannot be kept: on this processor a row's bits depend on the "
            "rows beside it, whichever kernels are used; leave target.exact out or set it false."
        )
    LOG.warning("not exact: on this processor a row's bits depend on the rows beside it")
    return replace(decoder, exact=False)


def _options(target: TargetConfig) -> LoadOptions:
    device = torch.device(target.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            f"target.device = {target.device!r} needs a CUDA device and a CUDA build of torch; "
            "none was found, use 'cpu'."
        )
    dtype = torch.bfloat16 if target.dtype == "bfloat16" else torch.float32
    if target.dtype == "auto" and device.type == "cuda":
        dtype = torch.bfloat16
    return LoadOptions(device=device, dtype=dtype, max_length=target.max_length)


def _speculation(config: SpeculativeConfig) -> Speculation:
    window = config.verify_window
    limit = window.max_tokens - 1 if window.depth == 1 else window.max_tokens
    wanted = config.max_draft_tokens
    tokens = limit if wanted == "auto" else wanted
    width = max(window.max_tokens, tokens + 1)
    return Speculation(
        method=config.method,
        drafter=DRAFTERS.get(config.method),
        budget=lambda: FixedBudget(tokens),
        windows=WindowLimits(width=width, depth=window.depth, runahead=window.runahead_tokens),
    )


def _capacity(config: RunConfig, windows: WindowLimits) -> int:
    """Rows that may be taken back: all that may be in flight, unless the user set it."""
    if config.state.capacity is not None:
        return config.state.capacity
    return windows.runahead + 1 if windows.runahead else windows.width * windows.depth


def inspect(path: str) -> dict[str, object]:
    """What a model folder holds and what its states cost; reads config.json only."""
    folder = resolve(path)
    config = read_config(folder)
    kinds = config.layer_kinds
    specs = {policy: state_spec(config, kinds, policy, 8, 4) for policy in POLICIES}
    return {
        "path": str(folder),
        "architecture": config.architecture,
        "layers": {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)},
        "hidden_size": config.hidden_size,
        "vocab_size": config.vocab_size,
        "max_length": config.max_length,
        "parameters": _parameters(folder),
        "state_bytes_per_token": specs["log"].attention_bytes(64) // 64,
        "state_bytes_per_sequence": {p: spec.recurrent_bytes() for p, spec in specs.items()},
        "drafters": [*DRAFTERS],
    }


def _parameters(folder: Path) -> int:

    with Checkpoint(folder) as checkpoint:
        return checkpoint.count_parameters()


def doctor() -> dict[str, object]:
    """Versions, processor and the kernels that the self-test picks for a typical shape."""
    kernels = Kernels(exact=True)
    seed = torch.Generator().manual_seed(0)
    for out, inner in ((1536, 256), (256, 1536)):
        kernels.make_linear(torch.randn(out, inner, generator=seed))
    kernels.tile_for_attention(2, 2, 64)
    kernels.tile_for_delta(2, 4, 64, 64)
    return {
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "cuda": torch.cuda.is_available(),
        "kernels": kernels.report(),
    }
