"""The shipped block drafters: rows and taps are read right, and drafts accepted often enough."""

import pytest

from benchmarks import acceptance, alignment, blocks
from outrider import demo
from outrider.assemble.engine import Engine
from outrider.config.run import SpeculativeConfig
from outrider.draft.block.load import load_block
from outrider.draft.block.trunk import Trunk
from outrider.errors import CheckpointError

# Drafts in a round and the least mean acceptance length.
FLOORS = {"dflash": (7, 2.2), "dspark": (8, 2.6), "dspark-bonus": (7, 2.6)}
PROMPTS, TOKENS = 4, 96


def is_shipped(name: str) -> bool:
    try:
        return bool(demo.path(f"demo-{name}"))
    except CheckpointError:
        return False


NAMES = [name for name in FLOORS if is_shipped(name)]


@pytest.mark.parametrize("name", NAMES)
def test_rows_and_taps_are_those_of_training(name, target, texts):
    model = load_block(demo.path(f"demo-{name}"), target.ends, target.kernels)
    found = blocks.grid(model, texts, target.decoder.config.num_layers)
    assert len(found) == 9
    best = max(alignment.accepted(scores) for scores in found.values())
    assert alignment.accepted(found[0, 0]) >= best - 0.005, alignment.table(found)
    for cell in found:
        if cell != (0, 0):
            gap, error = alignment.below(found, cell)
            assert gap > 2 * error, alignment.table(found)


def measured(name: str) -> dict:
    drafts, _ = FLOORS[name]
    method = name.partition("-")[0]
    config = SpeculativeConfig(method=method, draft_model=f"demo-{name}", max_draft_tokens=drafts)
    engine = Engine.load("demo", speculative=config)
    return acceptance.rows(acceptance.measure(engine, PROMPTS, TOKENS))[-1]


def check_floor(name: str, row: dict) -> None:
    drafts, floor = FLOORS[name]
    told = (
        f"{name}, {drafts} drafts: {row['length']:.2f} tokens per pass, {row['fresh']:.2f} over "
        f"fresh text, {row['accepted']} of {row['verified']} drafts in {row['passes']} passes"
    )
    assert row["length"] >= floor, told
    assert row["fresh"] >= floor, told


@pytest.mark.parametrize("name", NAMES)
def test_acceptance_floor(name):
    check_floor(name, measured(name))


@pytest.mark.parametrize("name", NAMES)
def test_rows_read_one_off_fall_through_the_floor(name, monkeypatch):
    run = Trunk.run
    monkeypatch.setattr(Trunk, "run", lambda self, x, context: run(self, x, context).roll(-1, 0))
    with pytest.raises(AssertionError, match=f"{name}, . drafts: 1\\...* tokens per pass"):
        check_floor(name, measured(name))
