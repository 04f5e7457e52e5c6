"""An engine, a prompt and a request as the command line makes them; importing it loads no torch."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typer import BadParameter

from outrider.cli.terminal import busy, put, read_text
from outrider.config.settings import RunConfig
from outrider.config.sources import Loaded, lines
from outrider.errors import RequestError
from outrider.sampling.params import SamplingParams

if TYPE_CHECKING:
    from outrider.assemble.engine import Engine


def open_engine(config: RunConfig) -> "Engine":
    """Load the model that a configuration names."""
    from outrider.assemble.engine import Engine

    with busy(f"loading {config.target.path}"):
        return Engine.load_run(config)


Messages = list[dict[str, Any]]


def show_config(loaded: Loaded) -> None:
    """Print every setting with its origin, as TOML that can be read back, and in comments the
    decisions that follow."""
    from outrider.assemble.decisions import decide

    put("\n".join(lines(loaded)) + "\n")
    put("".join(f"# {one}\n" for one in decide(loaded.config).explained))


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


if TYPE_CHECKING:
    from outrider.assemble.engine import Engine
    from outrider.engine.facade import Generation


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Everything that decides which tokens come out."""

    prompt: str | Sequence[int]
    sampling: SamplingParams
    max_tokens: int
    stop: tuple[str, ...]
    ignore_eos: bool

    def start(self, engine: "Engine", method: str | None = None) -> "Generation":
        """Start it; `method` "off" decodes plainly, None as the engine was configured."""
        return engine.generate(
            self.prompt,
            sampling=self.sampling,
            max_tokens=self.max_tokens,
            stop=self.stop,
            ignore_eos=self.ignore_eos,
            method=method,
        )
