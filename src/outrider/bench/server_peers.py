"""OpenAI-compatible servers as peers: a running one, and llama.cpp's own, started by `xllamacpp`.

A server must hold the same model: prompts go to it as token ids. Tokens that come back are counted
by the server and not compared, since text cannot be told apart from tokens.

llama.cpp's runs in a process of its own, on the same GGUF files, one server per variant: plain,
n-gram and, with a draft model, speculative decoding. Settings of its speculation follow
`--peer llama.cpp:`, such as `n_max=4,size_m=16`. In this process its idle threads would halve
torch's speed: both share one OpenMP, which stops spinning between parallel loops once there are
more threads than processors.
"""

import json
import multiprocessing
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal, get_args
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from outrider.bench.legs import UNKNOWN, Leg, Refusal, since_first
from outrider.costs.timing import Clock
from outrider.errors import ConfigError

TIMEOUT = 600.0
"""Seconds that a server may take for one answer."""


class ServerPeer:
    """`/v1/completions` of a server, streamed, so that the prompt's time is left out."""

    def __init__(self, url: str, name: str | None = None) -> None:
        self.name = name or f"server {url}"
        self.url = url

    def run(self, prompt: Sequence[int], count: int, clock: Clock) -> Leg:
        """Decode `count` tokens after the prompt; raises Refusal with the server's words."""
        body = {
            "prompt": list(prompt),
            "max_tokens": count,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        arrivals: list[float] = []
        counted = 0
        for event in self._events(body):
            usage = event.get("usage") or {}
            counted = usage.get("completion_tokens", counted)
            if any(choice.get("text") for choice in event.get("choices", ())):
                arrivals.append(clock())
        return self._leg(arrivals, counted)

    def _leg(self, arrivals: Sequence[float], counted: int) -> Leg:
        if len(arrivals) < 2 or counted < 2:
            raise Refusal(f"the server streamed {len(arrivals)} parts and counted {counted} tokens")
        return Leg(
            kind=self.name,
            tokens=(UNKNOWN,) * counted,
            marks=since_first([(1, arrivals[0]), (counted, arrivals[-1])]),
        )

    def _events(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The JSON of each server-sent event."""
        headers = {"Content-Type": "application/json"}
        request = Request(f"{self.url}/v1/completions", json.dumps(body).encode(), headers)
        try:
            with urlopen(request, timeout=TIMEOUT) as stream:
                for line in stream:
                    text = line.decode("utf-8").strip().removeprefix("data:").strip()
                    if text.startswith("{"):
                        yield json.loads(text)
        except HTTPError as error:
            told = error.read().decode("utf-8", errors="replace")
            raise Refusal(f"{error.code} {' '.join(told.split())[:200]}") from error
        except (URLError, OSError, ValueError) as error:
            raise Refusal(f"no answer: {error}") from error


CONTEXT = 4096
"""Positions that a server has room for."""

DRAFT_KEYS = ("n_max", "n_min", "p_min")
NGRAM_KEYS = ("size_n", "size_m", "min_hits")


Kind = Literal["plain", "n-gram", "draft"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """Settings of a server; `draft` is a model for that kind, `chosen` its speculation's
    settings."""

    kind: Kind
    target: Path
    threads: int
    draft: Path | None = None
    chosen: Mapping[str, float]

    def settings(self, library: Any) -> Any:
        """The parameters of such a server in the words of `xllamacpp`."""
        found = parameters(library, self.target, self.threads)
        kinds, speculative = library.common_speculative_type, found.speculative
        if self.kind == "n-gram":
            speculative.types = [kinds.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE]
            _set(speculative.ngram_simple, self.chosen, NGRAM_KEYS)
        elif self.kind == "draft":
            speculative.types = [kinds.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
            speculative.draft.mparams.path = str(self.draft)
            speculative.draft.n_gpu_layers = 0
            speculative.draft.cpuparams.n_threads = self.threads
            _set(speculative.draft, self.chosen, DRAFT_KEYS)
        return found


class LlamaCppPeer:
    """A server with one kind of speculation, from its first leg on until this object ends."""

    def __init__(self, variant: Variant) -> None:
        self.name = f"llama.cpp {variant.kind}"
        self._variant = variant
        self._server: tuple[Connection, ServerPeer] | None = None

    def run(self, prompt: Sequence[int], count: int, clock: Clock) -> Leg:
        """Decode `count` tokens after the prompt; raises Refusal where the server cannot."""
        if self._server is None:
            self._server = self._start()
        return self._server[1].run(prompt, count, clock)

    def _start(self) -> tuple[Connection, ServerPeer]:
        """The server's lifeline, and a client of it; raises Refusal."""
        context = multiprocessing.get_context("spawn")
        mine, others = context.Pipe()
        context.Process(target=serve, args=(others, self._variant), daemon=True).start()
        others.close()
        try:
            said = mine.recv()
        except EOFError:
            said = Refusal("llama.cpp's server ended while it loaded.")
        if isinstance(said, Refusal):
            raise said
        return mine, ServerPeer(said, self.name)


def serve(pipe: Connection, variant: Variant) -> None:
    """Run a server until the other end of `pipe` is closed; sends its address, or a Refusal."""
    library = import_module("xllamacpp")
    try:
        server = library.Server(variant.settings(library))
    except (RuntimeError, ValueError) as error:
        pipe.send(Refusal(" ".join(str(error).split())))
        return
    pipe.send(server.listening_address)
    with suppress(EOFError):
        pipe.recv()


def llama_cpp(target: Path, draft: Path | None, settings: str) -> list[LlamaCppPeer]:
    """Peers on GGUF files; raises ConfigError for settings that it does not know."""
    chosen = _settings(settings)
    if find_spec("xllamacpp") is None:
        raise ConfigError(
            "--peer llama.cpp needs the package xllamacpp, which is missing: install "
            "outrider[bench]."
        )
    kinds: tuple[Kind, ...] = ("plain", "n-gram") if draft is None else get_args(Kind)
    threads = _threads()
    variants = [
        Variant(kind=kind, target=target, threads=threads, draft=draft, chosen=chosen)
        for kind in kinds
    ]
    return [LlamaCppPeer(variant) for variant in variants]


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


def parameters(library: Any, target: Path, threads: int) -> Any:
    """Settings of a plain server on the CPU that picks a free port."""
    settings = library.CommonParams()
    settings.model.path = str(target)
    settings.n_gpu_layers = 0
    settings.n_ctx = CONTEXT
    settings.n_parallel = 1
    settings.port = 0
    settings.verbosity = -1  # pages on standard error otherwise
    settings.cpuparams.n_threads = threads
    return settings


def _threads() -> int:
    """As many as torch's, so that the processor is shared out alike."""
    return int(import_module("torch").get_num_threads())
