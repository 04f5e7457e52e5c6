"""The flags of the commands, one record per group, and how a command takes whole groups.

A flag that was not given is None and leaves the setting to the environment, the file, the model or
the default; only the number of tokens, which nothing else states, has its default here.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, replace
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

from typer import Option

from outrider.cli.requests import Request
from outrider.config.sources import FLAGS, SERVER_FLAGS, Loaded, load
from outrider.errors import ConfigError, RequestError
from outrider.sampling.params import SamplingParams

DEFAULT_MAX_TOKENS = 512


def flag(text: str, metavar: str | None = None, *, default: Any = None, **limits: Any) -> Any:
    """A flag named as its field, explained by `text`; without `metavar` it is a switch."""
    return field(default=default, metadata={"help": text, "metavar": metavar, **limits})


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFlags:
    """Flags that are configuration keys, and the file that holds the others."""

    target: str | None = flag("demo, smollm2, a folder, a GGUF file or a hub ID@REVISION.", "MODEL")
    backend: str | None = flag("torch, llama.cpp, or auto: GGUF by llama.cpp if there.", "NAME")
    method: str | None = flag(
        "Who drafts: off, suffix, ngram-cache, draft, suffix+draft, ngram-cache+draft, mtp, "
        "eagle3, dflash, dspark, or auto for what the given files allow.",
        "NAME",
    )
    draft_model: str | None = flag(
        'A model or drafter folder, a hub ID@REVISION or "demo-draft".', "MODEL"
    )
    draft_temperature: float | None = flag("0 drafts greedily; above, drafts are sampled.", "X")
    ngram_fallback: str | None = flag(
        "Who drafts where n-grams find nothing in flight.", "none|draft"
    )
    min_probability: float | None = flag("End a draft before a token less likely than this.", "P")
    max_draft_tokens: str | None = flag("Most tokens drafted at once.", "N|auto")
    window: int | None = flag("Most rows of a window.", "N")
    depth: int | None = flag("Windows in flight.", "N")
    runahead_tokens: int | None = flag("Rows in flight, instead of a number of windows.", "N")
    rollback: str | None = flag(
        "How rejected tokens are taken back: auto, log, snapshots or checkpoint.", "POLICY"
    )
    capacity: int | None = flag("Tokens that can be taken back without a checkpoint.", "N")
    stages: str | None = flag(
        "Stages that the target's layers are cut into, or a TOML file with their keys.", "N|FILE"
    )
    stage_layers: str | None = flag("Layers of each stage; without it, cut evenly.", "N,N")
    stage_processes: bool | None = flag("Stages in processes of their own.")
    link_delay_ms: float | None = flag("Delay put between stages, one way.", "X")
    link_jitter_ms: float | None = flag("Most that a delay differs from that.", "X")
    link_mbps: float | None = flag("Bandwidth put between stages.", "X")
    exact: bool | None = flag("Same bits as plain decoding (default on the CPU).")
    device: str | None = flag("cpu, cuda or cuda:N.", "NAME")
    dtype: str | None = flag("Round weights to float32, bfloat16 or auto.", "NAME")
    quantize: str | None = flag("Weights in fewer bits: none today.", "NAME")
    max_length: int | None = flag("Context in tokens.", "N")
    threads: int | None = flag("Processor threads.", "N")
    gpu_layers: int | None = flag("Layers that llama.cpp runs on a GPU; -1 for all.", "N")
    config: Path | None = flag("TOML file with the same settings.", "FILE")

    def load(self, more: Mapping[str, object] | None = None) -> Loaded:
        """Configuration from defaults, file, environment, these flags and `more` of them."""
        names = [item.name for item in fields(self) if item.name != "config"]
        given = {f"--{name.replace('_', '-')}": getattr(self, name) for name in names}
        assert {*given, *SERVER_FLAGS} == set(FLAGS)
        return load(self.config, flags={**given, **(more or {})})


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingFlags:
    """How the target's logits become tokens, and where the text ends."""

    max_tokens: int | None = flag(f"Most tokens generated (default {DEFAULT_MAX_TOKENS}).", "N")
    temperature: float | None = flag("0 is greedy.", "X")
    top_k: int | None = flag("0 keeps all tokens.", "N")
    top_p: float | None = flag("1 keeps all tokens.", "X")
    min_p: float | None = flag("0 keeps all tokens.", "X")
    repetition_penalty: float | None = flag("1 is none.", "X")
    presence_penalty: float | None = flag("0 is none.", "X")
    frequency_penalty: float | None = flag("0 is none.", "X")
    logit_bias: list[str] | None = flag("Added to a token's logit; repeatable.", "ID=VALUE")
    seed: int | None = flag("Same seed, same tokens.", "N")
    stop: list[str] | None = flag("Text that ends the output and is left out; repeatable.", "TEXT")
    ignore_eos: bool = flag("Go on at the model's end tokens.", default=False)

    def check(self) -> None:
        """Raise what is out of range before a model is loaded."""
        self.over(SamplingParams())
        if self.max_tokens is not None and self.max_tokens < 1:
            raise RequestError(f"--max-tokens {self.max_tokens} is out of range: use at least 1.")

    def request(self, prompt: str | Sequence[int], defaults: SamplingParams) -> Request:
        """The request for a prompt, over the model's own sampling."""
        return Request(
            prompt=prompt,
            sampling=self.over(defaults),
            max_tokens=DEFAULT_MAX_TOKENS if self.max_tokens is None else self.max_tokens,
            stop=tuple(self.stop or ()),
            ignore_eos=self.ignore_eos,
        )

    def over(self, defaults: SamplingParams) -> SamplingParams:
        """The model's defaults with what was given in their place."""
        names = {item.name for item in fields(self)} & {item.name for item in fields(defaults)}
        given = {name: getattr(self, name) for name in names - {"logit_bias"}}
        if self.logit_bias:
            given["logit_bias"] = dict(_bias(text) for text in self.logit_bias)
        return replace(defaults, **{name: v for name, v in given.items() if v is not None})


