"""A GGUF file as llama.cpp holds it."""

import ctypes
import weakref
from pathlib import Path

from outrider.errors import CheckpointError, ConfigError
from outrider.llamacpp.library import Library, library


class LlamaWeights:
    """Weights that contexts share; freed after the last of them."""

    def __init__(self, path: Path, *, gpu_layers: int = 0) -> None:
        """Load a file, `gpu_layers` of it to an accelerator (-1: all); CheckpointError if it is
        refused, ConfigError where there is no accelerator."""
        self.path = path
        self.library: Library = library()
        call = self.library.call
        if gpu_layers and not call.llama_supports_gpu_offload():
            raise ConfigError(
                f"target.gpu_layers = {gpu_layers} needs a GPU and a llama.cpp for it, but none is "
                "there or this one was compiled for the CPU: leave it out."
            )
        wanted = call.llama_model_default_params()
        wanted.n_gpu_layers = gpu_layers
        self.handle = call.llama_model_load_from_file(str(path).encode(), wanted)
        if not self.handle:
            raise CheckpointError(
                f"{path} cannot be loaded by llama.cpp: it is damaged, of a kind that this version "
                "does not know, or larger than the memory; --log-level debug shows what it said."
            )
        weakref.finalize(self, call.llama_model_free, self.handle)
        self.vocab_size = int(call.llama_vocab_n_tokens(call.llama_model_get_vocab(self.handle)))
        """Rows of the head."""
        recurrent = call.llama_model_is_recurrent(self.handle)
        self.is_recurrent = bool(recurrent or call.llama_model_is_hybrid(self.handle))
        """True if any layer's memory cannot simply be cut off at its end."""

    @property
    def max_length(self) -> int:
        """Positions that the model was trained for."""
        return int(self.library.call.llama_model_n_ctx_train(self.handle))

    @property
    def architecture(self) -> str:
        """The file's `general.architecture`."""
        text = ctypes.create_string_buffer(64)
        self.library.call.llama_model_meta_val_str(
            self.handle, b"general.architecture", text, len(text)
        )
        return text.value.decode("utf-8", "replace")
