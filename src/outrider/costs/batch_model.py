"""Cost model of batched sessions: the acceptance probability that a drafted token must reach.

In a plain pass each of N sessions decodes one token. If every drafted token with an acceptance
probability of at least p is verified, a pass brings N + (sum of these probabilities) tokens at the
cost of a pass of N + (their number) rows, provided that the next pass is like the last ones. The p
that maximises tokens per cost is the price of a row. If no p beats the measured plain passes, no
session drafts.

This maximises the throughput of the whole batch, and it finds drafting that pays only where many
sessions draft. It is not fair: sessions without drafts wait for the rows of the others. Therefore
no session may expect more tokens of a pass than `FAIR` times what the slowest session gets.
Pure: no clock, no random numbers, no torch.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf

from outrider.costs.acceptance import Acceptance
from outrider.costs.curve import ENOUGH, Curve

STEPS = 20
"""Buckets of the histogram of acceptance probabilities."""
NOBODY = 2.0
"""A price above every probability: no row is drafted."""
FADE = 0.9
"""Decay per pass of the histogram of offered rows."""
UNLIKELY = 0.25
"""Rows less probable than this, or than half the price if that is lower, are ignored."""
LEAST = 0.02
"""The lowest price of a row."""
MARGIN = 0.02
"""Least relative gain in speed for which the batch drafts."""
LIKELY = 0.5
"""Where no session drafts, each is credited with the rows that have at least this probability."""
FAIR = 2.0
"""Most tokens that a session may expect of a pass, over what the slowest session gets."""
PACE = 0.95
"""Decay per pass of a session's mean tokens per pass."""
PROBE_SHARE = 0.01
"""Share of the time that probes may take."""
RAREST = 16.0
"""Most times by which probes without success become rarer."""
LOOK = 64
"""Every so many passes no session drafts, so that the cost of a plain pass stays known."""
MEMORY = 0.998
"""Decay per round of the acceptance rates that all sessions learn together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Costs measured at start, all in one unit (milliseconds if `timed` is called).

    `verify[n - 1]` is a target pass of n rows: one entry more than drafts are allowed, or more
    where `drafts` says how many are and several sessions share a pass.
    `draft[source][k - 1]` is drafting k tokens, `()` for a source that costs nothing; sources of a
    chain stand in the order in which they are asked.
    """

    verify: Sequence[float]
    draft: Mapping[str, Sequence[float]]
    drafts: int | None = None


