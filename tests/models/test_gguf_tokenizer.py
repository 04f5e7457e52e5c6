"""A tokenizer rebuilt from GGUF metadata equals the one that the metadata was made from."""

import random
import sysconfig
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend

from outrider.errors import CheckpointError
from outrider.formats.tokenizer import Tokenizer
from outrider.models.model_file import load_tokenizer
from tests.helpers.gguf_files import Content, write
from tests.helpers.gguf_tokens import CONTROL, FAMILIES, USER_DEFINED, metadata, train

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def rebuild(values: dict[str, Any], folder: Path) -> Tokenizer:
    given = Content(architecture="llama", metadata=values)
    return load_tokenizer(write(given, folder / "vocabulary.gguf"))


def lines(count: int) -> list[str]:
    """Code, prose and random characters of many scripts, tokens and white space among them."""
    chance = random.Random(4)
    folder = Path(sysconfig.get_path("stdlib"))
    code = "".join(
        (folder / name).read_text(encoding="utf-8")
        for name in ("typing.py", "textwrap.py", "html/entities.py", "sre_constants.py")
    ).splitlines(keepends=True)
    mixed = [_mixed(chance) for _ in range(count // 2)]
    return [chance.choice(code) for _ in range(count - len(mixed))] + mixed


def _mixed(chance: random.Random) -> str:
    blocks = ((32, 127), (160, 592), (0x300, 0x370), (0x900, 0x980), (0x4E00, 0x4F00))
    spaces = [" ", "  ", "   ", "\n", "\r\n", "\t", "\u00a0", "\u3000"]
    fixed = [*CONTROL, *USER_DEFINED, *spaces, "'S", "'ll", "123456", "٣٤", "½", "🙂👍🏽"]
    parts = [
        chance.choice(fixed) if chance.random() < 0.4 else chr(chance.randrange(*block))
        for block in chance.choices(blocks, k=chance.randrange(1, 40))
    ]
    return "".join(part for part in parts if unicodedata.category(part[0]) != "Cn")


@pytest.mark.parametrize("family", FAMILIES)
def test_ids_and_text_equal_the_original(family: str, tmp_path: Path) -> None:
    original: Backend = train(family, 700)
    ours = rebuild(metadata(family, original), tmp_path)
    assert ours.vocab_size == original.get_vocab_size()
    for line in lines(2000):
        expected = original.encode(line).ids
        assert ours.encode(line) == expected, repr(line)
        for skip in (True, False):
            text = original.decode(expected, skip_special_tokens=skip)
            assert ours.decode(expected, skip_special=skip) == text
    sample = "".join(lines(200))
    assert ours.encode(sample) == original.encode(sample).ids


def test_families_differ_on_the_lines() -> None:
    """The comparison can fail: rules of another family give other ids."""
    backends = {family: train(family, 700) for family in FAMILIES}
    differ = {
        family: sum(
            backend.encode(line, add_special_tokens=False).tokens
            != backends["qwen2"].encode(line, add_special_tokens=False).tokens
            for line in lines(300)
        )
        for family, backend in backends.items()
    }
    assert differ.pop("qwen2") == 0
    assert min(differ.values()) > 5


def test_special_tokens_and_template_are_read(tmp_path: Path) -> None:
    values = metadata("qwen2", train("qwen2", 500))
    values |= {"tokenizer.ggml.eot_token_id": 0, "tokenizer.chat_template": CHATML}
    ours = rebuild(values, tmp_path)
    assert ours.end_tokens == {0, 2}
    assert ours.bos == 0
    chat = [{"role": "user", "content": "hi"}]
    assert ours.render_chat(chat) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert ours.encode_chat(chat)[0] == 1
    assert ours.encode("x")[0] != 0


@pytest.mark.parametrize(("family", "flag", "first"), [("qwen2", True, 0), ("llama-bpe", None, 0)])
def test_bos_is_added_where_the_file_says_so(
    family: str, flag: bool | None, first: int, tmp_path: Path
) -> None:
    values = metadata(family, train(family, 500))
    if flag is not None:
        values["tokenizer.ggml.add_bos_token"] = flag
    ours = rebuild(values, tmp_path)
    assert ours.encode("x")[0] == first
    assert ours.encode("x", add_special=False)[0] != first
    values |= {"tokenizer.ggml.add_bos_token": False, "tokenizer.ggml.add_eos_token": True}
    ours = rebuild(values, tmp_path)
    assert ours.encode("x")[0] != first
    assert ours.encode("x")[-1] == 2


def pieces() -> dict[str, Any]:
    """A SentencePiece vocabulary: bytes, letters, and words with scores."""
    words = ["▁", "h", "e", "l", "o", "he", "ll", "lo", "llo", "hello", "▁h", "▁he", "▁hello"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    scores = [0.0] * 259 + [-100.0] * 5 + [-1.0, -4.0, -5.0, -2.0, -3.0, -6.0, -7.0, -8.0]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": [2, 3, 3, *[6] * 256, *[1] * len(words)],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }


def test_sentence_pieces_merge_by_score_and_fall_back_to_bytes(tmp_path: Path) -> None:
    """Worked by hand: "he" first, then "llo" by way of "ll", then "hello", then the space."""
    ours = rebuild(pieces(), tmp_path)
    assert [ours.token(at) for at in ours.encode("hello")] == ["<s>", "▁hello"]
    spelled = [ours.token(at) for at in ours.encode("hél", add_special=False)]
    assert spelled == ["▁h", "<0xC3>", "<0xA9>", "l"]
    for text in ("hello", "hello hello", " hello", "hél 漢字🙂", "a\nb"):
        assert ours.decode(ours.encode(text)) == text


REFUSALS: dict[str, tuple[dict[str, Any], str]] = {
    "unigram": ({"tokenizer.ggml.model": "t5"}, "model 't5' is not supported"),
    "rule": ({"tokenizer.ggml.pre": "tekken"}, "pre 'tekken' is not supported"),
    "no rule": ({"tokenizer.ggml.pre": None}, r"tokenizer\.ggml\.pre is missing"),
    "twice": ({"tokenizer.ggml.tokens": ["a", "a"]}, "holds a token twice"),
    "types": ({"tokenizer.ggml.token_type": [1]}, r"has 1 items for \d+ tokens"),
    "merge": ({"tokenizer.ggml.merges": ["ab"]}, "'ab', which is no pair"),
    "merged": ({"tokenizer.ggml.merges": ["qq zz"]}, "contradicts itself"),
    "id": ({"tokenizer.ggml.eos_token_id": 500}, r"= 500 is not among \d+ tokens"),
    "template": ({"tokenizer.chat_template": "{% if %}"}, "does not compile"),
    "tokens": ({"tokenizer.ggml.tokens": [1, 2]}, "where a list of texts is needed"),
}


@pytest.mark.parametrize("what", REFUSALS)
def test_what_is_not_known_is_refused(what: str, tmp_path: Path) -> None:
    change, message = REFUSALS[what]
    values = {**metadata("qwen2", train("qwen2", 500)), **change}
    with pytest.raises(CheckpointError, match=message):
        rebuild({key: value for key, value in values.items() if value is not None}, tmp_path)
