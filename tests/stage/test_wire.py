"""Messages survive the wire bit for bit, and what is none is refused."""

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import StageError
from outrider.records import Reply, TokenLogprob, Window
from outrider.sampling.params import SamplingParams
from outrider.stage.base import Frame, Void
from outrider.stage.wire import (
    MOST_PAYLOAD,
    PREFIX,
    Close,
    Failed,
    Open,
    Ready,
    decode,
    encode,
    sizes,
)

ids = st.integers(0, 2**31)
ms = st.floats(0, 1e6)


def windows(rows):
    return st.builds(
        Window,
        session=ids,
        id=st.integers(-2, 2**31),
        epoch=ids,
        start=ids,
        floor=ids,
        tokens=st.lists(ids, min_size=rows, max_size=rows).map(tuple),
        wanted=st.just(rows),
        opens_epoch=st.booleans(),
        given=st.lists(ids, max_size=rows).map(tuple),
    )


def tensors(rows):
    return st.none() | st.builds(
        lambda width, dtype: torch.randn(rows, width).to(dtype),
        st.integers(1, 9),
        st.sampled_from([torch.float32, torch.bfloat16]),
    )


frames = st.integers(1, 5).flatmap(
    lambda rows: st.builds(
        Frame.of,
        window=windows(rows),
        hidden=tensors(rows),
        taps=tensors(rows),
        skipped=st.booleans(),
        verify_ms=ms,
        rollback_ms=ms,
        rollback=st.none() | st.sampled_from(["log", "checkpoint"]),
    )
)
logprobs = st.builds(
    TokenLogprob,
    token=ids,
    logprob=st.floats(max_value=0.0),
    top=st.lists(st.tuples(ids, st.floats(max_value=0.0)), max_size=3).map(tuple),
)
replies = st.builds(
    Reply,
    session=ids,
    id=ids,
    skipped=st.booleans(),
    tokens=st.lists(ids).map(tuple),
    logprobs=st.lists(logprobs, max_size=3).map(tuple),
    verify_ms=ms,
)
opens = st.builds(
    Open,
    session=ids,
    sampling=st.builds(
        SamplingParams,
        temperature=st.floats(0, 2),
        logit_bias=st.dictionaries(st.integers(0, 99), st.floats(-9, 9), max_size=3),
        seed=st.integers(0, 2**60),
    ),
    prompt_len=ids,
    taps=st.lists(ids).map(tuple),
)
others = [Void(3, 4), Close(5), Ready(vocab_size=9, max_length=8, exact=True), Failed("why")]


def through(message):
    prefix, header, *payload = encode(message, 1.5)
    raw = b"".join(payload)
    assert sizes(prefix) == (len(header), len(raw), 1.5)
    return decode(header, raw)


@given(opens | replies | st.sampled_from(others))
def test_messages_come_back(message):
    assert through(message) == message


@given(frames)
def test_frames_come_back_with_their_bits(frame):
    back = through(frame)
    assert back.window == frame.window
    for name in ("skipped", "verify_ms", "rollback_ms", "rollback"):
        assert getattr(back.reply, name) == getattr(frame.reply, name)
    for mine, theirs in ((back.hidden, frame.hidden), (back.taps, frame.taps)):
        assert (mine is None) == (theirs is None)
        assert mine is None or (mine.dtype == theirs.dtype and torch.equal(mine, theirs))


@pytest.mark.parametrize(
    ("header", "payload"),
    [
        (b"not json", b""),
        (b'["Pickle", {}, []]', b""),
        (b'["Void", {"session": 1}, []]', b""),
        (json.dumps(["Close", {"session": 1}, [["torch.float32", 2, 2]]]).encode(), b"123"),
        (json.dumps(["Close", {"session": 1}, []]).encode(), b"more"),
        (json.dumps(["Close", {"session": 1}, [["torch.qint8", 2, 2]]]).encode(), b"1234"),
    ],
)
def test_what_is_no_message_is_refused(header, payload):
    with pytest.raises(StageError, match="cannot be read"):
        decode(header, payload)


def test_sizes_are_bounded_before_anything_is_read():
    with pytest.raises(StageError, match="exceeds"):
        sizes(PREFIX.pack(10, MOST_PAYLOAD + 1, 0.0))


def test_distributions_do_not_travel():
    window = Window(
        session=0, id=0, epoch=0, start=0, floor=0, tokens=(1,), wanted=1, draft_probs=torch.ones(1)
    )
    with pytest.raises(StageError, match="do not travel"):
        encode(Frame.of(window), 0.0)
