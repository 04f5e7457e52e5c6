"""Cost model shared by the sessions of a batch, and the acceptance that a draft's row must reach.

Of N sessions side by side each decodes one token in a plain pass. Running every row that drafters
offer with a chance of at least p brings (N + the sum of these chances) / (cost of a pass of N rows
and these) tokens per cost, if passes are like the last ones. The p that makes this greatest is the
price of a row; where no p does better than passes in which nobody drafts, as they were measured,
nobody does. That is the best that all get together, and what only pays where many draft is found as
well. It is not the best for each: what does not draft waits for the rows of those that do. So none
may expect more of a pass than twice what passes bring the least of all by now.
Pure: no clock, no chance, no torch.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf

from outrider.engine.acceptance import Acceptance
from outrider.engine.curve import ENOUGH, Curve

STEPS = 20
"""Chances are told apart in steps of one in so many."""
NOBODY = 2.0
"""A price that no row is worth."""
FADE = 0.9
"""Weight of the offers of earlier passes beside those of the last one."""
UNLIKELY = 0.25
"""Rows of a smaller chance are not looked at, unless the price is less than twice it."""
LEAST = 0.02
"""The lowest price of a row."""
MARGIN = 0.02
"""Least gain for which drafting is worth it."""
LIKELY = 0.5
"""Where nobody drafts, a session counts as if it ran what has at least this chance."""
FAIR = 2.0
"""Ratio between what a pass brings others and the least that they may expect of one."""
PACE = 0.95
"""Weight of earlier passes of a session beside its last one."""
PROBE_SHARE = 0.01
RAREST = 16.0
LOOK = 64
"""Passes between two in which nobody drafts, to see what these cost by now."""
MEMORY = 0.998


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Costs measured at start, all in one unit (milliseconds, if `timed` is called).

    `verify[n - 1]` is a target pass of n rows: one entry more than drafts are allowed, or more
    where `drafts` says how many are and several sessions share a pass.
    `draft[source][k - 1]` is drafting k tokens, `()` for a source that costs nothing; sources of a
    chain stand in the order in which they are asked.
    """

    verify: Sequence[float]
    draft: Mapping[str, Sequence[float]]
    drafts: int | None = None


