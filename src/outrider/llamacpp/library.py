"""llama.cpp's C interface by llama-cpp-python, loaded when it is first needed; its log is ours.

The library aborts on some files, so `probe` starts this file as a program first: it loads the
model, makes a small context, decodes two rows and takes one of them back. Nothing here imports
torch, so that the trial takes a fraction of a second.
"""

import ctypes
import json
import logging
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from ctypes import c_int32
from functools import cache
from pathlib import Path
from typing import Any

from outrider.errors import CheckpointError, ConfigError

LOG = logging.getLogger("outrider.llama.cpp")
LEVELS = {1: logging.DEBUG, 2: logging.DEBUG, 3: logging.INFO, 4: logging.WARNING}
"""Its debug, info, warning and error. It is loud: what matters here is raised, not logged."""


class Library:
    """`call` has the functions of `llama.h`. Lives as long as the process, as its log does."""

    def __init__(self, call: Any) -> None:
        self.call = call
        self._line = ""
        # The library calls it until it ends, so it must not be freed before.
        self._listener = call.llama_log_callback(self._listen)
        call.llama_log_set(self._listener, ctypes.c_void_p(0))
        call.llama_backend_init()

    def _listen(self, level: int, text: bytes, _: object) -> None:
        """Log whole lines; one may come in pieces."""
        self._line += text.decode("utf-8", "replace")
        if self._line.endswith("\n"):
            LOG.log(LEVELS.get(level, logging.DEBUG), "%s", self._line.rstrip())
            self._line = ""


@cache
def library() -> Library:
    """The one library of this process; raises ConfigError where it is not installed."""
    try:
        from llama_cpp import llama_cpp
    except ImportError as error:
        raise ConfigError(
            f"target.backend = 'llama.cpp' cannot be used ({error}): install the extra with "
            "pip install 'outrider[llama-cpp]'."
        ) from error
    return Library(llama_cpp)


SECONDS = 60.0
SECONDS_PER_BYTE = 60e-9
"""For a disk that gives 17 MB/s, so that only what hangs takes longer."""


def probe(path: Path, settings: Mapping[str, int], seconds: float | None = None) -> None:
    """Raise CheckpointError unless a context with `settings`, in the library's words, decodes."""
    limit = SECONDS + SECONDS_PER_BYTE * path.stat().st_size if seconds is None else seconds
    command = [sys.executable, "-m", __name__, str(path), json.dumps(dict(settings))]
    try:
        done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=limit)
    except subprocess.TimeoutExpired:
        raise CheckpointError(
            f"{path}: llama.cpp was still loading it after {limit:.0f} s: it is damaged, or the "
            "machine is too busy."
        ) from None
    if done.returncode:
        said = done.stderr.decode("utf-8", errors="replace").splitlines()
        raise CheckpointError(
            f"{path}: llama.cpp {_end(done.returncode)} on this file ({_reason(said)}): it is "
            "damaged, or of a kind that this version of llama.cpp does not know; fetch it again."
        )


def _end(status: int) -> str:
    """How the trial ended, as a verb."""
    return f"died of {signal.Signals(-status).name}" if status < 0 else "fails"


def _reason(said: list[str]) -> str:
    """The line that tells most of what was said."""
    lines = [" ".join(line.split()) for line in said if line.strip()]
    for word in ("GGML_ASSERT", "error", "failed"):
        if found := [line for line in lines if word in line]:
            # Without the folder that the library was compiled in.
            return re.sub(r"^/\S*/", "", found[0])[:300]
    return lines[-1][:300] if lines else "it said nothing"


def main(path: str, settings: Mapping[str, int]) -> None:
    """Load, decode and take back; leaves by an exception or an abort where that fails."""
    _leave_no_trace()
    from llama_cpp import llama_cpp as library

    library.llama_backend_init()
    wanted = library.llama_model_default_params()
    wanted.n_gpu_layers = settings.get("n_gpu_layers", 0)
    wanted.use_extra_bufts = False  # weights stay in the file's pages: nothing is repacked
    model = library.llama_model_load_from_file(path.encode(), wanted)
    if not model:
        raise SystemExit("error: the model cannot be loaded")
    if not library.llama_model_has_decoder(model) or library.llama_model_has_encoder(model):
        raise SystemExit("error: it does not decode text from text alone")
    _decode(library, _context(library, model, settings))


def _context(library: Any, model: Any, settings: Mapping[str, int]) -> Any:
    options = library.llama_context_default_params()
    for name, value in settings.items():
        if hasattr(options, name):
            setattr(options, name, value)
    context = library.llama_init_from_model(model, options)
    if not context or not library.llama_get_memory(context):
        raise SystemExit("error: no context with a memory can be made of it")
    return context


def _decode(library: Any, context: Any) -> None:
    memory, tokens = library.llama_get_memory(context), (c_int32 * 2)(0, 0)
    if library.llama_decode(context, library.llama_batch_get_one(tokens, 2)):
        raise SystemExit("error: two rows cannot be decoded")
    start = 1 if library.llama_memory_seq_rm(memory, 0, 1, -1) else 2
    if library.llama_memory_seq_pos_max(memory, 0) != start - 1:
        raise SystemExit("error: it does not take a row back as it says")
    if library.llama_decode(context, library.llama_batch_get_one(tokens, 1)):
        raise SystemExit("error: a row cannot be decoded")


def _leave_no_trace() -> None:
    """An abort is expected here, and neither a backtrace nor a dump of it of use to anyone.

    For a backtrace every aborting thread starts gdb on this process, where there is one: a second
    at best, and two at a time can wait for each other for ever.
    """
    os.environ["GGML_NO_BACKTRACE"] = "1"
    try:
        import resource
    except ImportError:  # not on Windows
        return
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
