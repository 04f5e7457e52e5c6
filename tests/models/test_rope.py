"""Rotary tables equal those of transformers, for every kind, spelling and allowed length."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5TextRotaryEmbedding

from outrider.errors import CheckpointError
from outrider.models.hf_config import parse_config
from outrider.models.load import LoadOptions, load_decoder
from outrider.models.rope import longest, rope_tables
from tests.helpers.checkpoints import save_model
from tests.helpers.gguf_files import build, content, write
from tests.helpers.runs import run

SHAPES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 80,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
}
LLAMA3 = {"factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
ROPES: dict[str, dict[str, Any]] = {
    "default": {},
    "theta": {"rope_theta": 5e5},
    "new": {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
    "new without a base": {"rope_theta": 5e5, "rope_parameters": {"rope_type": "default"}},
    "linear": {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 4.0}},
    "dynamic": {"rope_scaling": {"rope_type": "dynamic", "factor": 3.0}},
    "yarn": {
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 256,
        }
    },
    "yarn, no original": {"rope_parameters": {"rope_type": "yarn", "factor": 4.0}},
    "yarn, original outside": {
        "original_max_position_embeddings": 128,
        "rope_scaling": {"type": "yarn", "factor": 8.0},
    },
    "yarn, factor null": {
        "rope_parameters": {
            "rope_type": "yarn",
            "factor": None,
            "original_max_position_embeddings": 256,
        }
    },
    "yarn, betas null": {
        "rope_parameters": {
            "rope_type": "yarn",
            "factor": 4.0,
            "beta_fast": None,
            "beta_slow": 0,
            "attention_factor": None,
        }
    },
    "yarn, betas": {
        "rope_parameters": {"rope_type": "yarn", "factor": 4.0, "beta_fast": 16, "beta_slow": 2}
    },
    "yarn, attention": {
        "rope_parameters": {"rope_type": "yarn", "factor": 4.0, "attention_factor": 0.7}
    },
    "yarn, mscale": {
        "rope_parameters": {
            "rope_type": "yarn",
            "factor": 40.0,
            "mscale": 0.707,
            "mscale_all_dim": 1.3,
        }
    },
    "yarn, one mscale": {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "mscale": 2.0}},
    "yarn, not truncated": {
        "rope_parameters": {"rope_type": "yarn", "factor": 4.0, "truncate": False}
    },
    "yarn, truncate null": {
        "rope_parameters": {"rope_type": "yarn", "factor": 4.0, "truncate": None}
    },
    "llama3": {
        "rope_theta": 5e5,
        "rope_scaling": {
            "rope_type": "llama3",
            **LLAMA3,
            "original_max_position_embeddings": 128,
        },
    },
    "llama3, no original": {"rope_scaling": {"rope_type": "llama3", **LLAMA3}},
    "both, equal": {
        "rope_theta": 7.0,
        "rope_scaling": {"type": "linear", "factor": 2.0},
        "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 7.0},
    },
}
KINDS = {"llama": LlamaRotaryEmbedding, "qwen3_5_text": Qwen3_5TextRotaryEmbedding}


def theirs(kind: str, raw: dict[str, Any], length: int) -> tuple[torch.Tensor, torch.Tensor]:
    config = CONFIG_MAPPING[kind](**json.loads(json.dumps(raw)))
    cos, sin = KINDS[kind](config)(torch.zeros(1), torch.arange(length)[None])
    half = cos.shape[-1] // 2
    return cos[0, :, :half], sin[0, :, :half]


@pytest.mark.parametrize("name", ROPES)
@pytest.mark.parametrize("kind", KINDS)
def test_tables_equal_those_of_transformers(kind: str, name: str) -> None:
    raw = {**SHAPES, **ROPES[name], "head_dim": 32}
    config = parse_config({**raw, "model_type": kind})
    rope, most = config.attention.rope, longest(config.attention.rope, config.max_length)
    for length in {100, 257, config.max_length, most}:
        cos, sin = rope_tables(rope, 32, length)
        expected = theirs(kind, raw, length)
        rotated = rope.width // 2
        assert rotated == expected[0].shape[1] == (16 if kind == "llama" else 4)
        torch.testing.assert_close(cos[:, :rotated], expected[0], atol=2e-4, rtol=0)
        torch.testing.assert_close(-sin[:, :rotated], expected[1], atol=2e-4, rtol=0)
        assert bool((cos[:, rotated:16] == 1).all() & (sin[:, rotated:16] == 0).all())


LONGEST = {
    "default": 1024,
    "linear": 4096,
    "dynamic": 1024,
    "yarn": 1024,
    "yarn, no original": 4096,
    "yarn, factor null": 1024,
    "llama3": 1024,
}


@pytest.mark.parametrize("name", LONGEST)
def test_a_model_reaches_as_far_as_its_scaling(name: str) -> None:
    config = parse_config({**SHAPES, **ROPES[name], "model_type": "llama"})
    assert config.max_length == 1024
    assert longest(config.attention.rope, config.max_length) == LONGEST[name]


def test_dynamic_scaling_changes_earlier_rows_beyond_the_limit() -> None:
    """Why the limit is there: one position more, and every row before it is rotated otherwise."""
    raw = {**SHAPES, **ROPES["dynamic"]}
    within, beyond = theirs("llama", raw, 1024)[0], theirs("llama", raw, 1300)[0]
    assert float((within - beyond[:1024]).abs().max()) > 0.1


def changed(folder: Path, **changes: Any) -> Path:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    return folder


@torch.inference_mode()
def test_a_context_beyond_the_stated_one_is_computed_as_transformers_computes_it(
    tmp_path: Path,
) -> None:
    """As a user extends Qwen2.5: yarn by 4 over 128 positions, which the file states."""
    model = save_model("llama-rope-yarn", tmp_path)
    changed(tmp_path, max_position_embeddings=128)
    decoder = load_decoder(tmp_path, LoadOptions(max_length=512))
    tokens = torch.randint(0, 96, (500,), generator=torch.Generator().manual_seed(1))
    ours = run(decoder, decoder.new_state("log", 4), tokens.tolist(), revocable=False)
    torch.testing.assert_close(ours, model(tokens[None]).logits[0], atol=2e-4, rtol=0)
    assert load_decoder(tmp_path, LoadOptions()).max_length == 128
    with pytest.raises(CheckpointError, match="513 exceeds the 512 positions"):
        load_decoder(tmp_path, LoadOptions(max_length=513))


def test_a_context_that_dynamic_scaling_would_change_is_refused(tmp_path: Path) -> None:
    save_model("llama", tmp_path)
    rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
    changed(tmp_path, rope_parameters=rope)
    assert load_decoder(tmp_path, LoadOptions()).max_length == 512
    with pytest.raises(CheckpointError, match=r"513 exceeds .* 512.* 'dynamic' rotates"):
        load_decoder(tmp_path, LoadOptions(max_length=513))


@torch.inference_mode()
def test_a_gguf_factor_without_a_type_is_linear(tmp_path: Path) -> None:
    """As in llama.cpp (llama-model.cpp: `std::string rope_scaling("linear")`)."""
    model = build("llama-rope-linear")
    given = content(model)
    kind = given.metadata.pop("llama.rope.scaling.type")
    assert kind == "linear"
    assert given.metadata["llama.rope.scaling.factor"] == 2.0
    given.metadata["llama.context_length"] = 256
    file = write(given, tmp_path / "model.gguf")
    decoder = load_decoder(file, LoadOptions(max_length=512))
    tokens = torch.randint(0, 96, (400,), generator=torch.Generator().manual_seed(1))
    ours = run(decoder, decoder.new_state("log", 4), tokens.tolist(), revocable=False)
    torch.testing.assert_close(ours, model(tokens[None]).logits[0], atol=2e-4, rtol=0)
    assert load_decoder(file, LoadOptions()).max_length == 256


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "kind": ({"rope_scaling": {"type": "longrope"}}, "rope type 'longrope' is not supported"),
    "null kind": ({"rope_scaling": {"rope_type": None, "factor": 2}}, "rope type None"),
    "no factor": ({"rope_scaling": {"type": "linear"}}, "'linear' needs factor"),
    "yarn without factor": ({"rope_scaling": {"type": "yarn", "mscale": 1}}, "needs factor"),
    "text": ({"rope_scaling": {"type": "linear", "factor": "2"}}, "factor = '2' must be a number"),
    "null": ({"rope_scaling": {"type": "linear", "factor": None}}, "factor = None"),
    "llama3": ({"rope_scaling": {"type": "llama3", "factor": 2}}, "needs low_freq_factor"),
    "null base": ({"rope_theta": None}, "rope_theta = None"),
    "base": ({"rope_parameters": {"rope_theta": -1}}, "rope_theta = -1"),
    "part": ({"rope_parameters": {"partial_rotary_factor": None}}, "partial_rotary_factor = None"),
    "too large a part": ({"partial_rotary_factor": 1.5}, "partial_rotary_factor = 1.5"),
    "by layer type": (
        {"rope_parameters": {"full_attention": {"rope_type": "default"}}},
        "parameters by layer type",
    ),
    "no object": ({"rope_scaling": "linear"}, "rope_scaling = 'linear' must be an object"),
    "contradiction": (
        {
            "rope_scaling": {"type": "linear", "factor": 2.0},
            "rope_parameters": {"rope_type": "default", "rope_theta": 5e5},
        },
        "rope_scaling and rope_parameters contradict each other",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_not_understood_is_refused(what: str) -> None:
    changes, message = REFUSED[what]
    with pytest.raises(CheckpointError) as caught:
        parse_config({**SHAPES, **changes, "model_type": "llama"})
    assert message in str(caught.value)
