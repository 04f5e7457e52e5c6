"""Log-probabilities: plain decoding's bit for bit, the oracle's to rounding, one for each token."""

import pytest

from tests.exactness.cells import Cell, drafter_for, make_stage
from tests.exactness.targets import SAMPLINGS, engine, generate, prompts
from tests.helpers.scripted import SCRIPTS


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize(("depth", "late"), [(1, False), (4, True)])
@pytest.mark.parametrize("method", ["suffix", *SCRIPTS])
def test_same_bits_as_plain_decoding(hybrid, method, depth, late, sampling):
    output = hybrid.oracle(sampling, prompts(), 48)[1]
    settings = {**SAMPLINGS[sampling], "logprobs": 3}
    cell = Cell(method=method, depth=depth, late=late)
    plain = generate(engine(make_stage(hybrid, cell), None), output.prompt, settings, 48).result
    made = engine(
        make_stage(hybrid, cell),
        drafter_for(hybrid, method, iter([output.all_tokens])),
        depth=depth,
    )
    result = generate(made, output.prompt, settings, 48).result
    assert result.logprobs == plain.logprobs
    assert tuple(entry.token for entry in result.logprobs) == output.tokens
    assert [entry.logprob for entry in result.logprobs] == pytest.approx(output.logprobs, abs=1e-4)


def test_the_alternatives_are_the_likeliest_tokens(hybrid):
    output = hybrid.oracle("greedy", prompts(), 48)[1]
    made = engine(make_stage(hybrid, Cell(method="off")), None)
    result = generate(made, output.prompt, {"logprobs": 2}, 8).result
    for entry in result.logprobs:
        assert len(entry.top) == 2
        assert entry.top[0] == (entry.token, entry.logprob)
        assert entry.top[1][1] <= entry.top[0][1]
