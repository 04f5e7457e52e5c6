"""`outrider chat`: a conversation, a line at a time."""

import sys
from contextlib import closing
from typing import TYPE_CHECKING, Any

from outrider.cli.flags import ChatFlags, RunFlags, SamplingFlags, with_flags
from outrider.cli.requests import conversation, open_engine
from outrider.cli.terminal import end_line, fail, put, say
from outrider.errors import CheckpointError, RequestError

if TYPE_CHECKING:
    from outrider.assemble.engine import Engine

HELP = "/clear forgets the conversation, /exit or Ctrl-D leaves; Ctrl-C cuts a reply short."


@with_flags(chat_flags=ChatFlags, sampling_flags=SamplingFlags, run=RunFlags)
def chat(*, chat_flags: ChatFlags, sampling_flags: SamplingFlags, run: RunFlags) -> None:
    """Talk with a model that has a chat template."""
    loaded = run.load()
    sampling_flags.check()
    with closing(open_engine(loaded.config)) as engine:
        if not engine.tokenizer.has_chat_template:
            raise CheckpointError(
                f"target.path = {loaded.config.target.path!r} has no chat template: use a chat "
                "model, or `outrider generate` for plain prompts."
            )
        say(HELP)
        _converse(engine, chat_flags, sampling_flags)


def _converse(engine: "Engine", chat_flags: ChatFlags, sampling_flags: SamplingFlags) -> None:
    messages = conversation(chat_flags.system, [], None)
    opening = len(messages)
    while (line := _ask()) not in (None, "/exit"):
        if line == "/clear":
            del messages[opening:]
        elif line:
            _turn(engine, messages, str(line), chat_flags, sampling_flags)


def _ask() -> str | None:
    """The user's next line without its end, or None at the end of input."""
    if sys.stdin.isatty():
        sys.stderr.write("> ")
        sys.stderr.flush()
    line = sys.stdin.readline()
    return line.strip() if line else None


def _turn(
    engine: "Engine",
    messages: list[dict[str, Any]],
    line: str,
    chat_flags: ChatFlags,
    sampling_flags: SamplingFlags,
) -> None:
    """Answer one line; a turn that the engine refuses is told and taken back."""
    messages.append({"role": "user", "content": line})
    try:
        reply = _reply(engine, messages, chat_flags, sampling_flags)
    except RequestError as error:
        fail(error)
        messages.pop()
    else:
        messages.append({"role": "assistant", "content": reply})


def _reply(
    engine: "Engine",
    messages: list[dict[str, Any]],
    chat_flags: ChatFlags,
    sampling_flags: SamplingFlags,
) -> str:
    ids = engine.tokenizer.encode_chat(messages, enable_thinking=chat_flags.enable_thinking)
    generation = sampling_flags.request(ids, engine.sampling_defaults).start(engine)
    printed = ""
    try:
        for piece in generation:
            printed += piece.text
            put(piece.text)
    except KeyboardInterrupt:
        say("")
    text = generation.result.text
    put(text.removeprefix(printed))
    if sys.stdout.isatty():
        end_line(text)
    else:
        put("\n")
    return text
