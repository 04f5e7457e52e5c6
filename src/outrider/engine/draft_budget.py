"""Number of tokens to ask a drafter for, number of these to verify, and the shape of windows. Pure.

Over links a window after another is worth something only if the one before is accepted as a whole,
so depth pays on copied text and wide windows pay on novel text. What windows and links cost is
learned from the answers, and so is the acceptance; `outrider.costs.pipeline` says what follows.
"""

from collections.abc import Sequence

from outrider.costs.acceptance import Acceptance
from outrider.costs.curve import Curve
from outrider.costs.pipeline import Pipeline, Shape, best, steps
from outrider.records import Draft

DECAY = 0.97
PRIOR, WEIGHT = 0.9, 4.0
"""High: over a link windows that turn out void cost little, and an epoch that lacks them a lot."""
CERTAIN = 0.999
"""Acceptance is never taken to be higher: an epoch ends some day."""
EVERY = 4
"""Epochs between two choices, once so many have passed."""
LOOSE = 0.05
"""How fast the round trip and the cost of drafting follow a rise; they follow a fall at once."""


class Budget:
    """Decides round by round; nothing drafted is plain decoding.

    A round is `choose`, then `limit` and `keep` from within the drafter, `share`, `timed` and
    `learn`; an epoch of windows in flight begins with `shape`. This one drafts nothing.
    """

    repeats = False
    """True if equal requests get equal numbers of drafts, whatever the clock says."""

    def shape(self) -> tuple[int, int] | None:
        """Rows of a window and windows in flight for the epoch that begins; None: as before."""
        return None

    def choose(self) -> int:
        """Drafts to ask for in the next window at most."""
        return 0

    def limit(self, source: str, budget: int) -> int:
        """Number of drafts, up to `budget`, to ask one drafter of a chain for."""
        del source
        return budget

    def keep(self, draft: Draft) -> Draft | None:
        """The part of a draft that is worth verifying, None for nothing of it."""
        return draft

    def share(self, rows: int, sessions: int, prompts: int) -> None:
        """The pass decoded `sessions` in `rows` rows, with `prompts` rows of prompts."""

    def timed(self, rows: int, verify_ms: float, drafted: int, draft_ms: float) -> None:
        """The whole pass had `rows` rows and took `verify_ms`; drafting `drafted` tokens for it
        took `draft_ms`."""

    def answered(self, waited_ms: float, verify_ms: float) -> None:
        """The first window of an epoch was answered `waited_ms` after it was issued."""

    def learn(self, source: str | None, verified: int, accepted: int) -> None:
        """A window was judged: `verified` drafts of `source`, the first `accepted` kept."""

    def explain(self) -> Sequence[str]:
        """The current choice and its reason, in sentences."""
        return ()

    def close(self) -> None:
        """The session has ended."""


class FixedBudget(Budget):
    """The same number every round, all of it verified."""

    repeats = True

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens

    def choose(self) -> int:
        return self._tokens

    def explain(self) -> Sequence[str]:
        return (f"fixed: {self._tokens} drafts a round at most",)


class LinkBudget(Budget):
    """Chooses at most `width` rows and `depth` windows; one for each session.

    `stages` share the verify time, as parts that work at the same time if `parallel`.
    `round_trip_ms` is the first guess.
    """

    def __init__(
        self, width: int, depth: int, *, stages: int, parallel: bool, round_trip_ms: float
    ) -> None:
        self._width = width
        self._stages = stages
        self._parallel = parallel
        self._widths, self._depths = steps(width), steps(depth)
        self._verify = Curve([0.0, *(1.0 + 0.1 * rows for rows in range(width))])
        self._rates = Acceptance(DECAY)
        self._round_trip, self._draft = round_trip_ms, 0.0
        self._epochs = 0
        self._shape = Shape(width=width, depth=depth, speed=0.0)

    def shape(self) -> tuple[int, int]:
        """Rows and windows in flight for the epoch that begins."""
        if self._epochs < EVERY or self._epochs % EVERY == 0:
            self._shape = best(self._pipeline(), self._rate(), self._widths, self._depths)
        self._epochs += 1
        return self._shape.width, self._shape.depth

    def choose(self) -> int:
        return self._width

    def timed(self, rows: int, verify_ms: float, drafted: int, draft_ms: float) -> None:
        self._verify.observe(rows, verify_ms)
        if drafted:
            self._draft = _follow(self._draft, draft_ms / drafted)

    def answered(self, waited_ms: float, verify_ms: float) -> None:
        self._round_trip = _follow(self._round_trip, max(waited_ms - verify_ms, 0.0))

    def learn(self, source: str | None, verified: int, accepted: int) -> None:
        self._rates.tick()
        for place in range(min(accepted + 1, verified)):
            self._rates.add(None, place < accepted)

    def explain(self) -> Sequence[str]:
        shape = self._shape
        return (
            f"windows: {shape.width} rows, {shape.depth} in flight, for a round trip of "
            f"{self._round_trip:.1f} ms and {self._rate():.0%} acceptance",
        )

    def _rate(self) -> float:
        return min(self._rates.rate(None, PRIOR, WEIGHT), CERTAIN)

    def _pipeline(self) -> Pipeline:
        share = [self._verify[rows] / self._stages for rows in range(1, len(self._verify))]
        return Pipeline(
            stages=[share] * self._stages,
            round_trip_ms=self._round_trip,
            draft_ms=self._draft,
            parallel=self._parallel,
        )


def _follow(old: float, new: float) -> float:
    """The smaller at once, the larger slowly: what else a machine does only ever adds."""
    return new if new < old or old == 0.0 else old + LOOSE * (new - old)
