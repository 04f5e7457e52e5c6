"""Llama (Touvron et al. 2023, arXiv 2302.13971), and what shares its layers, such as SmolLM2."""

from typing import Any

from outrider.formats.gguf_file import GgufFile
from outrider.models.config import ModelConfig
from outrider.models.families.dense import attention, dense
from outrider.models.families.family import COMMON, Family, Gguf, Words, rotary_restores


def _config(words: Words) -> ModelConfig:
    bias = words["attention_bias"]
    mixing = attention(words, qkv_bias=bias, out_bias=bias)
    return dense(words, mixing, mlp_bias=words["mlp_bias"])


def _gguf_words(file: GgufFile, words: dict[str, Any]) -> dict[str, Any]:
    if words["rope_parameters"]["partial_rotary_factor"] != 1:
        raise file.fault(
            "llama.rope.dimension_count rotates a part of each head, which is not "
            "supported for this architecture."
        )
    return words | {"mlp_bias": "blk.0.ffn_gate.bias" in file.tensors}


FAMILIES = (
    Family(
        model_type="llama",
        defaults={
            **COMMON,
            "num_key_value_heads": None,
            "head_dim": None,
            "attention_bias": False,
            "mlp_bias": False,
        },
        nullable=frozenset({"num_key_value_heads", "head_dim"}),
        config=_config,
        gguf=Gguf(name="llama", words=_gguf_words, restores=rotary_restores),
    ),
)
