"""The MTP layer in Qwen's naming: one full-attention decoder layer on the target's hidden state."""

from __future__ import annotations

import copy
from pathlib import Path

import torch
from torch import nn
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig
from transformers.models.qwen3_5 import modeling_qwen3_5 as qwen

from recipes.demo import readings, unroll
from recipes.demo.block import TAPS


class Mtp(nn.Module):
    """Predicts token t + 2 from the hidden state at t and the embedding of token t + 1.

    Module names give the tensors their `mtp.*` names; embedding and head are the target's.
    """

    def __init__(self, config: Qwen3_5TextConfig) -> None:
        super().__init__()
        config = copy.deepcopy(config)
        config.layer_types, config.num_hidden_layers = ["full_attention"], 1
        config._attn_implementation = "sdpa"
        size, eps = config.hidden_size, config.rms_norm_eps
        self.pre_fc_norm_embedding = qwen.Qwen3_5RMSNorm(size, eps)
        self.pre_fc_norm_hidden = qwen.Qwen3_5RMSNorm(size, eps)
        self.fc = nn.Linear(2 * size, size, bias=False)
        self.layers = nn.ModuleList([qwen.Qwen3_5DecoderLayer(config, 0)])
        self.norm = qwen.Qwen3_5RMSNorm(size, eps)
        for parameter in self.parameters():
            if parameter.ndim == 2:
                nn.init.normal_(parameter, std=config.initializer_range)

    def forward(
        self,
        hidden: torch.Tensor,
        embeddings: torch.Tensor,
        positions: tuple[torch.Tensor, torch.Tensor],
        past: unroll.Past | None = None,
    ) -> torch.Tensor:
        """Hidden states and embeddings [B, T, H], rotary tables for T positions -> [B, T, H].

        The result has been through `norm`: the head reads it, and so does the next recursion.
        """
        halves = (self.pre_fc_norm_embedding(embeddings), self.pre_fc_norm_hidden(hidden))
        x, layer = self.fc(torch.cat(halves, -1)), self.layers[0]
        x = x + self._attend(layer.input_layernorm(x), positions, past or unroll.Past())
        return self.norm(x + layer.mlp(layer.post_attention_layernorm(x)))

    def _attend(
        self, x: torch.Tensor, positions: tuple[torch.Tensor, torch.Tensor], past: unroll.Past
    ) -> torch.Tensor:
        """The layer's own attention, over the chain of steps that `past` keeps."""
        attention, width = self.layers[0].self_attn, self.layers[0].self_attn.head_dim
        q, gate = attention.q_proj(x).unflatten(-1, (-1, 2 * width)).chunk(2, -1)
        k, v = (
            project(x).unflatten(-1, (-1, width))
            for project in (attention.k_proj, attention.v_proj)
        )
        q, k = attention.q_norm(q).transpose(1, 2), attention.k_norm(k).transpose(1, 2)
        q, k = qwen.apply_rotary_pos_emb(q, k, *positions)
        out = past.attend(q, k, v.transpose(1, 2))
        return attention.o_proj(out * gate.flatten(2).sigmoid())


class Taught(nn.Module):
    """A frozen target and what is read from it: hidden states and logits."""

    def __init__(self, target: Qwen3_5ForCausalLM, work: Path) -> None:
        """`work`: where the readings of generated text are, if they were made."""
        super().__init__()
        self.target = target.requires_grad_(False).eval()
        self.work, self.known = work, None

    def recall(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Outputs of the layers `TAPS` side by side [B, T, taps * H] and the state after the
        final norm [B, T, H], from disk where the text was read before."""
        if self.known is None:
            self.known = readings.Readings(self.work, TAPS)
        return self.known.read(self.target, ids)

    @torch.no_grad()
    def read(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Hidden states before and after the final norm [B, T, H] and logits [B, T, V]."""
        before: list[torch.Tensor] = []
        norm = self.target.model.norm
        hook = norm.register_forward_pre_hook(lambda _, args: before.append(args[0]))
        after = self.target.model(input_ids=ids, use_cache=False).last_hidden_state
        hook.remove()
        return before[0], after, self.target.lm_head(after)
