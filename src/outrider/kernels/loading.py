"""Compiling kernels, each module when it is first needed, and keeping them on disk."""

import logging
import os
from functools import cache
from hashlib import sha256
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import Any, cast

LOG = logging.getLogger(__name__)


def has_numba() -> bool:
    """True if the compiler is there: a requirement wherever it has a wheel."""
    return find_spec("numba") is not None


_LOADING = Lock()


@cache
def load_kernels(name: str) -> Any:
    """A module of kernels, compiled or found compiled; says so where that takes a while."""
    import numba

    with _LOADING:  # models may be loaded in several threads
        folder, settings = cache_folder(), cast(Any, numba.config)
        announce(folder, name)
        embedder, settings.CACHE_DIR = settings.CACHE_DIR, str(folder or "")
        try:
            module = module_of(name)
        finally:
            settings.CACHE_DIR = embedder
        module_of("jit").compile_module(module.__name__)
    return module


def module_of(name: str) -> Any:
    """A module of kernels, imported."""
    return import_module(f"{__package__}.{name}")


def announce(folder: Path | None, name: str) -> None:
    """Say that the kernels of a module will be compiled, unless `folder` has them."""
    what = f"compiling kernels ({name}, a few seconds)"
    if folder is None:
        LOG.warning("%s, which no folder can keep: no writable home", what)
    elif not any(folder.rglob(f"{name}.*.nbi")):
        LOG.warning("%s for this processor, once, into %s", what, folder)


def cache_folder() -> Path | None:
    """Where kernels of exactly this source are kept; numba watches only the file of each."""
    sources = sorted(Path(__file__).parent.glob("jit*.py"))
    mark = sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:12]
    try:
        folder = Path.home() / ".cache" / "outrider" / f"kernels-{mark}"
        folder.mkdir(parents=True, exist_ok=True)
        writable = os.access(folder, os.W_OK)
    except (OSError, RuntimeError):
        return None
    return folder if writable else None
