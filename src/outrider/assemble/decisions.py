"""Decisions that a configuration leads to, each made once, with its reason.

Loading builds what the list says; `--print-config` and the log show it. Torch-free. What only the
files can tell (the method that `auto` picks, rows that a drafter fills) is decided at load.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import accumulate
from typing import Literal

from outrider.config.checks import llama_cpp_faults, llama_cpp_settings
from outrider.config.settings import RunConfig, SpeculativeConfig, StagesConfig
from outrider.errors import ConfigError
from outrider.formats.hub import GGUF_SUFFIX, MODELS

LIBRARY = "llama_cpp"
SERIAL_ROWS = 16
"""Rows of a window that the controller may use up when windows run one at a time."""
PIPELINED_ROWS = 8

Backend = Literal["torch", "llama.cpp"]
Drafts = Literal["none", "fixed", "controller", "link"]
"""Who chooses the number of drafts; "link": learned from round trips."""


@dataclass(frozen=True, slots=True)
class Decision:
    """A choice by name, its value in words, and why it was made."""

    name: str
    value: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name} = {self.value}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decisions:
    """The backend, and all choices that follow from a configuration before any file is read."""

    backend: Backend
    explained: tuple[Decision, ...]


def decide(config: RunConfig) -> Decisions:
    """Decide once for a checked configuration.

    Raises ConfigError where llama.cpp was asked for and cannot run the target.
    """
    backend, reason = _backend(config)
    rows = window_rows(config.speculative)
    explained = [Decision("backend", backend, reason), _kernels(config, backend), _stages(config)]
    explained += [*_drafting(config, rows), _rollback(config, capacity_for(config, rows))]
    return Decisions(backend=backend, explained=tuple(explained))


def _backend(config: RunConfig) -> tuple[Backend, str]:
    asked, path = config.target.backend, config.target.path
    if asked == "torch":
        return "torch", "asked for"
    fault = _llama_cpp_fault(config)
    needing = [*(["backend"] if asked == "llama.cpp" else []), *llama_cpp_settings(config.target)]
    if fault and needing:
        value = getattr(config.target, needing[0])
        raise ConfigError(f"target.{needing[0]} = {value!r} needs llama.cpp, but {fault}.")
    if fault is None:
        return "llama.cpp", "asked for" if asked != "auto" else f"{path} is a GGUF file"
    return "torch", fault if names_gguf(path) else f"{path} is no GGUF file"


def names_gguf(name: str) -> bool:
    """True if a model's name stands for a GGUF file; nothing is fetched to find out."""
    return name.endswith(GGUF_SUFFIX) or name in MODELS


def _llama_cpp_fault(config: RunConfig) -> str | None:
    """Why llama.cpp cannot run it, or None."""
    if not names_gguf(config.target.path):
        return f"{config.target.path} is no GGUF file: name one, or leave that out"
    if find_spec(LIBRARY) is None:
        return "it is not installed: pip install 'outrider[llama-cpp]'"
    return next(llama_cpp_faults(config), None)


def _kernels(config: RunConfig, backend: Backend) -> Decision:
    target, on_cpu = config.target, config.target.device.startswith("cpu")
    if backend == "llama.cpp":
        return Decision("kernels", "llama.cpp", "its own; bits depend on the rows of a pass")
    if not on_cpu:
        return Decision("kernels", "torch", f"target.device = {target.device!r}; not exact")
    if find_spec("numba") is None:
        return Decision("kernels", "torch", "numba, which compiles kernels, is missing; not exact")
    exact = "a row has the same bits in any window" if target.exact is not False else "asked for"
    name = "compiled" if target.exact is not False else "compiled, equality not claimed"
    return Decision("kernels", name, exact)


def _stages(config: RunConfig) -> Decision:
    stages = config.stages
    if stages.is_local:
        return Decision("stages", "1", "in this process, without a link")
    if not stages.is_apart:
        return Decision("stages", str(stages.count), "a chain in this process, links simulated")
    where = f"on the cluster at {stages.address}" if stages.address else "in processes of their own"
    return Decision("stages", str(stages.count), where)


def _drafting(config: RunConfig, rows: int) -> Iterator[Decision]:
    speculative, window = config.speculative, config.speculative.verify_window
    drafts = who_drafts(config)
    method = speculative.method
    auto = "best by the cost model among what the files allow; measured at load"
    yield Decision("method", method, auto if method == "auto" else "by speculative.method")
    if drafts == "none":
        return
    flight = f"{window.depth} in flight"
    if window.runahead_tokens is not None:
        flight = f"{window.runahead_tokens} rows in flight"
    asked = "by speculative.verify_window" if window.max_tokens else "left open; a drafter's most"
    yield Decision("windows", f"{rows} rows, {flight}", asked)
    reasons = {
        "fixed": "by speculative.max_draft_tokens, or windows in flight hold them",
        "controller": "one window at a time: a controller chooses by measured costs",
        "link": "over a link: learned from round trips",
    }
    yield Decision("drafts", drafts, reasons[drafts])


def _rollback(config: RunConfig, capacity: int) -> Decision:
    state = config.state
    asked = "by state.capacity" if state.capacity is not None else "all that may be in flight"
    return Decision("rollback", f"{state.policy}, {capacity} rows", asked)


def window_rows(speculative: SpeculativeConfig) -> int:
    """Rows of a window; what was left open is filled in."""
    drafts, rows = speculative.max_draft_tokens, speculative.verify_window.max_tokens
    if rows is not None:
        return rows
    if not is_serial(speculative):
        return PIPELINED_ROWS
    return SERIAL_ROWS if drafts == "auto" else drafts + 1


def is_serial(speculative: SpeculativeConfig) -> bool:
    """True if windows run one at a time."""
    window = speculative.verify_window
    return window.depth == 1 and window.runahead_tokens is None


def capacity_for(config: RunConfig, rows: int) -> int:
    """Rows that may be taken back: all that may be in flight, unless the user set it."""
    window = config.speculative.verify_window
    if config.state.capacity is not None:
        return config.state.capacity
    if window.runahead_tokens:
        return window.runahead_tokens + 1
    # While a window is in flight, the last row of the one before it may be pending.
    return rows * window.depth + (window.depth > 1)


def who_drafts(config: RunConfig) -> Drafts:
    """Who chooses the number of drafts of a round."""
    speculative = config.speculative
    if speculative.method == "off":
        return "none"
    if speculative.max_draft_tokens != "auto":
        return "fixed"
    if not config.stages.is_local:
        return "link"
    return "controller" if is_serial(speculative) else "fixed"


def cut(stages: StagesConfig, num_layers: int) -> list[tuple[int, int]]:
    """Layers [first, last) of each stage; where none are named, the first stages get one more.

    Raises ConfigError where the stages do not fit the model.
    """
    if stages.count > num_layers:
        raise ConfigError(
            f"stages.count = {stages.count} exceeds the {num_layers} layers of the target: every "
            "stage needs one, so use fewer."
        )
    even, more = divmod(num_layers, stages.count)
    sizes = stages.sizes or tuple(even + (number < more) for number in range(stages.count))
    if sum(sizes) != num_layers:
        raise ConfigError(
            f"stages.layers = {stages.layers!r} adds up to {sum(sizes)} and the target has "
            f"{num_layers} layers: name every layer once."
        )
    ends = list(accumulate(sizes))
    return list(zip([0, *ends], ends, strict=False))
