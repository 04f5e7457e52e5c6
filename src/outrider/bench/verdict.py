"""Gates, the conditions for printing a speed, and the verdict in one sentence. Pure.

A gate that fails makes every figure of the run worthless; one that is inconclusive says that the
machine, not the engine, decided. The sentence: does it pay, by how much, why, and what to change.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Literal

from outrider.bench.stats import Estimate, Timed, disagreement, trend
from outrider.costs.prediction import PartCosts, Prediction, SweepPoint
from outrider.telemetry.counters import Counters

State = Literal["passed", "failed", "inconclusive"]
SUBSTITUTES = "auto"
"""The method that may choose its drafter itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
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


def same_output(differences: Sequence[Difference], compared: int) -> Condition:
    """Speculative output equals plain output, token for token."""
    name = "same output as plain decoding"
    if not differences:
        return Condition(name=name, state="passed", detail=f"{compared} tokens compared, all equal")
    first = differences[0]
    margin = "" if first.margin is None else f", where its lead was {first.margin:.2g} nats"
    detail = (
        f"{len(differences)} prompts differ; the first is {first.prompt} at token {first.place}: "
        f"{first.speculative} instead of {first.plain}{margin}"
    )
    return Condition(name=name, state="failed", detail=detail)


def drafts_verified(counters: Counters) -> Condition:
    """At least one draft was judged by the target, and no drafter failed on the way."""
    state: State = "passed" if counters.verified and not counters.drafter_faults else "failed"
    detail = f"{counters.verified} drafts verified in {counters.windows_judged} passes"
    if not counters.verified:
        detail += ": the drafter never fired, so nothing would be measured but its cost"
    if counters.drafter_faults:
        detail += f"; {counters.drafter_faults} drafters failed, and the rest was decoded plainly"
    return Condition(name="drafts were verified", state=state, detail=detail)


def drafter_as_asked(method: str, fallback: str | None, counters: Counters) -> Condition:
    """Every draft came from a drafter that the method names (`suffix+draft` names two), or from
    the fallback."""
    asked, seen = {*method.split("+"), fallback}, set(counters.by_source)
    strange = sorted(seen - asked) if method != SUBSTITUTES else []
    detail = f"asked for {method}, drafts came from {', '.join(sorted(seen)) or 'nobody'}"
    return Condition(
        name="the drafter is the one asked for",
        state="failed" if strange else "passed",
        detail=detail,
    )


def same_counts(counts: Sequence[tuple[str, int, int]]) -> Condition:
    """Every leg gave the tokens asked of it: (leg, asked, given)."""
    short = [(leg, asked, given) for leg, asked, given in counts if asked != given]
    detail = f"{len(counts)} legs"
    if short:
        leg, asked, given = short[0]
        detail = f"a {leg} leg gave {given} tokens instead of {asked}"
    return Condition(
        name="same token count in every leg", state="failed" if short else "passed", detail=detail
    )


def steady_counters(repeats: Sequence[Sequence[tuple[int, int, int]]]) -> Condition:
    """(proposed, verified, accepted) of a prompt is the same in each repeat."""
    changed = sum(len(set(counts)) > 1 for counts in repeats)
    return Condition(
        name="same drafts in every repeat",
        state="inconclusive" if changed else "passed",
        detail=f"{changed} of {len(repeats)} prompts differ between repeats"
        if changed
        else f"{len(repeats)} prompts",
    )


def steady_machine(samples: Sequence[Timed], allowed: float) -> Condition:
    """Plain legs agree: those around a speculative leg, and the last repeat with the first."""
    gap, change = disagreement(samples), trend(samples)
    steady = gap <= allowed and abs(change) <= allowed
    detail = (
        f"plain legs around a speculative one differ by {gap:.1%}, the last repeat takes "
        f"{1 + change:.1%} of the first one's time; allowed is {allowed:.1%} either way"
    )
    return Condition(
        name="plain legs agree", state="passed" if steady else "inconclusive", detail=detail
    )


def worst(gates: Sequence[Condition]) -> State:
    """Failed before inconclusive before passed."""
    states = {gate.state for gate in gates}
    if "failed" in states:
        return "failed"
    return "inconclusive" if "inconclusive" in states else "passed"


Outcome = Literal["pays", "does not pay", "inconclusive", "failed"]
LOW_ACCEPTANCE = 0.5
DEAR_ROW = 0.6
"""A verify row beyond the first that costs more of a plain step than this is dear."""
WORTH_A_CHANGE = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The outcome with its reason and the change that would help most."""

    outcome: Outcome
    sentence: str
    why: str
    change: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Grounds of the verdict; without a cost model (windows in flight) the last are empty."""

    gates: Sequence[Condition]
    speedup: Estimate | None = None
    acceptance: float = 0.0
    max_drafts: int = 0
    prediction: Prediction | None = None
    costs: PartCosts | None = None
    best: SweepPoint | None = None
    categories: Mapping[str, Estimate] = field(default_factory=dict)