class BatchCostModel:
    """Shared by the controllers of all `sessions` sessions.

    Waiting and prefilling sessions count too: a slower pass delays them as well.
    """

    def __init__(self, costs: Costs) -> None:
        verify = [0.0, *costs.verify]
        self.verify = Curve(verify)
        self.draft = {name: Curve([0.0, *costs.draft[name]]) for name in costs.draft}
        self.rates = Acceptance(MEMORY)
        self.sessions = 1
        self._members = 0
        self.price, self.speed = NOBODY, 1.0 / verify[1]
        """The probability that a row must have in the next pass; tokens per cost of the batch."""
        self._mixed, self._plain = (
            Curve(verify),
            Curve(verify),
        )  # of a batch
        self.bound = inf
        """Most tokens that a session may expect of the next pass."""
        self._expected: dict[int, float] = {}  # by session: tokens of a pass, had it drafted
        self.paces: dict[int, float] = {}  # by session: mean tokens per pass
        self._reported: set[int] = set()  # sessions that reported the newest pass
        self._newest = (0, 0.0)
        self._decoding = 0
        self._offered = [
            [0.0] * STEPS,
            [0.0] * STEPS,
        ]  # rows, their probabilities
        self._weight = 0.0
        self.passes = self._probes = 0
        self._open = self._probing = False
        self._rarity = 1.0
        self._saved = self._saved_to_draft = 0.0

    def join(self) -> None:
        """A session begins."""
        self._members += 1
        self.sessions = self._members

    def leave(self, who: int) -> None:
        """Session `who` has ended."""
        self._members -= 1
        self.paces.pop(who, None)
        self._expected.pop(who, None)

    def worth(self, who: int, rates: Iterable[float], *, paid: bool = False) -> tuple[float, int]:
        """Gain of a draft's rows that are worth verifying, and their number.

        rates: of each token, the probability of being accepted if all before it are. A draft that
        was `paid` for is not dropped because no other session drafts.
        """
        price = self.fair_price if paid else self.price
        floor = min(UNLIKELY, price / 2)
        counts, sums = self._offered
        chance, gain, length, tokens, expected = 1.0, 0.0, 0, 1.0, 1.0
        for place, rate in enumerate(rates, 1):
            chance *= rate
            if chance < floor:
                break
            tokens += chance
            expected += chance if chance >= LIKELY else 0.0
            if tokens > self.bound:
                continue
            step = min(int(chance * STEPS), STEPS - 1)
            counts[step] += 1.0
            sums[step] += chance
            if chance >= price:
                gain, length = gain + chance - price, place
        if self.price == NOBODY:
            self._expected[who] = expected
        return (gain, length) if length or not self._probing else (0.0, 1)

    def passed(self, who: int, rows: int, sessions: int, prompts: int, cost: float) -> None:
        """Record a pass of `sessions` sessions with `rows` rows, reported by session `who`.

        Every session of a pass reports it; it counts once. `prompts` rows more belonged to
        prompts: these cost less each, so the cost of such a pass is not learned from.
        """
        if sessions > 1 and who not in self._reported and self._newest == (rows, cost):
            self._reported.add(who)
            return
        unreported = self._decoding > len(self._reported)
        self._reported, self._newest, self._decoding = {who}, (rows, cost), sessions
        self.sessions = max(sessions, self._members)
        self.bound = self._bound(unreported)
        if not prompts:
            (self._mixed if sessions > 1 else self.verify).observe(rows, cost)
            if 1 < sessions == rows:
                self._plain.observe(sessions, cost)
        if self.sessions == 1:
            return
        self._saved += PROBE_SHARE * cost
        self._saved_to_draft += PROBE_SHARE * cost
        self._plan()
        self._probing = self._may_probe(bool(prompts))
        self.passes += not prompts
        if not prompts and (self.passes % LOOK == 0 or self._plain.lacks(sessions)):
            self.price, self._probing = NOBODY, False

    def brought(self, who: int, tokens: int) -> None:
        """Record the tokens of a pass for session `who`; a new one starts at the lowest mean."""
        if self.sessions > 1:
            found = max(self._expected.pop(who, 0.0), tokens)
            known = self.paces.get(who, min(self.paces.values(), default=1.0))
            self.paces[who] = PACE * known + (1.0 - PACE) * found

    @property
    def plain(self) -> float:
        """A session's share of the cost of a pass without drafts."""
        return self._undrafted / self.sessions

    @property
    def _undrafted(self) -> float:
        """Cost of a pass without drafts: its lower bound, since few were measured."""
        n = self.sessions
        return self._plain.least(n) if n < len(self._plain) else self._at(self._plain, n)

    @property
    def fair_price(self) -> float:
        """The price of a row, or what it would be if each session drafted one."""
        return self.speed * self.row if self.price == NOBODY else self.price

    @property
    def row(self) -> float:
        """Cost of a drafted row."""
        if self.price < NOBODY:
            return self.price / self.speed
        n = self.sessions
        return max(self._at(self._mixed, 2 * n) - self._undrafted, 0.0) / n

    def pay(self, cost: float) -> bool:
        """Take `cost` from the savings for a probe; False where they do not reach."""
        if self._saved_to_draft < cost:
            return False
        self._saved_to_draft -= cost
        return True

    def owe(self, cost: float) -> None:
        """Take `cost`, by which a probe was dearer than thought, from the savings."""
        self._saved_to_draft -= cost

    def _bound(self, unreported: bool) -> float:
        """`bound` of the next pass; a session that reports no passes counts as decoding plainly."""
        if self.sessions == 1:
            return inf
        least = 1.0 if unreported else min(self.paces.values(), default=1.0)
        return FAIR * max(least, 1.0)

    def _plan(self) -> None:
        """Set the price for the next pass."""
        self._weight += 1.0
        self.price, self.speed = self._best()
        if self.price < NOBODY and not self._open:
            self._rarity = 1.0
        self._open = self.price < NOBODY
        self._weight = FADE * self._weight
        self._offered = [[FADE * value for value in values] for values in self._offered]

    def _best(self) -> tuple[float, float]:
        """The price with the highest speed, and that speed."""
        count = tokens = float(self.sessions)
        share = 1.0 / self._weight
        best = plain = tokens / self._undrafted
        price = NOBODY
        for step in reversed(range(STEPS)):
            if not self._offered[0][step]:
                continue
            count += share * self._offered[0][step]
            tokens += share * self._offered[1][step]
            speed = tokens / max(self._at(self._mixed, ceil(count)), self._undrafted)
            if speed > max(best, (1.0 + MARGIN) * plain):
                best, price = speed, max(step / STEPS, LEAST)
        return price, best

    def _may_probe(self, prompts: bool) -> bool:
        """True if each session verifies at least one row of the next pass, as a probe: enough was
        saved for it, or too few such passes were measured so far."""
        first = self._probes < ENOUGH and not prompts
        price = self._rarity * self.row * self.sessions
        if not first:
            if self._saved <= price:
                return False
            self._saved -= price
            self._rarity = min(2.0 * self._rarity, RAREST)
        self._probes += 1
        return True

    @staticmethod
    def _at(curve: Curve, count: int) -> float:
        """Cost of `count`; beyond the curve by the mean cost of a row."""
        most = len(curve) - 1
        if count <= most:
            return curve[count]
        row = max(curve[most] - curve[1], 0.0) / max(most - 1, 1)
        return curve[most] + row * (count - most)
