"""Any cutting into windows gives the tokens of plain decoding."""

import random
from collections.abc import Sequence

import pytest
import torch

from outrider.errors import ConfigError, StageError, StateError
from outrider.records import Window
from outrider.sampling.logits import TokenCounts
from outrider.sampling.params import SamplingParams
from outrider.sampling.rng import Key, Purpose
from outrider.verify.sampler import Sampler
from outrider.verify.verifiers import LogitRows, pick_matching
from tests.sampling import oracle
from tests.verify.law import ScriptedKey, law
from tests.verify.toy import window_logits

VOCAB = 8
PROMPT = [3, 1, 4, 1]
PARAMS = [
    SamplingParams(),
    SamplingParams(repetition_penalty=1.3, frequency_penalty=0.8, logit_bias={2: 0.7}),
    SamplingParams(temperature=1.0, seed=5),
    SamplingParams(temperature=0.8, seed=6, top_k=5, top_p=0.9, min_p=0.05),
    SamplingParams(temperature=1.1, seed=7, presence_penalty=0.9, repetition_penalty=1.2),
]


def window(start: int, tokens: Sequence[int], wanted: int | None = None) -> Window:
    return Window(
        session=0,
        id=0,
        epoch=0,
        start=start,
        floor=0,
        tokens=tuple(tokens),
        wanted=len(tokens) if wanted is None else wanted,
    )


def pick(tail: Sampler, context: Sequence[int], tokens: Sequence[int]) -> list[int]:
    logits = window_logits(context, tokens, vocab=VOCAB)
    return list(tail.pick(window(len(context), tokens), logits).tokens)


def plain(params: SamplingParams, length: int) -> list[int]:
    tail, tokens = Sampler(params, PROMPT), list(PROMPT)
    while len(tokens) < length:
        tokens += pick(tail, tokens[:-1], tokens[-1:])
    return tokens


def speculative(params: SamplingParams, length: int, seed: int) -> list[int]:
    """Decode with windows of random width holding right, wrong and half-right drafts."""
    truth, chance = plain(params, length + 8), random.Random(seed)
    tail, tokens = Sampler(params, PROMPT), list(PROMPT)
    while len(tokens) < length:
        width = chance.randrange(5)
        drafts = [
            token if chance.random() < 0.7 else chance.randrange(VOCAB)
            for token in truth[len(tokens) : len(tokens) + width]
        ]
        picked = pick(tail, tokens[:-1], [tokens[-1], *drafts])
        kept = 0
        while kept < width and picked[kept] == drafts[kept]:
            kept += 1
        tokens += picked[: kept + 1]
    return tokens[:length]


@pytest.mark.parametrize("params", PARAMS, ids=str)
def test_windows_of_any_width_give_the_tokens_of_plain_decoding(params: SamplingParams) -> None:
    expected = plain(params, 40)
    assert len(set(expected[4:])) > 2
    for seed in range(5):
        assert speculative(params, 40, seed) == expected


@pytest.mark.parametrize("params", PARAMS, ids=str)
def test_windows_in_flight_give_the_tokens_of_plain_decoding(params: SamplingParams) -> None:
    """A wrong window and its dependents are judged, then the next epoch starts below them."""
    truth = plain(params, 12)
    wrong = [(token + 1) % VOCAB for token in truth]
    tail = Sampler(params, PROMPT)
    first = pick(tail, truth[:3], [*truth[3:5], *wrong[5:7]])
    assert first[:2] == truth[4:6]
    pick(tail, [*truth[:5], *wrong[5:7]], wrong[7:9])
    assert pick(tail, truth[:5], truth[5:8]) == truth[6:9]
    assert pick(tail, truth[:8], truth[8:11]) == truth[9:12]


@pytest.mark.parametrize("params", PARAMS, ids=str)
def test_prefill_in_pieces_equals_prefill_at_once(params: SamplingParams) -> None:
    expected = plain(params, 5)[-1]
    tail = Sampler(params, PROMPT)
    nothing = torch.empty(0, VOCAB)
    assert tail.pick(window(0, PROMPT[:2], wanted=0), nothing).tokens == ()
    last = window_logits(PROMPT[:3], PROMPT[3:], vocab=VOCAB)
    assert tail.pick(window(2, PROMPT[2:], wanted=1), last).tokens == (expected,)


def test_a_session_rebuilt_from_its_tokens_goes_on_alike() -> None:
    for params in PARAMS:
        expected = plain(params, 20)
        tail = Sampler(params, expected[:12], prompt_len=len(PROMPT))
        assert pick(tail, expected[:11], expected[11:15]) == expected[12:16]


def test_choices_and_seeds_differ() -> None:
    def decode(seed: int, choice: int) -> list[int]:
        tail = Sampler(SamplingParams(temperature=1.0, seed=seed, choice=choice), PROMPT)
        return [pick(tail, [0] * position, [1])[0] for position in range(4, 24)]

    assert decode(1, 0) == decode(1, 0)
    assert len({tuple(decode(seed, choice)) for seed in (1, 2) for choice in (0, 1)}) == 4


@pytest.mark.parametrize("params", PARAMS[2:], ids=str)
def test_matching_is_exact_rejection_for_a_draft_that_was_not_sampled(
    params: SamplingParams,
) -> None:
    """The law of a row's token is the target's own, whatever the draft is."""
    for draft in range(VOCAB):
        inputs = (PROMPT[-1], draft)
        rows = LogitRows(
            logits=window_logits(PROMPT[:-1], inputs, vocab=VOCAB), inputs=inputs, position=4
        )
        expected = oracle.probabilities(rows.logits[0].tolist(), params, PROMPT, len(PROMPT))
        single = LogitRows(logits=rows.logits[:1], inputs=inputs[:1], position=4)
        for asked in (rows, single):
            assert matching_law(asked, params) == pytest.approx(expected, abs=2e-6)