def judge(evidence: Evidence) -> Judgement:
    """Gates first, then the interval of the speed-up."""
    state = worst(evidence.gates)
    gate = next((gate for gate in evidence.gates if gate.state == state), None)
    speedup = evidence.speedup
    if state == "failed" or speedup is None:
        detail = f"{gate.name}: {gate.detail}" if gate else "nothing was measured"
        return _verdict("failed", "No speed is given", detail, "repair that first")
    if state == "inconclusive" and gate is not None:
        change = "let the machine cool and rest (--pause, fewer other programs), then repeat"
        return _verdict("inconclusive", "Inconclusive", f"{gate.name}: {gate.detail}", change)
    if speedup.low <= 1.0 <= speedup.high:
        gains, losses = _named(evidence, pays=True), _named(evidence, pays=False)
        if gains and losses:
            seen = f"it depends on the text: it pays on {gains}, not on {losses}"
            return _verdict(
                "inconclusive", "Inconclusive", seen, "measure one --workload at a time"
            )
        seen = f"the speed-up lies between {speedup.low:.2f} and {speedup.high:.2f}"
        change = "measure more (--repeats, --prompts) or a workload of one kind"
        return _verdict("inconclusive", "Inconclusive", seen, change)
    return _pays(evidence, speedup) if speedup.value > 1 else _loses(evidence, speedup)


def _verdict(outcome: Outcome, opening: str, why: str, change: str) -> Judgement:
    return Judgement(
        outcome=outcome, sentence=f"{opening}: {why}; {change}.", why=why, change=change
    )


def _pays(evidence: Evidence, speedup: Estimate) -> Judgement:
    losses = _named(evidence, pays=False)
    why = _balance(evidence) + (f", but it loses on {losses}" if losses else "")
    return _verdict("pays", f"Speculation pays, {speedup.value:.2f}x", why, _better_k(evidence))


def _loses(evidence: Evidence, speedup: Estimate) -> Judgement:
    opening = f"Speculation does not pay, {speedup.value:.2f}x"
    if evidence.prediction is None or evidence.costs is None:
        return _verdict("does not pay", opening, _balance(evidence), "use --method off here")
    cause, change = _cause(evidence, evidence.prediction, evidence.costs)
    best = evidence.best
    if best is not None and best.prediction.speedup > 1 + WORTH_A_CHANGE:
        change = _better_k(evidence)
    return _verdict("does not pay", opening, f"{cause} ({_balance(evidence)})", change)


def _named(evidence: Evidence, *, pays: bool) -> str:
    """The kinds of text on which it clearly pays, or clearly loses."""
    return ", ".join(
        f"{name} ({found.value:.2f}x)"
        for name, found in evidence.categories.items()
        if (found.low > 1 if pays else found.high < 1)
    )


def _balance(evidence: Evidence) -> str:
    prediction = evidence.prediction
    if prediction is None:
        return f"{evidence.acceptance:.0%} of the verified drafts were kept"
    return (
        f"a round costs {prediction.units:.2f} plain steps and gives "
        f"{prediction.mean_acceptance_length:.2f} tokens, {evidence.acceptance:.0%} of the "
        "verified drafts kept"
    )


def _better_k(evidence: Evidence) -> str:
    best, prediction = evidence.best, evidence.prediction
    if best is None or prediction is None or best.k == evidence.max_drafts:
        return "no other draft length is predicted to do better"
    if best.prediction.speedup < prediction.speedup * (1 + WORTH_A_CHANGE):
        return "no other draft length is predicted to do notably better"
    return f"--max-draft-tokens {best.k} is predicted to give {best.prediction.speedup:.2f}x"


def _cause(evidence: Evidence, prediction: Prediction, costs: PartCosts) -> tuple[str, str]:
    """The largest part of what a round costs beyond a plain step, and its remedy."""
    cost = prediction.round
    excess = {
        "draft": cost.draft,
        "verify": cost.verify - costs.step,
        "rollback": cost.rollback,
    }
    part = max(excess, key=lambda name: excess[name])
    if part == "rollback":
        return "taking drafts back is too dear", "use --rollback log or draft fewer tokens"
    if part == "draft" and excess["draft"] > 0.1 * costs.plain:
        share = cost.draft / costs.plain
        return (
            f"the drafter is too large, {share:.2f} plain steps a round",
            "use a smaller drafter or a lookup method",
        )
    if _row_price(costs, prediction) > DEAR_ROW and evidence.acceptance >= LOW_ACCEPTANCE:
        return (
            "verify rows are too dear on this machine",
            "draft fewer tokens, or use --method off here",
        )
    return "acceptance is too low", "use a drafter that knows this text, or --method off here"


def _row_price(costs: PartCosts, prediction: Prediction) -> float:
    """Cost of one more row, in plain steps, over the widest pass measured."""
    rows = max(costs.verify.points, default=1)
    if rows < 2:
        return 0.0
    return (costs.verify.at(rows) - costs.step) / (rows - 1) / costs.plain
