"""Messages between the processes of a chain, as bytes: typed, bounded, without pickle.

A message is three little-endian numbers (bytes of header, bytes of payload as u32, time of sending
as f64 seconds), a header in JSON, and tensors as raw bytes, one after the other. Every field is
checked where a message arrives. Errors travel as text and arrive as StageErrors.
"""

import json
import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from dataclasses import fields as dataclass_fields
from typing import Any

import torch
from torch import Tensor

from outrider.errors import OutriderError, StageError
from outrider.records import Reply, TokenLogprob, Window
from outrider.sampling.params import SamplingParams
from outrider.stage.base import Frame, Void
from outrider.state.spec import Rollback

Check = Callable[[Any], Any]
"""Returns the value as the record holds it; raises ValueError for another type or range."""
MOST = 1 << 63
MOST_TEXT = 2000
"""Characters of a reason or a fault."""


def read(fields: Any, checks: Mapping[str, Check]) -> dict[str, Any]:
    """The fields that `checks` name, each checked; there must be no others."""
    if not isinstance(fields, dict) or fields.keys() != checks.keys():
        raise ValueError(f"the fields are not {', '.join(checks)}")
    return {name: check(fields[name]) for name, check in checks.items()}


def integer(value: Any) -> int:
    """A whole number of 64 bits."""
    if type(value) is not int or not -MOST <= value < MOST:
        raise ValueError("no whole number of 64 bits")
    return value


def count(value: Any) -> int:
    """A whole number that is not negative."""
    if integer(value) < 0:
        raise ValueError("a negative number")
    return int(value)


def size(value: Any) -> int:
    """A whole number above 0."""
    if integer(value) < 1:
        raise ValueError("no size")
    return int(value)


def flag(value: Any) -> bool:
    if type(value) is not bool:
        raise ValueError("neither true nor false")
    return value


def milliseconds(value: Any) -> float:
    """A finite number that is not negative."""
    if type(value) not in (int, float) or not 0 <= value < math.inf:
        raise ValueError("no time")
    return float(value)


def logprob(value: Any) -> float:
    """A number below infinity; minus infinity is one of them, NaN is not."""
    if type(value) not in (int, float) or not value < math.inf:
        raise ValueError("no log-probability")
    return float(value)


def text(value: Any) -> str:
    """At most `MOST_TEXT` characters that can be written anywhere."""
    if not isinstance(value, str) or len(value) > MOST_TEXT:
        raise ValueError("no text, or too long a one")
    value.encode()  # Half a surrogate pair is a ValueError.
    return value


