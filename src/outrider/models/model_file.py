"""A model by its path: a Hugging Face folder or a GGUF file, read through one interface."""

from pathlib import Path

from outrider.errors import CheckpointError
from outrider.formats.folder import WeightFolder
from outrider.formats.gguf_file import open_gguf
from outrider.formats.gguf_tokenizer import read_gguf_tokenizer
from outrider.formats.hub import GGUF_SUFFIX
from outrider.formats.tensors import TensorSource
from outrider.formats.tokenizer import Tokenizer
from outrider.models.config import ModelConfig
from outrider.models.gguf_config import read_gguf_config
from outrider.models.gguf_tensors import GgufTensors
from outrider.models.hf_config import read_config


def is_gguf(path: Path) -> bool:
    """True if `path` is to be read as GGUF; a folder with nothing but such files is refused."""
    if path.is_file():
        if path.suffix != GGUF_SUFFIX:
            raise CheckpointError(f"{path} is neither a model folder nor a {GGUF_SUFFIX} file.")
        return True
    files = sorted(path.glob(f"*{GGUF_SUFFIX}")) if path.is_dir() else []
    if files and not (path / "config.json").exists():
        raise CheckpointError(f"{path} holds GGUF files: name one itself, such as {files[0]}.")
    return False


def model_config(path: Path) -> ModelConfig:
    """Read a model's configuration; CheckpointError names what is missing or not supported."""
    return read_gguf_config(open_gguf(path)) if is_gguf(path) else read_config(path)


def open_tensors(path: Path) -> tuple[ModelConfig, TensorSource]:
    """A model's configuration and its tensors, to be used as a context manager."""
    if not is_gguf(path):
        return read_config(path), WeightFolder(path)
    file = open_gguf(path)
    config = read_gguf_config(file)
    return config, GgufTensors(file, config)


def count_parameters(path: Path) -> int:
    """Elements of all tensors, without reading them."""
    _, opened = open_tensors(path)
    with opened as tensors:
        return tensors.count_parameters()


def load_tokenizer(path: Path) -> Tokenizer:
    """A model's tokenizer with special tokens, end tokens and chat template."""
    return read_gguf_tokenizer(open_gguf(path)) if is_gguf(path) else Tokenizer.load(path)
