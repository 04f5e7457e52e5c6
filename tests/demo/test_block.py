"""The block drafters' training rows see what a drafter will see, and nothing later."""

import json

import pytest
import torch

from outrider.draft.block.block_drafter import BlockDrafter
from outrider.draft.block.block_loader import load_block
from outrider.draft.token_choice import GreedyChooser
from outrider.models.load import LoadOptions, load_decoder
from outrider.records import Commit, Context
from recipes.demo import block, model, packaging, parallel, readings


@pytest.fixture(scope="module")
def target():
    return model.build(model.target_config())


@pytest.mark.parametrize("name", block.LAYOUTS)
@torch.no_grad()
def test_rows_see_the_context_before_the_anchor_and_the_anchor(target, name, tmp_path):
    net = block.Student(target, block.LAYOUTS[name], tmp_path)
    torch.manual_seed(1)
    ids, anchors = torch.randint(0, 2000, (1, 40)), torch.tensor([[12, 20]])
    features = torch.randn(1, 40, len(block.TAPS) * 256)

    def rows(**changed):
        inputs = {"ids": ids.clone(), "features": features.clone()}
        for key, at in changed.items():
            inputs[key][0, at] = 7
        return net.rows(inputs["ids"], inputs["features"], anchors)[0]

    before = rows()
    later = rows(ids=21, features=20)
    torch.testing.assert_close(later, before)
    anchor = rows(ids=20)
    torch.testing.assert_close(anchor[0], before[0])
    assert ((anchor[1] - before[1]).abs().amax(-1) > 1e-4).all()
    context = rows(features=15)
    torch.testing.assert_close(context[0], before[0])
    assert ((context[1] - before[1]).abs().amax(-1) > 1e-4).all()


@pytest.mark.parametrize("name", block.LAYOUTS)
def test_one_step_teaches_every_weight(target, name, tmp_path):
    net = block.Student(target, block.LAYOUTS[name], tmp_path)
    loss, run = net(torch.randint(0, 2000, (2, 48)))
    loss.mean().backward()
    assert loss.shape == run.shape == (2,)
    trained = {n: p for n, p in net.named_parameters() if p.requires_grad}
    assert all(n.startswith("block.") and p.grad.abs().sum() > 0 for n, p in trained.items())


def test_readings_are_what_the_target_says(target, tmp_path):
    ids = torch.randint(0, 2000, (3, 16))
    features, final = readings.read(target, ids, block.TAPS)
    hidden = target.model(ids, output_hidden_states=True).hidden_states
    wanted = torch.cat([hidden[tap + 1] for tap in block.TAPS], -1)
    torch.testing.assert_close(features, wanted)
    folder = tmp_path / readings.FOLDER
    folder.mkdir()
    shard = {"taps": block.TAPS, "ids": ids.short(), "features": features + 1, "final": final}
    torch.save(shard, folder / "0.pt")
    known = readings.Readings(tmp_path, block.TAPS)
    torch.testing.assert_close(known.read(target, ids[[2, 0]])[0], features[[2, 0]] + 1)
    fresh = torch.randint(0, 2000, (1, 16))
    torch.testing.assert_close(
        known.read(target, fresh)[0], readings.read(target, fresh, block.TAPS)[0]
    )


@pytest.mark.parametrize("name", block.LAYOUTS)
@torch.no_grad()
def test_exported_drafters_draft_what_they_were_taught(target, name, tmp_path):
    target.save_pretrained(tmp_path / "target")
    decoder = load_decoder(tmp_path / "target", LoadOptions())
    net = block.Student(target, block.LAYOUTS[name], tmp_path)
    for parameter in net.block.parameters():
        parameter.copy_(parameter.bfloat16())
    (tmp_path / name).mkdir()
    torch.save(parallel.trained(net), tmp_path / name / "model.pt")
    embedding = {packaging.TARGET_EMBEDDING: target.model.embed_tokens.weight.bfloat16()}
    packaging.write(tmp_path, tmp_path, embedding, "0" * 64)
    folder = tmp_path / name.replace("_", "-")
    model = load_block(folder, decoder, name.split("_")[0])
    features, tokens = torch.randn(30, len(block.TAPS) * 256), torch.arange(100, 131).tolist()
    drafter = BlockDrafter(model, GreedyChooser(vocab_size=2048))
    drafter.observe(Commit(position=0, tokens=tuple(tokens), features=features))
    drafts = list(drafter.propose(Context(tokens), 8).tokens)
    padded = torch.cat([features, torch.zeros(1, features.shape[1])])
    hidden = net.rows(torch.tensor([tokens]), padded[None], torch.tensor([[30]]))[0, 0]
    before = torch.tensor([tokens[30], *drafts[:-1]])
    guessed, _ = net.guess(hidden, before)
    assert drafts == guessed.argmax(-1).tolist()
    assert len(drafts) == net.layout.drafts
    assert json.loads((folder / "config.json").read_text())["outrider"]["target_sha256"] == "0" * 64
