"""Bodies that clients may send, field by field; anything else is a 400 that names it.

Fields of OpenAI's API that have no counterpart here are accepted at the value that asks for
nothing, and refused at any other, so that a client never believes in something it does not get.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)
from pydantic_core import from_json

from outrider.server.problems import Problem, UnknownField, problem_of

DEFAULT_TOKENS = 16
MOST_BIASES = 4096
MOST_STOPS = 16
MOST_CHOICES = 128
MOST_PROMPTS = 1024


def _neutral(*allowed: object) -> Any:
    """The type of a field that is accepted at these values only."""
    shown = ", ".join("null" if value is None else repr(value) for value in allowed)

    def check(value: object) -> object:
        if not any(value == one and type(value) is type(one) for one in allowed):
            raise ValueError(f"is not supported here: leave it out (or at {shown})")
        return value

    return Annotated[
        Any, AfterValidator(check), Field(default=None, description=f"No effect; {shown} only.")
    ]


def _ignored(kind: Any) -> Any:
    return Annotated[kind | None, Field(default=None, description="Accepted; has no effect.")]


def _few(value: object) -> object:
    """Refuse a long table before each of its entries is: a body may hold a million."""
    if isinstance(value, dict) and len(value) > MOST_BIASES:
        raise ValueError(f"Dictionary should have at most {MOST_BIASES} items, not {len(value)}")
    return value


class Body(BaseModel):
    """Strict: no conversions, no unknown fields.

    A list is given up at its first fault: a body can hold a million, and each would take memory.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _known(cls, value: object) -> object:
        """Refuse the first unknown field alone: a body may hold a million."""
        for name in value if isinstance(value, dict) else ():
            if name not in cls.model_fields:
                raise UnknownField(name)
        return value

    @classmethod
    def read(cls, data: bytes) -> Self:
        """A body from its JSON; raises Problem 400 that names the fault.

        For a thread: both reading and telling what is wrong take time with a long body. Python's
        own values take a quarter of the memory and time of pydantic's tree of JSON.
        """
        try:
            value = from_json(data)
        except ValueError as error:
            raise Problem(400, f"the body is not valid JSON: {error}.", "invalid_json") from None
        try:
            return cls.model_validate(value)
        except ValidationError as error:
            raise problem_of(error) from None


class StreamOptions(Body):
    """Additions to a stream's text."""

    include_usage: bool | None = None
    include_obfuscation: _neutral(None, False)  # type: ignore[valid-type]


class Speculative(Body):
    """How this request is speculated on. `max_draft_tokens` 0 decodes plainly; `trace` tells for
    every token who proposed it."""

    max_draft_tokens: int | None = Field(default=None, ge=0, le=1023)
    method: str | None = Field(default=None, max_length=64)
    trace: bool | None = None


class Common(Body):
    """Fields of both kinds of completion."""

    model: str | None = Field(default=None, max_length=1024)
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: Annotated[
        dict[str, float] | None,
        BeforeValidator(_few, json_schema_input_type=dict[str, float] | None),
    ] = Field(default=None, json_schema_extra={"maxProperties": MOST_BIASES})
    seed: int | None = None
    n: int | None = Field(default=None, ge=1, le=MOST_CHOICES)
    stop: (
        Annotated[str, Field(min_length=1, max_length=1024)]
        | Annotated[
            list[Annotated[str, Field(min_length=1, max_length=1024)]],
            Field(max_length=MOST_STOPS, fail_fast=True),
        ]
        | None
    ) = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    ignore_eos: bool | None = None
    speculative: Speculative | None = None
    user: _ignored(str)  # type: ignore[valid-type]
    metadata: _ignored(dict[str, Any])  # type: ignore[valid-type]
    safety_identifier: _ignored(str)  # type: ignore[valid-type]
    prompt_cache_key: _ignored(str)  # type: ignore[valid-type]
    service_tier: _neutral(None, "auto", "default")  # type: ignore[valid-type]


class Completion(Common):
    """`POST /v1/completions`."""

    prompt: (
        str
        | Annotated[list[int], Field(min_length=1, fail_fast=True)]
        | Annotated[list[str], Field(min_length=1, max_length=MOST_PROMPTS, fail_fast=True)]
        | Annotated[
            list[Annotated[list[int], Field(fail_fast=True)]],
            Field(min_length=1, max_length=MOST_PROMPTS, fail_fast=True),
        ]
    )
    max_tokens: int | None = Field(
        default=None,
        ge=0,
        description=f"{DEFAULT_TOKENS} where it is left out or null; 0 with `echo` only.",
    )
    echo: bool | None = None
    logprobs: int | None = Field(default=None, ge=0, le=20)
    suffix: _neutral(None, "")  # type: ignore[valid-type]
    best_of: _neutral(None, 1)  # type: ignore[valid-type]


class TextPart(Body):
    """A part of a message's content; images and sound are not supported."""

    type: Literal["text"]
    text: str


class Message(Body):
    """One message of a conversation; `developer` counts as `system`."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[TextPart], Field(fail_fast=True)] | None = None
    name: _ignored(str)  # type: ignore[valid-type]
    tool_calls: _neutral(None, [])  # type: ignore[valid-type]
    function_call: _neutral(None)  # type: ignore[valid-type]
    refusal: _neutral(None)  # type: ignore[valid-type]
    annotations: _neutral(None, [])  # type: ignore[valid-type]
    audio: _neutral(None)  # type: ignore[valid-type]


class TemplateArguments(Body):
    """Arguments of the chat template beside the messages."""

    enable_thinking: bool | None = None


class Chat(Common):
    """`POST /v1/chat/completions`."""

    messages: list[Message] = Field(min_length=1, max_length=4096, fail_fast=True)
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    chat_template_kwargs: TemplateArguments | None = None
    store: _neutral(None, False)  # type: ignore[valid-type]
    parallel_tool_calls: _ignored(bool)  # type: ignore[valid-type]
    tools: _neutral(None, [])  # type: ignore[valid-type]
    tool_choice: _neutral(None, "none", "auto")  # type: ignore[valid-type]
    functions: _neutral(None, [])  # type: ignore[valid-type]
    function_call: _neutral(None, "none", "auto")  # type: ignore[valid-type]
    response_format: _neutral(None, {"type": "text"})  # type: ignore[valid-type]
    modalities: _neutral(None, ["text"])  # type: ignore[valid-type]
    audio: _neutral(None)  # type: ignore[valid-type]
    prediction: _neutral(None)  # type: ignore[valid-type]
    reasoning_effort: _neutral(None)  # type: ignore[valid-type]
    verbosity: _neutral(None)  # type: ignore[valid-type]
    web_search_options: _neutral(None)  # type: ignore[valid-type]
