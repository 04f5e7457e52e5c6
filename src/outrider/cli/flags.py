"""The flags of the commands, one record per group, and how a command takes whole groups.

A flag that was not given is None and leaves the setting to the environment, the file, the model or
the default; only the number of tokens, which nothing else states, has its default here.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

from typer import Option

from outrider.cli.request import Request
from outrider.config.load import FLAGS, SERVER_FLAGS, Loaded, load
from outrider.errors import ConfigError, RequestError
from outrider.sampling.params import SamplingParams

DEFAULT_MAX_TOKENS = 512


def _flag(names: str, metavar: str | None, text: str) -> Any:
    return Option(names, metavar=metavar, help=text)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFlags:
    """Flags that are configuration keys, and the file that holds the others."""

    target: Annotated[
        str | None,
        _flag("--target", "MODEL", "demo, smollm2, a folder, a GGUF file or a hub ID@REVISION."),
    ] = None
    method: Annotated[
        str | None,
        _flag(
            "--method",
            "NAME",
            "Who drafts: off, suffix, ngram-cache, draft, suffix+draft, ngram-cache+draft, mtp, "
            "eagle3, dflash, dspark, or auto for what the given files allow.",
        ),
    ] = None
    draft_model: Annotated[
        str | None,
        _flag(
            "--draft-model",
            "MODEL",
            'A model or drafter folder, a hub ID@REVISION or "demo-draft".',
        ),
    ] = None
    draft_temperature: Annotated[
        float | None,
        _flag("--draft-temperature", "X", "0 drafts greedily; above, drafts are sampled."),
    ] = None
    ngram_fallback: Annotated[
        str | None,
        _flag("--ngram-fallback", "none|draft", "Who drafts where n-grams find nothing in flight."),
    ] = None
    min_probability: Annotated[
        float | None,
        _flag("--min-probability", "P", "End a draft before a token less likely than this."),
    ] = None
    max_draft_tokens: Annotated[
        str | None,
        _flag("--max-draft-tokens", "N|auto", "Most tokens drafted at once."),
    ] = None
    window: Annotated[
        int | None,
        _flag("--window", "N", "Most rows of a window."),
    ] = None
    depth: Annotated[
        int | None,
        _flag("--depth", "N", "Windows in flight."),
    ] = None
    runahead_tokens: Annotated[
        int | None,
        _flag("--runahead-tokens", "N", "Rows in flight, instead of a number of windows."),
    ] = None
    rollback: Annotated[
        str | None,
        _flag(
            "--rollback",
            "POLICY",
            "How rejected tokens are taken back: log, snapshots or checkpoint.",
        ),
    ] = None
    capacity: Annotated[
        int | None,
        _flag("--capacity", "N", "Tokens that can be taken back without a checkpoint."),
    ] = None
    stages: Annotated[
        str | None,
        _flag(
            "--stages",
            "N|FILE",
            "Stages that the target's layers are cut into, or a TOML file with their keys.",
        ),
    ] = None
    stage_layers: Annotated[
        str | None,
        _flag("--stage-layers", "N,N", "Layers of each stage; without it, cut evenly."),
    ] = None
    stage_processes: Annotated[
        bool | None,
        _flag("--stage-processes/--no-stage-processes", None, "Stages in processes of their own."),
    ] = None
    link_delay_ms: Annotated[
        float | None,
        _flag("--link-delay-ms", "X", "Delay put between stages, one way."),
    ] = None
    link_jitter_ms: Annotated[
        float | None,
        _flag("--link-jitter-ms", "X", "Most that a delay differs from that."),
    ] = None
    link_mbps: Annotated[
        float | None,
        _flag("--link-mbps", "X", "Bandwidth put between stages."),
    ] = None
    exact: Annotated[
        bool | None,
        _flag("--exact/--no-exact", None, "Same bits as plain decoding (default on the CPU)."),
    ] = None
    device: Annotated[
        str | None,
        _flag("--device", "NAME", "cpu, cuda or cuda:N."),
    ] = None
    dtype: Annotated[
        str | None,
        _flag("--dtype", "NAME", "float32, bfloat16 or auto."),
    ] = None
    quantize: Annotated[
        str | None,
        _flag("--quantize", "NAME", "Weights in int8, or none."),
    ] = None
    max_length: Annotated[
        int | None,
        _flag("--max-length", "N", "Context in tokens."),
    ] = None
    threads: Annotated[
        int | None,
        _flag("--threads", "N", "Processor threads."),
    ] = None
    config: Annotated[
        Path | None,
        _flag("--config", "FILE", "TOML file with the same settings."),
    ] = None

    def load(self, more: Mapping[str, object] | None = None) -> Loaded:
        """Configuration from defaults, file, environment, these flags and `more` of them."""
        names = [item.name for item in fields(self) if item.name != "config"]
        given = {f"--{name.replace('_', '-')}": getattr(self, name) for name in names}
        assert {*given, *SERVER_FLAGS} == set(FLAGS)
        return load(self.config, flags={**given, **(more or {})})


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingFlags:
    """How the target's logits become tokens, and where the text ends."""

    max_tokens: Annotated[
        int | None,
        _flag("--max-tokens", "N", f"Most tokens generated (default {DEFAULT_MAX_TOKENS})."),
    ] = None
    temperature: Annotated[
        float | None,
        _flag("--temperature", "X", "0 is greedy."),
    ] = None
    top_k: Annotated[
        int | None,
        _flag("--top-k", "N", "0 keeps all tokens."),
    ] = None
    top_p: Annotated[
        float | None,
        _flag("--top-p", "X", "1 keeps all tokens."),
    ] = None
    min_p: Annotated[
        float | None,
        _flag("--min-p", "X", "0 keeps all tokens."),
    ] = None
    repetition_penalty: Annotated[
        float | None, _flag("--repetition-penalty", "X", "1 is none.")
    ] = None
    presence_penalty: Annotated[float | None, _flag("--presence-penalty", "X", "0 is none.")] = None
    frequency_penalty: Annotated[float | None, _flag("--frequency-penalty", "X", "0 is none.")] = (
        None
    )
    logit_bias: Annotated[
        list[str] | None,
        _flag("--logit-bias", "ID=VALUE", "Added to a token's logit; repeatable."),
    ] = None
    seed: Annotated[
        int | None,
        _flag("--seed", "N", "Same seed, same tokens."),
    ] = None
    stop: Annotated[
        list[str] | None,
        _flag("--stop", "TEXT", "Text that ends the output and is left out; repeatable."),
    ] = None
    ignore_eos: Annotated[
        bool,
        _flag("--ignore-eos", None, "Go on at the model's end tokens."),
    ] = False

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
    """What a chat template is given beside the user's own words."""

    system: Annotated[
        str | None,
        _flag("--system", "TEXT", "System message."),
    ] = None
    enable_thinking: Annotated[
        bool | None,
        _flag("--enable-thinking/--no-enable-thinking", None, "Passed to the chat template."),
    ] = None


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
    hints: Mapping[str, Any] = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            item.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=item.default,
            annotation=hints[item.name],
        )
        for item in fields(group)
    ]
