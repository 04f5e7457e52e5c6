"""Reading one layer's tensors under the names that its family uses."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from outrider.errors import CheckpointError


class TensorSource(Protocol):
    """An open model file: tensors under their Hugging Face names, every one accounted for."""

    @property
    def names(self) -> frozenset[str]: ...

    def count_parameters(self) -> int: ...

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor: ...

    def leave(self, names: Iterable[str]) -> None: ...

    def finish(self) -> None: ...


def refuse_unexplained(names: Iterable[str], *, origin: object, explains: str) -> None:
    """Raise where tensors of `origin` were neither taken nor left on purpose."""
    rest = sorted(names)
    if rest:
        shown = ", ".join(rest[:4]) + (f" and {len(rest) - 4} more" if len(rest) > 4 else "")
        raise CheckpointError(
            f"{origin} holds tensors that its {explains} does not explain: {shown}."
        )


@dataclass(frozen=True, slots=True)
class WeightReader:
    """Takes tensors below a name prefix, on one device and in one dtype."""

    checkpoint: TensorSource
    prefix: str
    dtype: torch.dtype
    device: torch.device
    zero_centred_norm: bool = False

    def below(self, name: str) -> "WeightReader":
        return replace(self, prefix=f"{self.prefix}{name}.")

    def take(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """The tensor prefix + name, with the shape that the config implies."""
        tensor = self.checkpoint.take(self.prefix + name, shape, dtype or self.dtype)
        return tensor.to(self.device)

    def matrix(self, name: str, out: int, inner: int) -> Tensor:
        return self.take(f"{name}.weight", out, inner)

    def vector(self, name: str, size: int) -> Tensor:
        """A bias or another vector that is added in the model's dtype."""
        return self.take(name, size)

    def norm(self, name: str, width: int) -> Tensor:
        """A norm's weight in fp32; zero-centred families store it minus one."""
        weight = self.take(f"{name}.weight", width, dtype=torch.float32)
        return weight + 1.0 if self.zero_centred_norm else weight
