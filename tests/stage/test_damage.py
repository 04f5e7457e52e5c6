"""Damaged messages: each is a message again or a StageError, and nobody waits for ever."""

import json
import random
import socket
from contextlib import closing

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.errors import StageError
from outrider.records import Reply, TokenLogprob, Window
from outrider.sampling.params import SamplingParams
from outrider.stage.base import Frame, Void
from outrider.stage.channel import Ended, Inbox, Outbox
from outrider.stage.link import LOCAL, Clock
from outrider.stage.wire import (
    MOST_TEXT,
    PREFIX,
    Audit,
    Close,
    Failed,
    Message,
    Open,
    Ready,
    decode,
    encode,
    sizes,
)

WINDOW = Window(session=1, id=2, epoch=3, start=4, floor=4, tokens=(5, 6), wanted=2, given=(6,))
VALID = [
    Open(
        session=1, sampling=SamplingParams(logit_bias={3: 1.5}, seed=4), prompt_len=5, taps=(-1, 2)
    ),
    Close(5),
    Void(3, 4),
    Ready(vocab_size=9, max_length=8, exact=True),
    Failed("why"),
    Audit((1, 2)),
    Frame.of(WINDOW, hidden=torch.ones(2, 3), taps=torch.ones(2, 2), rollback="log"),
    Frame.of(WINDOW, fault=ValueError("bad")),
    Reply(
        session=1,
        id=2,
        tokens=(3, 4),
        logprobs=(TokenLogprob(token=3, logprob=-0.5, top=((3, -0.5),)),),
        taps=torch.ones(2, 2),
        fault=StageError("bad"),
    ),
]
KINDS = [type(message).__name__ for message in VALID]
ODD = [None, True, -1, 1 << 70, 1e999, float("nan"), 0.5, "a", "\ud800", [], ["a"], {}, [[[]]]]
"""Values of types and ranges that a field may not expect."""


def parts(message: Message) -> tuple[bytes, bytes, bytes]:
    prefix, header, *payload = encode(message, 1.5)
    return prefix, header, b"".join(payload)


def places(value, path=()):
    """Paths to everything within a decoded JSON value."""
    yield path
    if isinstance(value, dict | list):
        inner = value.items() if isinstance(value, dict) else enumerate(value)
        for key, one in inner:
            yield from places(one, (*path, key))


def put(value, path, odd):
    """A copy of a decoded JSON value with another one at `path`."""
    if not path:
        return odd
    copy = value.copy()
    copy[path[0]] = put(copy[path[0]], path[1:], odd)
    return copy


def outcome(header: bytes, payload: bytes) -> Message | None:
    """The message, None for a StageError; anything else that is raised is a failure."""
    try:
        return decode(header, payload)
    except StageError:
        return None


def check_types(message: Message) -> None:
    """What was accepted is as whole as what its sender meant: it can be sent on unchanged."""
    header, payload = parts(message)[1:]
    assert parts(decode(header, payload))[1:] == (header, payload)


def test_every_field_with_a_wrong_value():
    """Exhaustive: each place of each message takes each odd value."""
    refused = accepted = 0
    for message in VALID:
        _, header, payload = parts(message)
        whole = json.loads(header)
        for path in places(whole):
            for odd in ODD:
                found = outcome(json.dumps(put(whole, path, odd)).encode(), payload)
                refused += found is None
                accepted += found is not None
                if found is not None:
                    check_types(found)
    assert refused > 500
    assert accepted > 50


WRONG = {
    ("Close", 1, "session"): ["a", None, True, 1.5, 1 << 63],
    ("Frame", 1, "window"): [None, [], {}],
    ("Frame", 1, "window", "tokens"): [["5", "6"], [5], [], "56", [5, -6], [5, 1 << 64]],
    ("Frame", 1, "window", "wanted"): [3, -1],
    ("Frame", 1, "verify_ms"): [float("nan"), float("inf"), -1.0, "1"],
    ("Frame", 1, "rollback"): ["sideways", 1],
    ("Frame", 1, "has"): [[True], [True, False], [1, 1], None],
    ("Frame", 2, 0): [
        ["torch.float32", -2, -3],
        ["torch.float32", 2, 1 << 62],
        ["torch.float32", 1, 6],
        ["torch.float32", 2.0, 3],
        ["torch.float32", 2],
        ["torch.bfloat16", 2, 3],
        ["torch.int8", 2, 3],
        [["torch.float32"], 2, 3],
        "ab",
    ],
    ("Reply", 1, "tokens"): [["3", 4], None, [3.5]],
    ("Reply", 1, "fault"): [1, ["bad"], "x" * (MOST_TEXT + 1), "\udc00"],
    ("Reply", 1, "logprobs", 0, "logprob"): [float("nan"), "0"],
    ("Reply", 1, "logprobs", 0, "top"): [[[3]], [["3", 0.0]], [3]],
    ("Open", 1, "sampling", "temperature"): [-1.0, "hot", 1 << 2000],
    ("Open", 1, "sampling", "choice"): ["a", -1],
    ("Open", 1, "sampling", "logit_bias"): [[], {"a": 1.0}, {"3": 999.0}],
    ("Open", 1, "prompt_len"): [None, -1],
    ("Ready", 1, "vocab_size"): [0, True],
    ("Audit", 1, "counts"): [[-1], "12"],
}


