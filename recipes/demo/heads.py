"""The MTP layer in Qwen's naming: one full-attention decoder layer on the target's hidden state."""

from __future__ import annotations

import copy

import torch
from torch import nn
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig
from transformers.models.qwen3_5 import modeling_qwen3_5 as qwen


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
    ) -> torch.Tensor:
        """Hidden states and embeddings [B, T, H], rotary tables for T positions -> [B, T, H].

        The result has been through `norm`: the head reads it, and so does the next recursion.
        """
        halves = (self.pre_fc_norm_embedding(embeddings), self.pre_fc_norm_hidden(hidden))
        x = self.layers[0](
            self.fc(torch.cat(halves, -1)), position_embeddings=positions, attention_mask=None
        )
        return self.norm(x)


class Taught(nn.Module):
    """A frozen target and what is read from it: hidden states and logits."""

    def __init__(self, target: Qwen3_5ForCausalLM) -> None:
        super().__init__()
        self.target = target.requires_grad_(False).eval()

    @torch.no_grad()
    def read(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Hidden states before and after the final norm [B, T, H] and logits [B, T, V]."""
        before: list[torch.Tensor] = []
        norm = self.target.model.norm
        hook = norm.register_forward_pre_hook(lambda _, args: before.append(args[0]))
        after = self.target.model(input_ids=ids, use_cache=False).last_hidden_state
        hook.remove()
        return before[0], after, self.target.lm_head(after)
