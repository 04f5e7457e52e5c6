"""Bytes of tokens joined are the text, and no two tokens have one name."""

import random

import pytest
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from outrider.formats.tokenizer import Tokenizer
from tests.helpers.gguf_tokens import metadata, train
from tests.models.test_gguf_tokenizer import pieces, rebuild

MARK = "\N{REPLACEMENT CHARACTER}"


def of(backend):
    return Tokenizer(
        backend, special_tokens={}, end_tokens=(), template=None, origin="these tokens"
    )


def byte_level():
    """Bytes, a few merges, special tokens, and added ones that look like others."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("â", "Ĥ"), ("Ġ", "Ġ")]
    tokens = [*alphabet, *(left + right for left, right in words)]
    backend = Backend(models.BPE(vocab={t: at for at, t in enumerate(tokens)}, merges=words))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<s>", special=True), AddedToken("<end▁é>")])
    backend.add_tokens([AddedToken(" the"), AddedToken("<think>"), AddedToken("漢 字")])
    return of(backend)


def sentence_pieces(decoder=None):
    """Pieces with spaces as letters, bytes as a last resort, special tokens."""
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    names += ["▁", *map(chr, range(33, 127)), "the", "▁the", "▁▁", "é"]
    kind = {"byte_fallback": True, "fuse_unk": True, "unk_token": "<unk>"}
    merges = [("▁", "▁"), ("▁", "the")]
    backend = Backend(models.BPE({name: at for at, name in enumerate(names)}, merges, **kind))
    backend.normalizer = normalizers.Replace(" ", "▁")
    replaces = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoder or decoders.Sequence([*replaces, decoders.Strip(" ", 1, 0)])
    backend.add_special_tokens([AddedToken(name, special=True) for name in names[:3]])
    return of(backend)


def metaspace():
    """As converters from SentencePiece write it; such a decoder knows no lone bytes."""
    return sentence_pieces(decoders.Metaspace(prepend_scheme="never"))


def from_gguf(folder):
    return rebuild(metadata("qwen2", train("qwen2", 500)), folder)


def pieces_from_gguf(folder):
    return rebuild(pieces(), folder)


@pytest.fixture(params=[byte_level, sentence_pieces, metaspace, from_gguf, pieces_from_gguf])
def tokenizer(request, tmp_path):
    return request.param(tmp_path) if "gguf" in request.param.__name__ else request.param()


def test_bytes_joined_are_the_text(tokenizer):
    """Of any ids in any order: what `decode` gives, before it shows bytes that are no character."""
    chance = random.Random(3)
    anchor = tokenizer.encode("x", add_special=False)[-1:]
    compared = 0
    for _ in range(600):
        ids = [*anchor, *(chance.randrange(tokenizer.vocab_size) for _ in range(5))]
        text = tokenizer.decode(ids)
        if MARK not in text:  # How many marks bad bytes get is each decoder's own affair.
            compared += 1
            assert b"".join(map(tokenizer.token_bytes, ids)).decode() == text
    assert compared > 30


def test_no_two_tokens_have_one_name(tokenizer):
    names = [tokenizer.token_name(token) for token in range(tokenizer.vocab_size)]
    assert len(set(names)) == len(names)
    assert not any(name.startswith("token_id:") for name in names)


def test_names_of_bytes_and_ids_without_a_token():
    ours = byte_level()
    euro = ours.encode("€")
    assert [ours.token_name(token) for token in euro] == [r"bytes:\xe2\x82", r"bytes:\xac"]
    assert [ours.token_bytes(token) for token in euro] == [b"\xe2\x82", b"\xac"]
    unknown = ours.vocab_size + 3
    assert (ours.token_name(unknown), ours.token_bytes(unknown)) == (f"token_id:{unknown}", b"")


def test_special_tokens_have_a_name_and_no_bytes_in_the_text():
    ours = byte_level()
    special = ours.encode("<s>", add_special=False)[0]
    assert ours.token_name(special) == "<s>"
    assert ours.token_bytes(special) == b""
    assert ours.token_bytes(special, skip_special=False) == b"<s>"


def test_pieces_differ_by_their_space_and_letters_from_bytes():
    ours = sentence_pieces()
    ids = [ours.backend.token_to_id(piece) for piece in ("the", "▁the", "▁", "A", "<0x41>", "é")]
    names = ["the", " the", " ", "A", r"bytes:\x41", "é"]
    assert [ours.token_name(token) for token in ids] == names
    newline = ours.backend.token_to_id("<0x0A>")
    assert (ours.token_name(newline), ours.token_bytes(newline)) == ("\n", b"\n")


def test_decoders_that_set_tokens_apart():
    """Without a decoder, and with WordPiece's, a space stands between tokens."""
    backend = Backend(models.WordLevel({"the": 0, "cat": 1, "[UNK]": 2}, unk_token="[UNK]"))
    assert [of(backend).token_bytes(token) for token in (0, 1)] == [b" the", b" cat"]
    assert of(backend).token_name(1) == " cat"
    backend = Backend(models.WordPiece({"play": 0, "##ing": 1}, unk_token="play"))
    backend.decoder = decoders.WordPiece()
    assert [of(backend).token_bytes(token) for token in (0, 1)] == [b" play", b"ing"]
