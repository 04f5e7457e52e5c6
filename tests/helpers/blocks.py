"""Block drafters with random weights, in every packaging, and the weights as plain tensors."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel

VOCAB, HIDDEN, HEADS, KV_HEADS, WIDTH, INNER = 96, 48, 4, 2, 12, 64
MASK = 95
TARGET_LAYERS = 4


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A drafter to write. `packaging` is z-lab, DeepSpec, SpecForge or speculators."""

    packaging: str = "z-lab"
    layers: int = 2
    rows: int = 5
    taps: tuple[int, ...] = (0, 2)
    anchor_first: bool = False
    markov: str | None = None
    rank: int = 6
    confidence: bool = False
    reads_code: bool = True
    window: int | None = None
    causal: bool | None = None
    reduced: int | None = None
    own_embedding: bool = False
    log_snr: bool = False
    max_length: int = 512
    bias: bool = False
    changes: tuple[tuple[str, Any], ...] = ()

    def changed(self, **keys: Any) -> "Kind":
        """With other top-level keys in config.json; None removes one."""
        return replace(self, changes=(*self.changes, *keys.items()))


LIKELY_BLOCKS = {
    "dflash": Kind(),
    "dspark": Kind(
        packaging="DeepSpec", anchor_first=True, markov="vanilla", rank=24, confidence=True
    ),
    "dspark-bonus": Kind(packaging="speculators", markov="vanilla", rank=24, confidence=True),
}
"""For `make_likely`."""


def make_tensors(kind: Kind, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator) * shape[-1] ** -0.5

    def norm(width: int) -> Tensor:
        return 1 + torch.randn(width, generator=generator) * 0.2

    tensors = {
        "fc.weight": random(HIDDEN, len(kind.taps) * HIDDEN),
        "hidden_norm.weight": norm(HIDDEN),
        "norm.weight": norm(HIDDEN),
    }
    for layer in range(kind.layers):
        stem = f"layers.{layer}."
        for name, rows in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
            tensors[f"{stem}self_attn.{name}_proj.weight"] = 2 * random(rows * WIDTH, HIDDEN)
            if kind.bias:
                tensors[f"{stem}self_attn.{name}_proj.bias"] = random(rows * WIDTH)
        tensors[f"{stem}self_attn.o_proj.weight"] = random(HIDDEN, HEADS * WIDTH)
        if kind.bias:
            tensors[f"{stem}self_attn.o_proj.bias"] = random(HIDDEN)
        for name in ("q_norm", "k_norm"):
            tensors[f"{stem}self_attn.{name}.weight"] = norm(WIDTH)
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{stem}{name}.weight"] = norm(HIDDEN)
        for name in ("gate_proj", "up_proj"):
            tensors[f"{stem}mlp.{name}.weight"] = random(INNER, HIDDEN)
        tensors[f"{stem}mlp.down_proj.weight"] = random(HIDDEN, INNER)
    draft_vocab = kind.reduced or VOCAB
    if kind.own_embedding:
        tensors["embed_tokens.weight"] = random(VOCAB, HIDDEN)
    if kind.own_embedding or kind.reduced:
        tensors["lm_head.weight"] = random(draft_vocab, HIDDEN) * 6
    if kind.reduced:
        ids = torch.randperm(VOCAB, generator=generator)[:draft_vocab].sort().values
        tensors["d2t"] = ids - torch.arange(draft_vocab)
        tensors["t2d"] = torch.zeros(VOCAB, dtype=torch.bool).index_fill_(0, ids, True)
    if kind.markov:
        tensors["markov_head.markov_w1.weight"] = 2 * random(VOCAB, kind.rank)
        tensors["markov_head.markov_w2.weight"] = 6 * random(draft_vocab, kind.rank)
        if kind.markov == "gated":
            tensors["markov_head.gate_proj.weight"] = random(kind.rank, HIDDEN + kind.rank)
            tensors["markov_head.gate_proj.bias"] = random(kind.rank)
        if kind.markov == "rnn":
            tensors["markov_head.joint_proj.weight"] = random(3 * kind.rank, 2 * kind.rank + HIDDEN)
            tensors["markov_head.joint_proj.bias"] = random(3 * kind.rank)
    if kind.confidence:
        size = HIDDEN + (kind.rank if kind.markov and kind.reads_code else 0)
        tensors["confidence_head.proj.weight"] = 3 * random(1, size)
        tensors["confidence_head.proj.bias"] = random(1)
    if kind.log_snr:
        for name, inner in (("fc1", 128), ("fc2", HIDDEN)):
            tensors[f"log_snr_embed.{name}.weight"] = random(HIDDEN, inner)
            tensors[f"log_snr_embed.{name}.bias"] = random(HIDDEN)
    return tensors


