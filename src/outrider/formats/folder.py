"""Tensors of a Hugging Face folder, by name, with every one accounted for."""

from pathlib import Path, PureWindowsPath
from typing import Any, Self

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from outrider.errors import CheckpointError
from outrider.formats.files import read_json
from outrider.formats.tensors import TensorSource

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json", "consolidated.00.pth")


class WeightFolder(TensorSource):
    """The safetensors files of one folder."""

    explains = "config.json"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._files: dict[str, Any] = {}

    def __enter__(self) -> Self:
        for path in _files(self.folder):
            self._open(path)
        return self

    def _open(self, path: Path) -> None:
        try:
            file = self._stack.enter_context(safe_open(path, framework="pt"))
        except FileNotFoundError:
            raise CheckpointError(
                f"{path.name} is named by {INDEX} but missing from {path.parent}; "
                "fetch the checkpoint again."
            ) from None
        except (SafetensorError, OSError) as error:
            raise CheckpointError(
                f"{path} is not a whole safetensors file ({error}); fetch it again."
            ) from None
        if twice := sorted(self._files.keys() & file.keys()):
            raise CheckpointError(
                f"tensor {twice[0]} lies in two files of {path.parent}, the second being "
                f"{path.name}: fetch the checkpoint again, into an empty folder."
            )
        self._files.update(dict.fromkeys(file.keys(), file))

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._files)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(file.get_slice(name).get_shape()) for name, file in self._files.items()}

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        if name not in self._files:
            raise CheckpointError(f"tensor {name} is missing from {self.folder}.")
        try:
            tensor: Tensor = self._files[name].get_tensor(name)
        except (SafetensorError, OSError, ValueError) as error:
            raise CheckpointError(f"tensor {name} in {self.folder} is damaged ({error}).") from None
        if tuple(tensor.shape) != shape:
            raise CheckpointError(
                f"tensor {name} has shape {tuple(tensor.shape)}, but config.json implies {shape}."
            )
        if tensor.is_floating_point() != dtype.is_floating_point:
            raise CheckpointError(
                f"tensor {name} holds {tensor.dtype}, which cannot stand for {dtype}: quantised "
                "weights are not supported here."
            )
        self._taken.add(name)
        return tensor.to(dtype)


def _inside(index: Path, name: str) -> str:
    """`name`, which an index file gives, where it lies in the index's own folder."""
    path = PureWindowsPath(name)  # knows both separators, and drives
    if path.anchor or ".." in path.parts or not path.parts:
        raise CheckpointError(
            f"{index} names the file {name!r}, which is not in its folder: fetch it "
            "again, from its author."
        )
    return name


def _files(folder: Path) -> list[Path]:
    if (index := folder / INDEX).exists():
        weights = read_json(index).get("weight_map")
        if not isinstance(weights, dict) or not weights:
            raise CheckpointError(f"{index} has no weight_map.")
        return [folder / _inside(index, name) for name in sorted(set(map(str, weights.values())))]
    if (single := folder / SINGLE).exists():
        return [single]
    for name in PICKLES:
        if (folder / name).exists():
            raise CheckpointError(
                f"{folder} holds only {name}, a pickle file, which can run code when loaded; "
                "convert it to safetensors first."
            )
    raise CheckpointError(f"{folder} holds neither {SINGLE} nor {INDEX}.")
