"""Which backend runs a target: torch, or llama.cpp for GGUF files."""

import logging
from importlib.util import find_spec

from outrider.config.checks import llama_cpp_faults, llama_cpp_settings
from outrider.config.settings import RunConfig
from outrider.errors import ConfigError
from outrider.formats import hub as packaged
from outrider.formats.gguf_file import SUFFIX

LOG = logging.getLogger(__name__)
LIBRARY = "llama_cpp"


def runs_by_llama_cpp(config: RunConfig) -> bool:
    """True if llama.cpp runs the target; what "auto" chose for a GGUF file is said.

    Raises ConfigError where it was asked for and cannot.
    """
    backend, path = config.target.backend, config.target.path
    needing = [*(["backend"] if backend == "llama.cpp" else []), *llama_cpp_settings(config.target)]
    fault = None if backend == "torch" else _fault(config)
    if fault and needing:
        value = getattr(config.target, needing[0])
        raise ConfigError(f"target.{needing[0]} = {value!r} needs llama.cpp, but {fault}.")
    if backend == "auto" and _is_gguf(path):
        LOG.warning("target.backend = 'auto' picked 'torch': %s", fault) if fault else LOG.warning(
            "target.backend = 'auto' picked 'llama.cpp'"
        )
    return backend != "torch" and fault is None


def _is_gguf(name: str) -> bool:
    """True if a model's name stands for a GGUF file; nothing is fetched to find out."""
    return name.endswith(SUFFIX) or name in packaged.MODELS


def _fault(config: RunConfig) -> str | None:
    """Why llama.cpp cannot run it, or None."""
    if not _is_gguf(config.target.path):
        return f"{config.target.path} is no GGUF file: name one, or leave that out"
    if find_spec(LIBRARY) is None:
        return "it is not installed: pip install 'outrider[llama-cpp]'"
    return next(llama_cpp_faults(config), None)
