"""Small tokenizers in the style of real families, and their GGUF metadata."""

from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from recipes.gguf import tokenizer_metadata

CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
USER_DEFINED = ["<tool_call>", "   "]
CORPUS = [
    "def fib(n):\n    return n if n < 2 else fib(n - 1) + fib(n - 2)\n",
    "The quick brown fox doesn't jump over 1234567 lazy dogs; they've ALL'D gone.\n\n",
    "Grüße aus Köln, naïve café: 東京は晴れです。हिन्दी में लिखा हुआ पाठ 🙂🙂\r\n",
    "{'key': [1, 22, 333], \"other\": null}\t// comment --> x_1 += 0xFF;\n",
] * 3
# What the original tokenizer.json of each family does before BPE.
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace("{1,3}", "")
QWEN35 = QWEN2.replace(r"]?\p{L}+", r"]?[\p{L}\p{M}]+").replace(
    r"[^\s\p{L}\p{N}]", r"[^\s\p{L}\p{M}\p{N}]"
)
FAMILIES = ("gpt-2", "smollm", "llama-bpe", "qwen2", "qwen35")


def train(family: str, size: int) -> Tokenizer:
    """A tokenizer of `size` entries with a family's rules, as the family's own file states them."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=family == "llama-bpe"))
    tokenizer.pre_tokenizer = _pre_tokenizer(family)
    tokenizer.decoder = decoders.ByteLevel()
    if family.startswith("qwen"):
        tokenizer.normalizer = normalizers.NFC()
    small = size < 300
    trainer = trainers.BpeTrainer(
        vocab_size=size - len(USER_DEFINED),
        special_tokens=CONTROL,
        initial_alphabet=[] if small else pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS[:2] if small else CORPUS, trainer)
    tokenizer.add_tokens(
        [AddedToken(token, special=False, normalized=False) for token in USER_DEFINED]
    )
    if family == "llama-bpe":
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[CONTROL[0], "$A"], special_tokens=[(CONTROL[0], 0)]
        )
    return tokenizer


def _pre_tokenizer(family: str) -> pre_tokenizers.PreTokenizer:
    whole = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if family == "gpt-2":
        return whole
    if family == "smollm":
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), whole])
    pattern = {"llama-bpe": LLAMA3, "qwen2": QWEN2, "qwen35": QWEN35}[family]
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def metadata(family: str, tokenizer: Tokenizer) -> dict[str, Any]:
    """What llama.cpp's converter writes of a byte-level tokenizer."""
    values = tokenizer_metadata(tokenizer, family, end=2)
    del values["tokenizer.ggml.add_bos_token"]
    return {**values, "tokenizer.ggml.bos_token_id": 0}


def byte_level_metadata(family: str, size: int) -> dict[str, Any]:
    return metadata(family, train(family, size))