def matching_law(rows: LogitRows, params: SamplingParams) -> list[float]:
    """The exact law of row 0's token, the other rows' numbers held fixed."""
    others = {(rows.position + row, Purpose.TARGET): 0.5 for row in range(1, len(rows.inputs))}

    def token(number: float) -> int:
        key = ScriptedKey(numbers=others | {(rows.position, Purpose.TARGET): number})
        counts = TokenCounts(PROMPT[:-1], prompt_len=len(PROMPT))
        return pick_matching(rows, params, key, counts)[0]

    found = law(token)
    return [found.get(token, 0.0) for token in range(VOCAB)]


def test_greedy_takes_the_lowest_id_among_ties_and_rows_do_not_interact() -> None:
    logits = torch.tensor([[0.0, 2.0, 2.0], [5.0, 5.0, 5.0], [1.0, 0.0, 3.0]])
    assert Sampler(SamplingParams()).pick(window(0, [0, 0, 0]), logits).tokens == (1, 0, 2)
    wide = torch.randn(6, 1000, generator=torch.Generator().manual_seed(0)).round()
    together = Sampler(SamplingParams()).pick(window(0, [0] * 6), wide).tokens
    apart = [Sampler(SamplingParams()).pick(window(0, [0]), row[None]).tokens[0] for row in wide]
    assert list(together) == apart


def test_sampled_drafts_of_a_greedy_request_are_compared_with_the_argmax() -> None:
    logits = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    asked = Window(
        session=0,
        id=0,
        epoch=0,
        start=0,
        floor=0,
        tokens=(0, 0),
        wanted=2,
        draft_probs=torch.tensor([[0.5, 0.5]]),
    )
    assert Sampler(SamplingParams()).pick(asked, logits).tokens == (1, 0)


def test_draft_distributions_are_used_for_sampled_requests() -> None:
    """A draft of probability 1/2 under a uniform target over 4 is accepted half of the time."""
    accepted = 0
    for seed in range(2000):
        tail = Sampler(SamplingParams(temperature=1.0, seed=seed))
        asked = Window(
            session=0,
            id=0,
            epoch=0,
            start=0,
            floor=0,
            tokens=(0, 3),
            wanted=2,
            draft_probs=torch.tensor([[0.5, 0.0, 0.0, 0.5]]),
        )
        accepted += tail.pick(asked, torch.zeros(2, 4)).tokens[0] == 3
    assert oracle.chi_square([accepted, 2000 - accepted], [0.5, 0.5])[0] < 15


def test_logprobs_are_those_of_the_raw_logits() -> None:
    logits = window_logits([], [1, 2], vocab=VOCAB)
    params = SamplingParams(temperature=0.3, seed=1, top_k=2, logit_bias={0: 9.0}, logprobs=3)
    picked = Sampler(params).pick(window(0, [1, 2]), logits)
    expected = torch.log_softmax(logits.double(), -1)
    for row, token, found in zip(expected, picked.tokens, picked.logprobs, strict=True):
        assert found.token == token
        assert found.logprob == pytest.approx(float(row[token]), abs=1e-5)
        ordered = row.sort(descending=True)
        assert [pair[0] for pair in found.top] == ordered.indices[:3].tolist()
        assert [pair[1] for pair in found.top] == pytest.approx(
            ordered.values[:3].tolist(), abs=1e-5
        )


def test_logprobs_zero_gives_the_picked_token_only() -> None:
    picked = Sampler(SamplingParams(logprobs=0)).pick(window(0, [1]), torch.zeros(1, 4))
    assert picked.logprobs[0].top == ()


def test_a_sampled_session_without_a_seed_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"seed = None .*with_seed"):
        Sampler(SamplingParams(temperature=1.0))


def test_rows_that_do_not_fit_the_window_are_refused() -> None:
    with pytest.raises(StageError, match=r"wants 2 rows of logits and got shape \[3, 4\]"):
        Sampler(SamplingParams()).pick(window(0, [1, 2]), torch.zeros(3, 4))


def test_a_gap_in_the_history_is_refused() -> None:
    tail = Sampler(SamplingParams(presence_penalty=1.0), PROMPT)
    with pytest.raises(StateError, match="cannot be cut to 9"):
        tail.pick(window(9, [1]), torch.zeros(1, 4))


@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(presence_penalty=1.0)])
def test_nan_is_refused(params: SamplingParams) -> None:
    with pytest.raises(StageError, match="hold NaN"):
        Sampler(params).pick(window(0, [1, 1]), torch.tensor([[float("nan"), 1.0], [0.0, 1.0]]))


def test_matching_draws_are_planted_fault_sensitive(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers that depend on the row within the window, not the position, change the tokens."""
    expected = plain(PARAMS[2], 40)

    def by_row(
        rows: LogitRows, params: SamplingParams, key: Key, counts: TokenCounts | None
    ) -> list:
        shifted = LogitRows(logits=rows.logits, inputs=rows.inputs, position=1)
        return pick_matching(shifted, params, key, counts)

    monkeypatch.setattr("outrider.verify.sampler.pick_matching", by_row)
    assert speculative(PARAMS[2], 40, 0) != expected
