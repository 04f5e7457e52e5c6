"""From a body to the sequences that it asks for, checked before anything is queued."""

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from outrider.engine.scheduler import Prepared, Scheduler
from outrider.errors import shown
from outrider.sampling.params import SamplingParams
from outrider.server.bodies import DEFAULT_TOKENS, Chat, Common, Completion, Speculative
from outrider.server.problems import Problem, unknown_model

SAMPLED = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One HTTP request: its sequences, `n` for each prompt, and what its answer shows.

    `prompts`: their texts, where they are given back or counted in. `discards`: nothing was to be
    generated, so that the one token that is must not be shown.
    """

    kind: Literal["text", "chat"]
    id: str
    model: str
    sequences: tuple[Prepared, ...]
    prompts: tuple[str, ...]
    n: int
    stream: bool
    include_usage: bool
    logprobs: bool
    echo: bool = False
    discards: bool = False
    trace: bool = False
    created: int = field(default_factory=lambda: int(time.time()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Maker:
    """Makes plans for one served model, for one caller."""

    scheduler: Scheduler
    model: str
    owner: str

    def completion(self, data: bytes) -> Plan:
        """Plan `POST /v1/completions`; raises what `problem_of` knows."""
        body = Completion.read(data)
        most = DEFAULT_TOKENS if body.max_tokens is None else body.max_tokens
        nothing = most == 0
        if nothing and not body.echo:
            raise Problem(
                400, "max_tokens: 0 generates nothing: use 1 or more.", None, "max_tokens"
            )
        scores = bool(body.echo) and body.logprobs is not None
        prompts = _prompts(body.prompt)
        sampling = self._sampling(body, body.logprobs)
        sequences = self._sequences(
            body, prompts, sampling, max_tokens=max(most, 1), score_prompt=scores
        )
        told = body.echo or body.logprobs is not None
        return self._plan(
            body,
            "text",
            sequences,
            prompts=tuple(map(self._text, prompts)) if told else ("",) * len(prompts),
            logprobs=body.logprobs is not None,
            echo=bool(body.echo),
            discards=nothing,
        )

    def chat(self, data: bytes) -> Plan:
        """Plan `POST /v1/chat/completions`."""
        body = Chat.read(data)
        tokenizer = self.scheduler.tokenizer
        if not tokenizer.has_chat_template:
            raise Problem(
                400,
                f"the model {self.model} has no chat template: use /v1/completions.",
                "no_chat_template",
                "messages",
            )
        if body.top_logprobs is not None and not body.logprobs:
            raise Problem(
                400, "top_logprobs: needs logprobs: true.", "invalid_value", "top_logprobs"
            )
        limits = {body.max_tokens, body.max_completion_tokens} - {None}
        if len(limits) > 1:
            raise Problem(400, "max_tokens: contradicts max_completion_tokens.", None, "max_tokens")
        arguments = body.chat_template_kwargs
        prompt = tokenizer.encode_chat(
            [_message(message.model_dump(exclude_unset=True)) for message in body.messages],
            most=self.scheduler.max_length,
            enable_thinking=arguments.enable_thinking if arguments else None,
        )
        top = (body.top_logprobs or 0) if body.logprobs else None
        sequences = self._sequences(
            body, [prompt], self._sampling(body, top), max_tokens=next(iter(limits), None)
        )
        return self._plan(body, "chat", sequences, prompts=("",), logprobs=bool(body.logprobs))

    def _sampling(self, body: Common, logprobs: int | None) -> SamplingParams:
        """The model's defaults with what was given in their place, and a seed."""
        given = {name: getattr(body, name) for name in SAMPLED}
        given["logprobs"] = logprobs
        if body.logit_bias:
            given["logit_bias"] = {_token(key): bias for key, bias in body.logit_bias.items()}
        chosen = {name: value for name, value in given.items() if value is not None}
        sampling: SamplingParams = replace(self.scheduler.defaults, **chosen).with_seed()
        return sampling

    def _sequences(
        self,
        body: Common,
        prompts: Sequence[str | list[int]],
        sampling: SamplingParams,
        **options: Any,
    ) -> list[Prepared]:
        self._check_model(body.model)
        self.scheduler.check_room(len(prompts) * (body.n or 1))
        speculative = body.speculative or Speculative()
        stop = [body.stop] if isinstance(body.stop, str) else body.stop or []
        found = []
        for prompt in prompts:
            first = self.scheduler.prepare(
                prompt,
                sampling=sampling,
                stop=stop,
                ignore_eos=bool(body.ignore_eos),
                method=speculative.method,
                max_draft_tokens=speculative.max_draft_tokens,
                owner=self.owner,
                **options,
            )
            choices = range(body.n or 1)
            found += [replace(first, sampling=replace(sampling, choice=c)) for c in choices]
        return found

    def _plan(
        self, body: Common, kind: Literal["text", "chat"], found: Sequence[Prepared], **shown: Any
    ) -> Plan:
        if body.stream_options and not body.stream:
            raise Problem(
                400, "stream_options: needs stream: true.", "invalid_value", "stream_options"
            )
        prefix = {"text": "cmpl", "chat": "chatcmpl"}[kind]
        return Plan(
            kind=kind,
            id=f"{prefix}-{secrets.token_hex(12)}",
            model=self.model,
            sequences=tuple(found),
            n=body.n or 1,
            stream=bool(body.stream),
            include_usage=bool(body.stream_options and body.stream_options.include_usage),
            trace=bool(body.speculative and body.speculative.trace),
            **shown,
        )

    def _check_model(self, name: str | None) -> None:
        if name is not None and name != self.model:
            raise unknown_model(name, self.model)

    def _text(self, prompt: str | list[int]) -> str:
        return prompt if isinstance(prompt, str) else self.scheduler.tokenizer.decode(prompt)


def _prompts(prompt: str | list[int] | list[str] | list[list[int]]) -> list[str | list[int]]:
    """One prompt or several, as a list."""
    if isinstance(prompt, str):
        return [prompt]
    single = [token for token in prompt if isinstance(token, int)]
    return [single] if single else [one for one in prompt if not isinstance(one, int)]


def _message(message: dict[str, Any]) -> dict[str, Any]:
    """A message as the template sees it: role and content."""
    role = "system" if message["role"] == "developer" else message["role"]
    return {"role": role, "content": message.get("content") or ""}


def _token(key: str) -> int:
    if key.isascii() and key.isdigit() and len(key) < 12 and str(int(key)) == key:
        return int(key)
    raise Problem(
        400, f"logit_bias: {shown(key)!r} is not a token id.", "invalid_value", "logit_bias"
    )
