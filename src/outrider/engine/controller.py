"""Number of tokens to draft and to verify, chosen each round by measured costs.

A round that verifies k drafts yields 1 + sum_{i<=k} prod_{j<=i} a_j tokens and costs V(k+1) + D(k),
with a_j the chance that draft j is accepted if those before it were. Over many rounds of different
worth, the best choice in each is the one that maximises tokens - speed x cost, where speed is the
long-run tokens per cost (Dinkelbach 1967; for equal rounds it is the ratio's own maximum). Plain
decoding is always possible, so that speed is at least 1 / V(1).

* Drafters that cost next to nothing are asked for all they have; what is verified of it is then
  decided by their confidence or, without one, by how long a draft they dared to make.
* Where nothing pays, nothing is drafted. A share of the time is then saved up for probes, so what
  they lose is bounded by it, whatever happens; probes that fail make the next ones rarer.

Pure: no clock, no chance, no torch. Knows costs, counts and confidences, never a drafter.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import count, islice, repeat

from outrider.costs.acceptance import Acceptance
from outrider.costs.batch_model import BatchCostModel, Costs
from outrider.engine.draft_budget import Budget
from outrider.records import Draft

CONFIDENCE_STEPS = (0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.96)


NEVER = 0.02
"""Drafts that are accepted more rarely than this are not looked at."""

Class = tuple[Hashable, float | None]
"""Class of tokens whose acceptance is learned together, and its first estimate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings:
    """How fast to learn and forget, and what may be spent on looking again.

    `prior` is the acceptance assumed of a class never seen, worth `weight` cases; a later place is
    like the one before it, which is worth `place_weight` cases. A choice must gain `margin` tokens
    a round. Probes come in a `burst` and cost at most `probe_share` of the time, beyond a `grant`
    of plain steps at the start. A class that keeps failing is probed up to `rarest` times less
    often. A source is free where all that it may draft takes less than `free_share` of a plain
    step.
    """

    decay: float = 0.985
    weight: float = 2.0
    place_weight: float = 8.0
    least: float = 10.0
    prior: float = 0.6
    speed_decay: float = 0.98
    margin: float = 0.01
    probe_share: float = 0.02
    grant: float = 3.0
    burst: int = 3
    rarest: float = 16.0
    free_share: float = 0.05


@dataclass(slots=True)
class Burst:
    """Probes of one class in a row: how many are left, and how many were right."""

    left: int
    hits: int = 0


