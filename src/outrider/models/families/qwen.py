"""Qwen2 (arXiv 2407.10671) and Qwen3 (arXiv 2505.09388), dense."""

from outrider.models.config import ModelConfig
from outrider.models.families.dense import WINDOWS, attention, dense, qwen_windows
from outrider.models.families.family import COMMON, Family, Gguf, Words

COUNTS = frozenset({"num_key_value_heads", "head_dim", "sliding_window"})


def _qwen2(words: Words) -> ModelConfig:
    return dense(words, attention(words, qkv_bias=True, windows=qwen_windows(words)))


def _qwen3(words: Words) -> ModelConfig:
    bias, windows = words["attention_bias"], qwen_windows(words)
    mixing = attention(words, qkv_bias=bias, out_bias=bias, qk_norm=True, windows=windows)
    return dense(words, mixing)


FAMILIES = (
    Family(
        model_type="qwen2",
        defaults={**COMMON, **WINDOWS, "num_key_value_heads": 32, "head_dim": None},
        nullable=frozenset({"num_key_value_heads", "head_dim", "sliding_window", "layer_types"}),
        counts=COUNTS,
        config=_qwen2,
        gguf=Gguf(name="qwen2"),
    ),
    Family(
        model_type="qwen3",
        defaults={
            **COMMON,
            **WINDOWS,
            "num_key_value_heads": 32,
            "head_dim": 128,
            "attention_bias": False,
        },
        nullable=frozenset({"num_key_value_heads", "sliding_window", "layer_types"}),
        counts=COUNTS,
        config=_qwen3,
        gguf=Gguf(name="qwen3"),
    ),
)
