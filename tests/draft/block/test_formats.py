"""What a block drafter's file says, where it was found, and what is refused."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from outrider.draft.block.block_config import (
    check_method,
    default_taps,
    is_block_drafter,
    parse_block,
)
from outrider.draft.block.block_loader import load_block, read_block
from outrider.errors import CheckpointError, ConfigError
from outrider.models.load import LoadOptions, load_decoder
from tests.helpers.blocks import TARGET_LAYERS, VOCAB, Kind, make_config, make_tensors, write
from tests.helpers.checkpoints import save_model

DFLASH = Kind()
SPARK = Kind(packaging="DeepSpec", anchor_first=True, markov="vanilla", confidence=True)
BONUS = replace(SPARK, packaging="speculators", anchor_first=False)
SPECULATORS = replace(SPARK, packaging="speculators")


def parse(kind, **changes):
    kind = kind.changed(**changes)
    shapes = {name: tuple(tensor.shape) for name, tensor in make_tensors(kind).items()}
    return parse_block(make_config(kind), shapes, TARGET_LAYERS)


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    folder = tmp_path_factory.mktemp("target")
    save_model("qwen3_5", folder)
    return load_decoder(folder, LoadOptions())


def load(kind, target, folder, edit=None):
    write(kind, folder)
    if edit is not None:
        tensors = load_file(folder / "model.safetensors")
        edit(tensors)
        save_file(tensors, folder / "model.safetensors")
    return load_block(folder, target)


@pytest.mark.parametrize(
    ("kind", "changes", "lineage", "anchor"),
    [
        (DFLASH, {}, "dflash (no tensor markov_head", "False (z-lab packaging)"),
        (SPARK, {}, "dspark (tensor markov_head.markov_w1.weight)", "True (DeepSpec packaging)"),
        (
            replace(SPARK, markov=None, confidence=False),
            {},
            "dflash (no tensor",
            "True (DeepSpec packaging)",
        ),
        (replace(SPARK, packaging="SpecForge"), {}, "dspark (tensor", "True (SpecForge packaging)"),
        (BONUS, {}, "dspark (tensor", "False (config.json: sample_from_anchor)"),
        (
            BONUS,
            {"sample_from_anchor": None},
            "dspark (tensor",
            "False (config.json: speculative_tokens = 4 of 5)",
        ),
        (
            BONUS,
            {"sample_from_anchor": None, "speculators_config": None},
            "dspark (tensor",
            "True (speculators' default for dspark)",
        ),
        # The tensor counts, whatever the file is called.
        (replace(DFLASH, markov="vanilla"), {}, "dspark (tensor", "False (config.json"),
    ],
)
def test_both_facts_say_where_they_were_found(kind, changes, lineage, anchor):
    found = parse(kind, **changes).describe()
    assert found["lineage"].startswith(lineage)
    assert found["sample_from_anchor"].startswith(anchor)
    assert found["max_drafts"] == kind.rows - found["first_row"]


def test_taps_are_layer_outputs_in_every_packaging():
    for kind in (DFLASH, SPARK, BONUS, replace(SPARK, packaging="SpecForge")):
        assert parse(kind).taps == (0, 2)
    # The last entry of transformers' hidden states has been through the final norm.
    assert parse(replace(DFLASH, taps=(-1, 3))).taps == (-1, 4)
    assert parse(replace(BONUS, taps=(-1, 3))).taps == (-1, 4)


def test_taps_that_a_file_does_not_name():
    assert default_taps(36, 5) == [1, 9, 17, 25, 33]
    assert default_taps(64, 5) == [1, 16, 31, 46, 61]
    assert default_taps(36, 1) == [18]


def test_what_leaks_from_a_targets_config_is_left_out():
    """A factor that Qwen3 does not know, and windows of a class that the views do not go by."""
    leaked = {
        "rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.25},
        "layer_types": ["full_attention", "sliding_attention"],
        "sliding_window": 7,
    }
    trunk = parse(Kind(), **leaked).trunk
    assert trunk.attention.rope.width == trunk.attention.width
    assert [view.window for view in parse(Kind(), **leaked).views] == [None, 7]


def test_heads_are_told_by_their_tensors():
    for markov in ("vanilla", "gated", "rnn"):
        config = parse(replace(SPARK, markov=markov), markov_head_type="vanilla")
        assert (config.markov, config.rank, config.confidence) == (markov, 6, "hidden+markov")
    assert parse(replace(SPARK, reads_code=False)).confidence == "hidden"
    assert parse(replace(SPARK, log_snr=True)).log_snr == (-9.0, 9.0)


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        (DFLASH, {"architectures": ["DFlash2DraftModel"]}, "'DFlash2DraftModel'.*not supported"),
        (DFLASH, {"architectures": ["Gemma4DSparkModel"]}, "supported are DFlashDraftModel, Qwen3"),
        (DFLASH, {"dflash_config": {"projector_type": "domino"}}, "projector 'domino'"),
        (BONUS, {"speculators_model_type": "eagle3"}, "'eagle3' is no block drafter"),
        (SPARK, {"block_size": None}, "block_size = None must be a whole number"),
        (SPARK, {"block_size": 0}, "block_size = 0 leaves no row that predicts"),
        (BONUS, {"block_size": 1, "speculators_config": None}, "block_size = 1 leaves no row"),
        (SPARK, {"mask_token_id": None}, "mask_token_id = None must be a whole number"),
        (SPARK, {"target_layer_ids": "all"}, "target_layer_ids = 'all' must name layers"),
        (DFLASH, {"markov_rank": 4}, "markov_rank = 4, but there is no tensor markov_head"),
        (SPARK, {"final_logit_softcapping": 30.0}, "final_logit_softcapping = 30.0 is not supp"),
        (SPARK, {"quantization_config": {"quant_method": "fp8"}}, "quantised drafters"),
        (
            BONUS,
            {"speculators_config": {"proposal_methods": [{"speculative_tokens": 5}]}},
            "sample_from_anchor = false leaves 4 drafts of block_size 5, but speculative_tokens",
        ),
        (replace(SPARK, log_snr=True), {"min_log_snr": None}, "min_log_snr = None and max_log_snr"),
    ],
)
def test_a_file_that_cannot_be_read_right_is_refused(kind, changes, message):
    if "dflash_config" in changes:
        changes = {
            "dflash_config": {**make_config(kind)["dflash_config"], **changes["dflash_config"]}
        }
    if kind is DFLASH and "markov_rank" in changes:
        changes = {"dflash_config": {**make_config(kind)["dflash_config"], **changes}}
    with pytest.raises(CheckpointError, match=message):
        parse(kind, **changes)


@pytest.mark.parametrize(
    ("kind", "method", "message"),
    [
        (SPARK, "dflash", "lineage is dspark .*sample_from_anchor = True .*one row late"),
        (BONUS, "dflash", "sample_from_anchor = False .*only drafts would not end where confid"),
        (DFLASH, "dspark", "lineage is dflash .*sample_from_anchor = False .*one row early"),
        (
            replace(SPARK, markov=None, confidence=False),
            "dspark",
            "rows would be right, but there is no Markov head",
        ),
    ],
)
def test_another_method_than_the_files_is_refused_with_what_it_would_do(kind, method, message):
    config = parse(kind)
    with pytest.raises(ConfigError, match=f"method = '{method}' does not fit FOLDER.*{message}"):
        check_method(method, config, "FOLDER")
    check_method(config.lineage.value, config, "FOLDER")


def test_block_drafters_are_told_from_other_models(tmp_path):
    kinds = [DFLASH, SPARK, BONUS, DFLASH.changed(architectures=["DFlash2DraftModel"])]
    assert all(is_block_drafter(make_config(kind)) for kind in kinds)
    assert not is_block_drafter({"architectures": ["Qwen3ForCausalLM"]})
    write(DFLASH, tmp_path)
    (tmp_path / "mask_embedding.pt").touch()
    with pytest.raises(CheckpointError, match=r"mask_embedding.pt, a pickle file"):
        read_block(tmp_path)


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        (DFLASH, {"num_target_layers": 8}, "num_target_layers = 8, but the target has 4"),
        (DFLASH, {"vocab_size": 100}, "vocab_size = 100, but the target has 96"),
        (DFLASH, {"hidden_size": 64}, "hidden_size = 64, but the target has 48"),
        (replace(DFLASH, taps=(0, 9)), {}, "taps layer 9, but the target has layers 0 to 3"),
        (SPARK, {"mask_token_id": 96}, "mask_token_id = 96 is outside the target's vocabulary"),
    ],
)
def test_a_drafter_for_another_target_is_refused(target, tmp_path, kind, changes, message):
    with pytest.raises(CheckpointError, match=message):
        load(kind.changed(**changes), target, tmp_path)


def test_every_tensor_counts(target, tmp_path):
    def more(tensors):
        tensors["layers.0.attention_conv.base_kernel"] = torch.zeros(2, 2, 48)

    with pytest.raises(CheckpointError, match=r"does not explain: layers.0.attention_conv"):
        load(DFLASH, target, tmp_path / "more", more)
    with pytest.raises(CheckpointError, match=r"tensor hidden_norm.weight is missing"):
        load(DFLASH, target, tmp_path / "less", lambda tensors: tensors.pop("hidden_norm.weight"))
    with pytest.raises(CheckpointError, match=r"confidence_head.proj.weight reads 50 values"):
        load(
            SPARK,
            target,
            tmp_path / "wide",
            lambda tensors: tensors.update({"confidence_head.proj.weight": torch.zeros(1, 50)}),
        )


def test_vocabulary_maps_are_checked(target, tmp_path):
    kind = replace(DFLASH, packaging="speculators", reduced=40)

    def beyond(tensors):
        tensors["d2t"][-1] += VOCAB

    def zeros(tensors):  # as a published EAGLE-3 file had it
        tensors["d2t"].zero_()

    def without_head(tensors):
        del tensors["lm_head.weight"]

    for name, edit, message in (
        ("beyond", beyond, "map d2t is damaged: its 40 rows must lead to different ids"),
        ("zeros", zeros, "maps contradict each other"),
        ("headless", without_head, "vocabulary map, d2t, but no lm_head.weight"),
    ):
        with pytest.raises(CheckpointError, match=message):
            load(kind, target, tmp_path / name, edit)


def test_copies_of_the_targets_matrices_are_not_kept(target, tmp_path):
    folder = tmp_path / "tied"
    save_model("qwen3_5-tied", folder)
    tied = load_decoder(folder, LoadOptions())

    def copies(tensors):
        tensors["embed_tokens.weight"] = tied.embedding.clone()
        tensors["lm_head.weight"] = tied.embedding.clone()

    model = load(SPARK, tied, tmp_path / "copies", copies)
    assert model.embedding is tied.embedding
    assert model.head is tied.head
    own = load(replace(SPARK, own_embedding=True), tied, tmp_path / "own")
    assert own.embedding is not tied.embedding
    assert own.head is not tied.head


def test_the_log_names_both_facts(target, tmp_path, caplog):
    caplog.set_level("INFO", logger="outrider")
    load(BONUS, target, tmp_path)
    assert "dspark (tensor markov_head.markov_w1.weight)" in caplog.text
    assert "'sample_from_anchor': 'False (config.json: sample_from_anchor)'" in caplog.text
    assert json.loads((tmp_path / "config.json").read_text())["sample_from_anchor"] is False
