"""Files of a Hugging Face folder: text, JSON, and tensors by name, with every one accounted for."""

import json
from pathlib import Path, PureWindowsPath
from typing import Any, Self

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from outrider.errors import CheckpointError
from outrider.formats.tensors import TensorSource


def read_text(path: Path) -> str:
    """Contents of a UTF-8 file; raises CheckpointError where it is unreadable or not UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise CheckpointError(
            f"{path.name} is missing from {path.parent}: fetch it again."
        ) from None
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise CheckpointError(f"{path} cannot be read ({reason}): fetch it again.") from None
    except UnicodeDecodeError:
        raise CheckpointError(f"{path} is not UTF-8 text: fetch it again.") from None


def read_json(path: Path) -> dict[str, Any]:
    """Contents of a JSON object file.

    Raises CheckpointError where it is missing, unreadable, not JSON or not an object.
    """
    try:
        value = json.loads(read_text(path))
    except ValueError as error:
        raise CheckpointError(f"{path} is not valid JSON ({error}): fetch it again.") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} holds a {type(value).__name__}: a JSON object is needed.")
    return value


def read_json_or_empty(path: Path) -> dict[str, Any]:
    """As `read_json`, for a file that a model folder may leave out."""
    return read_json(path) if path.exists() else {}


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
