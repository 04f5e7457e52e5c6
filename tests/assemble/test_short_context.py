"""In contexts shorter than what is measured at start, every method starts and is lossless."""

from contextlib import closing

import pytest

from outrider.assemble.engine import Engine
from outrider.config.settings import SpeculativeConfig, TargetConfig
from outrider.costs import timing

DRAFTERS = {
    "suffix": ("suffix", None),
    "ngram-cache": ("ngram-cache", None),
    "draft": ("draft", "demo-draft"),
    "suffix+draft": ("suffix+draft", "demo-draft"),
    "mtp": ("mtp", None),
    "eagle3": ("eagle3", "demo-eagle3"),
    "dflash": ("dflash", "demo-dflash"),
    "dspark": ("dspark", "demo-dspark"),
    "dspark-bonus": ("dspark", "demo-dspark-bonus"),
    "auto": ("auto", None),
}
TEXT = [5, 6, 7] * 30


def outputs(length: int, speculative: SpeculativeConfig) -> list[tuple[int, ...]]:
    """Eight tokens, or as many as there is room for, after a short, a fitting and a full prompt."""
    found = []
    target = TargetConfig(path="demo", max_length=length)
    with closing(Engine.load(target, speculative=speculative)) as engine:
        for prompt in (1, max(1, length - 9), length - 1):
            generation = engine.generate(TEXT[:prompt], max_tokens=8, ignore_eos=True)
            assert sum(len(piece.tokens) for piece in generation) == min(8, length - prompt)
            found.append(generation.result.token_ids)
    return found


@pytest.fixture(scope="module")
def plain() -> dict[int, list[tuple[int, ...]]]:
    return {n: outputs(n, SpeculativeConfig(method="off")) for n in (2, 7, 32, 70)}


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("length", [2, 7, 32, 70])
def test_every_drafter_starts_within_the_context(
    drafter: str,
    length: int,
    plain: dict[int, list[tuple[int, ...]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(timing, "ROUNDS", 1)
    method, model = DRAFTERS[drafter]
    assert outputs(length, SpeculativeConfig(method=method, draft_model=model)) == plain[length]