def listed(check: Check) -> Check:
    """A list, as a tuple of values that pass `check`."""

    def whole(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise ValueError("no list")
        return tuple(check(one) for one in value)

    return whole


def optional(check: Check) -> Check:
    """None, or what passes `check`."""
    return lambda value: None if value is None else check(value)


PREFIX = struct.Struct("<IId")
MOST_HEADER = 1 << 24
MOST_PAYLOAD = 1 << 30
DTYPES = {str(dtype): dtype for dtype in (torch.float32, torch.bfloat16, torch.float16)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Open:
    """As `Stage.open`."""

    session: int
    sampling: SamplingParams
    prompt_len: int
    taps: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Close:
    """As `Stage.close`."""

    session: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """All stages up to the sender have loaded."""

    vocab_size: int
    max_length: int
    exact: bool


@dataclass(frozen=True, slots=True)
class Failed:
    """The error that ended a stage."""

    reason: str


@dataclass(frozen=True, slots=True)
class Audit:
    """Every stage checks its states and adds how many sessions it holds."""

    counts: tuple[int, ...] = ()


Message = Open | Close | Void | Ready | Failed | Audit | Frame | Reply


def say(error: Exception) -> str:
    """An error in words that fit into a message: at most `MOST_TEXT` characters."""
    named = isinstance(error, OutriderError)
    return _cut(str(error) if named else f"{type(error).__name__}: {error}")


def _cut(words: str) -> str:
    words = words.encode(errors="replace").decode()
    return words if len(words) <= MOST_TEXT else f"{words[: MOST_TEXT - 4]} ..."


def encode(message: Message, sent: float) -> list[bytes]:
    """The parts of a message that leaves at `sent` seconds; StageError if it is too large."""
    fields: dict[str, Any]
    tensors: list[Tensor] = []
    if isinstance(message, Frame):
        fields = _frame_fields(message)
        tensors = [part for part in (message.hidden, message.taps) if part is not None]
    elif isinstance(message, Reply):
        fields = {name: getattr(message, name) for name in Reply.__slots__ if name != "taps"}
        fields["logprobs"] = [asdict(entry) for entry in message.logprobs]
        fields["fault"] = say(message.fault) if message.fault else None
        tensors = [message.taps] if isinstance(message.taps, Tensor) else []
    elif isinstance(message, Failed):
        fields = {"reason": _cut(message.reason)}
    else:
        fields = asdict(message)
    shapes = [[str(part.dtype), *part.shape] for part in tensors]
    header = json.dumps([type(message).__name__, fields, shapes]).encode()
    payload = [_raw(part) for part in tensors]
    _bound(len(header), sum(map(len, payload)))
    return [PREFIX.pack(len(header), sum(map(len, payload)), sent), header, *payload]


def _frame_fields(frame: Frame) -> dict[str, Any]:
    if frame.window.draft_probs is not None:
        raise StageError(
            "sampled drafts are verified where the logits are: their distributions do not travel."
        )
    return {
        "window": {n: getattr(frame.window, n) for n in Window.__slots__ if n != "draft_probs"},
        "has": [frame.hidden is not None, frame.taps is not None],
        "fault": say(frame.reply.fault) if frame.reply.fault else None,
        **{name: getattr(frame.reply, name) for name in _PASS if name != "fault"},
    }


def sizes(prefix: bytes) -> tuple[int, int, float]:
    """Bytes of header and of payload, and when the message left; StageError where out of bounds."""
    header, payload, sent = PREFIX.unpack(prefix)
    _bound(header, payload)
    if not math.isfinite(sent):
        raise StageError(f"a message left at {sent} seconds: it is damaged.")
    return header, payload, sent


def decode(header: bytes, payload: bytes) -> Message:
    """The message, each field of its type and within its range; StageError for what is none."""
    try:
        kind, fields, shapes = json.loads(header)
        return _READERS[kind](fields, _tensors(shapes, payload))
    except Exception as error:  # Whatever it is, it comes of bytes that are no message.
        raise StageError(
            f"a message of {len(header)} + {len(payload)} bytes cannot be read ({say(error)}): all "
            "stages must run the same version."
        ) from None


def _bound(header: int, payload: int) -> None:
    if header > MOST_HEADER or payload > MOST_PAYLOAD:
        raise StageError(
            f"a message of {header} + {payload} bytes exceeds {MOST_HEADER} + {MOST_PAYLOAD}: "
            "it is damaged, or its window too large."
        )


def _raw(tensor: Tensor) -> bytes:
    flat = tensor.detach().contiguous().cpu().view(-1).view(torch.uint8)
    return bytes(flat.numpy())


def _tensors(shapes: Any, payload: bytes) -> list[Tensor]:
    tensors, done = [], 0
    for name, *sides in listed(lambda shape: shape)(shapes):
        dtype = DTYPES[name]
        rows, width = map(size, sides)
        nbytes = rows * width * dtype.itemsize
        if nbytes > len(payload) - done:
            raise ValueError(f"a tensor of {rows} x {width} in {len(payload) - done} bytes")
        part = bytearray(payload[done : done + nbytes])
        tensors.append(torch.frombuffer(part, dtype=dtype).view(rows, width))
        done += nbytes
    if done != len(payload):
        raise ValueError(f"tensors of {done} bytes")
    return tensors


def _fault(value: Any) -> StageError:
    return StageError(text(value))


def _alternative(value: Any) -> tuple[int, float]:
    token, chance = value
    return count(token), logprob(chance)


def _entry(value: Any) -> TokenLogprob:
    return TokenLogprob(**read(value, _ENTRY))


_ENTRY: dict[str, Check] = {"token": count, "logprob": logprob, "top": listed(_alternative)}
_WINDOW: dict[str, Check] = {
    "session": integer,
    "id": integer,
    "epoch": integer,
    "start": count,
    "floor": count,
    "tokens": listed(count),
    "wanted": count,
    "opens_epoch": flag,
    "given": listed(count),
}
_PASS: dict[str, Check] = {
    "skipped": flag,
    "verify_ms": milliseconds,
    "pass_rows": count,
    "pass_sessions": count,
    "pass_prompts": count,
    "rollback_ms": milliseconds,
    "rollback": optional(lambda value: Rollback(value).value),
    "fault": optional(_fault),
}
"""Fields of frames and replies about the passes that they went through."""


def _window(fields: Any) -> Window:
    window = Window(**read(fields, _WINDOW))
    rows = len(window.tokens)
    if not rows or window.wanted > rows or len(window.given) > window.wanted:
        raise ValueError(f"a window of {rows} rows, {window.wanted} of them wanted")
    return window


_FRAME: dict[str, Check] = {"window": _window, "has": listed(flag), **_PASS}
_REPLY: dict[str, Check] = {
    "session": integer,
    "id": integer,
    "tokens": listed(count),
    "logprobs": listed(_entry),
    **_PASS,
}


def _frame(fields: Any, tensors: list[Tensor]) -> Frame:
    values = read(fields, _FRAME)
    has_hidden, has_taps = values.pop("has")
    if len(tensors) != has_hidden + has_taps:
        raise ValueError(f"{len(tensors)} tensors")
    rows = len(values["window"].tokens)
    if any(len(part) != rows for part in tensors):
        raise ValueError(f"tensors that have not the {rows} rows of their window")
    taps = tensors.pop() if has_taps else None
    hidden = tensors.pop() if has_hidden else None
    return Frame.of(values.pop("window"), hidden, taps=taps, **values)


def _reply(fields: Any, tensors: list[Tensor]) -> Reply:
    values = read(fields, _REPLY)
    if len(tensors) > 1:
        raise ValueError(f"{len(tensors)} tensors")
    return Reply(**values, taps=tensors[0] if tensors else None)


def _sampling(value: Any) -> SamplingParams:
    """Settings; ConfigError where one is out of range."""
    names = [field.name for field in dataclass_fields(SamplingParams)]
    settings = read(value, dict.fromkeys(names, lambda found: found))
    bias = settings["logit_bias"].items()
    settings["logit_bias"] = {int(token): change for token, change in bias}
    settings["choice"] = count(settings["choice"])
    return SamplingParams(**settings)


def _plain(kind: Callable[..., Message], **checks: Check) -> Callable[[Any, list[Tensor]], Message]:
    """Reads messages without tensors."""

    def reader(fields: Any, tensors: list[Tensor]) -> Message:
        if tensors:
            raise ValueError(f"{len(tensors)} tensors")
        return kind(**read(fields, checks))

    return reader


_READERS: dict[str, Callable[[Any, list[Tensor]], Message]] = {
    "Open": _plain(
        Open, session=integer, sampling=_sampling, prompt_len=count, taps=listed(integer)
    ),
    "Close": _plain(Close, session=integer),
    "Void": _plain(Void, session=integer, epoch=integer),
    "Ready": _plain(Ready, vocab_size=size, max_length=size, exact=flag),
    "Failed": _plain(Failed, reason=text),
    "Audit": _plain(Audit, counts=listed(count)),
    "Frame": _frame,
    "Reply": _reply,
}