def make_config(kind: Kind) -> dict[str, Any]:
    body = {
        "model_type": "qwen3",
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": kind.layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": WIDTH,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": kind.max_length,
        "attention_bias": kind.bias,
        "partial_rotary_factor": 0.25,  # as it leaks from a target's config
    }
    if kind.window is not None:
        body["layer_types"] = ["sliding_attention", "full_attention"][: kind.layers]
        body |= {"sliding_window": kind.window, "use_sliding_window": True}
    facts = {"block_size": kind.rows, "mask_token_id": MASK, "target_layer_ids": list(kind.taps)}
    heads = {"markov_rank": kind.rank if kind.markov else 0, "markov_head_type": kind.markov}
    if kind.log_snr:
        heads |= {"min_log_snr": -9.0, "max_log_snr": 9.0}
    if kind.causal is not None:
        body["is_causal"] = kind.causal
    body["num_target_layers"] = TARGET_LAYERS
    if kind.packaging == "z-lab":
        nested = facts if kind.log_snr else {**facts, "block_size": kind.rows}
        body |= {"architectures": ["DFlashDraftModel"], "dflash_config": {**nested, **heads}}
        body["auto_map"] = {"AutoModel": "dflash.DFlashDraftModel"}
        if kind.anchor_first or kind.markov:
            body["dflash_config"]["sample_from_anchor"] = kind.anchor_first
    elif kind.packaging == "DeepSpec":
        assert kind.anchor_first
        body |= {"architectures": ["Qwen3DSparkModel"], **facts, **heads}
    elif kind.packaging == "SpecForge":
        assert kind.anchor_first
        nested = {"projector_type": "dspark", **facts, **heads}
        body |= {"architectures": ["DSparkDraftModel"], "dflash_config": nested}
        body["block_size"] = nested.pop("block_size")
    else:
        body = {
            "architectures": ["DSparkSpeculator" if kind.markov else "DFlashSpeculator"],
            "speculators_model_type": "dspark" if kind.markov else "dflash",
            "speculators_config": {
                "proposal_methods": [{"speculative_tokens": kind.rows - (not kind.anchor_first)}]
            },
            "transformer_layer_config": body,
            "aux_hidden_state_layer_ids": [tap + 1 for tap in kind.taps],
            "draft_vocab_size": kind.reduced or VOCAB,
            "block_size": kind.rows,
            "mask_token_id": MASK,
            "sample_from_anchor": kind.anchor_first,
            "sliding_window_non_causal": kind.causal is False,
            **heads,
        }
    for key, value in kind.changes:
        body[key] = value
        if value is None:
            del body[key]
    return body


def write(
    kind: Kind, folder: Path, seed: int = 0, likely_for: PreTrainedModel | None = None
) -> dict[str, Tensor]:
    """Write a folder and return its tensors."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = make_tensors(kind, seed)
    if likely_for is not None:
        make_likely(kind, tensors, likely_for)
    save_file(
        {name: value.contiguous() for name, value in tensors.items()}, folder / "model.safetensors"
    )
    (folder / "config.json").write_text(json.dumps(make_config(kind)))
    return tensors


def make_likely(kind: Kind, tensors: dict[str, Tensor], model: PreTrainedModel) -> None:
    """Arrange weights so that drafts are often, not always, what the target says.

    For targets whose tokens follow mostly from the one before. Every row attends evenly and takes
    the anchor's embedding from row 0, in as many directions as the heads have, with some noise from
    the features; a Markov head knows the target's matrix.
    """
    centre = 1.0 if model.config.model_type == "qwen3_5_text" else 0.0
    scale = model.model.norm.weight.detach() + centre
    embedding = model.model.embed_tokens.weight.detach().clone()
    unit = embedding * (embedding * embedding).mean(-1, keepdim=True).rsqrt()
    axes = torch.linalg.svd(unit, full_matrices=False).Vh[: KV_HEADS * WIDTH]
    copy = torch.zeros(HIDDEN, HEADS, WIDTH)
    copy[:, :: HEADS // KV_HEADS] = axes.T.view(HIDDEN, KV_HEADS, WIDTH)
    embedding[MASK] = 0.0  # a mask adds nothing to what a row takes from the anchor
    tensors["embed_tokens.weight"] = embedding
    tensors["hidden_norm.weight"] *= 0.03
    tensors["norm.weight"] = scale
    for layer in range(kind.layers):
        stem = f"layers.{layer}."
        tensors[f"{stem}self_attn.q_proj.weight"] *= 0.1
        tensors[f"{stem}self_attn.v_proj.weight"] = axes.clone()
        tensors[f"{stem}self_attn.o_proj.weight"] = copy.flatten(1) * (layer == 0)
        tensors[f"{stem}mlp.down_proj.weight"] *= 0.0
        tensors[f"{stem}input_layernorm.weight"] = torch.ones(HIDDEN)
    if kind.markov:
        assert kind.rank == len(axes)
        tensors["markov_head.markov_w1.weight"] = unit @ axes.T
        head = model.lm_head.weight.detach() * scale
        tensors["markov_head.markov_w2.weight"] = 3 * head @ axes.T
