"""A GGUF model: one file, or all parts of a split one, and its tensors as fp32 numbers.

The head is read with every count and length checked before it is trusted. The `gguf` library's own
reader trusts them, and makes an array object per token; so only the format's numbers and the
arithmetic of quantised types come from there.
"""

import math
import mmap
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch
from gguf import quants
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType
from gguf.constants import GGMLQuantizationType as Kind
from torch import Tensor

from outrider.errors import CheckpointError

Scalar = int | float | bool | str
Value = Scalar | list[Scalar]

MAGIC: Final = b"GGUF"
VERSIONS = (2, 3)
MOST_ENTRIES = 1 << 16
MOST_ITEMS = 1 << 22
MOST_TEXT = 1 << 26
MOST_NAME = 1 << 10
MOST_DIMENSIONS = 4
SCALARS: Mapping[int, str] = {
    GGUFValueType.UINT8: "B",
    GGUFValueType.INT8: "b",
    GGUFValueType.UINT16: "H",
    GGUFValueType.INT16: "h",
    GGUFValueType.UINT32: "I",
    GGUFValueType.INT32: "i",
    GGUFValueType.FLOAT32: "f",
    GGUFValueType.BOOL: "?",
    GGUFValueType.UINT64: "Q",
    GGUFValueType.INT64: "q",
    GGUFValueType.FLOAT64: "d",
}
# Types of other releases and forks, so that a refusal can name them.
FOREIGN: Mapping[int, str] = {
    4: "Q4_2",
    5: "Q4_3",
    31: "Q4_0_4_4",
    32: "Q4_0_4_8",
    33: "Q4_0_8_8",
    36: "IQ4_NL_4_4",
    37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
    42: "Q2_0",
    142: "PQ2_0 of PrismML",
    143: "PTQ1_0 of PrismML",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorEntry:
    """Where a tensor lies: shape as torch counts it, type, and its bytes in `path`."""

    path: Path
    name: str
    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    start: int
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """Metadata and tensors of one file."""

    path: Path
    values: Mapping[str, Value]
    tensors: Mapping[str, TensorEntry]


def read_header(path: Path) -> Header:
    """Read a GGUF file's head; raises CheckpointError where anything in it cannot be right."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            if size < len(MAGIC):
                raise CheckpointError(_fault(path, f"its {size} bytes are too few"))
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _parse(path, _Cursor(path, data, size))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise CheckpointError(f"{path} cannot be read ({reason}): fetch it again.") from None


def _fault(path: Path, reason: str) -> str:
    return f"{path} is not a whole GGUF file ({reason}): fetch it again."


class _Cursor:
    """Reads forward through a file's bytes and never past their end."""

    def __init__(self, path: Path, data: mmap.mmap, size: int) -> None:
        self.path = path
        self.size = size
        self.at = 0
        self._data = data

    def fail(self, reason: str) -> CheckpointError:
        return CheckpointError(_fault(self.path, f"{reason}, at byte {self.at}"))

    def take(self, count: int, what: str) -> bytes:
        if count > self.size - self.at:
            raise self.fail(f"{what} of {count} bytes runs past its end")
        self.at += count
        return self._data[self.at - count : self.at]

    def numbers(self, code: str, count: int, what: str) -> tuple[Scalar, ...]:
        layout = struct.Struct(f"<{count}{code}")
        return layout.unpack(self.take(layout.size, what))

    def integer(self, code: str, what: str) -> int:
        return int(self.numbers(code, 1, what)[0])

    def count(self, most: int, what: str) -> int:
        """An unsigned 64-bit count, refused above `most`."""
        count = self.integer("Q", what)
        if count > most:
            raise self.fail(f"{what} {count} is more than the {most} that can be")
        return count

    def text(self, most: int, what: str) -> str:
        raw = self.take(self.count(most, f"the length of {what}"), what)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            raise self.fail(f"{what} is not UTF-8") from None


def _parse(path: Path, cursor: _Cursor) -> Header:
    if (magic := cursor.take(len(MAGIC), "the magic")) != MAGIC:
        raise CheckpointError(f"{path} begins with {magic!r}, not {MAGIC!r}: it is no GGUF file.")
    version = cursor.integer("I", "the version")
    if version not in VERSIONS:
        raise CheckpointError(_wrong_version(path, version))
    num_tensors = cursor.count(MOST_ENTRIES, "the number of tensors")
    values = _values(cursor, cursor.count(MOST_ENTRIES, "the number of metadata keys"))
    raw = [_Raw.read(cursor) for _ in range(num_tensors)]
    align = _alignment(cursor, values)
    tensors = _place(cursor, raw, _up(cursor.at, align), align)
    return Header(path=path, values=values, tensors=tensors)


def _wrong_version(path: Path, version: int) -> str:
    if version and version & 0xFFFF == 0:
        return f"{path} is a big-endian GGUF file, which is not supported: convert it anew."
    return f"{path} is of GGUF version {version}; versions 2 and 3 are supported: convert it anew."


def _values(cursor: _Cursor, count: int) -> dict[str, Value]:
    values: dict[str, Value] = {}
    for _ in range(count):
        key = cursor.text(MOST_NAME, "a metadata key")
        if key in values:
            raise cursor.fail(f"metadata key {key!r} stands there twice")
        values[key] = _value(cursor, key)
    return values


def _value(cursor: _Cursor, key: str) -> Value:
    kind = cursor.integer("I", f"the type of {key!r}")
    if kind != GGUFValueType.ARRAY:
        return _items(cursor, kind, 1, key)[0]
    kind = cursor.integer("I", f"the item type of {key!r}")
    return _items(cursor, kind, cursor.count(MOST_ITEMS, f"the item count of {key!r}"), key)


def _items(cursor: _Cursor, kind: int, count: int, key: str) -> list[Scalar]:
    if kind == GGUFValueType.STRING:
        return [cursor.text(MOST_TEXT, f"a text of {key!r}") for _ in range(count)]
    if kind not in SCALARS:
        raise cursor.fail(f"{key!r} is of type {kind}, which is none")
    return list(cursor.numbers(SCALARS[kind], count, f"the value of {key!r}"))


@dataclass(frozen=True, slots=True)
class _Raw:
    """A tensor's entry as it stands in the file."""

    name: str
    dimensions: tuple[int, ...]
    kind: int
    offset: int

    @classmethod
    def read(cls, cursor: _Cursor) -> "_Raw":
        name = cursor.text(MOST_NAME, "a tensor's name")
        rank = cursor.integer("I", f"the rank of tensor {name!r}")
        if not 1 <= rank <= MOST_DIMENSIONS:
            raise cursor.fail(f"tensor {name!r} has {rank} dimensions")
        shape = cursor.numbers("Q", rank, f"the shape of tensor {name!r}")
        kind = cursor.integer("I", f"the type of tensor {name!r}")
        offset = cursor.integer("Q", f"the offset of tensor {name!r}")
        return cls(name, tuple(int(size) for size in shape), kind, offset)


def _alignment(cursor: _Cursor, values: Mapping[str, Value]) -> int:
    align = values.get("general.alignment", 32)
    if not isinstance(align, int) or not 0 < align <= MOST_ENTRIES or align & (align - 1):
        raise cursor.fail(f"general.alignment is {align!r}, which is no power of two")
    return align


def _up(position: int, align: int) -> int:
    return -(-position // align) * align


def _place(cursor: _Cursor, raw: list[_Raw], start: int, align: int) -> dict[str, TensorEntry]:
    """Give every tensor its bytes; together they must fill the file without gap or overlap.

    So a type that another program stores in another size under the same number is found out.
    """
    tensors: dict[str, TensorEntry] = {}
    at = start
    for entry in sorted(raw, key=lambda entry: entry.offset):
        if entry.name in tensors:
            raise cursor.fail(f"tensor {entry.name!r} stands there twice")
        if start + entry.offset != at:
            raise CheckpointError(_wrong_span(cursor.path, entry.name, start + entry.offset, at))
        tensors[entry.name] = placed = _tensor(cursor, entry, at)
        at = _up(at + placed.num_bytes, align)
    if cursor.size > at:  # less by padding after the last tensor, which may be left out
        raise CheckpointError(_wrong_span(cursor.path, "the end", cursor.size, at))
    return tensors


def _wrong_span(path: Path, name: str, found: int, expected: int) -> str:
    return (
        f"{path} puts {name} at byte {found}, but the tensors before it end at {expected}: it is "
        "damaged, or holds a type of another program under a number that means something else "
        "here; convert the model anew with llama.cpp."
    )


def _tensor(cursor: _Cursor, raw: _Raw, start: int) -> TensorEntry:
    kind = _kind(cursor.path, raw)
    block, block_bytes = GGML_QUANT_SIZES[kind]
    elements = math.prod(raw.dimensions)
    if raw.dimensions[0] % block or not elements:
        raise cursor.fail(f"tensor {raw.name!r} has shape {raw.dimensions}, no {kind.name} shape")
    num_bytes = elements // block * block_bytes
    if num_bytes > cursor.size - start:
        raise cursor.fail(f"tensor {raw.name!r} of {num_bytes} bytes runs past its end")
    return TensorEntry(
        path=cursor.path,
        name=raw.name,
        shape=raw.dimensions[::-1],
        kind=kind,
        start=start,
        num_bytes=num_bytes,
    )


def _kind(path: Path, raw: _Raw) -> GGMLQuantizationType:
    try:
        return GGMLQuantizationType(raw.kind)
    except ValueError:
        named = f" ({FOREIGN[raw.kind]})" if raw.kind in FOREIGN else ""
        raise CheckpointError(
            f"{path}: tensor {raw.name!r} is of type {raw.kind}{named}, which is not supported: "
            "use a file in F16, BF16, Q8_0, a K-quant or another type of llama.cpp."
        ) from None


SLAB_BYTES = 1 << 22
MOST_PARTS = 1 << 12
_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
FLOATS: Mapping[Kind, type[np.generic]] = {Kind.F32: np.float32, Kind.F16: np.float16}
_SUPPORTED = "BF16 Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q2_K Q3_K Q4_K Q5_K Q6_K"
SUPPORTED = frozenset((*FLOATS, *(Kind[name] for name in _SUPPORTED.split())))


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufFile:
    """Metadata of the first part, tensors of all."""

    path: Path
    values: Mapping[str, Value]
    tensors: Mapping[str, TensorEntry]

    def fault(self, reason: str) -> CheckpointError:
        """The error to raise for something in this file."""
        return CheckpointError(f"{self.path}: {reason}")

    def number(self, key: str, default: int | None = None) -> int:
        """A whole number of at least 0; raises CheckpointError where it is absent or another."""
        value = self._value(key, default)
        if type(value) is not int or value < 0:
            raise CheckpointError(_wrong_value(self.path, key, value, "a whole number"))
        return value

    def real(self, key: str, default: float | None = None) -> float:
        value = self._value(key, default)
        if type(value) not in (int, float) or not math.isfinite(float(value)):  # type: ignore[arg-type]
            raise CheckpointError(_wrong_value(self.path, key, value, "a number"))
        return float(value)  # type: ignore[arg-type]

    def text(self, key: str, default: str | None = None) -> str:
        value = self._value(key, default)
        if not isinstance(value, str):
            raise CheckpointError(_wrong_value(self.path, key, value, "a text"))
        return value

    def texts(self, key: str) -> list[str]:
        values = self._value(key, None)
        if not isinstance(values, list) or not all(isinstance(item, str) for item in values):
            raise CheckpointError(_wrong_value(self.path, key, type(values), "a list of texts"))
        return [str(item) for item in values]

    def numbers(self, key: str) -> list[float]:
        values = self._value(key, None)
        if not isinstance(values, list) or any(isinstance(item, str) for item in values):
            raise CheckpointError(_wrong_value(self.path, key, type(values), "a list of numbers"))
        return [float(item) for item in values]

    def _value(self, key: str, default: Value | None) -> Value:
        value = self.values.get(key, default)
        if value is None:
            raise self.fault(f"metadata key {key} is missing: convert it anew.")
        return value

    def read(self, name: str) -> Tensor:
        """The tensor `name`, dequantised to fp32."""
        entry = self.tensors[name]
        if entry.kind not in SUPPORTED:
            raise self.fault(
                f"tensor {name} is of type {entry.kind.name}, which is not supported: "
                f"use a file in {', '.join(sorted(kind.name for kind in SUPPORTED))}."
            )
        return dequantise(entry)

    def integers(self, name: str) -> Tensor:
        """The vector `name` of whole numbers, int64."""
        entry = self.tensors[name]
        if entry.kind is not Kind.I64:
            raise self.fault(
                f"tensor {name} is of type {entry.kind.name} where I64 is needed: convert it anew."
            )
        return torch.from_numpy(np.fromfile(entry.path, "<i8", entry.shape[0], offset=entry.start))


def _wrong_value(path: Path, key: str, value: object, wanted: str) -> str:
    return f"{path}: metadata key {key} is {value!r} where {wanted} is needed: convert it anew."


def open_gguf(path: Path) -> GgufFile:
    """Read the heads of a model's file or files; `path` names the first part of a split model."""
    first = read_header(path)
    headers = [first, *(read_header(part) for part in _other_parts(first))]
    tensors: dict[str, TensorEntry] = {}
    for header in headers:
        for name in header.tensors.keys() & tensors.keys():
            raise CheckpointError(f"{path}: tensor {name} is in two parts: fetch them again.")
        tensors.update(header.tensors)
    model = GgufFile(path=path, values=first.values, tensors=tensors)
    _check_parts(model, headers)
    return model


def _other_parts(first: Header) -> list[Path]:
    count = first.values.get("split.count", 0)
    if not isinstance(count, int) or not 0 <= count <= MOST_PARTS:
        raise CheckpointError(_wrong_value(first.path, "split.count", count, "a small number"))
    if count <= 1:
        return []
    named = _PART.fullmatch(first.path.name)
    if named is None or int(named["count"]) != count:
        raise CheckpointError(
            f"{first.path} is one of {count} parts, which are found by their names: call it "
            f"NAME-00001-of-{count:05}.gguf, and the others alike."
        )
    parts = [
        first.path.with_name(f"{named['stem']}-{number:05}-of-{count:05}.gguf")
        for number in range(1, count + 1)
    ]
    if first.path != parts[0]:
        raise CheckpointError(f"{first.path} is a later part: name the first, {parts[0].name}.")
    return parts[1:]


def _check_parts(model: GgufFile, headers: list[Header]) -> None:
    if len(headers) == 1:
        return
    for number, header in enumerate(headers):
        if header.values.get("split.no") != number:
            raise CheckpointError(
                f"{header.path} says that it is part {header.values.get('split.no')} of its model, "
                f"not {number} (counted from 0): fetch the parts again."
            )
    wanted = model.number("split.tensors.count")
    if wanted != len(model.tensors):
        raise CheckpointError(
            f"{model.path}: the parts hold {len(model.tensors)} tensors, split.tensors.count says "
            f"{wanted}: fetch them again."
        )


def dequantise(entry: TensorEntry) -> Tensor:
    """A tensor's numbers in fp32, made slab by slab so that little more memory is used."""
    width = entry.shape[-1]
    rows = math.prod(entry.shape[:-1])
    row_bytes = entry.num_bytes // rows
    result = np.empty((rows, width), dtype=np.float32)
    step = max(1, SLAB_BYTES // row_bytes)
    with entry.path.open("rb") as file:
        file.seek(entry.start)
        for row in range(0, rows, step):
            count = min(step, rows - row)
            raw = np.fromfile(file, dtype=np.uint8, count=count * row_bytes)
            if raw.size != count * row_bytes:
                raise CheckpointError(f"{entry.path} became shorter while it was read.")
            result[row : row + count] = _numbers(raw.reshape(count, row_bytes), entry.kind)
    return torch.from_numpy(result.reshape(entry.shape))


def _numbers(raw: np.ndarray, kind: Kind) -> np.ndarray:
    if kind in FLOATS:
        return raw.view(FLOATS[kind])
    return quants.dequantize(raw, kind)
