"""Where a prompt comes from: an argument, a file, standard input or a file of messages."""

import json
import sys
from pathlib import Path
from typing import Any

from typer import BadParameter

from outrider.cli.terminal import read_text
from outrider.errors import RequestError

Messages = list[dict[str, Any]]


def prompt_text(argument: str | None, file: Path | None) -> str:
    """The prompt, exactly as given, from the one place that was named.

    Standard input is read where neither argument nor file is given, or where the argument is "-".
    """
    if argument is not None and file is not None:
        raise BadParameter("give PROMPT or --prompt-file, not both")
    if file is not None:
        return read_text(file)
    if argument is not None and argument != "-":
        return argument
    if argument is None and sys.stdin.isatty():
        raise BadParameter("give PROMPT, --prompt-file or text on standard input")
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError:
        raise RequestError("Standard input is not UTF-8 text: convert it.") from None


def read_messages(file: Path) -> Messages:
    """A conversation from a JSON file: a list of messages, or an object with one as "messages"."""
    try:
        value = json.loads(read_text(file))
    except ValueError as error:
        raise RequestError(f"--messages {file} is not valid JSON ({error}): correct it.") from None
    if isinstance(value, dict):
        value = value.get("messages")
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise RequestError(
            f"--messages {file} is no list of messages: write "
            '[{"role": "user", "content": "..."}].'
        )
    return value


def conversation(system: str | None, messages: Messages, user: str | None) -> Messages:
    """Messages with the system text before and the user's text after them, where given."""
    first = [{"role": "system", "content": system}] if system is not None else []
    last = [{"role": "user", "content": user}] if user is not None else []
    return [*first, *messages, *last]
