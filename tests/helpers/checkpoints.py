"""Tiny random checkpoints in real Hugging Face folders, made with transformers' own classes."""

from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PretrainedConfig, PreTrainedModel

VOCAB = 96
COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": 0,
    "pad_token_id": None,
}
HYBRID: dict[str, Any] = {
    **COMMON,
    "num_hidden_layers": 4,
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 2,
}
DENSE: dict[str, Any] = {**COMMON, "num_hidden_layers": 2, "head_dim": 12}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 128,
}
LINEAR_ROPE = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}

ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", DENSE),
    "llama-biased": ("LlamaForCausalLM", {**DENSE, "attention_bias": True, "mlp_bias": True}),
    "llama-tied": ("LlamaForCausalLM", {**DENSE, "tie_word_embeddings": True}),
    "llama-rope-llama3": ("LlamaForCausalLM", {**DENSE, "rope_parameters": LLAMA3_ROPE}),
    "llama-rope-yarn": ("LlamaForCausalLM", {**DENSE, "rope_parameters": YARN_ROPE}),
    "llama-rope-linear": ("LlamaForCausalLM", {**DENSE, "rope_parameters": LINEAR_ROPE}),
    "mistral": ("MistralForCausalLM", {**DENSE, "sliding_window": 24}),
    "qwen2": ("Qwen2ForCausalLM", {**DENSE, "sliding_window": 24, "use_sliding_window": False}),
    "qwen3": ("Qwen3ForCausalLM", DENSE),
    "qwen3-deep": ("Qwen3ForCausalLM", {**DENSE, "num_hidden_layers": 4}),
    "qwen3-sliding": (
        "Qwen3ForCausalLM",
        {
            **DENSE,
            "use_sliding_window": True,
            "sliding_window": 24,
            "layer_types": ["full_attention", "sliding_attention"],
        },
    ),
    "qwen3_5": ("Qwen3_5ForCausalLM", HYBRID),
    "qwen3_5-long": (
        "Qwen3_5ForCausalLM",
        {**HYBRID, "max_position_embeddings": 4096},
    ),
    "qwen3_5-tied": ("Qwen3_5ForCausalLM", {**HYBRID, "tie_word_embeddings": True}),
    "qwen3_next": ("Qwen3NextForCausalLM", {**HYBRID, "mlp_only_layers": [0, 1, 2, 3]}),
}


def build_model(name: str, seed: int = 0) -> PreTrainedModel:
    """A transformers model with random weights large enough to make its choices differ."""
    class_name, settings = ARCHITECTURES[name]
    model_class = getattr(transformers, class_name)
    torch.manual_seed(seed)
    config: PretrainedConfig = model_class.config_class(**settings)
    model: PreTrainedModel = model_class(config).eval()
    randomise(model)
    return model


def randomise(model: PreTrainedModel) -> None:
    """Draw the weights again, large enough to make choices differ."""
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if parameter.dim() > 1 and "conv1d" not in key:
                parameter.normal_(0, parameter.shape[-1] ** -0.5)
            elif "norm" in key or "bias" in key:
                parameter.add_(torch.randn_like(parameter) * 0.2)


def save_model(name: str, folder: Path, seed: int = 0) -> PreTrainedModel:
    """Write a checkpoint to `folder` and return the model that it came from."""
    model = build_model(name, seed)
    model.save_pretrained(folder)
    return model
