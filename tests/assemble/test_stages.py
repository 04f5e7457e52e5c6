"""Engines whose target is cut into stages, as configured."""

from contextlib import closing

import pytest

from outrider.assemble.decisions import cut
from outrider.assemble.engine import Engine
from outrider.config.settings import LinkConfig, SpeculativeConfig, StagesConfig, VerifyWindowConfig
from outrider.errors import ConfigError

PROMPT = "def area(width, height):\n    return width * height\n\ndef area(width,"
PIPELINED = SpeculativeConfig(
    method="suffix", verify_window=VerifyWindowConfig(depth=4, max_tokens=4)
)


@pytest.fixture(scope="module")
def plain():
    with closing(Engine.load("demo", speculative=SpeculativeConfig(method="off"))) as engine:
        return generated(engine)


def generated(engine):
    request = engine.generate(PROMPT, max_tokens=24)
    list(request)
    return request


@pytest.mark.parametrize(
    "stages",
    [
        StagesConfig(count=3, layers="3,1,4", link=LinkConfig(delay_ms=4.0, jitter_ms=2.0)),
        StagesConfig(link=LinkConfig(delay_ms=4.0)),
        StagesConfig(count=2, processes=True),
    ],
    ids=["chain", "remote", "processes"],
)
def test_stages_change_no_token(plain, stages):
    with closing(Engine.load("demo", speculative=PIPELINED, stages=stages)) as engine:
        request = generated(engine)
        assert request.result.token_ids == plain.result.token_ids
        assert request.counters.accepted > 0
        assert request.counters.max_in_flight > 1
        assert engine.stage.exact == plain.counters.exact


def test_even_and_named_cuts():
    assert cut(StagesConfig(count=3), 8) == [(0, 3), (3, 6), (6, 8)]
    assert cut(StagesConfig(count=2, layers="5,3"), 8) == [(0, 5), (5, 8)]
    assert cut(StagesConfig(), 8) == [(0, 8)]


@pytest.mark.parametrize(
    ("stages", "said"),
    [
        (StagesConfig(count=9), "stages.count = 9 exceeds the 8 layers"),
        (StagesConfig(count=2, layers="5,4"), "adds up to 9 and the target has 8 layers"),
    ],
)
def test_cuts_that_do_not_fit(stages, said):
    with pytest.raises(ConfigError, match=said):
        cut(stages, 8)
