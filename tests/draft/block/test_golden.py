"""Drafts equal those of speculators 0.9.0's own modules (`tests/golden/speculators_block.py`)."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from outrider.draft.block.block_drafter import BlockDrafter
from outrider.draft.block.block_loader import load_block
from outrider.models.load import LoadOptions, load_decoder
from outrider.records import Commit, Context
from tests.draft.block.recorder import Recorder
from tests.golden.cases import KINDS, LENGTH, case
from tests.helpers.blocks import write
from tests.helpers.checkpoints import save_model

VECTORS = load_file(Path(__file__).parents[2] / "golden" / "speculators_block.safetensors")


@pytest.fixture(scope="module")
def decoder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("target")
    save_model("qwen3_5", folder)
    return load_decoder(folder, LoadOptions())


@pytest.mark.parametrize("name", KINDS)
def test_logits_confidence_and_drafts(decoder, tmp_path, name):
    kind = KINDS[name]
    write(kind, tmp_path)
    features, tokens, embedding, head = case(kind)
    target = replace(decoder, embedding=embedding, head=decoder.kernels.linear(head))
    chooser = Recorder()
    drafter = BlockDrafter(load_block(tmp_path, target), chooser)
    drafter.observe(Commit(position=0, tokens=tuple(tokens), features=features))
    draft = drafter.propose(Context(tokens), kind.rows)
    assert list(draft.tokens) == VECTORS[f"{name}.tokens"].tolist()
    rows = torch.stack(chooser.rows)
    rows = rows[rows.isfinite()].view(len(rows), -1)  # of the draft vocabulary
    torch.testing.assert_close(rows, VECTORS[f"{name}.logits"], atol=1e-4, rtol=0)
    if kind.confidence:
        wanted = VECTORS[f"{name}.confidence"].tolist()
        assert draft.confidence == pytest.approx(wanted, abs=1e-4)
    assert len(tokens) == LENGTH + 1
