"""A GGUF file ends where llama.cpp ends: by its keys, and by the texts of known tokens.

The expected sets are those of `llama_vocab::impl::load` (src/llama-vocab.cpp, December 2026).
"""

from pathlib import Path
from typing import Any

import pytest
from tokenizers import pre_tokenizers

from tests.models.test_gguf_tokenizer import pieces, rebuild

NORMAL, CONTROL, USER_DEFINED = 1, 3, 4
DEEPSEEK = "<\uff5cend▁of▁sentence\uff5c>"


def byte_level(marks: dict[str, int], **keys: str) -> dict[str, Any]:
    """Metadata with `marks` (text to type) at the end; keys: role to the text that it names."""
    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "ab"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [*tokens, *marks],
        "tokenizer.ggml.token_type": [NORMAL] * len(tokens) + list(marks.values()),
        "tokenizer.ggml.merges": ["a b"],
        **{
            f"tokenizer.ggml.{key}_token_id": len(tokens) + list(marks).index(text)
            for key, text in keys.items()
        },
    }


def control(*texts: str) -> dict[str, int]:
    return dict.fromkeys(texts, CONTROL)


FILES: dict[str, tuple[dict[str, int], dict[str, str], set[str]]] = {
    "llama 3": (
        control("<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", "<|eom_id|>"),
        {"eos": "<|end_of_text|>"},
        {"<|end_of_text|>", "<|eot_id|>", "<|eom_id|>"},
    ),
    "qwen": (
        control("<|im_start|>", "<|im_end|>", "<|endoftext|>"),
        {"eos": "<|im_end|>"},
        {"<|im_end|>", "<|endoftext|>"},
    ),
    "a typeless end": ({"<|im_end|>": NORMAL, "x y": CONTROL}, {}, {"<|im_end|>"}),
    "user-defined": ({"<end_of_turn>": USER_DEFINED}, {}, {"<end_of_turn>"}),
    "control </s>": (control("</s>", "<|im_end|>"), {}, {"</s>", "<|im_end|>"}),
    "text </s>": ({"</s>": NORMAL, "<|im_end|>": CONTROL}, {}, {"<|im_end|>"}),
    "text </s> that a key names": ({"</s>": NORMAL, "<s>": CONTROL}, {"eos": "</s>"}, {"</s>"}),
    "deepseek": (control(DEEPSEEK), {}, {DEEPSEEK}),
    "middles": (
        control("<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<|fim_prefix|>"),
        {},
        {"<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"},
    ),
    "a middle by key": (control("<|fim_pad|>", "<other>"), {"fim_pad": "<other>"}, {"<other>"}),
    "phi": (control("<|end|>", "<|user|>"), {}, {"<|end|>"}),
    "gpt-oss": (
        control("<|end|>", "<|return|>", "<|call|>"),
        {"eos": "<|return|>"},
        {"<|return|>", "<|call|>"},
    ),
    "solar": (control("<|end|>", "<|flush|>", "<|calls|>"), {}, {"<|flush|>", "<|calls|>"}),
    "half of gpt-oss": (control("<|end|>", "<|return|>"), {}, {"<|end|>", "<|return|>"}),
    "gemma 4": (
        control("</s>", "<eos>", "<turn|>", "<|tool_response>"),
        {},
        {"<eos>", "<turn|>", "<|tool_response>"},
    ),
    "no end": (control("<|im_start|>", "<|user|>"), {}, set()),
}


@pytest.mark.parametrize("name", FILES)
def test_ends_are_known_by_key_and_by_text(name: str, tmp_path: Path) -> None:
    marks, keys, expected = FILES[name]
    ours = rebuild(byte_level(marks, **keys), tmp_path)
    assert {ours.token(at) for at in ours.end_tokens} == expected


def test_an_end_is_one_token_in_a_prompt_whatever_its_type_says(tmp_path: Path) -> None:
    ours = rebuild(byte_level({"<|im_end|>": NORMAL, "<|im_start|>": CONTROL}), tmp_path)
    ids = ours.encode("a<|im_end|>")
    assert [ours.token(at) for at in ids] == ["a", "<|im_end|>"]
    assert ours.decode(ids) == "a"


def test_sentence_pieces_without_keys_have_the_ids_of_llama(tmp_path: Path) -> None:
    """llama.cpp: bos 1, eos 2, unknown 0 where a file of tokenizer model `llama` names none."""
    bare = {k: v for k, v in pieces().items() if not k.endswith("_token_id")}
    bare["tokenizer.ggml.tokens"][1:3] = ["<begin>", "<stop>"]
    ours = rebuild(bare, tmp_path)
    assert ours.end_tokens == {2}
    assert ours.bos == 1
    assert ours.encode("hello")[0] == 1
