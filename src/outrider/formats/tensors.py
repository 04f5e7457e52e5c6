"""Reading one layer's tensors under the names that its family uses."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from outrider.errors import CheckpointError


class TensorSource(ABC):
    """An open model file, as a context manager: tensors under their Hugging Face names, each of
    which is taken, left on purpose, or refused by `finish`.

    folder: where they lie. explains: what says which of them there must be.
    """

    folder: Path
    explains: str

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._taken: set[str] = set()
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    @property
    @abstractmethod
    def names(self) -> frozenset[str]: ...

    @property
    @abstractmethod
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of all tensors by name, read from the heads of files."""

    @abstractmethod
    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """The tensor `name` in `dtype`; CheckpointError where it is missing or of another shape."""

    def count_parameters(self) -> int:
        """Elements of all tensors."""
        return sum(map(math.prod, self.shapes.values()))

    def leave(self, names: Iterable[str]) -> None:
        """Account for tensors that are deliberately not used."""
        self._taken.update(names)

    def finish(self) -> None:
        """Raise where tensors were neither taken nor left on purpose."""
        if rest := sorted(self.names - self._taken):
            shown = ", ".join(rest[:4]) + (f" and {len(rest) - 4} more" if len(rest) > 4 else "")
            raise CheckpointError(
                f"{self.folder} holds tensors that its {self.explains} does not explain: {shown}."
            )


@dataclass(frozen=True, slots=True)
class WeightReader:
    """Takes tensors below a name prefix, on one device and in one dtype.

    rounding: dtype that matrices and added vectors are rounded to first (None: not).
    """

    checkpoint: TensorSource
    prefix: str
    dtype: torch.dtype
    device: torch.device
    zero_centred_norm: bool = False
    rounding: torch.dtype | None = None

    def below(self, name: str) -> "WeightReader":
        return replace(self, prefix=f"{self.prefix}{name}.")

    def take(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """The tensor prefix + name, with the shape that the config implies."""
        rounded = dtype or self.rounding or self.dtype
        tensor = self.checkpoint.take(self.prefix + name, shape, rounded)
        return tensor.to(self.device, dtype or self.dtype)

    def matrix(self, name: str, out: int, inner: int) -> Tensor:
        return self.take(f"{name}.weight", out, inner)

    def vector(self, name: str, size: int) -> Tensor:
        """A bias or another vector that is added in the model's dtype."""
        return self.take(name, size)

    def norm(self, name: str, width: int) -> Tensor:
        """A norm's weight in fp32; zero-centred families store it minus one."""
        weight = self.take(f"{name}.weight", width, dtype=torch.float32)
        return weight + 1.0 if self.zero_centred_norm else weight
