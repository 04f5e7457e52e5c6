"""Names, bytes and places of tokens in log-probabilities, against the text that is given back."""

import random

import pytest

from outrider.formats.tokenizer import Tokenizer
from outrider.server.places import Names, Places, prompt_places
from tests.server.world import byte_tokens, events, piece_tokens, running


@pytest.fixture(scope="module")
def worded(hybrid):
    with running(hybrid.stage("log", 8), tokenizer=byte_tokens()) as found:
        yield found


@pytest.fixture(scope="module")
def pieced(hybrid):
    with running(hybrid.stage("log", 8), tokenizer=piece_tokens()) as found:
        yield found


def scored(world, prompt, **more):
    """A prompt given back with its log-probabilities."""
    body = {"prompt": prompt, "max_tokens": 0, "echo": True, "logprobs": 0, **more}
    (choice,) = world.complete(**body)["choices"]
    return choice["text"], choice["logprobs"]


def test_parts_of_characters_and_special_tokens(worded):
    """`<s>` has no width; both parts of the euro sign begin where it does."""
    text, logprobs = scored(worded, "h€the x")
    assert text == "h€the x"
    names = ["<s>", "h", r"bytes:\xe2\x82", r"bytes:\xac", "the", " ", "x"]
    assert logprobs["tokens"] == names
    assert logprobs["text_offset"] == [0, 0, 1, 1, 2, 5, 6]


def test_pieces(pieced):
    """The space in front of a word belongs to it, but not at the text's beginning."""
    text, logprobs = scored(pieced, "the the  €A")
    assert text == "the the  €A"
    euro = [r"bytes:\xe2", r"bytes:\x82", r"bytes:\xac"]
    assert logprobs["tokens"] == ["<s>", " the", " the", "  ", *euro, "A"]
    assert logprobs["text_offset"] == [0, 0, 3, 7, 9, 9, 9, 10]
    encode = pieced.engine.tokenizer.backend.token_to_id
    ids = [encode(piece) for piece in ("a", "the", "▁the", "▁", "<0x41>", "A")]
    text, logprobs = scored(pieced, ids)
    assert text == "athe the AA"
    assert logprobs["tokens"] == ["a", "the", " the", " ", r"bytes:\x41", "A"]
    assert logprobs["text_offset"] == [0, 1, 4, 8, 9, 10]


def test_special_tokens_that_a_prompt_spells_out(worded):
    """The prompt comes back as it was sent, so that there they have a width."""
    text, logprobs = scored(worded, "a</s>the<s>")
    assert text == "a</s>the<s>"
    assert logprobs["tokens"] == ["<s>", "a", "</s>", "the", "<s>"]
    assert logprobs["text_offset"] == [0, 0, 1, 5, 8]
    tokens = worded.engine.tokenizer.encode("a</s>the<s>")
    text, logprobs = scored(worded, tokens)
    assert text == "athe"
    assert logprobs["text_offset"] == [0, 0, 1, 1, 4]


def test_a_prompt_that_was_changed_before_it_was_cut(worded):
    """Offsets are right before the first change and after the last, and never beyond the text."""
    backend = worded.engine.tokenizer.backend
    from tokenizers import Tokenizer as Backend
    from tokenizers import normalizers

    changed = Backend.from_str(backend.to_str())
    changed.normalizer = normalizers.Replace("B!", "b")
    tokenizer = Tokenizer(changed, special_tokens={}, end_tokens=[], template=None, origin="a test")
    scheduler = type(
        "Told", (), {"tokenizer": tokenizer, "speller": worded.service.scheduler.speller}
    )
    text = "the B! cat"
    tokens = tokenizer.encode(text, add_special=False)
    assert tokenizer.decode(tokens) == "the b cat"
    places = prompt_places(scheduler, tokens, text)
    assert [text[at:] for at in places] == [
        "the B! cat",
        " B! cat",
        "B! cat",
        " cat",
        "cat",
        "at",
        "t",
    ]


