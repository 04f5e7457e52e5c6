"""Reports of `outrider inspect` and `outrider doctor`."""

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from outrider.assemble.decisions import decide
from outrider.config.settings import (
    BLOCK_METHODS,
    DRAFT_METHODS,
    NGRAM_METHODS,
    RunConfig,
    TargetConfig,
)
from outrider.draft.block.block_loader import (
    EMBEDDING,
    HEAD,
    holds_block_drafter,
    open_block,
    read_block,
)
from outrider.draft.heads.eagle3 import FLAGS, is_eagle3, read_eagle3_config
from outrider.draft.heads.mtp import mtp_fault
from outrider.formats.files import read_json_or_empty
from outrider.formats.folder import WeightFolder
from outrider.formats.hub import resolve
from outrider.models.decoder import state_spec
from outrider.models.load import LoadOptions, choose_kernels
from outrider.models.model_file import open_tensors
from outrider.state.spec import PAGE, POLICIES

INSPECTED_CAPACITY = 16


def inspect(path: str) -> dict[str, object]:
    """Describe a model and the cost of its states; reads configuration and headers only."""
    folder = resolve(path)
    raw = read_json_or_empty(folder / "config.json")
    if holds_block_drafter(folder):
        return _inspect_block(folder, raw)
    if is_eagle3(raw):
        return _inspect_eagle3(folder, raw)
    config, opened = open_tensors(folder)
    kinds = config.layer_kinds
    specs = {
        policy: state_spec(config, kinds, policy, INSPECTED_CAPACITY, 4) for policy in POLICIES
    }
    with opened as tensors:
        parameters, own = tensors.count_parameters(), mtp_fault(config, tensors) is None
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
        "mtp_layers": config.mtp_layers,
        "drafters": [*NGRAM_METHODS, *(["mtp"] if own else [])],
        "drafters_with_a_file": [*DRAFT_METHODS, "eagle3", *BLOCK_METHODS],
        "decisions": _decisions(path),
    }


def _decisions(path: str) -> dict[str, str]:
    """Decisions that follow from the defaults for a model, each with its reason."""
    explained = decide(RunConfig(target=TargetConfig(path=path))).explained
    return {one.name: f"{one.value} ({one.reason})" for one in explained}


def _inspect_eagle3(folder: Path, raw: dict[str, Any]) -> dict[str, object]:
    config = read_eagle3_config(folder)
    layers = config.layers
    with WeightFolder(folder) as tensors:
        parameters, names = tensors.count_parameters(), tensors.names
    counted = "layer outputs" if config.outputs else "boundaries"
    return {
        "path": str(folder),
        "architecture": "eagle3",
        "packaging": config.packaging,
        "layers": layers.num_layers,
        "hidden_size": layers.hidden_size,
        "vocab_size": layers.vocab_size,
        "draft_vocab_size": config.draft_vocab,
        "layer_ids": f"{list(config.layer_ids)} ({counted})" if config.layer_ids else "default",
        "own_embedding": "embed_tokens.weight" in names,
        **{name: getattr(config, name) for name in FLAGS},
        "parameters": parameters,
        "target_sha256": raw.get("outrider", {}).get("target_sha256", "not recorded"),
    }


def _inspect_block(folder: Path, raw: dict[str, Any]) -> dict[str, object]:
    config = read_block(folder)
    with open_block(folder)[1] as tensors:
        parameters, names = tensors.count_parameters(), tensors.names
    return {
        "path": str(folder),
        "architecture": config.lineage.value,
        "layers": config.trunk.num_layers,
        "hidden_size": config.trunk.hidden_size,
        "vocab_size": config.trunk.vocab_size,
        **config.describe(),
        "own_embedding": EMBEDDING in names,
        "own_head": HEAD in names,
        "parameters": parameters,
        "target_sha256": raw.get("outrider", {}).get("target_sha256", "not recorded"),
    }


def _version_of(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return "not installed"


def doctor() -> dict[str, object]:
    """Versions, processor and kernels."""
    return {
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "cuda": torch.cuda.is_available(),
        "llama.cpp": _version_of("llama_cpp_python"),
        "kernels": {"layers": choose_kernels(LoadOptions()).name},
    }
