"""How much text a token covers: nothing that fits is ever refused, and what cannot fit is not
encoded."""

import json
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from outrider.errors import LengthError
from outrider.formats.tokenizer import Tokenizer

CORPUS = ["def fib(n):\n    return n if n < 2 else fib(n - 1)\n" * 4, "aaaaaaaa Grüße  漢字"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
ALPHABET = pre_tokenizers.ByteLevel.alphabet()
UNSEEN = "\u0100"
"""The letter of byte 0, which the corpus does not hold and training does not bring back."""


def trained(backend: Backend, special=(), alphabet=(), size=700) -> Backend:
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=["<unk>", *special],
        initial_alphabet=list(alphabet),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    return backend


def byte_level(normalizer=None, alphabet=ALPHABET, **added) -> Backend:
    backend = Backend(models.BPE())
    if normalizer:
        backend.normalizer = normalizer
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend = trained(backend, alphabet=alphabet)
    backend.add_tokens([AddedToken("<x>", **added)])
    return backend


def fallback(special=BYTES, **options) -> Backend:
    """SentencePiece's BPE, with bytes for what it does not know."""
    backend = Backend(models.BPE(unk_token="<unk>", **options))
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    return trained(backend, special)


def metaspace() -> Backend:
    backend = Backend(models.BPE(unk_token="<unk>"))
    backend.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Metaspace(), pre_tokenizers.Digits(individual_digits=True)]
    )
    return trained(backend)


def composing_after_marks() -> Backend:
    """What is put in for ASCII composes with the letters before it."""
    marks = [normalizers.Replace("~", "\N{COMBINING TILDE}"), normalizers.NFC()]
    return byte_level(normalizers.Sequence(marks))


def load(backend: Backend, folder: Path) -> Tokenizer:
    backend.save(str(folder / "tokenizer.json"))
    return Tokenizer.load(folder)


KNOWN = {
    "bytes": byte_level,
    "composed": lambda: byte_level(normalizers.NFC()),
    "stripping": lambda: byte_level(lstrip=True, rstrip=True),
    "long when normalized": lambda: byte_level(normalizers.Prepend("____"), normalized=True),
    "fallback": lambda: fallback(byte_fallback=True, fuse_unk=True),
    "single unknowns": lambda: fallback((), fuse_unk=False),
    "metaspace": metaspace,
    "marks": composing_after_marks,
}
UNKNOWN = {
    "fused unknowns": lambda: fallback((), fuse_unk=True),
    "bytes missing": lambda: fallback(BYTES[1:], byte_fallback=True, fuse_unk=True),
    "letters dropped": lambda: byte_level(alphabet=set(ALPHABET) - {UNSEEN}),
    "accents stripped": lambda: byte_level(normalizers.StripAccents()),
    "ends stripped": lambda: byte_level(normalizers.Strip()),
    "replaced by less": lambda: byte_level(normalizers.Replace("ab", "c")),
    "replaced by pattern": lambda: byte_level(normalizers.Replace(Regex("a+"), "bbbb")),
    "words": lambda: Backend(models.WordLevel({"<unk>": 0}, unk_token="<unk>")),
}
WORDS = [
    "def",
    " ",
    "    ",
    "\n",
    "a",
    "aaaaaaaa",
    "return n",
    "<x>",
    "<unk>",
    "~",
    "ü",
    "漢",
    "🙂",
]
DECOMPOSED = ["u\u0308", "\u03b1\u0313\u0300\u0345", "\u1112\u1161\u11ab", "\ufb03"]
PIECES = st.sampled_from(WORDS + DECOMPOSED)


@pytest.fixture(scope="module")
def known(tmp_path_factory):
    return {name: load(make(), tmp_path_factory.mktemp("known")) for name, make in KNOWN.items()}


@settings(deadline=None, max_examples=200)
@given(text=st.lists(st.one_of(PIECES, st.text(max_size=3)), max_size=40).map("".join))
def test_no_text_has_fewer_tokens_than_claimed(known, text):
    for name, tokenizer in known.items():
        assert tokenizer.coverage is not None, name
        ids = tokenizer.encode(text, add_special=False)
        assert tokenizer.coverage.least_tokens(text) <= len(ids), name
        assert tokenizer.encode(text, add_special=False, most=len(ids) + 1) == ids, name


@pytest.mark.parametrize(
    "text",
    ["<x>" * 50, "<x>" + " " * 9000 + "<x>", "def fib(n):\n    return n" * 20, "u\u0308" * 50],
)
def test_texts_of_long_tokens_are_within_the_claim(known, text):
    for name, tokenizer in known.items():
        ids = tokenizer.encode(text, add_special=False)
        assert tokenizer.coverage.least_tokens(text) <= len(ids), name


@pytest.mark.parametrize("name", UNKNOWN)
def test_nothing_is_claimed_where_text_may_vanish(tmp_path, name):
    tokenizer = load(UNKNOWN[name](), tmp_path)
    assert tokenizer.coverage is None
    assert tokenizer.encode("a b c", most=1) == tokenizer.encode("a b c")


def test_a_claim_is_no_more_than_a_factor_away(known):
    """It is of use: letters that no token joins count as one token for each `longest`."""
    coverage = known["composed"].coverage
    assert coverage.least_tokens("q" * 10_000) == -(-10_000 // coverage.longest)
    assert coverage.longest < 30


class Unasked:
    """A backend that must not be asked."""

    def encode_batch_fast(self, *given, **options):
        raise AssertionError("encoded a text that cannot fit")


def test_what_cannot_fit_is_refused_before_it_is_encoded(tmp_path):
    tokenizer = load(byte_level(), tmp_path)
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }}")
    chats = load(byte_level(), tmp_path)
    tokenizer.backend = chats.backend = Unasked()
    longest = tokenizer.coverage.longest
    with pytest.raises(LengthError, match="the prompt has 100 tokens or more and the context 100"):
        tokenizer.encode("q" * (100 * longest), most=100)
    with pytest.raises(LengthError, match="tokens or more and the context 100"):
        chats.encode_chat([{"role": "user", "content": "q" * (100 * longest)}], most=100)


def test_other_threads_run_while_a_long_text_is_encoded(tmp_path):
    tokenizer = load(byte_level(), tmp_path)
    text = json.dumps(list(range(250_000)))
    begun, ended, turns = threading.Event(), threading.Event(), 0

    def encode():
        begun.set()
        tokenizer.encode(text)
        ended.set()

    thread = threading.Thread(target=encode)
    thread.start()
    begun.wait(60)
    while not ended.is_set():
        time.sleep(0.001)
        turns += 1
    thread.join(60)
    assert turns > 20
