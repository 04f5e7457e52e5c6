"""How many tokens a pass brings with each shipped drafter, on the three held-out parts alike."""

from dataclasses import dataclass, replace

import pytest

from benchmarks import acceptance
from outrider.assemble.engine import Engine
from outrider.config.settings import SpeculativeConfig
from outrider.draft.block.block_trunk import Trunk

PROMPTS, TOKENS = 4, 96


@dataclass(frozen=True)
class Floor:
    """Drafts in a round, and the least mean acceptance length, over all text and fresh text."""

    method: str
    model: str | None
    drafts: int
    length: float
    fresh: float


FLOORS = (
    Floor("mtp", None, 1, 1.6, 1.6),
    Floor("eagle3", "demo-eagle3", 3, 1.9, 1.9),
    Floor("dflash", "demo-dflash", 7, 2.2, 2.2),
    Floor("dspark", "demo-dspark", 8, 2.6, 2.6),
    Floor("dspark", "demo-dspark-bonus", 7, 2.6, 2.6),
    Floor("draft", "demo-draft", 4, 1.5, 1.5),
)
EACH = pytest.mark.parametrize("floor", FLOORS, ids=lambda floor: floor.model or floor.method)


def check(floor: Floor) -> None:
    config = SpeculativeConfig(
        method=floor.method, draft_model=floor.model, max_draft_tokens=floor.drafts
    )
    engine = Engine.load("demo", speculative=config)
    row = acceptance.rows(acceptance.measure(engine, PROMPTS, TOKENS))[-1]
    engine.close()
    told = (
        f"{floor.model or floor.method}, {floor.drafts} drafts: {row['length']:.2f} tokens per "
        f"pass, {row['fresh']:.2f} over fresh text, {row['accepted']} of {row['verified']} drafts "
        f"accepted in {row['passes']} passes"
    )
    assert row["length"] >= floor.length, told
    assert row["fresh"] >= floor.fresh, told


@EACH
def test_acceptance_floor(floor):
    check(floor)


def test_a_floor_that_is_missed_tells_rate_and_counts():
    raised = replace(FLOORS[-1], length=4.9)
    with pytest.raises(AssertionError, match=r"tokens per pass.* \d+ of \d+ drafts accepted"):
        check(raised)


@pytest.mark.parametrize("floor", FLOORS[2:5], ids=lambda floor: floor.model)
def test_block_rows_read_one_off_fall_through_the_floor(floor, monkeypatch):
    run = Trunk.run
    monkeypatch.setattr(
        Trunk,
        "run",
        lambda self, x, context, wanted: run(self, x, context, len(x)).roll(-1, 0)[:wanted],
    )
    with pytest.raises(AssertionError, match=r"drafts: 1\.\d+ tokens per pass"):
        check(floor)
