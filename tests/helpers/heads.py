"""Tiny MTP layers and EAGLE-3 files for tiny targets, with random weights of a size that matters.

`likely=True` arranges them so that they often guess what a target does whose tokens follow mostly
from the one before: the draft is then the target's head on the embedding, with some noise.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

Tensors = dict[str, Tensor]
NOISE = 0.03


def random(generator: torch.Generator, *shape: int, scale: float = 1.0) -> Tensor:
    return torch.randn(*shape, generator=generator) * scale * shape[-1] ** -0.5


def norm(generator: torch.Generator, size: int, centre: float = 1.0) -> Tensor:
    return torch.randn(size, generator=generator) * 0.2 + centre


def mtp_tensors(model: PreTrainedModel, *, likely: bool = False, seed: int = 5) -> Tensors:
    """`mtp.*` of a qwen3_5 target: its last layer's attention and network, drawn again."""
    generator, width = torch.Generator().manual_seed(seed), model.config.hidden_size
    last = f"model.layers.{model.config.num_hidden_layers - 1}."
    tensors = {}
    for name, value in model.state_dict().items():
        if name.startswith(last):
            mixing = likely and name.endswith(("o_proj.weight", "down_proj.weight"))
            make = random if value.dim() > 1 else norm
            extra = {"scale": NOISE if mixing else 1.0} if value.dim() > 1 else {"centre": 0.0}
            tensors[f"mtp.layers.0.{name.removeprefix(last)}"] = make(
                generator, *value.shape, **extra
            )
    for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
        tensors[f"mtp.{name}.weight"] = norm(generator, width, 0.0)
    tensors["mtp.fc.weight"] = random(generator, width, 2 * width)
    if likely:
        noise = random(generator, width, width, scale=4 * NOISE)
        tensors["mtp.fc.weight"] = torch.cat([torch.eye(width), noise], 1)
        tensors["mtp.pre_fc_norm_embedding.weight"] = torch.zeros(width)
        tensors["mtp.norm.weight"] = model.model.norm.weight.detach().clone()
    return tensors


def add_mtp(folder: Path, tensors: Tensors) -> None:
    """Write an MTP layer into a saved target."""
    file = folder / "model.safetensors"
    save_file({**load_file(file), **tensors}, file, metadata={"format": "pt"})
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**raw, "mtp_num_hidden_layers": 1}))


def eagle3_config(model: PreTrainedModel, **changes: Any) -> dict[str, Any]:
    """SpecForge's packaging on the outputs of the first, a middle and the last layer but one."""
    config = model.config
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": config.hidden_size,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": config.hidden_size // 4,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "vocab_size": config.vocab_size,
        "draft_vocab_size": config.vocab_size * 2 // 3,
        **changes,
    }


def eagle3_tensors(raw: dict[str, Any], target_hidden: int, taps: int, seed: int = 6) -> Tensors:
    """Random tensors for a config, in SafeAILab's names."""
    generator = torch.Generator().manual_seed(seed)
    width, inner = raw["hidden_size"], raw["intermediate_size"]
    queries = raw["num_attention_heads"] * raw["head_dim"]
    keys = raw["num_key_value_heads"] * raw["head_dim"]
    draft, rows = raw["draft_vocab_size"], raw["vocab_size"]
    matrices = {
        "fc": (width, taps * target_hidden),
        "midlayer.self_attn.q_proj": (queries, 2 * width),
        "midlayer.self_attn.k_proj": (keys, 2 * width),
        "midlayer.self_attn.v_proj": (keys, 2 * width),
        "midlayer.self_attn.o_proj": (width, queries),
        "midlayer.mlp.gate_proj": (inner, width),
        "midlayer.mlp.up_proj": (inner, width),
        "midlayer.mlp.down_proj": (width, inner),
        "lm_head": (draft, width),
    }
    norms = ("midlayer.hidden_norm", "midlayer.input_layernorm", "norm")
    found = {f"{name}.weight": random(generator, *shape) for name, shape in matrices.items()}
    for name in (*norms, "midlayer.post_attention_layernorm"):
        found[f"{name}.weight"] = norm(generator, width)
    if raw.get("norm_before_fc"):
        found["input_norm.weight"] = norm(generator, taps * target_hidden)
    if raw.get("fc_norm"):
        for tap in range(taps):
            found[f"fc_norm.{tap}.weight"] = norm(generator, target_hidden)
    if draft < rows:
        ids = torch.randperm(rows, generator=generator)[:draft].sort().values
        found["d2t"] = ids - torch.arange(draft)
        found["t2d"] = torch.zeros(rows, dtype=torch.bool).index_fill(0, ids, True)
    return found


def make_likely(tensors: Tensors, model: PreTrainedModel, centre: float) -> None:
    """Attention copies the embedding from where the same token stands; the rest is noise.

    `centre`: what the target's norms add to their weights.
    """
    width = model.config.hidden_size
    generator = torch.Generator().manual_seed(7)
    nothing, key = torch.zeros(width, width), random(generator, width, width, scale=4.0)
    attention = "midlayer.self_attn."
    tensors["fc.weight"] *= NOISE
    tensors["midlayer.mlp.down_proj.weight"] *= NOISE
    tensors["midlayer.input_layernorm.weight"] = torch.ones(width)
    tensors[f"{attention}q_proj.weight"] = torch.cat([key, nothing], 1)
    tensors[f"{attention}k_proj.weight"] = torch.cat([key, nothing], 1)
    tensors[f"{attention}v_proj.weight"] = torch.cat([torch.eye(width), nothing], 1)
    tensors[f"{attention}o_proj.weight"] = torch.eye(width)
    tensors["norm.weight"] = model.model.norm.weight.detach() + centre
    ids = tensors["d2t"] + torch.arange(len(tensors["d2t"]))
    tensors["lm_head.weight"] = model.lm_head.weight.detach()[ids]


def save_eagle3(folder: Path, raw: dict[str, Any], tensors: Tensors) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    contiguous = {name: value.contiguous() for name, value in tensors.items()}
    save_file(contiguous, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(raw))
    return folder


def likely_eagle3(folder: Path, model: PreTrainedModel, taps: tuple[int, ...]) -> Path:
    """An EAGLE-3 file that often guesses right, reading the outputs of layers `taps`.

    SpecForge's ids begin with 1; other outputs are written as speculators' boundaries.
    """
    outputs = taps[0] == 1
    ids = "eagle_aux_hidden_state_layer_ids"
    raw = eagle3_config(model)
    raw |= {"eagle_config": {ids: list(taps)}} if outputs else {ids: [tap + 1 for tap in taps]}
    tensors = eagle3_tensors(raw, model.config.hidden_size, len(taps))
    make_likely(tensors, model, 1.0 if model.config.model_type == "qwen3_5_text" else 0.0)
    return save_eagle3(folder, raw, tensors)