def _bias(text: str) -> tuple[int, float]:
    token, _, value = text.partition("=")
    try:
        return int(token), float(value)
    except ValueError:
        raise ConfigError(
            f"--logit-bias {text!r} is not ID=VALUE: give a token id and a number, as in 42=-5."
        ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatFlags:
    """Arguments of a chat template beside the user's own words."""

    system: str | None = flag("System message.", "TEXT")
    enable_thinking: bool | None = flag("Passed to the chat template.")


def with_flags(**groups: type) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorate a command so that parameters named in `groups` are built from their flags.

    `@with_flags(run=RunFlags) def command(prompt, run)` has the flags of RunFlags, typed in the
    signature that typer reads, and is called with one RunFlags.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def call(**values: Any) -> None:
            records = {name: _take(group, values) for name, group in groups.items()}
            command(**values, **records)

        own = inspect.signature(command, eval_str=True).parameters
        kept = [parameter for name, parameter in own.items() if name not in groups]
        flags = [parameter for group in groups.values() for parameter in _parameters(group)]
        parameters = [
            parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in kept + flags
        ]
        call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return call

    return decorate


def _take(group: type, values: dict[str, Any]) -> object:
    return group(**{item.name: values.pop(item.name) for item in fields(group)})


def _parameters(group: type) -> list[inspect.Parameter]:
    hints: Mapping[str, Any] = get_type_hints(group)
    return [
        inspect.Parameter(
            item.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=item.default,
            annotation=Annotated[hints[item.name], _option(item, hints[item.name])],
        )
        for item in fields(group)
    ]


def _option(item: Field[Any], hint: Any) -> Any:
    """Typer's form of a flag; a switch that may be left unset has a way to be turned off."""
    name = item.name.replace("_", "-")
    names = f"--{name}/--no-{name}" if hint == bool | None else f"--{name}"
    return Option(names, **item.metadata)
