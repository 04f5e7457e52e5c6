"""Stages hand over the hidden states of their own layers; together they are those of the whole."""

import pytest
import torch

from outrider.records import Window
from outrider.sampling.params import SamplingParams
from outrider.stage.local import ChainStage
from outrider.stage.wired import Patience, WiredStage
from tests.helpers.clock import VirtualClock
from tests.stage.test_process import LINK, workers

TAPS = (-1, 0, 2, 4)


def answers(stage):
    """Replies to two pieces of a prompt and a window."""
    stage.open(0, SamplingParams(), 20, TAPS)
    windows = [(0, 10, 0), (10, 20, 1), (20, 24, 4)]
    for start, end, wanted in windows:
        tokens = tuple(range(start + 1, end + 1))
        stage.submit(
            Window(
                session=0, id=end, epoch=0, start=start, floor=start, tokens=tokens, wanted=wanted
            )
        )
    found = []
    while len(found) < len(windows):
        found += stage.run_batch()
    stage.close(0)
    stage.shutdown()
    return found


@pytest.mark.parametrize("make", ["chain", "processes"])
def test_taps_of_all_stages_stand_side_by_side(hybrid, make):
    plain = answers(hybrid.stage("log", 18))
    if make == "chain":
        cut = ChainStage(hybrid.parts((2, 1, 1), "log", 18), LINK, clock=VirtualClock())
    else:
        cut = WiredStage(workers(hybrid, LINK), Patience())
    for mine, theirs in zip(answers(cut), plain, strict=True):
        assert (mine.id, mine.tokens) == (theirs.id, theirs.tokens)
        assert torch.equal(mine.taps, theirs.taps)
