"""Training a drafter on its own outputs must compute what drafting computes."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from recipes.demo import distill, eagle3, model, tokens, unroll

KEPT = torch.arange(0, tokens.VOCABULARY, 2)[:40] + 1


@pytest.fixture(scope="module")
def target() -> torch.nn.Module:
    return model.build(model.target_config())


def student(kind: str, target: torch.nn.Module) -> unroll.Unrolled:
    torch.manual_seed(1)
    if kind == "mtp":
        return distill.MtpStudent(target, post_norm=True, work=Path())
    return distill.EagleStudent(target, KEPT, Path())


@pytest.mark.parametrize("kind", ["mtp", "eagle3"])
@torch.no_grad()
def test_a_row_of_a_step_is_a_chain_drafted_from_there(kind: str, target: torch.nn.Module) -> None:
    net, row, size = student(kind, target), 6, 16
    ids = torch.randint(0, tokens.VOCABULARY, (2, size), generator=torch.Generator().manual_seed(2))
    first, _ = net.read(ids)
    past, hidden = unroll.Past(), first
    pairs = first[:, : row + 1]
    for number in range(net.steps):
        count = size - 1 - number
        logits, hidden = net.step(hidden[:, :count], ids[:, 1 + number :], past)
        # Drafting: the true pairs up to the row and the chain so far, as one causal sequence.
        plain, out = net.step(pairs, ids[:, 1 : 1 + pairs.shape[1]], unroll.Past())
        torch.testing.assert_close(logits[:, row], plain[:, -1], atol=1e-4, rtol=1e-4)
        pairs = torch.cat([pairs, out[:, -1:]], 1)


@pytest.mark.parametrize("kind", ["mtp", "eagle3"])
def test_every_weight_of_a_student_learns(kind: str, target: torch.nn.Module) -> None:
    net = student(kind, target)
    ids = torch.randint(0, tokens.VOCABULARY, (2, 12))
    loss, drafts = net(ids)
    loss.mean().backward()
    assert loss.shape == drafts.shape == (2,)
    idle = [n for n, p in net.named_parameters() if p.requires_grad and not p.grad.any()]
    assert not idle


def test_the_exported_vocabulary_map_holds_offsets(target: torch.nn.Module, tmp_path) -> None:
    net = distill.EagleStudent(target, KEPT, Path())
    state = {k: v for k, v in net.state_dict().items() if not k.startswith("taught.")}
    eagle3.write(state, tmp_path, "0" * 64)
    found = load_file(tmp_path / "model.safetensors")
    assert (torch.arange(len(KEPT)) + found["d2t"]).tolist() == KEPT.tolist()
    assert found["t2d"].nonzero().flatten().tolist() == KEPT.tolist()
    assert found["fc.weight"].dtype == torch.bfloat16
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["outrider"]["target_sha256"] == "0" * 64
    assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [1, 3, 6]
