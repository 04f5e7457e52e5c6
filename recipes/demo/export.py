"""Write the trained models as ordinary Hugging Face folders, weights in bf16."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import PreTrainedTokenizerFast, Qwen3_5TextConfig

from recipes.demo import eagle3, generate, model, packaging, tokens

CARDS = Path(__file__).with_name("cards")


def _half(state: dict[str, torch.Tensor], prefix: str, renamed: str) -> dict[str, torch.Tensor]:
    """The tensors under `prefix`, renamed and in bf16; the tied head is not stored."""
    return {
        renamed + name.removeprefix(prefix): value.bfloat16().contiguous()
        for name, value in state.items()
        if name.startswith(prefix) and not name.endswith("lm_head.weight")
    }


def target_tensors(work: Path) -> dict[str, torch.Tensor]:
    """The trunk, and the MTP layer where it has been trained."""
    tensors = _half(torch.load(generate.trunk(work)), "model.", "model.")
    if (work / "mtp" / "model.pt").exists():
        tensors |= _half(torch.load(work / "mtp" / "model.pt"), "mtp.", "mtp.")
    return tensors


def draft_tensors(work: Path) -> dict[str, torch.Tensor]:
    """The draft model, its `draft.` prefix of training removed."""
    return _half(torch.load(work / "draft" / "model.pt"), "draft.", "")


def save_tokenizer(work: Path, folder: Path) -> None:
    """`tokenizer.json` as trained, and a config that loads it as it is, with no other split."""
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(work / "tokenizer.json"),
        eos_token=tokens.END,
        pad_token=tokens.END,
        mask_token=tokens.MASK,
        model_max_length=model.MAX_LENGTH,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.save_pretrained(folder)
    shutil.copyfile(work / "tokenizer.json", folder / "tokenizer.json")


def save_config(config: Qwen3_5TextConfig, folder: Path, extra: dict[str, Any]) -> None:
    body = {
        **config.to_dict(),
        "architectures": ["Qwen3_5ForCausalLM"],
        "dtype": "bfloat16",
        **extra,
    }
    body.pop("_name_or_path", None)
    (folder / "config.json").write_text(json.dumps(body, indent=2, sort_keys=True) + "\n")
    ends = {"eos_token_id": config.eos_token_id, "pad_token_id": config.pad_token_id}
    (folder / "generation_config.json").write_text(json.dumps(ends, indent=2) + "\n")


def write(
    work: Path,
    folder: Path,
    config: Qwen3_5TextConfig,
    tensors: dict[str, torch.Tensor],
    extra: dict[str, Any],
) -> None:
    """One model folder: weights, config, tokenizer, model card."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)
    save_config(config, folder, extra)
    save_tokenizer(work, folder)
    shutil.copyfile(CARDS / f"{folder.name}.md", folder / "README.md")


def sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def run(work: Path, destination: Path) -> None:
    """Write `target/`, and the drafters that have been trained, under `destination`."""
    mtp = {"mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": False}
    target = destination / "target"
    tensors = target_tensors(work)
    write(work, target, model.target_config(), tensors, mtp if "mtp.fc.weight" in tensors else {})
    digest = sha256(target / "model.safetensors")
    packaging.write(work, destination, tensors, digest)
    if (work / "draft" / "model.pt").exists():
        lineage = {"outrider": {"target_sha256": digest}}
        write(work, destination / "draft", model.draft_config(), draft_tensors(work), lineage)
    if (work / "eagle3" / "model.pt").exists():
        eagle3.write(torch.load(work / "eagle3" / "model.pt"), destination / "eagle3", digest)
