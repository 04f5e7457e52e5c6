"""Chat templates: messages to prompt text, by jinja2 in a sandbox, as Hugging Face renders them.

A template comes with the model and is not trusted: it runs in an immutable sandbox that sees only
the messages, the special tokens and the caller's own variables.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from outrider.errors import CheckpointError, RequestError, shown
from outrider.formats.files import read_json_or_empty, read_text

Message = Mapping[str, Any]


class _Generation(Extension):
    """`{% generation %}` marks the assistant's text for training; here it is just its body."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class ChatTemplate:
    """A compiled template with the special tokens that it may name."""

    def __init__(self, source: str, special_tokens: Mapping[str, str], origin: str) -> None:
        """Compile `source`; raises CheckpointError where it is not a valid template."""
        self._origin = origin
        self._special_tokens = dict(special_tokens)
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateError as error:
            raise CheckpointError(
                f"The chat template in {origin} does not compile ({error}): correct the file."
            ) from None

    def render(
        self, messages: Sequence[Message], *, add_generation_prompt: bool = True, **variables: Any
    ) -> str:
        """Prompt text of a conversation; `variables` such as `enable_thinking` pass through.

        Raises RequestError for messages that are malformed or that the template refuses.
        """
        _check(messages)
        values = {"tools": None, "documents": None, **self._special_tokens, **variables}
        try:
            return self._template.render(
                messages=[_flat(message) for message in messages],
                add_generation_prompt=add_generation_prompt,
                **values,
            )
        except Exception as error:  # A template is a program, and may fail like any.
            raise RequestError(
                f"The model's chat template refused the messages ({shown(str(error))}): change "
                "their roles, order or contents."
            ) from None


def find_template(folder: Path, config: Mapping[str, Any]) -> tuple[str, str] | None:
    """Source and file name of a folder's chat template, or None where there is none.

    `chat_template.jinja` comes before `tokenizer_config.json` (a text, or a list of named texts of
    which `default` is used) and `chat_template.json`.
    """
    file = folder / "chat_template.jinja"
    if file.exists():
        return read_text(file), str(file)
    legacy = read_json_or_empty(folder / "chat_template.json")
    for name, holder in (("tokenizer_config.json", config), ("chat_template.json", legacy)):
        if (template := holder.get("chat_template")) is not None:
            return _default(template, str(folder / name)), str(folder / name)
    return None


def _default(template: object, origin: str) -> str:
    if isinstance(template, list):
        items = [item for item in template if isinstance(item, dict)]
        named = {item.get("name"): item.get("template") for item in items}
        template = named.get("default", next(iter(named.values())) if len(named) == 1 else None)
    if not isinstance(template, str):
        raise CheckpointError(
            f"chat_template in {origin} is neither a text nor a list with a template named "
            "'default': add one."
        )
    return template


def _check(messages: Sequence[Message]) -> None:
    if not messages:
        raise RequestError("messages = [] holds no message: give at least one.")
    for place, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise RequestError(f"messages[{place}] has no 'role': give 'role' and 'content'.")
        for part in _parts(message):
            if not isinstance(part, Mapping) or part.get("type") != "text":
                kind = part.get("type") if isinstance(part, Mapping) else part
                raise RequestError(
                    f"messages[{place}] has a content part of type {kind!r}: only text is "
                    "supported, so leave images, audio and video out."
                )


def _parts(message: Message) -> Sequence[Any]:
    content = message.get("content")
    if content is None or isinstance(content, str):
        return ()
    if isinstance(content, Sequence):
        return content
    raise RequestError(f"A message's content = {content!r} is not allowed: give a text.")


def _flat(message: Message) -> dict[str, Any]:
    """The message with a list of text parts joined into one text."""
    parts = _parts(message)
    text = {"content": "".join(str(part["text"]) for part in parts)} if parts else {}
    return {**message, **text}


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _tojson(value: object, ensure_ascii: bool = False, **options: Any) -> str:
    # jinja2's own filter escapes HTML, which a prompt must not.
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


def _raise_exception(message: str) -> str:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)
