"""A world of known acceptance and costs, to see what a controller makes of it."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from outrider.costs.batch_model import Costs
from outrider.engine.controller import Controller
from outrider.records import Draft

Offer = Callable[[int, random.Random, int], tuple[Draft, Sequence[float]] | None]
"""From (round, chance, allowed) to a draft and the true acceptance of each of its tokens."""


@dataclass(frozen=True)
class Source:
    """A drafter: its name, what it offers, and the cost of drafting k tokens."""

    name: str
    offer: Offer
    cost: Sequence[float] = ()

    def paid(self, tokens: int) -> float:
        return self.cost[tokens - 1] if self.cost and tokens else 0.0


@dataclass
class Run:
    """What a run brought: tokens, its cost and that of plain decoding, and the lengths verified."""

    tokens: int
    cost: float
    lengths: list[int]
    sources: list[str | None]

    def speed(self, plain: float) -> float:
        return self.tokens / self.cost * plain


class World:
    """Sources asked in order, and a target whose passes cost `verify[rows - 1]`."""

    def __init__(self, verify: Sequence[float], *sources: Source, seed: int = 0) -> None:
        self.verify, self.sources, self.seed = verify, sources, seed

    def costs(self) -> Costs:
        return Costs(verify=self.verify, draft={s.name: s.cost for s in self.sources})

    def run(self, controller: Controller, rounds: int) -> Run:
        return self._run(rounds, controller.limit, controller.keep, controller)

    def fixed(self, length: int, rounds: int) -> float:
        """Speed, in tokens per plain step, of always asking for and verifying `length`."""
        run = self._run(rounds, lambda name, budget: min(length, budget), lambda draft: draft, None)
        return run.speed(self.verify[0])

    def best_fixed(self, rounds: int) -> tuple[float, int]:
        return max((self.fixed(length, rounds), length) for length in range(len(self.verify)))

    def _run(self, rounds, limit, keep, controller) -> Run:
        chance = random.Random(self.seed)
        run = Run(0, 0.0, [], [])
        for number in range(rounds):
            source, verified, accepted, paid = self._round(number, chance, limit, keep)
            run.tokens += 1 + accepted
            run.cost += self.verify[verified] + paid
            run.lengths.append(verified)
            run.sources.append(source)
            if controller is not None:
                controller.learn(source, verified, accepted)
        return run

    def _round(self, number, chance, limit, keep):
        paid = 0.0
        most = len(self.verify) - 1
        for source in self.sources:
            allowed = limit(source.name, most)
            found = source.offer(number, chance, allowed) if allowed else None
            if found is None:
                continue
            draft, rates = found
            paid += source.paid(len(draft.tokens))
            kept = keep(draft)
            if kept is None:
                continue
            accepted = 0
            for rate in rates[: len(kept.tokens)]:
                if chance.random() >= rate:
                    break
                accepted += 1
            return source.name, len(kept.tokens), accepted, paid
        return None, 0, 0, paid


def steady(name: str, *rates: float) -> Offer:
    """Always drafts what is allowed; the last rate holds for all later places."""

    def offer(number: int, chance: random.Random, allowed: int):
        full = [*rates, *[rates[-1]] * allowed][:allowed]
        return Draft(tokens=(0,) * allowed, source=name), full

    return offer


def changing(name: str, *phases: tuple[int, float]) -> Offer:
    """As `steady`, with a rate that holds until a round: (until, rate)."""

    def offer(number: int, chance: random.Random, allowed: int):
        rate = next((rate for until, rate in phases if number < until), phases[-1][1])
        return Draft(tokens=(0,) * allowed, source=name), [rate] * allowed

    return offer