class Controller(Budget):
    """Chooses for one engine; sessions that follow each other share what it learned.

    A round is `limit` (or `choose`), then `keep` on what was drafted, `share`, `timed` and `learn`.
    Among others, a row costs what the `company` says; who is alone is told nothing by it.
    """

    def __init__(
        self,
        costs: Costs,
        settings: ControllerSettings | None = None,
        company: BatchCostModel | None = None,
    ) -> None:
        """`company` is given where several share passes."""
        self._settings = settings or ControllerSettings()
        self._most = len(costs.verify) - 1 if costs.drafts is None else costs.drafts
        self._company = company or BatchCostModel(costs)
        self._verify = self._company.verify
        self._shared = (0, 1, 0)
        self._draft = self._company.draft
        self._rates = Acceptance(self._settings.decay)
        self._tokens = self._cost = 0.0
        self._savings = self._settings.grant * self._plain()
        self._asked: dict[str, int] = {}
        self._probed: dict[str, Hashable] = {}
        self._bursts: dict[Hashable, Burst] = {}
        self._rarity: dict[Hashable, float] = {}
        self._offered: Draft | None = None
        self._verified: dict[str, Counter[int]] = {}

    def choose(self) -> int:
        """Drafts to ask for in this round, at most; the same until the round was judged."""
        return max((self.limit(source, self._most) for source in self._draft), default=0)

    def limit(self, source: str, budget: int) -> int:
        """Number of drafts, up to `budget`, to ask `source` for."""
        if source not in self._asked:
            self._asked[source] = self._ask(source)
        return min(self._asked[source], budget)

    def keep(self, draft: Draft) -> Draft | None:
        """The part of a draft that is worth verifying, None for nothing of it.

        None also where a source after it in a chain promises more. Sampled drafts stay whole:
        choosing by what was drawn would bend the distribution.
        """
        self._offered = draft
        if draft.probs is not None:
            return draft
        length = self._prefix(draft)
        return _cut(draft, length) if length else None

    def share(self, rows: int, sessions: int, prompts: int) -> None:
        """The pass decoded `sessions` in `rows` rows, beside `prompts` rows of prompts."""
        self._shared = rows, sessions, prompts

    def timed(self, rows: int, verify_ms: float, drafted: int, draft_ms: float) -> None:
        """A pass of `rows` took `verify_ms`; what `keep` saw for it took `draft_ms` to draft.

        `drafted` may be what was left of that; what was paid for is the whole.
        """
        del drafted
        _, sessions, prompts = self._shared
        self._company.passed(id(self), rows - prompts, sessions, prompts, verify_ms)
        if self._offered is None or self._offered.source not in self._draft:
            return
        curve, paid = self._draft[self._offered.source], len(self._offered.tokens)
        if self._offered.source not in self._probed:
            curve.observe(paid, draft_ms)
        elif paid < len(curve):
            # A probe catches up after a long rest: paid for, but no measure of other rounds.
            more = max(draft_ms - curve[paid], 0.0)
            if self._alone:
                self._savings -= more
            else:
                self._company.owe(more)

    def learn(self, source: str | None, verified: int, accepted: int) -> None:
        """A round was judged: of `verified` drafts the first `accepted` were kept."""
        offered = self._offered
        if source is not None and not _matches(offered, source, verified):
            offered = Draft(tokens=(0,) * verified, source=source)
        if offered is not None:
            self._learn_rates(offered, verified, accepted)
            self._verified.setdefault(offered.source, Counter())[verified] += 1
        if self._alone:
            self._account(offered, verified, accepted)
        self._rates.tick()
        self._company.rates.tick()
        self._company.brought(id(self), 1 + accepted)
        self.leave_round()

    def leave_round(self) -> None:
        """Forget a round that was judged, or that will not be."""
        self._offered = None
        self._asked.clear()
        self._probed.clear()

    def explain(self) -> list[str]:
        """One line per source: what is chosen now, and why."""
        return [self._explain(source) for source in self._draft]

    def _ask(self, source: str) -> int:
        """Number of drafts to ask for; 0 in rounds that look what a plain step costs by now."""
        if self._alone and self._verify.lacks(1):
            return 0
        return self._most if self._is_free(source) else self._length(source)

    def _length(self, source: str) -> int:
        """Number of drafts to pay `source` for."""
        length = self._promise(source)[1]
        first = self._extra(1) + self._draft[source][1]
        if length == 0 and self._most and self._may_probe(source, (source, "drafting"), first):
            return 1
        return length

    def _promise(self, source: str, rates: Iterable[float] = ()) -> tuple[float, int]:
        """Gain of the best number of drafts of `source`, and that number."""
        curve = self._draft[source]
        most = min(self._most, len(curve) - 1)
        costs = (self._extra(drafts) + curve[drafts] for drafts in range(1, most + 1))
        return self._best(rates or self._by_place(source), costs)

    def _prefix(self, draft: Draft) -> int:
        """Number of tokens of a draft to verify, now that it is there."""
        classes = _classes(draft)[: self._most]
        if self._alone:
            costs = (self._extra(drafts) for drafts in range(1, len(classes) + 1))
            gain, length = self._best(self._chained(classes), costs)
        else:
            paid = not self._is_free(draft.source)
            gain, length = self._company.worth(id(self), self._chained(classes), paid=paid)
        if draft.source in self._probed:
            return max(length, 1)
        if length and gain < self._promise_behind(draft.source):
            return 0
        probed = length == 0 and self._alone
        if probed and self._may_probe(draft.source, classes[0][0], self._extra(1)):
            return 1
        return length

    def _promise_behind(self, source: str) -> float:
        """Gain of the best paid source after `source` in a chain."""
        names = list(self._draft)
        behind = names[names.index(source) + 1 :] if source in names else []
        return max(
            (self._promise(name)[0] for name in behind if not self._is_free(name)), default=0
        )

    def _best(self, rates: Iterable[float], costs: Iterable[float]) -> tuple[float, int]:
        """The greatest tokens - speed x cost of the first k drafts, and k; (0, 0) if none gains.

        Among others no more are looked at than a session may expect.
        """
        speed, all_right, tokens = self._speed(), 1.0, 0.0
        best, length = 0.0, 0
        for k, (rate, cost) in enumerate(zip(rates, costs, strict=False), 1):
            all_right *= rate
            tokens += all_right
            if all_right < NEVER or 1.0 + tokens > self._company.bound:
                break
            gain = tokens - speed * cost
            if gain > max(best, self._settings.margin):
                best, length = gain, k
        return best, length

    @property
    def _alone(self) -> bool:
        return self._company.sessions == 1

    def _extra(self, drafts: int) -> float:
        """Cost of verifying `drafts` beyond that of a plain step; a row never costs less than
        nothing, whatever two noisy measurements say."""
        if self._alone:
            return max(self._verify[min(drafts, self._most) + 1] - self._plain(), 0.0)
        return drafts * self._company.row

    def _plain(self) -> float:
        """A plain step: among others, the share of a pass in which all decode plainly.

        At the least that it may be: while drafting it is measured seldom, and three slow passes
        would make every draft look like a gain. Where drafting does not gain against that, plain
        rounds follow, which measure it again.
        """
        return self._verify.least(1) if self._alone else self._company.plain

    def _speed(self) -> float:
        """Long-run tokens per cost, plain decoding at least; of all together among others."""
        if not self._alone:
            return self._company.speed
        plain = 1.0 / self._plain()
        return max(plain, self._tokens / self._cost) if self._cost > 0.0 else plain

    def _is_free(self, source: str) -> bool:
        curve = self._draft.get(source)
        if curve is None or len(curve) < 2:
            return True
        return curve[len(curve) - 1] < self._settings.free_share * self._plain()

    def _by_place(self, source: str) -> Iterator[float]:
        """Rates of a source's drafts by place, without end."""
        return self._chained(((source, place), None) for place in count())

    def _chained(self, classes: Iterable[Class]) -> Iterator[float]:
        """Rates of a draft's tokens; what is unknown of one without a prior is as the one before.

        What is known of later ones fades away, so that they are tried again of themselves. What is
        known of the first is kept until probes say otherwise.
        """
        chosen, rate = self._settings, None
        for key, prior in classes:
            if prior is None and rate is not None:
                known, weight, least = rate, chosen.place_weight, 0.0
            else:
                known = chosen.prior if prior is None else prior
                weight, least = chosen.weight, chosen.least
            if not self._alone:
                known = self._company.rates.rate(key, known, weight, least)
                weight = chosen.place_weight
            rate = self._rates.rate(key, known, weight, least)
            yield rate

    def _learn_rates(self, offered: Draft, verified: int, accepted: int) -> None:
        classes = _classes(offered)
        for place in range(min(accepted + 1, verified)):
            self._add(classes[place][0], place < accepted)
        # What was drafted and not verified brought nothing: by place it counts as wrong.
        for place in range(min(accepted + 1, len(offered.tokens))):
            self._add((offered.source, place), place < accepted)

    def _add(self, key: Hashable, accepted: bool) -> None:
        self._rates.add(key, accepted)
        self._company.rates.add(key, accepted)

    def _account(self, offered: Draft | None, verified: int, accepted: int) -> None:
        """Keep the long-run speed, what is saved for probes and what a probe has brought."""
        cost = self._plain() + self._extra(verified) + self._paid(offered)
        decay = self._settings.speed_decay
        self._tokens = self._tokens * decay + 1.0 + accepted
        self._cost = self._cost * decay + cost
        self._savings += self._settings.probe_share * cost
        key = self._probed.get(offered.source) if offered else None
        if key is not None:
            self._savings += accepted * self._plain()
            self._end_probe(key, accepted > 0)

    def _paid(self, offered: Draft | None) -> float:
        if offered is None or self._is_free(offered.source):
            return 0.0
        curve = self._draft[offered.source]
        return curve[min(len(offered.tokens), len(curve) - 1)]

    def _may_probe(self, source: str, key: Hashable, extra: float) -> bool:
        """True if a class that does not pay is tried all the same in this round.

        A burst is paid for when it begins; one that may come rarely pays a multiple of its price.
        Among others there is none, and nobody tries what could not pay if all of it were right.
        """
        if not self._alone:
            self._probed[source] = key
            return self._promise(source, repeat(1.0))[1] > 0 and self._company.pay(extra)
        if key not in self._bursts:
            price = self._settings.burst * extra * self._rarity.get(key, 1.0)
            if self._savings <= price:
                return False
            self._savings -= price
            self._bursts[key] = Burst(left=self._settings.burst)
        self._probed[source] = key
        return True

    def _end_probe(self, key: Hashable, hit: bool) -> None:
        """Count one probe; after a burst of misses the next one is rarer, after one of hits not."""
        burst = self._bursts[key]
        burst.left -= 1
        burst.hits += hit
        if burst.left:
            return
        del self._bursts[key]
        if burst.hits == 0:
            self._rarity[key] = min(2.0 * self._rarity.get(key, 1.0), self._settings.rarest)
        elif 2 * burst.hits > self._settings.burst:
            self._rarity[key] = 1.0

    def _explain(self, source: str) -> str:
        rates = " ".join(f"{rate:.2f}" for rate in islice(self._by_place(source), 4))
        usual = ", ".join(
            f"{length} ({times}x)"
            for length, times in self._verified.get(source, Counter()).most_common(3)
        )
        asked = "all it has" if self._is_free(source) else f"{self._promise(source)[1]} tokens"
        return (
            f"{source}: asked for {asked}; accepted by place {rates}; verified most often "
            f"{usual or 'nothing'}; {self._speed() * self._plain():.2f} tokens per plain step"
        )


def _matches(offered: Draft | None, source: str, verified: int) -> bool:
    """True if the judged drafts can be those that `keep` saw last; it is so at depth 1."""
    return offered is not None and offered.source == source and verified <= len(offered.tokens)


def _cut(draft: Draft, length: int) -> Draft:
    if length == len(draft.tokens):
        return draft
    confidence = None if draft.confidence is None else draft.confidence[:length]
    return replace(draft, tokens=draft.tokens[:length], confidence=confidence)


def _classes(draft: Draft) -> list[Class]:
    """A class per token and its own prior, if any: by confidence, else by length and place."""
    if draft.confidence is not None:
        return [((draft.source, "sure", _step(value)), value) for value in draft.confidence]
    size = len(draft.tokens).bit_length()
    return [((draft.source, "long", size, place), None) for place in range(len(draft.tokens))]


def _step(confidence: float) -> int:
    return sum(confidence >= edge for edge in CONFIDENCE_STEPS)
