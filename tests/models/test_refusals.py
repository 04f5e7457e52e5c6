"""Model folders that are damaged, contradict themselves or are not supported: each by name."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from outrider.assemble.engine import Engine
from outrider.errors import CheckpointError, RequestError
from outrider.models.chat import ChatTemplate
from outrider.models.load import LoadOptions, load_decoder
from outrider.ops.selftest import Kernels
from tests.helpers.checkpoints import save_model


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dense")
    save_model("qwen3", folder)
    return folder


@pytest.fixture
def folder(original, tmp_path):
    shutil.copytree(original, tmp_path, dirs_exist_ok=True)
    return tmp_path


def refused(folder: Path, *parts: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        load_decoder(folder, Kernels(exact=False), LoadOptions())
    assert [part for part in parts if part not in str(caught.value)] == [], caught.value


def edit(folder: Path, **changes: object) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_missing_weights(folder):
    (folder / "model.safetensors").unlink()
    refused(folder, "holds neither model.safetensors nor model.safetensors.index.json")


def test_missing_config(folder):
    (folder / "config.json").unlink()
    refused(folder, "config.json is missing from")


@pytest.mark.parametrize("kept", [0, 5, 200, -1000])
def test_truncated_weights(folder, kept):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:kept])
    refused(folder, "model.safetensors is not a whole safetensors file", "fetch it again")


def test_corrupted_weights(folder):
    file = folder / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[8:40] = b"\xff" * 32
    file.write_bytes(data)
    refused(folder, "model.safetensors is not a whole safetensors file")


def test_a_missing_shard(folder):
    weights = load_file(folder / "model.safetensors")
    index = {"weight_map": dict.fromkeys(weights, "model-00002-of-00002.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    refused(folder, "model-00002-of-00002.safetensors is named by", "but missing from")


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"intermediate_size": 64}, ("has shape", "config.json implies")),
        ({"num_hidden_layers": 3, "layer_types": None}, ("layers.2", "is missing from")),
        ({"num_hidden_layers": 1}, ("does not explain", "model.layers.1")),
        ({"model_type": "mamba"}, ("model_type 'mamba' is not supported", "qwen3")),
        ({"quantization_config": {"quant_method": "awq"}}, ("quantization_config", "'awq'")),
        ({"auto_map": {"AutoModel": "x.Y"}}, ("auto_map", "never runs")),
        ({"hidden_act": "gelu"}, ("hidden_act 'gelu' is not supported",)),
        ({"num_key_value_heads": 3}, ("is not a multiple of num_key_value_heads 3",)),
    ],
)
def test_configs_that_contradict_or_are_not_supported(folder, changes, parts):
    edit(folder, **changes)
    refused(folder, *parts)


def test_a_mixture_of_experts(folder):
    edit(folder, model_type="qwen3_next", num_experts=8, mlp_only_layers=[])
    refused(folder, "mixture of 8 experts", "not supported yet")


def test_an_extra_tensor(folder):
    file = folder / "model.safetensors"
    save_file(load_file(file) | {"model.surprise": torch.zeros(2)}, file)
    refused(folder, "does not explain: model.surprise")


def test_pickles_are_never_opened(folder):
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"never read")
    refused(folder, "pytorch_model.bin, a pickle file", "convert it to safetensors")


def test_a_missing_tokenizer(folder):
    with pytest.raises(CheckpointError, match=r"has no tokenizer\.json"):
        Engine.load(str(folder))


def test_images_are_refused():
    template = ChatTemplate("{{ messages[0].content }}", {}, "chat_template.jinja")
    content = [{"type": "text", "text": "what is this?"}, {"type": "image", "image": "x.png"}]
    with pytest.raises(RequestError, match="part of type 'image': only text is supported"):
        template.render([{"role": "user", "content": content}])