@pytest.mark.parametrize("path", WRONG, ids=str)
def test_a_value_of_another_type_or_range_is_refused(path):
    _, header, payload = parts(VALID[KINDS.index(path[0])])
    whole = json.loads(header)
    for value in WRONG[path]:
        damaged = json.dumps(put(whole, path[1:], value)).encode()
        assert outcome(damaged, payload) is None, value


def test_deep_nesting_and_odd_encodings_are_refused():
    for header in (b"[" * 100_000, b'{"a":' * 50_000, b"\xff\xfe", b"\xff", b"1" * 5000, b""):
        assert outcome(header, b"") is None


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(VALID), st.randoms(use_true_random=False))
def test_flipped_and_missing_bytes(message, chance):
    _, header, payload = parts(message)
    found = outcome(*(damaged(part, chance) for part in (header, payload)))
    if found is not None:
        check_types(found)


def damaged(data: bytes, chance: random.Random) -> bytes:
    """Bytes with some of them changed, lost or said twice."""
    changed = bytearray(data)
    for _ in range(chance.randrange(3)):
        if changed:
            changed[chance.randrange(len(changed))] = chance.randrange(256)
    if chance.random() < 0.3:
        start = chance.randrange(len(changed) + 1)
        del changed[start : start + chance.randrange(9)]
    if chance.random() < 0.2:
        changed += changed[chance.randrange(len(changed) + 1) :]
    return bytes(changed)


def heard(data: bytes) -> list[Message | None]:
    """All that an inbox gives for the bytes of a sender that hangs up then."""
    ours, theirs = socket.socketpair()
    inbox = Inbox(ours, LOCAL, 0)
    with closing(inbox):
        with theirs:
            theirs.sendall(data)
        found = inbox.take(20.0)
        while found[-1] is not Ended:
            found += inbox.take(20.0)
        assert inbox.take(0.0) == [Ended]
    return found


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(VALID), min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_an_inbox_always_comes_to_an_end(messages, chance):
    sent = Clock().now()
    data = b"".join(b"".join(encode(message, sent)) for message in messages)
    found = heard(damaged(data, chance))
    assert all(message is not Ended for message in found[:-1])
    # Its own ones, twice where bytes are said twice, and that of the damage.
    assert sum(isinstance(message, Failed) for message in found) <= 2 * len(messages) + 1


def framed(header: bytes, payload: bytes = b"", sent: float = 0.0) -> bytes:
    return PREFIX.pack(len(header), len(payload), sent) + header + payload


BAD = {
    "settings": json.dumps(
        put(json.loads(parts(VALID[0])[1]), (1, "sampling", "temperature"), -1)
    ).encode(),
    "brackets": b"[" * 100_000,
    "letters": b"\xff\xff",
    "types": b'["Close", {"session": "a"}, []]',
    "shapes": b'["Reply", {}, [["torch.float32", -1, -1]]]',
}


@pytest.mark.parametrize("name", BAD)
def test_an_inbox_says_why_it_reads_no_further(name):
    good = b"".join(encode(Close(5), Clock().now()))
    first, failed, last = heard(good + framed(BAD[name]) + good)
    assert first == Close(5)
    assert "cannot be read" in failed.reason
    assert last is Ended


@pytest.mark.parametrize("sent", [float("nan"), float("inf"), 1e300])
def test_a_message_from_the_future_ends_an_inbox(sent):
    failed, last = heard(framed(b'["Close", {"session": 1}, []]', sent=sent))
    assert "it is damaged" in failed.reason
    assert last is Ended


@pytest.mark.parametrize("error", [MemoryError("8 EiB"), OverflowError(), AttributeError("x")])
def test_whatever_stops_the_reader_is_heard_of(monkeypatch, error):
    def fail(header, payload):
        raise error

    monkeypatch.setattr("outrider.stage.channel.decode", fail)
    failed, last = heard(framed(b"{}"))
    assert type(error).__name__ in failed.reason
    assert last is Ended


def test_a_fault_travels_as_words():
    for error, said in (
        (StageError("logits are NaN."), "logits are NaN."),
        (ValueError("x < 0"), "ValueError: x < 0"),
        (KeyError("\ud800"), "KeyError: '\\ud800'"),
        (ValueError("\ud800"), "ValueError: ?"),
    ):
        for message in (Frame.of(WINDOW, fault=error), Reply(session=1, id=2, fault=error)):
            back = decode(*parts(message)[1:])
            fault = (back.reply if isinstance(back, Frame) else back).fault
            assert type(fault) is StageError
            assert str(fault) == said


def test_long_words_are_cut():
    long = "y" * 10 * MOST_TEXT
    back = decode(*parts(Reply(session=1, id=2, fault=StageError(long)))[1:])
    assert str(back.fault) == "y" * (MOST_TEXT - 4) + " ..."
    assert len(decode(*parts(Failed(long))[1:]).reason) == MOST_TEXT


def test_an_outbox_sends_nothing_of_a_message_that_is_too_large(monkeypatch):
    monkeypatch.setattr("outrider.stage.wire.MOST_HEADER", 1000)
    ours, theirs = socket.socketpair()
    outbox, inbox = Outbox(ours), Inbox(theirs, LOCAL, 0)
    with closing(outbox), closing(inbox):
        with pytest.raises(StageError, match="exceeds"):
            outbox.send(Audit(tuple(range(1000))))
        outbox.send(Close(1))
        assert inbox.take(20.0) == [Close(1)]


def test_sizes_read_what_encode_wrote():
    for message in VALID:
        prefix, header, payload = parts(message)
        assert sizes(prefix) == (len(header), len(payload), 1.5)
