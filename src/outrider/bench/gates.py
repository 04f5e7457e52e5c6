"""Conditions for printing a speed. Pure.

A gate that fails makes every figure of the run worthless; one that is inconclusive says that the
machine, not the engine, decided.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Literal

from outrider.bench.stats import Timed, disagreement, trend
from outrider.telemetry.counters import Counters

State = Literal["passed", "failed", "inconclusive"]
SUBSTITUTES = "auto"
"""The method that may choose its drafter itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """One condition: whether it held, and what was seen."""

    name: str
    state: State
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Where speculative output leaves plain output: token `place` of prompt `prompt`.

    `margin`: by how much the target preferred its token over the runner-up there, in nats (logits
    differ by as much); None where the engine did not say.
    """

    prompt: str
    place: int
    plain: int | None
    speculative: int | None
    margin: float | None = None


def first_difference(
    prompt: str, plain: Sequence[int], speculative: Sequence[int]
) -> Difference | None:
    """The first token that differs, or None."""
    pairs = enumerate(zip_longest(plain, speculative))
    found = next(((place, one, other) for place, (one, other) in pairs if one != other), None)
    if found is None:
        return None
    return Difference(prompt=prompt, place=found[0], plain=found[1], speculative=found[2])


def same_output(differences: Sequence[Difference], compared: int) -> Gate:
    """Speculative output equals plain output, token for token."""
    name = "same output as plain decoding"
    if not differences:
        return Gate(name=name, state="passed", detail=f"{compared} tokens compared, all equal")
    first = differences[0]
    margin = "" if first.margin is None else f", where its lead was {first.margin:.2g} nats"
    detail = (
        f"{len(differences)} prompts differ; the first is {first.prompt} at token {first.place}: "
        f"{first.speculative} instead of {first.plain}{margin}"
    )
    return Gate(name=name, state="failed", detail=detail)


def drafts_verified(counters: Counters) -> Gate:
    """At least one draft was judged by the target, and no drafter failed on the way."""
    state: State = "passed" if counters.verified and not counters.drafter_faults else "failed"
    detail = f"{counters.verified} drafts verified in {counters.windows_judged} passes"
    if not counters.verified:
        detail += ": the drafter never fired, so nothing would be measured but its cost"
    if counters.drafter_faults:
        detail += f"; {counters.drafter_faults} drafters failed, and the rest was decoded plainly"
    return Gate(name="drafts were verified", state=state, detail=detail)


def drafter_as_asked(method: str, fallback: str | None, counters: Counters) -> Gate:
    """Every draft came from a drafter that the method names (`suffix+draft` names two), or from
    the fallback."""
    asked, seen = {*method.split("+"), fallback}, set(counters.by_source)
    strange = sorted(seen - asked) if method != SUBSTITUTES else []
    detail = f"asked for {method}, drafts came from {', '.join(sorted(seen)) or 'nobody'}"
    return Gate(
        name="the drafter is the one asked for",
        state="failed" if strange else "passed",
        detail=detail,
    )


def same_counts(counts: Sequence[tuple[str, int, int]]) -> Gate:
    """Every leg gave the tokens asked of it: (leg, asked, given)."""
    short = [(leg, asked, given) for leg, asked, given in counts if asked != given]
    detail = f"{len(counts)} legs"
    if short:
        leg, asked, given = short[0]
        detail = f"a {leg} leg gave {given} tokens instead of {asked}"
    return Gate(
        name="same token count in every leg", state="failed" if short else "passed", detail=detail
    )


def steady_counters(repeats: Sequence[Sequence[tuple[int, int, int]]]) -> Gate:
    """(proposed, verified, accepted) of a prompt is the same in each repeat."""
    changed = sum(len(set(counts)) > 1 for counts in repeats)
    return Gate(
        name="same drafts in every repeat",
        state="inconclusive" if changed else "passed",
        detail=f"{changed} of {len(repeats)} prompts differ between repeats"
        if changed
        else f"{len(repeats)} prompts",
    )


def steady_machine(samples: Sequence[Timed], allowed: float) -> Gate:
    """Plain legs agree: those around a speculative leg, and the last repeat with the first."""
    gap, change = disagreement(samples), trend(samples)
    steady = gap <= allowed and abs(change) <= allowed
    detail = (
        f"plain legs around a speculative one differ by {gap:.1%}, the last repeat takes "
        f"{1 + change:.1%} of the first one's time; allowed is {allowed:.1%} either way"
    )
    return Gate(
        name="plain legs agree", state="passed" if steady else "inconclusive", detail=detail
    )


def worst(gates: Sequence[Gate]) -> State:
    """Failed before inconclusive before passed."""
    states = {gate.state for gate in gates}
    if "failed" in states:
        return "failed"
    return "inconclusive" if "inconclusive" in states else "passed"