@pytest.mark.parametrize("stream", [False, True])
def test_every_token_of_the_answer_begins_where_its_text_does(worded, stream):
    """Counted after the prompt, which was not asked for; greedy tokens of a random model."""
    prompt = "the cat"
    body = {"prompt": prompt, "max_tokens": 40, "temperature": 1.5, "seed": 7, "logprobs": 2}
    if stream:
        found = [
            e["choices"][0] for e in events(worded.ask("/v1/completions", body | {"stream": True}))
        ]
        text = "".join(choice["text"] for choice in found)
        told = [choice["logprobs"] for choice in found if choice["logprobs"]]
        tokens = [name for part in told for name in part["tokens"]]
        places = [at - len(prompt) for part in told for at in part["text_offset"]]
    else:
        (choice,) = worded.complete(**body)["choices"]
        text, tokens = choice["text"], choice["logprobs"]["tokens"]
        places = [at - len(prompt) for at in choice["logprobs"]["text_offset"]]
    whole = [at for at, name in enumerate(tokens) if not name.startswith(("bytes:", "<"))]
    assert len(whole) > 20
    assert len(whole) < len(tokens), "parts of characters are among them"
    assert [text[places[at] :][: len(tokens[at])] for at in whole] == [tokens[at] for at in whole]


@pytest.mark.parametrize("stream", [False, True])
def test_tokens_of_a_stop_string_begin_at_the_texts_end(worded, stream):
    """They count as tokens, and the text ends before them; tokens in doubt wait for their text."""
    tokenizer = worded.engine.tokenizer
    ids = {str(tokenizer.backend.token_to_id(name)): 100 for name in "abc"}
    body = {"prompt": "x", "max_tokens": 40, "temperature": 2, "seed": 3, "logprobs": 1}
    body |= {"logit_bias": ids}
    (free,) = worded.complete(**body)["choices"]
    stop = free["text"][5:9]
    assert set(free["text"]) == set("abc")
    end = free["text"].index(stop)
    asked = body | {"stop": [stop, stop[:3] + "z"]}
    if stream:
        found = [
            e["choices"][0] for e in events(worded.ask("/v1/completions", asked | {"stream": True}))
        ]
        given, places = "", []
        for choice in found:
            given += choice["text"]
            places += (choice["logprobs"] or {"text_offset": []})["text_offset"]
            assert all(place <= 1 + len(given) for place in places)
    else:
        (choice,) = worded.complete(**asked)["choices"]
        given, places = choice["text"], choice["logprobs"]["text_offset"]
    assert given == free["text"][:end]
    assert places == [1 + min(at, end) for at in range(end + len(stop))]


def test_bytes_of_chats_joined_are_the_text(worded):
    """Parts of characters have their own, special tokens none."""
    ids = {worded.engine.tokenizer.backend.token_to_id(name): 100 for name in ("âĤ", "¬", "<s>")}
    body = {
        "messages": [{"role": "user", "content": "x"}],
        "max_tokens": 60,
        "temperature": 2,
        "seed": 2,
        "logprobs": True,
        "top_logprobs": 20,
        "logit_bias": {str(token): bias for token, bias in ids.items()},
    }
    answer = worded.ask("/v1/chat/completions", body).json()["choices"][0]
    entries = answer["logprobs"]["content"]
    kinds = {(entry["token"], tuple(entry["bytes"])) for entry in entries}
    assert kinds == {(r"bytes:\xe2\x82", (0xE2, 0x82)), (r"bytes:\xac", (0xAC,)), ("<s>", ())}
    joined = bytes(byte for entry in entries for byte in entry["bytes"])
    assert joined.decode(errors="ignore").count("€") > 3
    assert answer["message"]["content"].replace("\N{REPLACEMENT CHARACTER}", "") == (
        joined.decode(errors="ignore")
    )
    for entry in entries:
        assert len({one["token"] for one in entry["top_logprobs"]}) == 20


