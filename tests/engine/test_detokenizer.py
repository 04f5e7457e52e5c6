"""Text from tokens: no half characters, stop strings at any split."""

import random
from collections.abc import Sequence
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models
from tokenizers.pre_tokenizers import ByteLevel

from outrider.engine.detokenizer import Detokenizer, TextStream
from outrider.errors import RequestError

SAMPLES = [
    "plain text",
    "né à 東京 🗼👩‍👩‍👧 - done",
    "🙂🙂🙂",
    "def f(x):\n\treturn x  # 注释\n",
    "",
    "\N{REPLACEMENT CHARACTER} a real mark \N{REPLACEMENT CHARACTER}",
]


def byte_level() -> Tokenizer:
    """One token a byte, and a few merges that tear characters apart."""
    letters = sorted(ByteLevel.alphabet())
    smile, space = spell("🙂"), spell(" ")
    pairs = [
        (space, smile[0]),
        (smile[1], smile[2]),
        ("t", "e"),
        ("te", "x"),
        ("e", spell("東")[0]),
    ]
    vocab = {token: rank for rank, token in enumerate([*letters, *("".join(p) for p in pairs)])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=pairs))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def spell(text: str) -> str:
    """The visible spelling of a text's bytes in byte-level vocabularies."""
    return ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)[0][0]


def by_decoding(tokenizer: Tokenizer) -> SimpleNamespace:
    """A tokenizer whose texts are not the bytes of its tokens."""
    return SimpleNamespace(decode=tokenizer.decode, spelling=None)


def byte_fallback() -> Tokenizer:
    """Words with a leading-space mark, and bytes for everything else, as Llama has it."""
    words = ["▁", "▁Hello", "▁world", "!", "a"]
    vocab = {word: rank for rank, word in enumerate(["<unk>", *words])}
    vocab |= {f"<0x{byte:02X}>": len(vocab) + byte for byte in range(256)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>"))
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return tokenizer


BYTES = byte_level()
FALLBACK = byte_fallback()


def cut(ids: Sequence[int], seed: int) -> list[list[int]]:
    """Cut ids into batches of 1 to 4."""
    chance, batches, at = random.Random(seed), [], 0
    while at < len(ids):
        size = chance.randrange(1, 5)
        batches.append(list(ids[at : at + size]))
        at += size
    return batches


def stream(ids: Sequence[int], stops: Sequence[str], seed: int) -> tuple[str, int, str | None]:
    """Return (text, tokens kept, stop) of a whole output pushed in batches."""
    text, kept = "", 0
    writer = TextStream(by_decoding(BYTES), stops)
    for batch in cut(ids, seed):
        piece = writer.push(batch)
        text, kept = text + piece.text, kept + piece.kept
        if piece.stop is not None:
            return text, kept, piece.stop
    piece = writer.flush()
    return text + piece.text, kept + piece.kept, piece.stop


@pytest.mark.parametrize("text", SAMPLES)
def test_characters_split_over_tokens_come_out_whole(text: str) -> None:
    ids = BYTES.encode(text).ids
    assert not text or len(ids) > len(text) or text.isascii()
    for seed in range(6):
        writer = Detokenizer(by_decoding(BYTES))
        pieces = [writer.push(batch) for batch in cut(ids, seed)]
        if "\N{REPLACEMENT CHARACTER}" not in text:
            assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)
        assert "".join(pieces) + writer.flush() == text


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, BYTES.get_vocab_size() - 1), max_size=90), st.integers(0, 99))
def test_any_tokens_at_all_give_the_text_of_decoding_them_at_once(
    ids: list[int], seed: int
) -> None:
    writer = Detokenizer(by_decoding(BYTES))
    pieces = [writer.push(batch) for batch in cut(ids, seed)]
    assert "".join(pieces) + writer.flush() == BYTES.decode(ids)


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet="aé東🙂 \n", max_size=40), st.integers(0, 99))
def test_text_is_never_late_by_more_than_one_character(text: str, seed: int) -> None:
    writer, done = Detokenizer(by_decoding(BYTES)), ""
    for token in BYTES.encode(text).ids:
        done += writer.push([token])
        assert text.startswith(done)
    assert done == text


