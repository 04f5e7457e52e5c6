"""Rejection sampling against exact enumeration, and against chi-square with real randomness."""

import itertools
from collections import Counter
from collections.abc import Callable

import pytest
import torch

from outrider.errors import StateError
from outrider.sampling.logits import TokenCounts, distribution
from outrider.sampling.params import SamplingParams
from outrider.sampling.rng import Key, Purpose, draw
from outrider.verify import verifiers
from outrider.verify.verifiers import LogitRows
from tests.sampling import oracle
from tests.verify.law import row_law
from tests.verify.toy import VOCAB, logits_after, window_logits

PROMPT = (2, 0, 1)
PARAMS = [
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.7, top_k=3),
    SamplingParams(temperature=1.0, top_p=0.75),
    SamplingParams(temperature=1.0, min_p=0.3),
    SamplingParams(
        temperature=1.2, repetition_penalty=1.4, presence_penalty=0.6, frequency_penalty=0.5
    ),
]


def draft_law(context: tuple[int, ...]) -> torch.Tensor:
    """The drafter's own distribution, unlike the target's, with a token that it never drafts."""
    probs = torch.softmax(logits_after(context, salt=77), -1)
    probs[(len(context) + context[-1]) % VOCAB] = 0.0
    return probs / probs.sum()


def target_law(context: tuple[int, ...], params: SamplingParams) -> list[float]:
    return oracle.probabilities(logits_after(context).tolist(), params, list(context), len(PROMPT))


def rows_for(drafts: tuple[int, ...]) -> LogitRows:
    inputs = (PROMPT[-1], *drafts)
    contexts = [(*PROMPT, *drafts[:count]) for count in range(len(drafts))]
    return LogitRows(
        logits=window_logits(PROMPT[:-1], inputs),
        inputs=inputs,
        position=len(PROMPT),
        draft_probs=torch.stack([draft_law(context) for context in contexts]),
    )


def counts() -> TokenCounts:
    return TokenCounts(PROMPT[:-1], prompt_len=len(PROMPT))


def emitted_law(params: SamplingParams, num_drafts: int) -> dict[tuple[int, ...], float]:
    """The exact law of the next `num_drafts + 1` tokens, speculation first, then plain decoding."""
    total: dict[tuple[int, ...], float] = {}
    for drafts in itertools.product(range(VOCAB), repeat=num_drafts):
        chance = 1.0
        for count, token in enumerate(drafts):
            chance *= float(draft_law((*PROMPT, *drafts[:count])).double()[token])
        if chance > 0.0:
            _add_outcomes(total, drafts, chance, params)
    return total


def _add_outcomes(
    total: dict[tuple[int, ...], float],
    drafts: tuple[int, ...],
    chance: float,
    params: SamplingParams,
) -> None:
    rows = rows_for(drafts)
    for row in range(len(rows.inputs)):
        accepted, otherwise = row_law(verifiers.pick_rejection, rows, row, params, counts)
        for token, share in otherwise.items():
            assert token != rows.draft(row), "a rejected draft came back as its own replacement"
            emitted = (*drafts[:row], token)
            _add_plain(total, emitted, chance * (1 - accepted) * share, len(drafts) + 1, params)
        chance *= accepted
        if chance == 0.0:
            return


def _add_plain(
    total: dict[tuple[int, ...], float],
    emitted: tuple[int, ...],
    chance: float,
    length: int,
    params: SamplingParams,
) -> None:
    if len(emitted) == length:
        total[emitted] = total.get(emitted, 0.0) + chance
        return
    for token, prob in enumerate(target_law((*PROMPT, *emitted), params)):
        if prob > 0.0:
            _add_plain(total, (*emitted, token), chance * prob, length, params)


def plain_law(params: SamplingParams, length: int) -> dict[tuple[int, ...], float]:
    total: dict[tuple[int, ...], float] = {}
    _add_plain(total, (), 1.0, length, params)
    return total


def check_law(params: SamplingParams, num_drafts: int) -> None:
    found, expected = emitted_law(params, num_drafts), plain_law(params, num_drafts + 1)
    for emitted in found.keys() | expected.keys():
        assert found.get(emitted, 0.0) == pytest.approx(expected.get(emitted, 0.0), abs=1e-6)


@pytest.mark.parametrize("params", PARAMS, ids=str)
@pytest.mark.parametrize("num_drafts", [1, 2])
def test_the_law_of_the_output_is_the_targets_own(params: SamplingParams, num_drafts: int) -> None:
    check_law(params, num_drafts)


