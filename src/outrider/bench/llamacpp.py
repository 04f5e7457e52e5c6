"""llama.cpp's own server, run in this process by `xllamacpp`, on the same GGUF files.

One server per variant: plain, n-gram and, with a draft model, speculative decoding. Behind
`--peer llama.cpp:` stand settings of its speculation, such as `n_max=4,size_m=16`.
"""

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from outrider.bench.leg import Clock, Leg, Refusal
from outrider.bench.server import ServerPeer
from outrider.errors import ConfigError

CONTEXT = 4096
"""Positions that a server has room for."""

DRAFT_KEYS = ("n_max", "n_min", "p_min")
NGRAM_KEYS = ("size_n", "size_m", "min_hits")


class LlamaCppPeer:
    """A server with one kind of speculation; it starts at its first leg."""

    def __init__(self, name: str, settings: Any) -> None:
        self.name = name
        self._settings = settings
        self._server: tuple[Any, ServerPeer] | None = None

    def run(self, prompt: Sequence[int], count: int, clock: Clock) -> Leg:
        """Decode `count` tokens behind the prompt; raises Refusal where the server cannot."""
        if self._server is None:
            self._server = self.start()
        return self._server[1].run(prompt, count, clock)

    def start(self) -> tuple[Any, ServerPeer]:
        """The server, which ends with its object, and a client of it; raises Refusal."""
        try:
            server = import_module("xllamacpp").Server(self._settings)
        except (RuntimeError, ValueError) as error:
            raise Refusal(" ".join(str(error).split())) from error
        return server, ServerPeer(server.listening_address, self.name)


def llama_cpp(target: Path, draft: Path | None, settings: str) -> list[LlamaCppPeer]:
    """Peers on GGUF files; raises ConfigError for settings that it does not know."""
    chosen = _settings(settings)
    try:
        library = import_module("xllamacpp")
    except ImportError:
        raise ConfigError(
            "--peer llama.cpp needs the package xllamacpp, which is missing: install "
            "outrider[bench]."
        ) from None
    kinds = library.common_speculative_type
    peers = [LlamaCppPeer("llama.cpp plain", parameters(library, target))]
    ngram = parameters(library, target)
    ngram.speculative.types = [kinds.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE]
    _set(ngram.speculative.ngram_simple, chosen, NGRAM_KEYS)
    peers.append(LlamaCppPeer("llama.cpp n-gram", ngram))
    if draft is not None:
        drafted = parameters(library, target)
        drafted.speculative.types = [kinds.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
        drafted.speculative.draft.mparams.path = str(draft)
        drafted.speculative.draft.n_gpu_layers = 0
        drafted.speculative.draft.cpuparams.n_threads = _threads()
        _set(drafted.speculative.draft, chosen, DRAFT_KEYS)
        peers.append(LlamaCppPeer("llama.cpp draft", drafted))
    return peers


def _settings(text: str) -> dict[str, float]:
    """`key=number,...` as a mapping."""
    pairs = [part.partition("=") for part in text.split(",") if part]
    known = (*DRAFT_KEYS, *NGRAM_KEYS)
    try:
        chosen = {key: float(value) for key, _, value in pairs}
    except ValueError:
        chosen = {text: 0.0}
    if unknown := [key for key in chosen if key not in known]:
        raise ConfigError(
            f"--peer llama.cpp:{text} sets {unknown[0]!r}, which is not among its settings: use "
            f"numbers for {', '.join(known)}."
        )
    return chosen


def _set(place: Any, chosen: Mapping[str, float], keys: Sequence[str]) -> None:
    for key in keys:
        if key in chosen:
            setattr(place, key, type(getattr(place, key))(chosen[key]))


def parameters(library: Any, target: Path) -> Any:
    """Settings of a plain server on the CPU that picks a free port."""
    settings = library.CommonParams()
    settings.model.path = str(target)
    settings.n_gpu_layers = 0
    settings.n_ctx = CONTEXT
    settings.n_parallel = 1
    settings.port = 0
    settings.verbosity = -1  # pages on standard error otherwise
    settings.cpuparams.n_threads = _threads()
    return settings


def _threads() -> int:
    """As many as torch's, so that the processor is shared out alike."""
    return int(import_module("torch").get_num_threads())
