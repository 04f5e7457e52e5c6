"""Mistral 7B (Jiang et al. 2023, arXiv 2310.06825): all layers under one sliding window."""

from outrider.models.config import ModelConfig
from outrider.models.families.dense import attention, dense
from outrider.models.families.family import COMMON, Family, Words


def _config(words: Words) -> ModelConfig:
    windows = (words["sliding_window"],) * words["num_hidden_layers"]
    return dense(words, attention(words, windows=windows))


FAMILIES = (
    Family(
        model_type="mistral",
        defaults={**COMMON, "num_key_value_heads": 8, "head_dim": None, "sliding_window": 4096},
        nullable=frozenset({"head_dim", "sliding_window"}),
        counts=frozenset({"num_key_value_heads", "head_dim", "sliding_window"}),
        config=_config,
    ),
)
