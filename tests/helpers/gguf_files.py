"""Tiny GGUF files, written from transformers models by the recipe's converter."""

from typing import Any

import torch
import transformers
from gguf import quants
from transformers import PreTrainedModel

from recipes.gguf import Content, content, quantised, write
from tests.helpers.checkpoints import (
    COMMON,
    HYBRID,
    LINEAR_ROPE,
    LLAMA3_ROPE,
    YARN_ROPE,
    randomise,
)

__all__ = ["MODELS", "Content", "build", "content", "quantised", "rounded", "write"]

# Widths are multiples of 32, the block of the simple quantised types.
SIZES: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16}
DENSE: dict[str, Any] = {**COMMON, **SIZES, "num_hidden_layers": 2}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", DENSE),
    "llama-biased": (
        "LlamaForCausalLM",
        {**DENSE, "attention_bias": True, "mlp_bias": True},
    ),
    "llama-tied": ("LlamaForCausalLM", {**DENSE, "tie_word_embeddings": True}),
    "llama-rope-llama3": ("LlamaForCausalLM", {**DENSE, "rope_parameters": LLAMA3_ROPE}),
    "llama-rope-linear": ("LlamaForCausalLM", {**DENSE, "rope_parameters": LINEAR_ROPE}),
    "qwen2": ("Qwen2ForCausalLM", DENSE),
    "qwen2-yarn": ("Qwen2ForCausalLM", {**DENSE, "rope_parameters": YARN_ROPE}),
    "qwen3": ("Qwen3ForCausalLM", DENSE),
    "qwen35": (
        "Qwen3_5ForCausalLM",
        {**HYBRID, **SIZES, "linear_num_value_heads": 6, "linear_value_head_dim": 32},
    ),
}


def build(name: str, seed: int = 0) -> PreTrainedModel:
    class_name, settings = MODELS[name]
    model_class = getattr(transformers, class_name)
    torch.manual_seed(seed)
    model: PreTrainedModel = model_class(model_class.config_class(**settings)).eval()
    randomise(model)
    return model


def rounded(given: Content) -> Content:
    """The fp32 model that a quantised one stands for."""
    tensors = {
        name: quants.dequantize(quants.quantize(value, given.kinds[name]), given.kinds[name])
        if name in given.kinds
        else value
        for name, value in given.tensors.items()
    }
    return Content(architecture=given.architecture, metadata=given.metadata, tensors=tensors)
