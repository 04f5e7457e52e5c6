"""A block drafter's folder as a GGUF file, with the keys and names of llama.cpp's converter.

`python -m recipes.gguf_block FOLDER FILE`. For z-lab's, DeepSpec's, SpecForge's and speculators'
folders with a plain Markov head. PrismML's log-SNR conditioning, which is published in GGUF files
alone, is written where the folder has its tensors.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from recipes.gguf import NAMES, Arrays, Content, write

TOP = {
    "fc": "fc",
    "hidden_norm": "enc.output_norm",
    "norm": "output_norm",
    "embed_tokens": "token_embd",
    "lm_head": "output",
    "markov_head.markov_w1": "markov_w1",
    "markov_head.markov_w2": "markov_w2",
    "confidence_head.proj": "conf_proj",
    "log_snr_embed.fc1": "log_snr_fc1",
    "log_snr_embed.fc2": "log_snr_fc2",
}


def content(folder: Path, tokens: list[str]) -> Content:
    """A folder's metadata and tensors; `tokens` are the target's."""
    raw = json.loads((folder / "config.json").read_text())
    tensors = {name: value for name, value in load_file(folder / "model.safetensors").items()}
    stored: Arrays = {}
    for name, value in tensors.items():
        if name == "d2t":  # ids there, offsets in a folder
            stored["d2t"] = value + np.arange(len(value))
        elif name != "t2d":
            stored[_name(name)] = value.astype(np.float32)
    metadata = _metadata(raw, {**raw, **(raw.get("dflash_config") or {})})
    return Content(
        architecture="dflash",
        metadata={**metadata, "tokenizer.ggml.tokens": tokens},
        tensors=stored,
    )


def _name(name: str) -> str:
    stem, _, kind = name.rpartition(".")
    if stem in TOP:
        return f"{TOP[stem]}.{kind}"
    _, layer, part = stem.split(".", 2)
    known = {**NAMES, "post_attention_layernorm": "ffn_norm"}
    return f"blk.{layer}.{known[part]}.{kind}"


def _metadata(raw: dict[str, Any], flat: dict[str, Any]) -> dict[str, Any]:
    trunk = raw.get("transformer_layer_config", raw)
    taps = flat.get("aux_hidden_state_layer_ids")
    values = {
        "vocab_size": trunk["vocab_size"],
        "context_length": trunk["max_position_embeddings"],
        "embedding_length": trunk["hidden_size"],
        "block_count": trunk["num_hidden_layers"],
        "feed_forward_length": trunk["intermediate_size"],
        "attention.head_count": trunk["num_attention_heads"],
        "attention.head_count_kv": trunk["num_key_value_heads"],
        "attention.key_length": trunk["head_dim"],
        "attention.value_length": trunk["head_dim"],
        "attention.layer_norm_rms_epsilon": float(trunk["rms_norm_eps"]),
        "rope.freq_base": float(trunk.get("rope_theta", 10000.0)),
        "block_size": flat["block_size"],
        "target_layers": taps or [tap + 1 for tap in flat["target_layer_ids"]],
    }
    for key in ("sample_from_anchor", "markov_rank", "min_log_snr", "max_log_snr"):
        if flat.get(key) is not None:
            values[key] = flat[key]
    if trunk.get("use_sliding_window"):
        kinds = trunk["layer_types"]
        values["attention.sliding_window"] = trunk["sliding_window"]
        values["attention.sliding_window_pattern"] = [kind == "sliding_attention" for kind in kinds]
    found = {f"dflash.{key}": value for key, value in values.items()}
    return {**found, "tokenizer.ggml.mask_token_id": flat["mask_token_id"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("file", type=Path)
    parser.add_argument("--target", type=Path, required=True, help="folder with the tokenizer")
    given = parser.parse_args()
    vocabulary = json.loads((given.target / "tokenizer.json").read_text())
    ids = dict(vocabulary["model"]["vocab"])
    ids |= {token["content"]: token["id"] for token in vocabulary["added_tokens"]}
    write(content(given.folder, sorted(ids, key=ids.__getitem__)), given.file)


if __name__ == "__main__":
    main()
