"""What `outrider inspect` says of drafter files and of targets with an MTP layer."""

import json

import pytest

from outrider.assemble.inspection import inspect
from outrider.assemble.target import load_target
from outrider.config.settings import TargetConfig
from outrider.draft.heads.mtp import load_mtp
from outrider.errors import CheckpointError
from tests.helpers.checkpoints import build_model, save_model
from tests.helpers.heads import add_mtp, eagle3_config, eagle3_tensors, mtp_tensors, save_eagle3

IDS = "eagle_aux_hidden_state_layer_ids"


def test_an_eagle3_file(tmp_path):
    raw = eagle3_config(build_model("qwen3_5"), eagle_config={IDS: [1, 2]}, norm_output=True)
    found = inspect(str(save_eagle3(tmp_path, raw, eagle3_tensors(raw, 48, 2))))
    expected = {
        "packaging": "SpecForge",
        "layer_ids": "[1, 2] (layer outputs)",
        "draft_vocab_size": 64,
        "own_embedding": False,
        "norm_output": True,
        "norm_before_fc": False,
        "target_sha256": "not recorded",
    }
    assert expected.items() <= found.items()


@pytest.mark.parametrize("has_mtp", [False, True])
def test_a_target_offers_mtp_where_it_has_it(tmp_path, has_mtp):
    model = save_model("qwen3_5", tmp_path)
    if has_mtp:
        add_mtp(tmp_path, mtp_tensors(model))
    found = inspect(str(tmp_path))
    assert found["mtp_layers"] == has_mtp
    assert found["drafters"] == ["suffix", "ngram-cache", *(["mtp"] if has_mtp else [])]
    assert {"draft", "eagle3", "dflash"} <= set(found["drafters_with_a_file"])


def test_a_target_that_lost_its_mtp_layer_when_it_was_saved_offers_none(tmp_path):
    """As fine-tuning tools write it: the configuration still names the layer."""
    model = save_model("qwen3_5", tmp_path)
    add_mtp(tmp_path, mtp_tensors(model))
    model.save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "mtp_num_hidden_layers": 1}))
    assert inspect(str(tmp_path))["drafters"] == ["suffix", "ngram-cache"]
    target = load_target(TargetConfig())
    with pytest.raises(CheckpointError, match=r"was saved without the tensors of the MTP layer"):
        load_mtp(tmp_path, target.ends)
