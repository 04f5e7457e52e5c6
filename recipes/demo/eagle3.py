"""The EAGLE-3 drafter in SafeAILab's tensor names and SpecForge's config (arXiv 2503.01840)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn
from transformers import LlamaConfig
from transformers.models.llama import modeling_llama as llama

from recipes.demo import heads, model, tokens, unroll

# Outputs of layers, low, middle and high; each can move by one for the alignment test. They are
# among those that block drafters read, so the target reads generated text once for all.
TAPS = (1, 3, 6)
DRAFT_VOCABULARY = 1536
CARD = Path(__file__).with_name("cards") / "eagle3.md"


def config() -> LlamaConfig:
    """One layer of the target's width: 1.3 M parameters with its head."""
    return LlamaConfig(
        vocab_size=tokens.VOCABULARY,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=model.MAX_LENGTH,
        rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=False,
    )


class Attention(nn.Module):
    """Attention whose projections read embedding and feature side by side."""

    def __init__(self, shape: LlamaConfig) -> None:
        super().__init__()
        size, width = shape.hidden_size, shape.head_dim
        self.width = width
        self.q_proj = nn.Linear(2 * size, shape.num_attention_heads * width, bias=False)
        self.k_proj = nn.Linear(2 * size, shape.num_key_value_heads * width, bias=False)
        self.v_proj = nn.Linear(2 * size, shape.num_key_value_heads * width, bias=False)
        self.o_proj = nn.Linear(shape.num_attention_heads * width, size, bias=False)

    def forward(
        self, x: torch.Tensor, rope: tuple[torch.Tensor, torch.Tensor], past: unroll.Past
    ) -> torch.Tensor:
        """Both halves [B, R, 2 H] -> [B, R, H]."""
        q, k, v = (
            project(x).unflatten(-1, (-1, self.width)).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = llama.apply_rotary_pos_emb(q, k, *rope)
        return self.o_proj(past.attend(q, k, v))


class MidLayer(nn.Module):
    """The one decoder layer; the feature is the residual stream."""

    def __init__(self, shape: LlamaConfig) -> None:
        super().__init__()
        size, eps = shape.hidden_size, shape.rms_norm_eps
        self.self_attn = Attention(shape)
        self.mlp = llama.LlamaMLP(shape)
        self.hidden_norm = llama.LlamaRMSNorm(size, eps)
        self.input_layernorm = llama.LlamaRMSNorm(size, eps)
        self.post_attention_layernorm = llama.LlamaRMSNorm(size, eps)

    def forward(
        self,
        embedding: torch.Tensor,
        feature: torch.Tensor,
        rope: tuple[torch.Tensor, torch.Tensor],
        past: unroll.Past,
    ) -> torch.Tensor:
        """Embedding and feature [B, R, H] -> the next step's feature."""
        halves = self.input_layernorm(embedding), self.hidden_norm(feature)
        x = feature + self.self_attn(torch.cat(halves, -1), rope, past)
        return x + self.mlp(self.post_attention_layernorm(x))


class Eagle3(nn.Module):
    """Module names give the tensors their names; the embedding is the target's."""

    def __init__(self, kept: torch.Tensor) -> None:
        """`kept`: the target's ids of the draft vocabulary, in order."""
        super().__init__()
        shape = config()
        size = shape.hidden_size
        self.fc = nn.Linear(len(TAPS) * size, size, bias=False)
        self.midlayer = MidLayer(shape)
        self.norm = llama.LlamaRMSNorm(size, shape.rms_norm_eps)
        self.lm_head = nn.Linear(size, len(kept), bias=False)
        self.rope = llama.LlamaRotaryEmbedding(shape)
        self.register_buffer("kept", kept)
        for parameter in self.parameters():
            if parameter.ndim == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(
        self, feature: torch.Tensor, embedding: torch.Tensor, past: unroll.Past
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Feature and embedding [B, R, H] -> logits [B, R, kept] and the next step's feature."""
        first = past.steps
        places = torch.arange(first, first + feature.shape[1])[None]
        x = self.midlayer(embedding, feature, self.rope(feature, places), past)
        return self.lm_head(self.norm(x)), x


class Student(unroll.Unrolled):
    """The drafter in training, on the target's taps."""

    def __init__(self, target: nn.Module, kept: torch.Tensor, work: Path) -> None:
        super().__init__()
        self.taught = heads.Taught(target, work)
        self.eagle = Eagle3(kept)
        with torch.no_grad():
            self.eagle.lm_head.weight.copy_(target.lm_head.weight[kept])

    def read(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Unrolled`; the first feature is `fc` of the taps."""
        states, final = self.taught.recall(ids)
        by_layer = dict(zip(heads.TAPS, states.chunk(len(heads.TAPS), -1), strict=True))
        taps = torch.cat([by_layer[layer] for layer in TAPS], -1)
        return self.eagle.fc(taps.to(self.eagle.fc.weight.dtype)), self.taught.target.lm_head(final)

    def step(
        self, hidden: torch.Tensor, ids: torch.Tensor, past: unroll.Past
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Unrolled`."""
        return self.eagle(hidden, self.taught.target.model.embed_tokens(ids), past)


def vocabulary(work: Path) -> torch.Tensor:
    """The ids that the target writes most often, ascending."""
    counts = torch.zeros(tokens.VOCABULARY, dtype=torch.long)
    for file in sorted((work / "generated").glob("*.pt")):
        shard = torch.load(file)["ids"].long()
        counts += torch.bincount(shard.flatten(), minlength=tokens.VOCABULARY)
    assert counts.any(), "the step `text` comes first: there is no text to count tokens in"
    return counts.topk(DRAFT_VOCABULARY).indices.sort().values


def write(state: dict[str, torch.Tensor], folder: Path, target_sha256: str) -> None:
    """The drafter's folder: weights in bf16, `d2t` as offsets, `t2d` as a mask."""
    kept = state["eagle.kept"]
    tensors = {
        name.removeprefix("eagle."): value.bfloat16().contiguous()
        for name, value in state.items()
        if name.startswith("eagle.") and name != "eagle.kept"
    }
    tensors["d2t"] = kept - torch.arange(len(kept))
    tensors["t2d"] = torch.zeros(tokens.VOCABULARY, dtype=torch.bool).index_fill(0, kept, True)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)
    body = {
        **config().to_dict(),
        "architectures": ["LlamaForCausalLMEagle3"],
        "dtype": "bfloat16",
        "draft_vocab_size": len(kept),
        "eagle_config": {
            "eagle_aux_hidden_state_layer_ids": list(TAPS),
            "use_aux_hidden_state": True,
        },
        "outrider": {"target_sha256": target_sha256},
    }
    body.pop("_name_or_path", None)
    (folder / "config.json").write_text(json.dumps(body, indent=2, sort_keys=True) + "\n")
    shutil.copyfile(CARD, folder / "README.md")
