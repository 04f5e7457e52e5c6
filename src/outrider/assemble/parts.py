"""Parts of an engine, whichever backend runs the target."""

from collections.abc import Mapping
from dataclasses import dataclass

from outrider.engine.facade import Speculation
from outrider.formats.tokenizer import Tokenizer
from outrider.sampling.params import SamplingParams
from outrider.stage.base import Stage
from outrider.state.spec import StateSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """A stage, a tokenizer, and what drafts.

    `facts` describe what was chosen at load. `picked` is what the method "auto" chose, and why.
    `specs` is what a sequence comes to hold beyond what was allocated at the start.
    """

    stage: Stage
    tokenizer: Tokenizer
    speculation: Speculation
    defaults: SamplingParams
    facts: Mapping[str, object]
    picked: str | None = None
    specs: tuple[StateSpec, ...] = ()
