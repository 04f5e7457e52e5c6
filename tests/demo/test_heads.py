"""MTP and EAGLE-3 on the demo target are aligned; how acceptance is counted over fresh text."""

import pytest

from benchmarks import acceptance, alignment
from outrider.assemble.drafter import load_drafting
from outrider.config.settings import SpeculativeConfig
from outrider.draft.heads.one_token import Head

MODELS = {"mtp": None, "eagle3": "demo-eagle3"}


@pytest.mark.parametrize("method", MODELS)
def test_pairing_and_taps_are_those_of_training(method, target, texts):
    config = SpeculativeConfig(method=method, draft_model=MODELS[method])
    head = load_drafting(config, target)
    assert isinstance(head, Head)
    layers = target.decoder.config.num_layers
    found = alignment.grid(head, texts, layers, alignment.TAP_SHIFTS)
    assert len(texts) >= 20
    assert len(found) == (9 if method == "eagle3" else 6)  # behind MTP's tap there is none
    best = max(alignment.accepted(scores) for scores in found.values())
    assert alignment.accepted(found[0, 0]) >= best - 0.01, alignment.table(found)
    for cell in found:
        if cell != (0, 0):
            gap, error = alignment.below(found, cell)
            assert gap > 2 * error, alignment.table(found)


def test_fresh_tokens_are_in_no_repeated_eight():
    prompt, output = [*range(10), 99], [*range(1, 10), 50]
    # 1 .. 9 stand in the prompt; both runs of eight among them repeat, 50 is new.
    assert acceptance.fresh(prompt, output) == [False] * 9 + [True]
    assert acceptance.fresh(prompt, [*range(1, 8), 50]) == [True] * 8


def test_a_pass_counts_by_its_fresh_tokens():
    one = acceptance.Run(
        counters=None, passes=((True, True, False, False), (True,), (False, False))
    )
    assert acceptance.mean_length([one]) == 7 / 3
    assert acceptance.mean_length([one], only_fresh=True) == 3 / 1.5
