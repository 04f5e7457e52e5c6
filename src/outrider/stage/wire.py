"""Messages between the processes of a chain, as bytes: typed, bounded, without pickle.

A message is three little-endian numbers (bytes of header, bytes of payload as u32, time of sending
as f64 seconds), a header in JSON, and tensors as raw bytes, one behind the other.
"""

import json
import struct
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from outrider.core_types import Reply, TokenLogprob, Window
from outrider.errors import StageError
from outrider.sampling.params import SamplingParams
from outrider.stage.frame import Frame, Void

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
    """What ended a stage."""

    reason: str


@dataclass(frozen=True, slots=True)
class Audit:
    """Every stage checks its states and adds how many sessions it holds."""

    counts: tuple[int, ...] = ()


Message = Open | Close | Void | Ready | Failed | Audit | Frame | Reply


def encode(message: Message, sent: float) -> list[bytes]:
    """The parts of a message that leaves at `sent` seconds."""
    fields: dict[str, Any]
    tensors: list[Tensor] = []
    if isinstance(message, Frame):
        fields = _frame_fields(message)
        tensors = [part for part in (message.hidden, message.taps) if part is not None]
    elif isinstance(message, Reply):
        fields = {name: getattr(message, name) for name in Reply.__slots__ if name != "taps"}
        fields["logprobs"] = [asdict(entry) for entry in message.logprobs]
        tensors = [message.taps] if isinstance(message.taps, Tensor) else []
    else:
        fields = asdict(message)
    shapes = [[str(part.dtype), *part.shape] for part in tensors]
    header = json.dumps([type(message).__name__, fields, shapes]).encode()
    payload = [_raw(part) for part in tensors]
    _bound(len(header), sum(map(len, payload)))
    return [PREFIX.pack(len(header), sum(map(len, payload)), sent), header, *payload]


_APART = ("window", "hidden", "taps", "picked")
"""Fields of a frame that travel in another form, or not at all."""


def _frame_fields(frame: Frame) -> dict[str, Any]:
    if frame.window.draft_probs is not None:
        raise StageError(
            "sampled drafts are verified where the logits are: their distributions do not travel."
        )
    return {
        "window": {n: getattr(frame.window, n) for n in Window.__slots__ if n != "draft_probs"},
        "has": [frame.hidden is not None, frame.taps is not None],
        **{n: getattr(frame, n) for n in Frame.__slots__ if n not in _APART},
    }


def sizes(prefix: bytes) -> tuple[int, int, float]:
    """Bytes of header and of payload, and when the message left; StageError where out of bounds."""
    header, payload, sent = PREFIX.unpack(prefix)
    _bound(header, payload)
    return header, payload, sent


def decode(header: bytes, payload: bytes) -> Message:
    """The message; StageError for what is none."""
    try:
        kind, fields, shapes = json.loads(header)
        return _READERS[kind](fields, _tensors(shapes, payload))
    except (KeyError, TypeError, ValueError, IndexError, RuntimeError) as error:
        raise StageError(
            f"a message of {len(header)} + {len(payload)} bytes cannot be read ({error!r}): all "
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


def _tensors(shapes: Sequence[Sequence[Any]], payload: bytes) -> list[Tensor]:
    tensors, done = [], 0
    for name, rows, width in shapes:
        dtype = DTYPES[name]
        size = rows * width * dtype.itemsize
        part = bytearray(payload[done : done + size])
        tensors.append(torch.frombuffer(part, dtype=dtype).view(rows, width))
        done += size
    if done != len(payload):
        raise ValueError(f"tensors of {done} bytes")
    return tensors


def _open(fields: dict[str, Any], tensors: list[Tensor]) -> Open:
    sampling = dict(fields["sampling"])
    sampling["logit_bias"] = {int(key): value for key, value in sampling["logit_bias"].items()}
    settings = SamplingParams(**sampling)
    return Open(**{**fields, "sampling": settings, "taps": tuple(fields["taps"])})


def _frame(fields: dict[str, Any], tensors: list[Tensor]) -> Frame:
    has_hidden, has_taps = fields.pop("has")
    window = fields.pop("window")
    taps = tensors.pop() if has_taps else None
    hidden = tensors.pop() if has_hidden else None
    values: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in window.items()}
    return Frame(window=Window(**values), hidden=hidden, taps=taps, **fields)


def _reply(fields: dict[str, Any], tensors: list[Tensor]) -> Reply:
    entries = [
        TokenLogprob(**{**entry, "top": tuple((t, p) for t, p in entry["top"])})
        for entry in fields.pop("logprobs")
    ]
    tokens = tuple(fields.pop("tokens"))
    taps = tensors.pop() if tensors else None
    return Reply(**fields, tokens=tokens, logprobs=tuple(entries), taps=taps)


_READERS: dict[str, Callable[[dict[str, Any], list[Tensor]], Message]] = {
    "Open": _open,
    "Close": lambda fields, _: Close(**fields),
    "Void": lambda fields, _: Void(**fields),
    "Ready": lambda fields, _: Ready(**fields),
    "Failed": lambda fields, _: Failed(**fields),
    "Audit": lambda fields, _: Audit(tuple(fields["counts"])),
    "Frame": _frame,
    "Reply": _reply,
}
