"""The shipped block drafters read rows and taps as they were trained."""

import pytest

from benchmarks import alignment, blocks
from outrider import demo
from outrider.draft.block.block_loader import load_block

NAMES = ("demo-dflash", "demo-dspark", "demo-dspark-bonus")


@pytest.mark.parametrize("name", NAMES)
def test_rows_and_taps_are_those_of_training(name, target, texts):
    model = load_block(demo.path(name), target.ends)
    found = blocks.grid(model, texts, target.decoder.config.num_layers)
    assert len(found) == 9
    best = max(alignment.accepted(scores) for scores in found.values())
    assert alignment.accepted(found[0, 0]) >= best - 0.005, alignment.table(found)
    for cell in found:
        if cell != (0, 0):
            gap, error = alignment.below(found, cell)
            assert gap > 2 * error, alignment.table(found)
