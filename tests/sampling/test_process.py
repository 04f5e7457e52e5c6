import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.errors import ConfigError, StageError
from outrider.sampling.logits import TokenCounts, adjust, distribution, probabilities
from outrider.sampling.params import SamplingParams
from outrider.sampling.rng import Key, Purpose
from tests.sampling import oracle

VOCAB = 8
PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.3, 1.0, 1.7]),
    top_k=st.integers(0, VOCAB + 1),
    top_p=st.sampled_from([0.05, 0.5, 0.83, 1.0]),
    min_p=st.sampled_from([0.0, 0.07, 0.4]),
    repetition_penalty=st.sampled_from([0.8, 1.0, 1.4]),
    presence_penalty=st.sampled_from([-1.1, 0.0, 0.6]),
    frequency_penalty=st.sampled_from([-0.3, 0.0, 0.7]),
    logit_bias=st.dictionaries(st.integers(0, VOCAB - 1), st.sampled_from([-9.0, 1.3]), max_size=2),
)
HISTORY = st.lists(st.integers(0, VOCAB - 1), max_size=6)


def logits(seed: int, vocab: int = VOCAB) -> torch.Tensor:
    return 2 * torch.randn(vocab, generator=torch.Generator().manual_seed(seed))


@settings(max_examples=150, deadline=None, derandomize=True)
@given(PARAMS, HISTORY, st.integers(0, 6), st.integers(0, 1000))
def test_probabilities_equal_the_oracle(
    params: SamplingParams, history: list[int], prompt_len: int, seed: int
) -> None:
    row = logits(seed)
    counts = TokenCounts(history, prompt_len=prompt_len)
    found = probabilities(row, params, counts).tolist()
    expected = oracle.probabilities(row.tolist(), params, history, prompt_len)
    assert found == pytest.approx(expected, abs=2e-6)
    assert [value > 0 for value in found] == [value > 0 for value in expected]


def test_the_row_itself_is_never_changed() -> None:
    row = logits(1)
    kept = row.clone()
    params = SamplingParams(
        temperature=1.0, logit_bias={1: 2.0}, repetition_penalty=1.5, presence_penalty=1.0
    )
    adjust(row, params, TokenCounts([1, 2]))
    distribution(row, params, TokenCounts([1, 2]))
    assert torch.equal(row, kept)


def test_without_bias_and_penalties_the_row_is_passed_on() -> None:
    row = logits(1)
    assert adjust(row, SamplingParams(temperature=1.0, top_k=3), None) is row


def test_ties_with_the_last_token_kept_are_kept() -> None:
    row = torch.tensor([1.0, 0.0, 1.0, 1.0])
    for params in (
        SamplingParams(temperature=1.0, top_k=2),
        SamplingParams(temperature=1.0, top_p=0.1),
    ):
        assert distribution(row, params, None).ids.tolist() == [0, 2, 3]


def test_a_large_vocabulary_has_the_same_nucleus_as_a_full_sort() -> None:
    for scale in (0.01, 1.0, 8.0):
        row = scale * logits(3, vocab=40_000)
        params = SamplingParams(temperature=1.0, top_p=0.9)
        probs = torch.softmax(row.double(), -1)
        ordered = probs.sort(descending=True)
        size = int((ordered.values.cumsum(0) < 0.9).sum()) + 1
        expected = ordered.indices[:size].sort().values
        assert distribution(row, params, None).ids.tolist() == expected.tolist()


@pytest.mark.parametrize("temperature", [1e-300, 1e-6, 1e6])
def test_extreme_temperatures_stay_finite(temperature: float) -> None:
    probs = probabilities(logits(5), SamplingParams(temperature=temperature), None)
    assert float(probs.sum()) == pytest.approx(1.0)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("top_k", [0, 2])
def test_broken_logits_are_refused(value: float, top_k: int) -> None:
    row = torch.tensor([0.0, value, 1.0])
    with pytest.raises(StageError, match="check the checkpoint and its dtype"):
        distribution(row, SamplingParams(temperature=1.0, top_k=top_k), None)


def test_bias_outside_the_vocabulary_is_refused() -> None:
    with pytest.raises(ConfigError, match="token 8"):
        adjust(logits(1), SamplingParams(logit_bias={8: 1.0}), None)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1.0),
        SamplingParams(temperature=1.3, top_k=4),
        SamplingParams(temperature=1.0, top_p=0.7),
        SamplingParams(temperature=1.0, min_p=0.15),
        SamplingParams(temperature=0.9, repetition_penalty=1.3, presence_penalty=0.5),
        SamplingParams(temperature=1.1, frequency_penalty=0.4, top_k=6, top_p=0.9, min_p=0.02),
    ],
    ids=str,
)
def test_draws_follow_the_oracle(params: SamplingParams) -> None:
    row, history = logits(11), [1, 4, 4, 2]
    expected = oracle.probabilities(row.tolist(), params, history, 1)
    found = distribution(row, params, TokenCounts(history, prompt_len=1))
    drawn = [0] * VOCAB
    for seed in range(4000):
        drawn[found.draw(Key(seed=seed).uniform(4, Purpose.TARGET))] += 1
    statistic, bound = oracle.chi_square(drawn, expected)
    assert statistic < bound
