"""What `outrider inspect` and `outrider doctor` report."""

import torch

from outrider.config.run import METHODS
from outrider.models.decoder import state_spec
from outrider.models.hub import resolve
from outrider.models.model_file import open_tensors
from outrider.ops.selftest import Kernels
from outrider.state.spec import PAGE, POLICIES

INSPECTED_CAPACITY = 16
TYPICAL_LINEARS = ((1536, 256), (256, 1536))


def inspect(path: str) -> dict[str, object]:
    """What a model holds and what its states cost; reads configuration and headers only."""
    folder = resolve(path)
    config, opened = open_tensors(folder)
    kinds = config.layer_kinds
    specs = {
        policy: state_spec(config, kinds, policy, INSPECTED_CAPACITY, 4) for policy in POLICIES
    }
    with opened as tensors:
        parameters = tensors.count_parameters()
    return {
        "path": str(folder),
        "architecture": config.architecture,
        "layers": {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)},
        "hidden_size": config.hidden_size,
        "vocab_size": config.vocab_size,
        "max_length": config.max_length,
        "parameters": parameters,
        "rollback_capacity": INSPECTED_CAPACITY,
        "state_bytes_per_token": specs["log"].attention_bytes(PAGE) // PAGE,
        "state_bytes_per_sequence": {p: spec.recurrent_bytes() for p, spec in specs.items()},
        "drafters": [method for method in METHODS if method != "off"],
    }


def doctor() -> dict[str, object]:
    """Versions, processor and the kernels that the self-test picks for typical shapes."""
    kernels = Kernels(exact=True)
    seed = torch.Generator().manual_seed(0)
    for out, inner in TYPICAL_LINEARS:
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
