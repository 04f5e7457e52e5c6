"""`outrider generate`: one prompt in, its continuation out."""

import json
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, BadParameter, Exit

from outrider.cli.beside_plain import compare, warm_up
from outrider.cli.flags import ChatFlags, RunFlags, SamplingFlags, flag, with_flags
from outrider.cli.requests import (
    Request,
    conversation,
    open_engine,
    prompt_text,
    read_messages,
    show_config,
)
from outrider.cli.terminal import OutputFile, end_line, put, say, table
from outrider.errors import ConfigError
from outrider.telemetry.counters import table_rows

if TYPE_CHECKING:
    from outrider.assemble.engine import Engine
    from outrider.engine.facade import Generation

INTERRUPTED = 130


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateFlags:
    """Input of the command and form of its result."""

    prompt_file: Path | None = flag("Read the prompt from a file.", "FILE")
    output: Path | None = flag("Write the result to a file when it is complete.", "FILE")
    chat: bool = flag("Take the prompt as a user's message, by the chat template.", default=False)
    messages: Path | None = flag("JSON file of messages, with --chat.", "FILE")
    json: bool = flag("Print text, token ids, usage and timings as JSON.", default=False)
    stats: bool = flag("Print a table of what happened.", default=False)
    compare: bool = flag(
        "Decode plainly as well, check that the tokens are equal, print both speeds.", default=False
    )
    print_config: bool = flag("Print every setting and where it came from.", default=False)


@dataclass(slots=True, kw_only=True)
class Run:
    """One call of the command while it runs."""

    flags: GenerateFlags
    output: OutputFile | None
    pieces: list[str] = field(default_factory=list)

    @property
    def streams(self) -> bool:
        """True if text is printed as it comes."""
        return self.output is None and not self.flags.json


@with_flags(flags=GenerateFlags, chat_flags=ChatFlags, sampling_flags=SamplingFlags, run=RunFlags)
def generate(
    prompt: Annotated[
        str | None, Argument(help='Text to continue; "-" or nothing reads standard input.')
    ] = None,
    *,
    flags: GenerateFlags,
    chat_flags: ChatFlags,
    sampling_flags: SamplingFlags,
    run: RunFlags,
) -> None:
    """Continue a prompt. Text goes to standard output, everything else to standard error."""
    loaded = run.load()
    if flags.print_config:
        show_config(loaded)
        return
    _check_flags(flags, chat_flags)
    if flags.compare and loaded.config.speculative.method == "off":
        raise ConfigError(
            "--compare with speculative.method = 'off' would compare plain decoding with itself: "
            "choose a method that drafts."
        )
    if flags.compare and loaded.config.speculative.draft_temperature:
        raise ConfigError(
            "--compare checks that tokens are equal, which sampled drafts do not promise (they "
            "keep the distribution): leave speculative.draft_temperature out."
        )
    sampling_flags.check()
    source = _read_prompt(prompt, flags, chat_flags)
    with ExitStack() as stack:
        output = stack.enter_context(OutputFile(flags.output)) if flags.output else None
        state = Run(flags=flags, output=output)
        engine = stack.enter_context(closing(open_engine(loaded.config)))
        request = _request(engine, source, chat_flags, sampling_flags)
        _run(engine, request, state)


def _check_flags(flags: GenerateFlags, chat_flags: ChatFlags) -> None:
    """Raise a usage error for flags that would have no effect."""
    chat_only = {
        "--messages": flags.messages,
        "--system": chat_flags.system,
        "--enable-thinking": chat_flags.enable_thinking,
    }
    for name, value in chat_only.items():
        if value is not None and not flags.chat:
            raise BadParameter(f"{name} needs --chat")


def _read_prompt(
    prompt: str | None, flags: GenerateFlags, chat_flags: ChatFlags
) -> str | list[dict[str, Any]]:
    """The plain prompt, or with `--chat` the messages."""
    if not flags.chat:
        return prompt_text(prompt, flags.prompt_file)
    messages = read_messages(flags.messages) if flags.messages else []
    silent = flags.messages is not None and prompt is None and flags.prompt_file is None
    user = None if silent else prompt_text(prompt, flags.prompt_file)
    return conversation(chat_flags.system, messages, user)


def _request(
    engine: "Engine",
    source: str | list[dict[str, Any]],
    chat_flags: ChatFlags,
    sampling_flags: SamplingFlags,
) -> Request:
    prompt: str | Sequence[int]
    if isinstance(source, str):
        prompt = source
    else:
        thinking = chat_flags.enable_thinking
        prompt = engine.tokenizer.encode_chat(source, enable_thinking=thinking)
    return sampling_flags.request(prompt, engine.sampling_defaults)


def _run(engine: "Engine", request: Request, state: Run) -> None:
    """Generate, deliver whatever came of it, and leave with the exit code that it deserves."""
    if state.flags.compare:
        warm_up(engine, request)
    generation = request.start(engine)
    try:
        for piece in generation:
            state.pieces.append(piece.text)
            if state.streams:
                put(piece.text)
    except KeyboardInterrupt:
        generation.close()  # figures are final from there on
        if state.output is None or state.pieces:
            _deliver(generation, state)
        raise Exit(INTERRUPTED) from None
    except Exception:
        if state.output is not None and state.pieces:
            state.output.write("".join(state.pieces))
        raise
    if state.flags.compare:
        request = replace(request, sampling=replace(request.sampling, seed=generation.result.seed))
        _compare(engine, request, generation, state)
    else:
        _deliver(generation, state)


def _compare(engine: "Engine", request: Request, generation: "Generation", state: Run) -> None:
    try:
        comparison = compare(engine, request, generation.result)
    except KeyboardInterrupt:
        _deliver(generation, state)
        raise Exit(INTERRUPTED) from None
    _deliver(generation, state, compare=comparison.record())
    for line in comparison.lines():
        say(line)
    if not comparison.equal:
        raise Exit(comparison.DIFFERENT)


def _deliver(generation: "Generation", state: Run, **extra: object) -> None:
    """Put the result where it belongs; streamed text only lacks what was held back."""
    result = generation.result
    if state.flags.json:
        record = {
            "text": result.text,
            "token_ids": list(result.token_ids),
            "finish_reason": result.finish_reason,
            "usage": dict(result.usage),
            "timings": dict(result.timings),
            "seed": result.seed,
        }
        text = json.dumps(record | extra, ensure_ascii=False) + "\n"
    else:
        text = result.text
    if state.output is not None:
        state.output.write(text)
    elif state.flags.json:
        put(text)
    else:
        printed = "".join(state.pieces)
        assert text.startswith(printed)
        put(text[len(printed) :])
        end_line(text)
    if state.flags.stats:
        table(table_rows(result.timings), f"{result.finish_reason}, seed {result.seed}")
        for line in result.budget:
            say(line)
