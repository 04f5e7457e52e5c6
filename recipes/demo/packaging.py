"""Write the block drafters in the packagings that their kinds are published in.

DFlash as z-lab's folders, DSpark anchor-first as DeepSpec's (with copies of the target's embedding
and head), DSpark bonus-anchor as speculators' (taps counted from the embedding, one too high).
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from recipes.demo import block, model

CARDS = Path(__file__).with_name("cards")
TARGET_EMBEDDING = "model.embed_tokens.weight"


def _trunk_config() -> dict[str, Any]:
    body = block.config().to_dict()
    for name in ("_name_or_path", "architectures", "id2label", "label2id"):
        body.pop(name, None)
    return {**body, "dtype": "bfloat16"}


def z_lab(layout: block.Layout) -> dict[str, Any]:
    """`config.json` of a DFlash drafter."""
    nested = {
        "block_size": layout.rows,
        "mask_token_id": block.MASK_ID,
        "target_layer_ids": list(block.TAPS),
    }
    return {
        **_trunk_config(),
        "architectures": ["DFlashDraftModel"],
        "num_target_layers": model.target_config().num_hidden_layers,
        "dflash_config": nested,
    }


def deepspec(layout: block.Layout) -> dict[str, Any]:
    """`config.json` of a DSpark drafter whose first row predicts: DeepSpec knows no other."""
    assert layout.anchor_first
    return {
        **_trunk_config(),
        "architectures": ["Qwen3DSparkModel"],
        "block_size": layout.rows,
        "mask_token_id": block.MASK_ID,
        "target_layer_ids": list(block.TAPS),
        "num_target_layers": model.target_config().num_hidden_layers,
        "num_anchors": block.ANCHORS,
        **_heads(layout),
    }


def speculators(layout: block.Layout) -> dict[str, Any]:
    """`config.json` of a DSpark drafter of either layout."""
    proposal = {"proposal_type": "greedy", "speculative_tokens": layout.drafts}
    return {
        "architectures": ["DSparkSpeculator"],
        "speculators_model_type": "dspark",
        "speculators_config": {
            "algorithm": "dspark",
            "default_proposal_method": "greedy",
            "proposal_methods": [proposal],
            "verifier": {"name_or_path": None, "architectures": ["Qwen3_5ForCausalLM"]},
        },
        "transformer_layer_config": _trunk_config(),
        "draft_vocab_size": block.config().vocab_size,
        "block_size": layout.rows,
        "mask_token_id": block.MASK_ID,
        "aux_hidden_state_layer_ids": [tap + 1 for tap in block.TAPS],
        "sample_from_anchor": layout.anchor_first,
        "sliding_window_non_causal": False,
        **_heads(layout),
    }


def _heads(layout: block.Layout) -> dict[str, Any]:
    return {
        "markov_rank": layout.rank,
        "markov_head_type": "rnn",
        "enable_confidence_head": True,
        "confidence_head_with_markov": True,
    }


PACKAGINGS = {"dflash": z_lab, "dspark": deepspec, "dspark_bonus": speculators}


def write(work: Path, destination: Path, target: dict[str, torch.Tensor], digest: str) -> None:
    """Every block drafter that has been trained, for the target with these tensors and SHA-256."""
    for name, packaging in PACKAGINGS.items():
        trained = work / name / "model.pt"
        if not trained.exists():
            continue
        tensors = {
            key.removeprefix("block."): value.bfloat16().contiguous()
            for key, value in torch.load(trained).items()
            if key.startswith("block.")
        }
        if packaging is deepspec:
            tensors["embed_tokens.weight"] = target[TARGET_EMBEDDING]
            tensors["lm_head.weight"] = target[TARGET_EMBEDDING].clone()
        config = {**packaging(block.LAYOUTS[name]), "outrider": {"target_sha256": digest}}
        _folder(destination / name.replace("_", "-"), config, tensors)


def _folder(folder: Path, config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    shutil.copyfile(CARDS / f"{folder.name}.md", folder / "README.md")
