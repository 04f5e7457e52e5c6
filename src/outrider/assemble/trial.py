"""Time that stages on one machine take beyond their layers, measured by decoding through them.

They share its processor and caches with each other and with what follows the text, and each hands
on what another process must wake up for. None of that is in layer times that were measured alone;
stages on machines of their own have less of it.
"""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from statistics import median

from outrider.draft.base import Drafter
from outrider.engine.budget import FixedBudget
from outrider.engine.engine import Engine, WindowLimits
from outrider.records import Context, Draft, Needs
from outrider.sampling.params import SamplingParams

PROMPT = (0,)
ROWS = 8
FULL = 8
"""Windows in flight that keep every stage busy."""
LIMITS = WindowLimits(width=ROWS, depth=FULL)
CAPACITY = ROWS * FULL + 1
"""Rows in flight, with the last one of the window before them."""
WINDOWS = 2 * FULL
TOKENS = ROWS * (WINDOWS + FULL)
TURNS = 9
GREEDY = SamplingParams(temperature=0.0, seed=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """As `Pipeline` has them: ms of a window beyond the passes and of each draft in it, how much
    longer passes take while all stages are busy, and ms that each void window takes from the first
    one after it."""

    window_ms: float = 0.0
    draft_ms: float = 0.0
    crowding: float = 1.0
    void_ms: float = 0.0


@dataclass(slots=True)
class Known(Drafter):
    """A drafter that reads on in a text, or always says something else."""

    text: Sequence[int]
    vocab: int
    right: bool = True
    name: str = "known"
    needs: Needs = field(default_factory=Needs)

    def propose(self, context: Context, budget: int) -> Draft | None:
        tokens = self.text[len(context) : len(context) + budget]
        drafts = tuple((token + (not self.right)) % self.vocab for token in tokens)
        return Draft(tokens=drafts, source=self.name) if drafts else None


def try_stages(engine: Engine, stages: Sequence[Sequence[float]]) -> Beside:
    """Decode through `engine`, which is then closed: plainly, and the same text in windows of which
    all are right, one at a time and in a row, or none.

    `stages` are the ms of passes of 1, 2, ... rows through each part alone.
    """
    vocab = engine.stage.vocab_size
    with closing(engine):
        text = _text(engine)
        right, wrong = Known(text, vocab), Known(text, vocab, right=False)
        # In turn, so that a slow moment of the machine hits all of them.
        turns = [
            (
                _window_ms(engine, None),
                _window_ms(engine, right),
                _window_ms(engine, right, FULL),
                _window_ms(engine, wrong, FULL),
            )
            for _ in range(1 + TURNS)
        ][1:]  # first calls are no measure
    step, one, full, void = (median(times) for times in zip(*turns, strict=True))
    alone, plain = (
        max(ms - sum(part[rows - 1] for part in stages), 0.0)
        for ms, rows in ((one, ROWS), (step, 1))
    )
    draft_ms = max(alone - plain, 0.0) / ROWS
    # The first window of a leg has none before it.
    pace, epoch = ((ms * WINDOWS - one) / (WINDOWS - 1) for ms in (full, void))
    slowest = max(plain + draft_ms * ROWS, *(part[ROWS - 1] for part in stages))
    return Beside(
        window_ms=plain,
        draft_ms=draft_ms,
        crowding=max(pace / slowest, 1.0),
        void_ms=max((epoch - one - pace / 2) / (FULL - 1), 0.0),
    )


def _text(engine: Engine) -> list[int]:
    """The prompt and what plain decoding makes of it."""
    running = engine.generate(PROMPT, sampling=GREEDY, max_tokens=TOKENS, ignore_eos=True)
    return [*PROMPT, *(token for piece in running for token in piece.tokens)]


def _window_ms(engine: Engine, drafter: Known | None, depth: int = 1) -> float:
    """Time of a window that is no void one; without a drafter it is a plain step."""
    request = engine.prepare(PROMPT, sampling=GREEDY, max_tokens=TOKENS, ignore_eos=True)
    if drafter:
        speculation = replace(
            request.speculation,
            drafter=lambda *_: drafter,
            budget=lambda: FixedBudget(ROWS),
            windows=replace(LIMITS, depth=depth),
        )
        request = replace(request, speculation=speculation)
    running = engine.begin(request)
    counters = running.counters
    for _ in running:
        # Not to the end of the text: windows in flight would run out before it.
        if counters.windows_judged >= WINDOWS:
            break
    running.close()
    return counters.predicted_ms / max(counters.windows_judged, 1)
