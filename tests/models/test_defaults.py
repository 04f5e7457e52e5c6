"""A key of config.json that is missing or null means what it means in transformers, or is refused.

The reference resolves the edited file with its own configuration class; that writes every key out,
so reading its answer needs no default of ours.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import CONFIG_MAPPING

from outrider.errors import CheckpointError
from outrider.models.config import ModelConfig
from outrider.models.hf_config import parse_config, read_config

SHAPES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
}
COMMON: dict[str, Any] = {
    **SHAPES,
    "num_key_value_heads": 1,
    "head_dim": 24,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}
OLD_ROPE: dict[str, Any] = {"rope_theta": 77.0, "rope_scaling": {"type": "linear", "factor": 2.0}}
WINDOWS: dict[str, Any] = {
    "use_sliding_window": True,
    "sliding_window": 24,
    "max_window_layers": 3,
}
TYPES = ["full_attention", "sliding_attention"] * 4
MIXED = ["linear_attention", "full_attention"] * 4
HYBRID: dict[str, Any] = {
    **COMMON,
    "attention_bias": True,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
    "linear_conv_kernel_dim": 3,
    "full_attention_interval": 2,
    "rope_theta": 77.0,
    "partial_rotary_factor": 0.5,
}
FULL: dict[str, dict[str, Any]] = {
    "llama": {**COMMON, **OLD_ROPE, "attention_bias": True, "mlp_bias": True},
    "mistral": {**COMMON, **OLD_ROPE, "sliding_window": 24},
    # The widest class without head_dim: it must be the one that follows from the others.
    "qwen2": {**COMMON, **OLD_ROPE, **WINDOWS, "head_dim": 12},
    "qwen2 typed": {**COMMON, **WINDOWS, "head_dim": 12, "layer_types": TYPES},
    "qwen3": {**COMMON, **OLD_ROPE, **WINDOWS, "attention_bias": True},
    "qwen3 typed": {**COMMON, **WINDOWS, "attention_bias": False, "layer_types": TYPES},
    "qwen3_5_text": HYBRID,
    "qwen3_5_text typed": {**HYBRID, "layer_types": MIXED},
    "qwen3_next": {
        **HYBRID,
        "num_experts": 8,
        "decoder_sparse_step": 1,
        "mlp_only_layers": list(range(8)),
    },
    "qwen3_next sparse": {
        **HYBRID,
        "num_experts": 8,
        "decoder_sparse_step": 9,
        "mlp_only_layers": None,
    },
}
# Of this width the default head counts fit; of the other some are refused.
WIDE = {
    "hidden_size": 128,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "linear_num_value_heads": 32,
}


def resolved(kind: str, raw: dict[str, Any]) -> ModelConfig | None:
    """What our reader makes of the reference's own words; None where the reference refuses."""
    try:
        words = CONFIG_MAPPING[kind](**json.loads(json.dumps(raw))).to_dict()
    except Exception:  # its classes raise a dozen kinds
        return None
    words.setdefault("head_dim", words["hidden_size"] // words["num_attention_heads"])
    return parse_config({**words, "model_type": kind})


def read(raw: dict[str, Any]) -> ModelConfig | str:
    """What our reader makes of a file, or the words of its refusal."""
    try:
        return parse_config(raw)
    except CheckpointError as error:
        return str(error)


def compare(kind: str, raw: dict[str, Any], key: str) -> str:
    """The outcome, "equal" or "refused" by name; anything else fails."""
    raw = {"model_type": kind, **raw}
    ours = read(raw)
    if isinstance(ours, str):
        assert key in ours
        return "refused"
    assert ours == resolved(kind, raw)
    return "equal"


NEEDED = {
    "qwen2 typed": ("use_sliding_window",),
    "qwen3 typed": ("use_sliding_window",),
    "qwen3_next": ("mlp_only_layers",),
    "qwen3_next sparse": ("decoder_sparse_step",),
}
EDITS = [(name, key) for name, raw in FULL.items() for key in raw]


@pytest.mark.parametrize("name", FULL)
def test_the_whole_file_is_read_as_the_reference_reads_it(name: str) -> None:
    kind = name.split()[0]
    assert compare(kind, FULL[name], "") == "equal"


@pytest.mark.parametrize(("name", "key"), EDITS)
def test_a_missing_key_is_the_default_of_the_reference(name: str, key: str) -> None:
    """Shapes must be stated, and the keys that keep a file free of contradiction and of experts."""
    stated = NEEDED.get(name, ())
    for wide in ({}, WIDE):
        raw = {**FULL[name], **{k: v for k, v in wide.items() if k in FULL[name]}}
        del raw[key]
        outcome = compare(name.split()[0], raw, key)
        if key in SHAPES or key in stated:
            assert outcome == "refused"
        elif wide:
            assert outcome == "equal"


@pytest.mark.parametrize(("name", "key"), EDITS)
def test_a_null_is_what_it_is_to_the_reference(name: str, key: str) -> None:
    outcome = compare(name.split()[0], {**FULL[name], key: None}, key)
    if key in ("rope_scaling", "sliding_window", "layer_types", "mlp_only_layers"):
        sparse = name == "qwen3_next" and key == "mlp_only_layers"
        typed = name.endswith("typed") and key == "sliding_window"
        assert outcome == ("refused" if sparse or typed else "equal")


def test_mistral_has_a_window_unless_it_says_none() -> None:
    """The case of the issue, in plain numbers."""
    raw = {"model_type": "mistral", **FULL["mistral"]}
    assert set(parse_config(raw).attention.windows) == {24}
    assert set(parse_config({**raw, "sliding_window": None}).attention.windows) == {None}
    del raw["sliding_window"]
    assert set(parse_config(raw).attention.windows) == {4096}


def test_qwen_has_a_window_where_one_is_to_be_used() -> None:
    raw = {"model_type": "qwen3", **FULL["qwen3"], "num_hidden_layers": 30}
    del raw["sliding_window"], raw["max_window_layers"]
    assert parse_config(raw).attention.windows == (None,) * 28 + (4096, 4096)


NESTED = {"model_type": "qwen3_5", "text_config": {**HYBRID, "model_type": "qwen3_5_text"}}


@pytest.mark.parametrize("inner", [True, False, None])
@pytest.mark.parametrize("outer", [True, False, None])
def test_the_outer_flag_says_whether_a_nested_model_is_tied(
    outer: bool | None, inner: bool | None
) -> None:
    raw: dict[str, Any] = json.loads(json.dumps(NESTED))
    del raw["text_config"]["tie_word_embeddings"]
    for holder, flag in ((raw, outer), (raw["text_config"], inner)):
        if flag is not None:
            holder["tie_word_embeddings"] = flag
    theirs = CONFIG_MAPPING["qwen3_5"](**json.loads(json.dumps(raw)))
    assert parse_config(raw).tied_embeddings == theirs.tie_word_embeddings == bool(outer)


@pytest.mark.parametrize("key", [key for key in HYBRID if key != "tie_word_embeddings"])
def test_a_missing_key_of_a_nested_text_part(key: str) -> None:
    text = {k: v for k, v in {**HYBRID, **WIDE}.items() if k != key}
    raw = {**NESTED, "text_config": text}
    ours = read(raw)
    if key in SHAPES:
        assert isinstance(ours, str)
        assert key in ours
        return
    theirs = CONFIG_MAPPING["qwen3_5"](**json.loads(json.dumps(raw))).to_dict()
    assert ours == parse_config({**theirs, "model_type": "qwen3_5"})


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "text for a flag": ({"tie_word_embeddings": "false"}, "tie_word_embeddings = 'false'"),
    "number for a flag": ({"attention_bias": 1}, "attention_bias = 1 must be a bool"),
    "text for a size": ({"hidden_size": "48"}, "hidden_size = '48'"),
    "no layers": ({"num_hidden_layers": 0}, "num_hidden_layers = 0"),
    "no window": ({"sliding_window": 0}, "sliding_window = 0"),
    "epsilon": ({"rms_norm_eps": -1.0}, "rms_norm_eps = -1.0"),
    "window unused": (
        {"use_sliding_window": False, "layer_types": TYPES},
        "layer_types names sliding_attention, but use_sliding_window is False",
    ),
    "kind": ({"layer_types": ["chunked_attention"] * 8}, "'chunked_attention'"),
    "count": ({"layer_types": TYPES[:-1]}, "layer_types names 7 layers, num_hidden_layers says 8"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_value_of_another_kind_is_refused(what: str) -> None:
    changes, message = WRONG[what]
    with pytest.raises(CheckpointError) as caught:
        parse_config({"model_type": "qwen3", **FULL["qwen3"], **changes})
    assert message in str(caught.value)


@pytest.mark.parametrize("text", [None, [], "qwen3_5_text"])
def test_a_text_part_that_is_none_is_refused(text: object) -> None:
    with pytest.raises(CheckpointError, match=r"text_config = .* must be an object"):
        parse_config({"model_type": "qwen3_5", "text_config": text})


@pytest.mark.parametrize("nested", [True, False])
def test_a_part_of_each_head_rotated_where_transformers_rotates_all(
    nested: bool, tmp_path: Path
) -> None:
    part = {"rope_parameters": {"partial_rotary_factor": 0.5}} if nested else {}
    raw = {"model_type": "llama", **COMMON, "partial_rotary_factor": 0.5, **part}
    (tmp_path / "config.json").write_text(json.dumps(raw))
    with pytest.raises(CheckpointError, match=r"partial_rotary_factor 0\.5 is left out by"):
        read_config(tmp_path)
