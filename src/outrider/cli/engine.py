"""What the commands ask of the engine. Importing this loads no torch; `open_engine` does."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from outrider.cli.terminal import busy
from outrider.config.run import RunConfig
from outrider.sampling.params import SamplingParams


class Piece(Protocol):
    """Text that became final, with its tokens and who drafted each."""

    @property
    def text(self) -> str:
        """Printable text, never half a character."""


class Result(Protocol):
    """Everything about a request that has ended, or was left early."""

    @property
    def text(self) -> str: ...
    @property
    def token_ids(self) -> Sequence[int]: ...
    @property
    def finish_reason(self) -> str: ...
    @property
    def usage(self) -> Mapping[str, int]: ...
    @property
    def timings(self) -> Mapping[str, object]: ...
    @property
    def seed(self) -> int | None: ...
    @property
    def budget(self) -> Sequence[str]: ...


class Generation(Protocol):
    """A running request: iterate for its pieces, then (or after an interrupt) read `result`."""

    def __iter__(self) -> Iterator[Piece]: ...
    @property
    def result(self) -> Result: ...


class Tokenizer(Protocol):
    """The part of the tokenizer that chats need."""

    @property
    def has_chat_template(self) -> bool: ...
    def encode_chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> list[int]: ...


class Engine(Protocol):
    """The facade that `outrider.assemble.engine.Engine` offers."""

    @property
    def tokenizer(self) -> Tokenizer: ...
    @property
    def sampling_defaults(self) -> SamplingParams: ...
    def generate(
        self,
        prompt: str | Sequence[int],
        *,
        sampling: SamplingParams | None = None,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
        ignore_eos: bool = False,
        method: str | None = None,
    ) -> Generation: ...
    def close(self) -> None: ...


def open_engine(config: RunConfig) -> Engine:
    """Load the model that a configuration names."""
    from outrider.assemble.engine import Engine as Facade

    with busy(f"loading {config.target.path}"):
        engine: Engine = Facade.load_run(config)
    return engine