def _draft_law_ignored(weights: torch.Tensor, draft: int, position: int) -> torch.Tensor:
    return torch.full_like(weights, 1 / len(weights), dtype=torch.float64)


def _residual_not_normalised(probs: torch.Tensor, uniform: float) -> int:
    cumulative = probs.cumsum(0)
    return min(int((cumulative <= uniform).sum()), len(probs) - 1)


def _accepts_too_much(*arguments: object) -> bool:
    return _ACCEPTS(*arguments[:3], 0.9 * float(arguments[3]))  # type: ignore[arg-type]


def _row_shifted(rows: LogitRows, row: int, *rest: object) -> int:
    shifted = LogitRows(
        logits=rows.logits.roll(-1, 0),
        inputs=rows.inputs,
        position=rows.position,
        draft_probs=rows.draft_probs,
    )
    return _JUDGE(shifted, row, *rest)  # type: ignore[arg-type]


_ACCEPTS, _JUDGE = verifiers.accepts, verifiers.judge_row
FAULTS: dict[str, Callable[..., object]] = {
    "normalized": _draft_law_ignored,
    "draw": _residual_not_normalised,
    "accepts": _accepts_too_much,
    "judge_row": _row_shifted,
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifiers, name, FAULTS[name])
    with pytest.raises(AssertionError):
        check_law(PARAMS[0], 1)


def speculate(key: Key, params: SamplingParams, num_drafts: int) -> list[int]:
    """Draft, judge and return what one round emits, with the real random numbers."""
    drafts: tuple[int, ...] = ()
    for _ in range(num_drafts):
        context = (*PROMPT, *drafts)
        number = key.uniform(len(context), Purpose.DRAFT)
        drafts = (*drafts, draw(draft_law(context), number))
    picked = verifiers.pick_rejection(rows_for(drafts), params, key, counts())
    kept = 0
    while kept < num_drafts and picked[kept] == drafts[kept]:
        kept += 1
    return picked[: kept + 1]


@pytest.mark.parametrize("params", PARAMS, ids=str)
def test_real_randomness_follows_the_oracle(params: SamplingParams) -> None:
    pairs: Counter[tuple[int, int]] = Counter()
    for seed in range(3000):
        key = Key(seed=seed)
        emitted = speculate(key, params, 1)
        if len(emitted) == 1:
            context = (*PROMPT, *emitted)
            seen = TokenCounts(context, prompt_len=len(PROMPT))
            found = distribution(logits_after(context), params, seen)
            emitted.append(found.draw(key.uniform(len(context), Purpose.TARGET)))
        pairs[emitted[0], emitted[1]] += 1
    expected = plain_law(params, 2)
    cells = list(itertools.product(range(VOCAB), repeat=2))
    observed = [pairs[cell] for cell in cells]
    statistic, bound = oracle.chi_square(observed, [expected.get(cell, 0.0) for cell in cells])
    assert statistic < bound


def test_a_draft_like_the_target_is_always_accepted() -> None:
    logits = window_logits((), (1, 2, 3))
    probs = torch.softmax(logits.double(), -1)[:2]
    rows = LogitRows(logits=logits, inputs=(1, 2, 3), position=1, draft_probs=probs)
    for seed in range(200):
        picked = verifiers.pick_rejection(
            rows, SamplingParams(temperature=1.0), Key(seed=seed), None
        )
        assert picked[:2] == [2, 3]


def test_a_draft_that_the_target_forbids_is_never_accepted() -> None:
    logits = torch.tensor([[0.0, -200.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    rows = LogitRows(
        logits=logits, inputs=(0, 1), position=1, draft_probs=torch.tensor([[0.0, 1.0, 0.0, 0.0]])
    )
    params = SamplingParams(temperature=1.0, top_k=3)
    picks = {verifiers.pick_rejection(rows, params, Key(seed=seed), None)[0] for seed in range(100)}
    assert picks == {0, 2, 3}


def test_a_draft_without_probability_of_its_own_is_refused() -> None:
    logits = torch.zeros(2, VOCAB)
    rows = LogitRows(
        logits=logits, inputs=(0, 1), position=5, draft_probs=torch.tensor([[1.0, 0.0, 0.0, 0.0]])
    )
    with pytest.raises(StateError, match="draft token 1 at position 5 has probability 0"):
        verifiers.pick_rejection(rows, SamplingParams(temperature=1.0), Key(seed=0), None)
