"""From GGUF metadata to a `ModelConfig`, by way of the words of a Hugging Face config.json.

What a file asks for and this engine does not do is refused by key: a model that runs without its
logit scale runs wrongly in silence.
"""

from dataclasses import replace
from typing import Any

import torch

from outrider.formats.gguf_file import GgufFile
from outrider.models.config import ModelConfig
from outrider.models.families.family import families, family_of_gguf
from outrider.models.hf_config import parse_config

MOST_POSITIONS = 1 << 22
ROPE_DIVISORS = "rope_freqs.weight"
# Keys that change the arithmetic, each with the value at which it changes nothing.
NEUTRAL: dict[str, float] = {
    "expert_count": 0,
    "use_parallel_residual": 0,
    "logit_scale": 1,
    "residual_scale": 1,
    "embedding_scale": 1,
    "attn_logit_softcapping": 0,
    "final_logit_softcapping": 0,
    "attention.clamp_kqv": 0,
    "attention.max_alibi_bias": 0,
    "attention.scale": 0,
    "attention.sliding_window": 0,
    "attention.causal": 1,
    "rope.scaling.attn_factor": 1,
    "rope.scaling.yarn_attn_factor": 1,
    "rope.scaling.yarn_log_multiplier": 0,
    "rope.scale_linear": 1,
}


def read_gguf_config(file: GgufFile) -> ModelConfig:
    """Translate a file's metadata; CheckpointError names the key that does not fit."""
    architecture = file.text("general.architecture")
    if (family := family_of_gguf(architecture)) is None or family.gguf is None:
        known = ", ".join(sorted(one.gguf.name for one in families().values() if one.gguf))
        raise file.fault(
            f"general.architecture {architecture!r} is not supported; supported are {known}."
        )
    _refuse(file, architecture)
    words = dense_words(file, architecture) | {"model_type": family.model_type}
    words = family.gguf.words(file, words) if family.gguf.words else words
    return _as_stored(file, parse_config(words, origin=str(file.path)))


def _refuse(file: GgufFile, architecture: str) -> None:
    for key, neutral in NEUTRAL.items():
        name = f"{architecture}.{key}"
        if name in file.values and file.real(name) != neutral:
            raise file.fault(
                f"{name} = {file.values[name]} asks for arithmetic that is not "
                "supported: use a model without it."
            )


def dense_words(
    file: GgufFile, architecture: str, vocabulary: str = "token_embd.weight"
) -> dict[str, Any]:
    """Words that all families share; `vocabulary` has a row per token, should none be listed."""

    def key(name: str) -> str:
        return f"{architecture}.{name}"

    layers = file.number(key("block_count")) - file.number(key("nextn_predict_layers"), 0)
    heads, hidden = file.number(key("attention.head_count")), file.number(key("embedding_length"))
    if not heads or not 1 <= layers <= len(file.tensors):
        raise file.fault(
            f"{key('block_count')} and {key('attention.head_count')} make {layers} "
            f"layers of {heads} heads, which {len(file.tensors)} tensors cannot be."
        )
    width = file.number(key("attention.key_length"), hidden // heads)
    if file.number(key("attention.value_length"), width) != width:
        raise file.fault(f"keys of {width} and values of another width are not supported.")
    return {
        "model_type": architecture,
        "vocab_size": _vocab_size(file, architecture, vocabulary),
        "hidden_size": hidden,
        "intermediate_size": file.number(key("feed_forward_length")),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": file.number(key("attention.head_count_kv"), heads),
        "head_dim": width,
        "rms_norm_eps": file.real(key("attention.layer_norm_rms_epsilon")),
        "max_position_embeddings": _context(file, key("context_length")),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "rope_parameters": _rope(file, architecture, width),
    }


def _context(file: GgufFile, key: str) -> int:
    length = file.number(key)
    if not 1 <= length <= MOST_POSITIONS:
        raise file.fault(f"{key} = {length} is not from 1 to {MOST_POSITIONS}: convert it anew.")
    return length


def _vocab_size(file: GgufFile, architecture: str, vocabulary: str) -> int:
    if f"{architecture}.vocab_size" in file.values:
        return file.number(f"{architecture}.vocab_size")
    if "tokenizer.ggml.tokens" not in file.values and (rows := file.tensors.get(vocabulary)):
        return rows.shape[0]  # of a drafter, which has its target's tokens
    return len(file.texts("tokenizer.ggml.tokens"))


def _rope(file: GgufFile, architecture: str, width: int) -> dict[str, Any]:
    prefix = f"{architecture}.rope"
    rotated = file.number(f"{prefix}.dimension_count", width)
    if rotated > width or rotated % 2 or not rotated:
        raise file.fault(f"{prefix}.dimension_count = {rotated} does not fit heads of {width}.")
    words: dict[str, Any] = {
        "rope_theta": file.real(f"{prefix}.freq_base", 10000.0),
        "partial_rotary_factor": rotated / width,
    }
    # As in llama.cpp, a factor without a type is linear.
    scaled = file.real(f"{prefix}.scaling.factor", 1.0) != 1
    kind = file.text(f"{prefix}.scaling.type", "linear" if scaled else "none")
    if kind == "none":
        return words
    words |= {"rope_type": kind, "factor": file.real(f"{prefix}.scaling.factor")}
    for ours, theirs in YARN.items():
        if (key := f"{prefix}.scaling.{theirs}") in file.values:
            words[ours] = file.real(key)
    return words


YARN = {
    "original_max_position_embeddings": "original_context_length",
    "beta_fast": "yarn_beta_fast",
    "beta_slow": "yarn_beta_slow",
}


def _as_stored(file: GgufFile, config: ModelConfig) -> ModelConfig:
    """Add what the tensors say: biases, rotary divisors, and norms that have their one added."""
    attention = replace(
        config.attention,
        qkv_bias="blk.0.attn_q.bias" in file.tensors,
        out_bias="blk.0.attn_output.bias" in file.tensors,
        rope=replace(config.attention.rope, divisors=_divisors(file, config)),
    )
    return replace(config, attention=attention, zero_centred_norm=False)


def _divisors(file: GgufFile, config: ModelConfig) -> tuple[float, ...] | None:
    """llama3 scaling, which GGUF stores as one divisor per rotary frequency."""
    if ROPE_DIVISORS not in file.tensors:
        return None
    divisors = file.read(ROPE_DIVISORS)
    wanted = (config.attention.rope.width // 2,)
    if divisors.shape != wanted or not bool((divisors > 0).all() & divisors.isfinite().all()):
        raise file.fault(
            f"tensor {ROPE_DIVISORS} must hold {wanted[0]} positive numbers: fetch it again."
        )
    return tuple(torch.flatten(divisors).tolist())
