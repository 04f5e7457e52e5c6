"""A GGUF model: one file, or all parts of a split one, and its tensors as fp32 numbers."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch
from gguf import quants
from gguf.constants import GGMLQuantizationType as Kind
from torch import Tensor

from outrider.errors import CheckpointError
from outrider.formats.gguf_header import Header, TensorEntry, Value, read_header

SUFFIX: Final = ".gguf"
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
