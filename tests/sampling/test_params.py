import math

import pytest

from outrider.errors import ConfigError
from outrider.sampling.params import SamplingParams

OUT_OF_RANGE = [
    ("temperature", -0.1, "0 or a positive finite number"),
    ("temperature", math.inf, "0 or a positive finite number"),
    ("temperature", math.nan, "0 or a positive finite number"),
    ("top_k", -1, "0 or more"),
    ("top_p", 0.0, "above 0 and at most 1"),
    ("top_p", 1.01, "above 0 and at most 1"),
    ("min_p", -0.1, "from 0 to 1"),
    ("min_p", 1.5, "from 0 to 1"),
    ("repetition_penalty", 0.0, "from 1e-06 to 1e+06"),
    ("repetition_penalty", 1e-40, "from 1e-06 to 1e+06"),
    ("repetition_penalty", 1e39, "from 1e-06 to 1e+06"),
    ("repetition_penalty", math.inf, "from 1e-06 to 1e+06"),
    ("presence_penalty", 2.5, "from -2 to 2"),
    ("frequency_penalty", -2.5, "from -2 to 2"),
    ("seed", -1, "from 0 to 9223372036854775807"),
    ("seed", 2**63, "from 0 to 9223372036854775807"),
    ("logprobs", -1, "from 0 to 20"),
    ("logprobs", 21, "from 0 to 20"),
]


@pytest.mark.parametrize(("key", "value", "allowed"), OUT_OF_RANGE)
def test_out_of_range_names_key_value_and_range(key: str, value: float, allowed: str) -> None:
    with pytest.raises(ConfigError) as caught:
        SamplingParams(**{key: value})  # type: ignore[arg-type]
    message = str(caught.value)
    assert f"{key} = {value!r} is out of range" in message
    assert allowed in message


@pytest.mark.parametrize(("key", "value"), [("top_k", 1.5), ("top_k", True), ("seed", "7")])
def test_a_wrong_type_is_refused(key: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"{key} = .* is not a whole number"):
        SamplingParams(**{key: value})  # type: ignore[arg-type]


def test_a_number_given_as_text_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"temperature = '1' is not a number"):
        SamplingParams(temperature="1")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("bias", "message"),
    [
        ({3: 100.5}, r"logit_bias\[3\] = 100.5 is out of range; it must be from -100 to 100"),
        ({-1: 1.0}, r"logit_bias token = -1 is out of range"),
    ],
)
def test_bias_is_checked(bias: dict[int, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SamplingParams(logit_bias=bias)


def test_bias_outside_the_vocabulary_is_named() -> None:
    params = SamplingParams(logit_bias={3: 1.0, 9: 1.0})
    params.check_vocabulary(10)
    with pytest.raises(ConfigError, match=r"token 9, but the target's vocabulary ends at 8"):
        params.check_vocabulary(9)


def test_edges_are_allowed() -> None:
    SamplingParams(top_p=1, min_p=1.0, presence_penalty=-2, frequency_penalty=2, logprobs=20)
    SamplingParams(seed=2**63 - 1, logit_bias={0: -100, 5: 100.0}, repetition_penalty=0.01)


def test_a_missing_seed_is_drawn_and_a_given_one_kept() -> None:
    drawn = SamplingParams(temperature=1.0).with_seed()
    assert drawn.seed is not None
    assert 0 <= drawn.seed < 2**53
    assert drawn.with_seed() is drawn
    assert SamplingParams(temperature=1.0).with_seed().seed != drawn.seed