def test_a_text_that_ends_within_a_character_is_traced_in_full(worded):
    tokenizer = worded.engine.tokenizer
    part = tokenizer.backend.token_to_id("âĤ")
    body = {"prompt": "x", "max_tokens": 3, "logit_bias": {str(part): 100}}
    body["speculative"] = {"trace": True}
    (choice,) = worded.complete(**body)["choices"]
    assert choice["text"].count("\N{REPLACEMENT CHARACTER}") == 3
    assert "".join(text for trace in choice["trace"] for text in trace["texts"]) == choice["text"]


def test_names_are_worked_out_once_and_never_hide_one_another(worded):
    class Counting:
        asked = 0

        def token_name(self, token):
            self.asked += 1
            return "same" if token < 3 else f"name {token}"

        def token_bytes(self, token):
            self.asked += 1
            return b"\xe2" if token == 3 else b"ab"

    tokenizer = Counting()
    names = Names(tokenizer)
    for _ in range(4):
        assert [names.name(token) for token in range(5)] == ["same"] * 3 + ["name 3", "name 4"]
        assert [names.bytes(token) for token in (3, 4)] == [[0xE2], [97, 98]]
    assert tokenizer.asked == 7
    entry = type("Entry", (), {"token": 1, "top": ((0, -1.0), (1, -2.0), (2, -3.0), (4, -4.0))})
    told = [
        ("token_id:0", 0, -1.0),
        ("same", 1, -2.0),
        ("token_id:2", 2, -3.0),
        ("name 4", 4, -4.0),
    ]
    assert names.alternatives(entry) == told


def bounds(tokenizer, tokens):
    """For each token the places that are right: where its first byte's character begins, and where
    it ends too if the token begins within; for one without bytes, either end of what is before."""
    raw = [tokenizer.token_bytes(token) for token in tokens]
    joined = b"".join(raw)
    starts, at = [], 0
    while at < len(joined):
        # The longest run that is one character, or one mark for bytes that are none.
        size = max(n for n in range(1, 5) if len(joined[at : at + n].decode(errors="replace")) == 1)
        size = min(size, len(joined) - at)
        starts.append(at)
        at += size
    assert len(starts) == len(joined.decode(errors="replace"))
    found, at = [], 0
    for part in raw:
        character = sum(start <= at for start in starts) - (at < len(joined))
        within = at < len(joined) and at not in starts
        none = {character, character - 1} if not part else {character}
        found.append({character, character + 1} if within else none)
        at += len(part)
    return found


@pytest.mark.parametrize("likely", [0.0, 0.6, 1.0])
def test_places_of_any_tokens(worded, likely):
    """Texts, parts of characters in any order, and long runs of them that make no text."""
    tokenizer, scheduler = worded.engine.tokenizer, worded.service.scheduler
    chance = random.Random(likely)
    parts = [t for t in range(96) if tokenizer.token_name(t).startswith("bytes:")]
    assert len(parts) > 8
    for size in (3, 6, 12, 30, 100):
        for _ in range(60):
            tokens = [
                chance.choice(parts) if chance.random() < likely else chance.randrange(96)
                for _ in range(size)
            ]
            places = prompt_places(scheduler, tokens, tokenizer.decode(tokens))
            right = bounds(tokenizer, tokens)
            wrong = [at for at, place in enumerate(places) if place not in right[at]]
            assert not wrong, (tokens, places, right, wrong)


def test_places_where_a_decoder_shows_each_byte():
    """SentencePiece's decoders mark every byte of a run that is no text, and strip a space."""
    places = Places()
    assert places.add(b" the", "the") == [0]
    assert places.add(b"\xe2", "") == []
    assert places.add(b"\xe2", "") == []
    assert places.add(b"\x82", "") == []
    assert places.add(b"a", "\N{REPLACEMENT CHARACTER}" * 3 + "a") == [3, 4, 5, 6]
    assert places.add(b"", "") == [7]
    assert (places.add(b"\xc3", ""), places.finish("\N{REPLACEMENT CHARACTER}")) == ([], [7])
    assert places.length == 8
    places = Places(length=5)
    assert (places.add(b" ", ""), places.add(b"a", "a"), places.add(b"b", "b")) == ([], [5, 5], [6])
    assert (places.add(b"\xe2\x82", ""), places.finish("")) == ([], [7])
