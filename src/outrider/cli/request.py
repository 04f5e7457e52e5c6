"""A request as the command line makes it, so that it can be started more than once."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from outrider.sampling.params import SamplingParams

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
