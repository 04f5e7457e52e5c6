"""Loading MTP layers and EAGLE-3 files: packagings, tap conventions, and what is refused."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from outrider.draft.heads.eagle3 import load_eagle3, read_eagle3_config
from outrider.draft.heads.mtp import load_mtp
from outrider.errors import CheckpointError
from outrider.models.decoder import Decoder
from outrider.models.load import LoadOptions, load_decoder
from tests.helpers.checkpoints import save_model
from tests.helpers.heads import add_mtp, eagle3_config, eagle3_tensors, mtp_tensors, save_eagle3

HIDDEN, LAYERS = 48, 4
IDS = "eagle_aux_hidden_state_layer_ids"
OPTIONS = LoadOptions()


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("target")
    model = save_model("qwen3_5", folder)
    return folder, model, load_decoder(folder, OPTIONS)


def write(saved, folder: Path, *, taps: int = 2, **changes) -> Path:
    raw = eagle3_config(saved[1], **{"eagle_config": {IDS: [1, 2]}, **changes})
    return save_eagle3(folder, raw, eagle3_tensors(raw, HIDDEN, taps))


def edit(folder: Path, change) -> None:
    file = folder / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)


def load(folder: Path, target: Decoder):
    return load_eagle3(folder, target)


SPECULATORS = {
    "architectures": ["Eagle3Speculator"],
    "speculators_model_type": "eagle3",
    "eagle_config": None,
}


@pytest.mark.parametrize(
    ("changes", "packaging", "taps"),
    [
        ({"eagle_config": {IDS: [1, 2, 3]}}, "SpecForge", (1, 2, 3)),
        ({"eagle_config": {IDS: [2, 3, 4]}}, "SpecForge", (1, 2, 3)),
        ({"eagle_config": None, IDS: [0, 2, 4]}, "SafeAILab", (-1, 1, 3)),
        ({**SPECULATORS, IDS: [1, 2, 4]}, "speculators", (0, 1, 3)),
    ],
)
def test_tap_conventions(saved, tmp_path, changes, packaging, taps):
    folder = write(saved, tmp_path, taps=3, **changes)
    if packaging == "speculators":
        raw = json.loads((folder / "config.json").read_text())
        outer = ("architectures", "speculators_model_type", "draft_vocab_size", IDS)
        layer = {key: value for key, value in raw.items() if key not in outer}
        nested = {key: raw[key] for key in outer} | {"transformer_layer_config": layer}
        (folder / "config.json").write_text(json.dumps(nested))
        edit(folder, rename_layers)
    assert read_eagle3_config(folder).packaging == packaging
    assert load(folder, saved[2]).taps == taps


def rename_layers(tensors):
    for name in [name for name in tensors if name.startswith("midlayer.")]:
        tensors[name.replace("midlayer.", "layers.0.")] = tensors.pop(name)


def test_default_taps_are_boundaries(saved, tmp_path):
    config = read_eagle3_config(write(saved, tmp_path, taps=3, eagle_config=None))
    deep = replace(saved[2].config, layer_kinds=("attention",) * 32)
    # Inputs of layers 2, 16 and 29.
    assert config.taps_for(deep) == (1, 15, 28)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"eagle_config": {IDS: [1, 4]}},
            r"outputs of layers \[1, 4\], but the target has layers 0",
        ),
        ({"vocab_size": 99}, "made for a target with a vocabulary of 99, but this one's is 96"),
        ({"target_hidden_size": 64}, "made for a target with a hidden size of 64"),
        ({"hidden_size": 32, "target_hidden_size": 48}, "32 is not the target's 48, and it has no"),
        ({"architectures": ["LlamaForCausalLM"], "draft_vocab_size": None}, None),
    ],
)
def test_what_does_not_fit_the_target(saved, tmp_path, changes, message):
    folder = write(saved, tmp_path) if message is None else write(saved, tmp_path, **changes)
    if message is None:
        raw = json.loads((folder / "config.json").read_text())
        del raw["draft_vocab_size"]
        raw["architectures"] = ["LlamaForCausalLM"]
        (folder / "config.json").write_text(json.dumps(raw))
        message = "is no EAGLE-3 drafter"
    with pytest.raises(CheckpointError, match=message):
        load(folder, saved[2])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.update(d2t=torch.zeros_like(t["d2t"])), "d2t is all zero"),
        (lambda t: t.update(d2t=t["d2t"] + torch.arange(len(t["d2t"]))), "offsets"),
        (lambda t: t.update(t2d=~t["t2d"]), "t2d and d2t name different tokens"),
        (lambda t: t.pop("d2t"), "tensor d2t is missing"),
        (lambda t: t.pop("fc.weight"), "tensor fc.weight is missing"),
        (lambda t: t.update({"fc.bias": torch.zeros(48)}), "does not explain: fc.bias"),
        (lambda t: t.update({"fc.weight": torch.zeros(48, 144)}), r"has shape \(48, 144\)"),
    ],
)
def test_damaged_tensors(saved, tmp_path, change, message):
    folder = write(saved, tmp_path)
    edit(folder, change)
    with pytest.raises(CheckpointError, match=message):
        load(folder, saved[2])


def test_flags_and_tensors_must_agree(saved, tmp_path):
    folder = write(saved, tmp_path, norm_before_fc=True)
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**raw, "norm_before_fc": False}))
    with pytest.raises(CheckpointError, match=r"does not explain: input_norm\.weight"):
        load(folder, saved[2])


def test_a_full_vocabulary_needs_no_map(saved, tmp_path):
    head = load(write(saved, tmp_path, draft_vocab_size=96), saved[2])
    assert head.ids is None


def test_an_own_embedding_may_have_another_width(saved, tmp_path):
    folder = write(saved, tmp_path, hidden_size=32, head_dim=8, target_hidden_size=48)
    edit(folder, lambda t: t.update({"embed_tokens.weight": torch.randn(96, 32)}))
    head = load(folder, saved[2])
    assert head.layers.embed(torch.tensor([1, 2])).shape == (2, 32)
    assert head.read(torch.randn(3, 96)).shape == (3, 32)


def test_mtp_layers_that_are_not_there(saved, tmp_path):
    folder, _, target = saved
    with pytest.raises(
        CheckpointError, match=r"has 0 MTP layers .* needs a target with exactly one"
    ):
        load_mtp(folder, target)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("mtp.norm.weight"), "tensor mtp.norm.weight is missing"),
        (
            lambda t: t.update({"mtp.embed_tokens.weight": torch.zeros(96, 48)}),
            "does not explain: mtp.embed_tokens.weight",
        ),
    ],
)
def test_damaged_mtp_layers(tmp_path, change, message):
    model = save_model("qwen3_5", tmp_path)
    tensors = mtp_tensors(model)
    change(tensors)
    add_mtp(tmp_path, tensors)
    target = load_decoder(tmp_path, OPTIONS)
    with pytest.raises(CheckpointError, match=message):
        load_mtp(tmp_path, target)
