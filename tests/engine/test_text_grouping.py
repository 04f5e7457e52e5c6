"""Text is a function of the tokens alone, whatever the tokenizer, the windows and the stops."""

import re
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from outrider.engine.detokenizer import Detokenizer, TextStream
from outrider.formats.tokenizer import Tokenizer
from outrider.models.model_file import load_tokenizer
from tests.helpers.gguf_files import Content, write
from tests.helpers.gguf_tokens import byte_level_metadata

MARK = "\N{REPLACEMENT CHARACTER}"
SPACE, EURO, SMILE = "▁", "€", "😀"
SPECIAL = ["<unk>", "<s>", "</s>"]
WORDS = [SPACE, f"{SPACE}Hello", f"{SPACE}{SPACE}", "a", "b", "é", MARK]
PIECES = [
    decoders.Replace(SPACE, " "),
    decoders.ByteFallback(),
    decoders.Fuse(),
    decoders.Strip(" ", 1, 0),
]


def wrapped(backend: Backend) -> Tokenizer:
    backend.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in SPECIAL])
    backend.add_tokens([AddedToken("<tool call>", special=False, normalized=False)])
    return Tokenizer(backend, special_tokens={}, end_tokens=[], template=None, origin="here")


def byte_level() -> Tokenizer:
    """A token a byte, and some that hold parts of characters."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    split = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    smile, space = (split.pre_tokenize_str(text)[0][0] for text in (SMILE, " "))
    pairs = [(space, smile[0]), (smile[1], smile[2]), (space + smile[0], smile[1])]
    names = [*letters, *("".join(pair) for pair in pairs)]
    backend = Backend(models.BPE(vocab={n: i for i, n in enumerate(names)}, merges=pairs))
    backend.pre_tokenizer, backend.decoder = split, decoders.ByteLevel()
    return wrapped(backend)


def pieces(decoder: object) -> Tokenizer:
    """Words, and bytes for all else."""
    names = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), *WORDS]
    vocab = {name: at for at, name in enumerate(names)}
    backend = Backend(models.BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=True))
    backend.decoder = decoder
    return wrapped(backend)


def words(decoder: object, *names: str) -> Tokenizer:
    backend = Backend(models.BPE(vocab={name: at for at, name in enumerate(names)}, merges=[]))
    backend.decoder = decoder
    return wrapped(backend)


@pytest.fixture(scope="session")
def known(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    """Tokenizers by kind; those with a spelling come first, the others decode a tail."""
    folder = tmp_path_factory.mktemp("tokenizers")
    values = byte_level_metadata("qwen2", 400)
    file = write(Content(architecture="llama", metadata=values), folder / "bytes.gguf")
    tokens = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), *WORDS]
    values = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * len(tokens),
        "tokenizer.ggml.token_type": [2, 3, 3, *[6] * 256, *[1] * len(WORDS)],
        "tokenizer.ggml.unknown_token_id": 0,
    }
    other = write(Content(architecture="llama", metadata=values), folder / "pieces.gguf")
    return {
        "byte level": byte_level(),
        "pieces": pieces(decoders.Sequence(PIECES)),
        "pieces, no strip": pieces(decoders.Sequence(PIECES[:3])),
        "gguf byte level": load_tokenizer(file),
        "gguf pieces": load_tokenizer(other),
        "late fallback": pieces(decoders.Sequence([PIECES[1], PIECES[0], *PIECES[2:]])),
        "metaspace": words(decoders.Metaspace(), SPACE, f"{SPACE}a", "b", f"{SPACE}{SPACE}", MARK),
        "suffixes": words(decoders.BPEDecoder(), "a", "b</w>", "a</w>", "</w>"),
        "word pieces": words(decoders.WordPiece(), "a", "##b", ".", "n't", MARK),
        "no decoder": words(None, "a", "b", " "),
    }


KINDS = {
    "byte level": True,
    "pieces": True,
    "pieces, no strip": True,
    "gguf byte level": True,
    "gguf pieces": True,
    "late fallback": False,
    "metaspace": False,
    "suffixes": False,
    "word pieces": False,
    "no decoder": False,
}
IDS = st.lists(st.integers(0, 9999), max_size=60)
SIZES = st.lists(st.integers(1, 16), min_size=1, max_size=8)
STOPS = st.lists(st.text(f"ab {EURO}{MARK}", min_size=1, max_size=3), max_size=3)


def some(tokenizer: Tokenizer, numbers: Sequence[int]) -> list[int]:
    """Ids from numbers: bytes of a few characters mostly, so that they meet, and any others."""
    size = tokenizer.vocab_size
    parts = [tokenizer.encode(text, add_special=False) for text in (EURO, SMILE, "a", " ")]
    common = [token for part in parts for token in part] or [0]
    return [
        common[n // 3 % len(common)] if n % 3 else min(n // 3 % (size + 3), size + 1)
        for n in numbers
    ]


def batches(ids: Sequence[int], sizes: Sequence[int]) -> list[list[int]]:
    found, at = [], 0
    while at < len(ids):
        size = sizes[len(found) % len(sizes)]
        found.append(list(ids[at : at + size]))
        at += size
    return found


def stream(
    tokenizer: Tokenizer,
    ids: Sequence[int],
    sizes: Sequence[int],
    stops: Sequence[str] = (),
    context: Sequence[int] = (),
) -> tuple[str, int, str | None]:
    """Return (text, tokens kept, stop) of an output pushed in batches of these sizes."""
    writer, text, kept = TextStream(tokenizer, stops, context), "", 0
    for batch in batches(ids, sizes):
        piece = writer.push(batch)
        text, kept = text + piece.text, kept + piece.kept
        if piece.stop is not None:
            return text, kept, piece.stop
    end = writer.flush()
    return text + end.text, kept, end.stop


def text_of(tokenizer: Tokenizer, ids: Sequence[int], context: Sequence[int] = ()) -> str:
    return stream(tokenizer, ids, [1], (), context)[0]


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_of_known_decoders_are_bytes(known: dict[str, Tokenizer], kind: str) -> None:
    assert (known[kind].spelling is not None) == KINDS[kind]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=150, deadline=None)
@given(numbers=IDS, sizes=SIZES, stops=STOPS, behind=st.integers(0, 5))
def test_every_split_gives_one_text(
    known: dict[str, Tokenizer],
    kind: str,
    numbers: list[int],
    sizes: list[int],
    stops: list[str],
    behind: int,
) -> None:
    ids = some(known[kind], numbers)
    context, ids = ids[:behind], ids[behind:]
    alone = stream(known[kind], ids, [1], stops, context)
    assert stream(known[kind], ids, sizes, stops, context) == alone
    assert stream(known[kind], ids, [16], stops, context) == alone


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=150, deadline=None)
@given(numbers=IDS)
def test_text_that_was_sent_stays(
    known: dict[str, Tokenizer], kind: str, numbers: list[int]
) -> None:
    ids = some(known[kind], numbers)
    whole = text_of(known[kind], ids)
    for count in range(len(ids)):
        assert whole.startswith(Detokenizer(known[kind]).push(ids[:count]))


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=300, deadline=None)
@given(numbers=IDS, behind=st.integers(0, 5))
def test_valid_tokens_give_the_text_of_decoding_them_at_once(
    known: dict[str, Tokenizer], kind: str, numbers: list[int], behind: int
) -> None:
    tokenizer = known[kind]
    ids = some(tokenizer, numbers)
    while MARK in tokenizer.decode(ids):  # Leave out what ends in a mark, so that much is left.
        ids = _without_the_first_mark(tokenizer, ids)
    context, ids = ids[:behind], ids[behind:]
    before, whole = tokenizer.decode(context), tokenizer.decode([*context, *ids])
    if MARK not in before and whole.startswith(before):
        assert text_of(tokenizer, ids, context) == whole[len(before) :]
    assert text_of(tokenizer, [*context, *ids]) == whole


def _without_the_first_mark(tokenizer: Tokenizer, ids: list[int]) -> list[int]:
    """Leave out the token after which decoding first shows a mark that stays for good."""
    bad = [at for at in range(len(ids)) if MARK in tokenizer.decode(ids[: at + 1])]
    return ids[: bad[-1]] + ids[bad[-1] + 1 :]


@pytest.mark.parametrize("kind", ["byte level", "gguf byte level"])
@settings(max_examples=300, deadline=None)
@given(numbers=IDS)
def test_bad_bytes_of_byte_level_tokens_are_as_decoding_has_them(
    known: dict[str, Tokenizer], kind: str, numbers: list[int]
) -> None:
    ids = some(known[kind], numbers)
    assert text_of(known[kind], ids) == known[kind].decode(ids)


@pytest.mark.parametrize(("kind", "strip"), [("pieces", 1), ("pieces, no strip", 0)])
@settings(max_examples=300, deadline=None)
@given(numbers=IDS)
def test_bad_bytes_of_pieces_are_one_mark_each_run(
    known: dict[str, Tokenizer], kind: str, strip: int, numbers: list[int]
) -> None:
    """By hand: the names of the tokens as bytes, decoded at once."""
    ids, joined = some(known[kind], numbers), b""
    for token in ids:
        name = known[kind].vocabulary().get(token, "<s>")
        if byte := re.fullmatch("<0x(..)>", name):
            joined += bytes.fromhex(byte[1])
        elif name not in SPECIAL:
            joined += name.replace(SPACE, " ").encode()
    text = joined.decode(errors="replace")
    expected = text[1:] if strip and text.startswith(" ") else text
    assert text_of(known[kind], ids) == expected


@pytest.mark.parametrize("kind", ["pieces", "gguf pieces", "late fallback"])
@pytest.mark.parametrize("sizes", [[1], [5], [2, 3], [16]])
def test_a_bad_byte_leaves_the_characters_beside_it(
    known: dict[str, Tokenizer], kind: str, sizes: list[int]
) -> None:
    a = next(token for token, name in known[kind].vocabulary().items() if name == "a")
    spelled = [[3 + byte for byte in text.encode()] for text in (EURO, SMILE)]
    lead = 3 + SMILE.encode()[0]
    assert stream(known[kind], [*spelled[0], lead, a], sizes, (), [1])[0] == f"{EURO}{MARK}a"
    cut = stream(known[kind], [*spelled[1], *spelled[1][:2]], sizes, (), [1])[0]
    assert cut.startswith(SMILE)
    assert set(cut[1:]) == {MARK}
    assert len(cut) <= 3


def test_a_special_token_inside_a_character_leaves_it_whole(known: dict[str, Tokenizer]) -> None:
    first, *rest = [3 + byte for byte in EURO.encode()]
    ids = [first, 1, *rest]
    assert known["pieces"].decode(ids) == EURO
    assert text_of(known["pieces"], ids) == EURO


def test_a_character_that_the_prompt_began_ends_in_the_output(
    known: dict[str, Tokenizer],
) -> None:
    ids = known["byte level"].encode(SMILE, add_special=False)
    assert text_of(known["byte level"], ids[1:], ids[:1]) == SMILE
