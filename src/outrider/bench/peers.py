"""Other engines in the same run, on the same weights and tokens. A refusal is a result.

transformers is imported when one of its peers is made; the `bench` extra brings it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from outrider.bench.legs import PLAIN, Leg, Peer, Refusal, run_leg, since_first
from outrider.bench.server_peers import ServerPeer, llama_cpp
from outrider.costs.timing import Clock
from outrider.engine.facade import EngineFacade
from outrider.errors import ConfigError

LOOKUP_TOKENS = 8
ASSISTED_TOKENS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerTarget:
    """Files that a peer loads: the target's folder, the draft model's, type of the weights,
    drafts."""

    target: Path
    draft: Path | None
    dtype: str
    device: str


Variant = dict[str, Any]
"""Further arguments of transformers' `generate`."""


def make(name: str, target: PeerTarget) -> list[Peer]:
    """The peers that a name of `--peer` stands for; raises ConfigError for an unknown one."""
    if name == "transformers":
        return _transformers(target)
    if name.startswith(("http://", "https://")):
        return [ServerPeer(name.rstrip("/"))]
    kind, _, settings = name.partition(":")
    if kind == "llama.cpp":
        return _llama_cpp(target, settings)
    raise ConfigError(
        f"--peer {name!r} is not known: use 'transformers', 'llama.cpp', 'plain' or the URL of a "
        "running OpenAI-compatible server."
    )


def _llama_cpp(target: PeerTarget, settings: str) -> list[Peer]:
    """On the CPU, as it comes; it reads no other files than GGUF."""
    for folder in filter(None, (target.target, target.draft)):
        if folder.suffix != ".gguf":
            return [RefusingPeer("llama.cpp", f"it reads GGUF files only, and {folder} is none")]
    return [*llama_cpp(target.target, target.draft, settings)]


def _transformers(target: PeerTarget) -> list[Peer]:
    """Plain, prompt-lookup and, with a draft model, assisted generation."""
    load = _loader()
    try:
        model = load(target.target, target)
        assistant = load(target.draft, target) if target.draft else None
    except (OSError, ValueError) as error:
        return [RefusingPeer("transformers", " ".join(str(error).split()))]
    lookup: Variant = {"prompt_lookup_num_tokens": LOOKUP_TOKENS}
    peers: list[Peer] = [
        TransformersPeer("transformers plain", model, {}),
        TransformersPeer("transformers prompt lookup", model, lookup),
    ]
    if assistant is not None:
        assistant.generation_config.num_assistant_tokens = ASSISTED_TOKENS
        variant: Variant = {"assistant_model": assistant}
        peers.append(TransformersPeer("transformers assisted", model, variant))
    return peers


def _loader() -> Callable[[Path, PeerTarget], Any]:
    try:
        torch, transformers = import_module("torch"), import_module("transformers")
    except ImportError as error:
        raise ConfigError(
            f"--peer transformers needs a package that is missing ({error.name}): install "
            "outrider[bench]."
        ) from None

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()

    def load(folder: Path, target: PeerTarget) -> Any:
        dtype = torch.bfloat16 if target.dtype == "bfloat16" else torch.float32
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
        # Its own would end at end tokens, and some models' penalise repetition.
        model.generation_config = transformers.GenerationConfig(pad_token_id=0)
        return model.to(target.device).eval()

    return load


class PlainPeer:
    """An engine of ours that was loaded to decode plainly, so that no pass writes what only taking
    rows back needs."""

    name = "plain alone"

    def __init__(self, engine: EngineFacade) -> None:
        self._engine = engine

    def run(self, prompt: Sequence[int], count: int, clock: Clock) -> Leg:
        """Decode `count` tokens after the prompt."""
        return replace(run_leg(self._engine, prompt, count, PLAIN, clock), kind=self.name)


class RefusingPeer:
    """One that could not even load the model."""

    def __init__(self, name: str, why: str) -> None:
        self.name = name
        self._why = why

    def run(self, prompt: Sequence[int], count: int, clock: Clock) -> Leg:
        """Say why not."""
        raise Refusal(self._why)


class TransformersPeer:
    """transformers' `generate` with one set of arguments."""

    def __init__(self, name: str, model: Any, variant: Variant) -> None:
        self.name = name
        self._model = model
        self._variant = variant

    def run(self, prompt: Sequence[int], count: int, clock: Clock) -> Leg:
        """Decode `count` tokens after the prompt."""
        import torch

        arrivals: list[tuple[int, float]] = []

        def note(ids: Any, _scores: Any, **_rest: Any) -> Any:
            arrivals.append((ids.shape[1] - len(prompt), clock()))
            return torch.zeros(ids.shape[0], dtype=torch.bool, device=ids.device)

        ids = torch.tensor([list(prompt)], device=self._model.device)
        try:
            output = self._generate(ids, count, note)
        except (ValueError, RuntimeError, TypeError, NotImplementedError) as error:
            # Models and kinds of generation that it lacks end in any of these; the words are kept.
            raise Refusal(" ".join(str(error).split())) from error
        tokens = tuple(output[0, len(prompt) :].tolist())
        return Leg(kind=self.name, tokens=tokens, marks=since_first(arrivals))

    def _generate(self, ids: Any, count: int, note: Callable[..., Any]) -> Any:
        import torch

        with torch.inference_mode():
            return self._model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=count,
                do_sample=False,
                stopping_criteria=[note],
                **self._variant,
            )
