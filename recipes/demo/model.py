"""The target's and the draft's shapes, and how their weights start."""

from __future__ import annotations

import math

import torch
from torch import nn
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

from recipes.demo import tokens

MAX_LENGTH = 4096


def _config(**shape: object) -> Qwen3_5TextConfig:
    end = tokens.VOCABULARY - len(tokens.SPECIAL)
    return Qwen3_5TextConfig(
        vocab_size=tokens.VOCABULARY,
        max_position_embeddings=MAX_LENGTH,
        tie_word_embeddings=True,
        head_dim=64,
        linear_conv_kernel_dim=4,
        linear_key_head_dim=64,
        linear_value_head_dim=64,
        eos_token_id=end,
        pad_token_id=end,
        **shape,
    )


def target_config() -> Qwen3_5TextConfig:
    """8 layers of width 256, every fourth one full attention: 7.0 M parameters."""
    return _config(
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=8,
        full_attention_interval=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
    )


def build(config: Qwen3_5TextConfig) -> Qwen3_5ForCausalLM:
    """A model with fresh weights and decay rates that remember tens to hundreds of tokens.

    transformers starts `dt_bias` at 1, with which most heads forget within a token or two; this is
    the log-uniform start that the delta-net papers' own code uses.
    """
    torch.manual_seed(0)
    model = Qwen3_5ForCausalLM(config)
    model.config._attn_implementation = "sdpa"
    for module in model.modules():
        if hasattr(module, "dt_bias"):
            _start_decay(module)
    return model


def _start_decay(module: nn.Module) -> None:
    low, high = math.log(0.001), math.log(0.1)
    step = torch.exp(torch.rand_like(module.dt_bias) * (high - low) + low)
    with torch.no_grad():
        module.dt_bias.copy_(step + torch.log(-torch.expm1(-step)))


def draft_config() -> Qwen3_5TextConfig:
    """One delta-net and one attention layer of width 128: a tenth of the target's weights."""
    return _config(
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=2,
        layer_types=["linear_attention", "full_attention"],
        num_attention_heads=2,
        num_key_value_heads=1,
        linear_num_key_heads=2,
        linear_num_value_heads=2,
    )