class Company:
    """Shared by the controllers of all sessions, `sessions` in all.

    Who still waits or reads its prompt counts, since time is dear to it as well.
    """

    def __init__(self, costs: Costs) -> None:
        verify = [0.0, *costs.verify]
        self.verify = Curve(verify)
        self.draft = {name: Curve([0.0, *costs.draft[name]]) for name in costs.draft}
        self.rates = Acceptance(MEMORY)
        self.sessions = 1
        self._members = 0
        self.price, self.speed = NOBODY, 1.0 / verify[1]
        """The chance that a row must have in the next pass; tokens per cost of all together."""
        self._mixed, self._plain = Curve(verify), Curve(verify)  # of several, by rows or sessions
        self.bound = inf
        """Tokens that a session may expect of the next pass."""
        self._expected: dict[int, float] = {}  # of a pass in which nobody drafts
        self._paces: dict[int, float] = {}  # tokens a pass, of late
        self._told: set[int] = set()
        self._newest = (0, 0.0)
        self._decoding = 0
        self._offered = [[0.0] * STEPS, [0.0] * STEPS]  # rows, and their chances together
        self._weight = 0.0
        self._passes = self._probes = 0
        self._open = self._probing = False
        self._rarity = 1.0
        self._saved = self._saved_to_draft = 0.0

    def join(self) -> None:
        """One session more begins."""
        self._members += 1
        self.sessions = self._members

    def leave(self, who: int) -> None:
        """Session `who` has ended."""
        self._members -= 1
        self._paces.pop(who, None)
        self._expected.pop(who, None)

    def worth(self, who: int, rates: Iterable[float], *, paid: bool = False) -> tuple[float, int]:
        """Gain of the rows that are worth running of a draft, and how many these are.

        rates: of its tokens, the chance to be right if all before are. One that was `paid` for is
        not dropped because others have none.
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
        """Session `who` tells of a pass of `sessions` with `rows` rows, beside `prompts` more of
        prompts; all tell, and it counts once. Prompts' rows cost less, so such passes say nothing.
        """
        if sessions > 1 and who not in self._told and self._newest == (rows, cost):
            self._told.add(who)
            return
        strangers = self._decoding > len(self._told)
        self._told, self._newest, self._decoding = {who}, (rows, cost), sessions
        self.sessions = max(sessions, self._members)
        self.bound = self._bound(strangers)
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
        self._passes += not prompts
        if not prompts and (self._passes % LOOK == 0 or self._plain.lacks(sessions)):
            self.price, self._probing = NOBODY, False

    def brought(self, who: int, tokens: int) -> None:
        """A pass brought session `who` so many; a new one begins as the least of all."""
        if self.sessions > 1:
            found = max(self._expected.pop(who, 0.0), tokens)
            known = self._paces.get(who, min(self._paces.values(), default=1.0))
            self._paces[who] = PACE * known + (1.0 - PACE) * found

    @property
    def plain(self) -> float:
        """A session's share of a pass in which nobody drafts."""
        return self._nobody / self.sessions

    @property
    def _nobody(self) -> float:
        """A pass in which nobody drafts; at the least that it may be, since few were measured."""
        n = self.sessions
        return self._plain.least(n) if n < len(self._plain) else self._at(self._plain, n)

    @property
    def fair_price(self) -> float:
        """The price of a row, or what it would be if all drafted one."""
        return self.speed * self.row if self.price == NOBODY else self.price

    @property
    def row(self) -> float:
        """Cost of a draft's row."""
        if self.price < NOBODY:
            return self.price / self.speed
        n = self.sessions
        return max(self._at(self._mixed, 2 * n) - self._nobody, 0.0) / n

    def pay(self, cost: float) -> bool:
        """True if a session may draft for `cost` to see whether that pays."""
        if self._saved_to_draft < cost:
            return False
        self._saved_to_draft -= cost
        return True

    def owe(self, cost: float) -> None:
        """Record that paid drafts cost more."""
        self._saved_to_draft -= cost

    def _bound(self, strangers: bool) -> float:
        """The bound of the next pass; one who never tells of passes is taken to decode plainly."""
        if self.sessions == 1:
            return inf
        least = 1.0 if strangers else min(self._paces.values(), default=1.0)
        return FAIR * max(least, 1.0)

    def _plan(self) -> None:
        """Set the price for the next pass; now and then, have one look at what is not chosen."""
        self._weight += 1.0
        self.price, self.speed = self._best()
        if self.price < NOBODY and not self._open:
            self._rarity = 1.0
        self._open = self.price < NOBODY
        self._weight = FADE * self._weight
        self._offered = [[FADE * value for value in values] for values in self._offered]

    def _best(self) -> tuple[float, float]:
        """The price that gives the greatest speed, and that."""
        count = tokens = float(self.sessions)
        share = 1.0 / self._weight
        best = plain = tokens / self._nobody
        price = NOBODY
        for step in reversed(range(STEPS)):
            if not self._offered[0][step]:
                continue
            count += share * self._offered[0][step]
            tokens += share * self._offered[1][step]
            speed = tokens / max(self._at(self._mixed, ceil(count)), self._nobody)
            if speed > max(best, (1.0 + MARGIN) * plain):
                best, price = speed, max(step / STEPS, LEAST)
        return price, best

    def _may_probe(self, prompts: bool) -> bool:
        """True if all run one row at least in the next pass, since enough was saved for it; at
        first it is done anyway, until a pass of so many rows was measured."""
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
        """Cost of `count`; beyond what was measured, by the mean row."""
        most = len(curve) - 1
        if count <= most:
            return curve[count]
        row = max(curve[most] - curve[1], 0.0) / max(most - 1, 1)
        return curve[most] + row * (count - most)