def test_a_half_character_at_the_end_is_shown_as_decoding_shows_it() -> None:
    ids = BYTES.encode("ok 🙂").ids[:-1]
    writer = Detokenizer(by_decoding(BYTES))
    assert "".join(writer.push([token]) for token in ids) == "ok "
    assert writer.flush() == "\N{REPLACEMENT CHARACTER}"
    assert writer.flush() == ""


def test_only_a_short_tail_is_decoded() -> None:
    longest = 0

    class Watched:
        spelling = None

        def decode(self, ids: Sequence[int]) -> str:
            nonlocal longest
            longest = max(longest, len(ids))
            return str(BYTES.decode(list(ids)))

    writer = Detokenizer(Watched())
    for token in BYTES.encode("some text 東京 " * 40).ids:
        writer.push([token])
    assert longest <= 16
    for token in [BYTES.token_to_id(spell("東")[1])] * 200:
        writer.push([token])
    assert longest <= 40


def test_leading_spaces_survive_between_pieces() -> None:
    ids = [FALLBACK.token_to_id(token) for token in ("▁Hello", "▁world", "!", "▁world")]
    writer = Detokenizer(by_decoding(FALLBACK))
    assert [writer.push([token]) for token in ids] == ["Hello", " world", "!", " world"]
    behind_prompt = Detokenizer(by_decoding(FALLBACK), context=ids[:1])
    assert [behind_prompt.push([token]) for token in ids[1:]] == [" world", "!", " world"]


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet="a!東🙂é", max_size=12), st.integers(0, 99))
def test_byte_fallback_tokens_come_out_whole(text: str, seed: int) -> None:
    ids = [
        token
        for letter in text
        for token in (
            [FALLBACK.token_to_id(letter)]
            if letter in "a!"
            else [FALLBACK.token_to_id(f"<0x{byte:02X}>") for byte in letter.encode()]
        )
    ]
    writer = Detokenizer(by_decoding(FALLBACK))
    pieces = [writer.push(batch) for batch in cut(ids, seed)]
    assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)
    assert "".join(pieces) + writer.flush() == text


STOPS = st.lists(st.text(alphabet="ab🙂", min_size=1, max_size=4), min_size=1, max_size=3)


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="ab🙂", max_size=25), STOPS)
def test_a_stop_string_is_found_at_any_split(text: str, stops: list[str]) -> None:
    ids = BYTES.encode(text).ids
    found = {stream(ids, stops, seed) for seed in range(8)}
    assert len(found) == 1
    shown, kept, stop = found.pop()
    completed = [
        count
        for count in range(1, len(ids) + 1)
        if any(candidate in BYTES.decode(ids[:count]) for candidate in stops)
    ]
    if not completed:
        assert (shown, kept, stop) == (text, len(ids), None)
    else:
        seen = BYTES.decode(ids[: completed[0]])
        assert kept == completed[0]
        assert stop in stops
        assert shown == seen[: min(seen.find(s) for s in stops if s in seen)]


def test_text_that_may_begin_a_stop_string_is_held_back() -> None:
    writer = TextStream(by_decoding(BYTES), ["END"])
    pushed = [writer.push(BYTES.encode(part).ids).text for part in ("xE", "N", "x", "E", "N")]
    assert pushed == ["x", "", "ENx", "", ""]
    assert writer.flush().text == "EN"


def test_tokens_behind_the_one_that_completes_the_stop_are_dropped() -> None:
    ids = BYTES.encode("one\n\ntwo").ids
    piece = TextStream(by_decoding(BYTES), ["\n\n"]).push(ids)
    assert (piece.text, piece.kept, piece.stop) == ("one", 5, "\n\n")


def test_without_stops_nothing_is_held_back() -> None:
    piece = TextStream(by_decoding(BYTES)).push(BYTES.encode("abc").ids)
    assert (piece.text, piece.kept, piece.stop) == ("abc", 3, None)


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(RequestError, match="would end every output at once"):
        TextStream(by_decoding(BYTES), ["x", ""])
