"""Model folders that are damaged, contradict themselves or are not supported: each by name."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from outrider.assemble.engine import Engine
from outrider.config.settings import SpeculativeConfig
from outrider.errors import CheckpointError, RequestError
from outrider.formats.chat_template import ChatTemplate
from outrider.models.load import LoadOptions, load_decoder
from tests.helpers.checkpoints import save_model
from tests.helpers.gguf_tokens import train


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
        load_decoder(folder, LoadOptions())
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


WHOLE = "model.safetensors"


@pytest.mark.parametrize(
    "name",
    [f"../{WHOLE}", f"a/../../{WHOLE}", f"/{WHOLE}", f"..\\{WHOLE}", f"C:\\{WHOLE}", "..", ""],
)
def test_an_index_that_leads_out_of_its_folder(folder, name):
    """The file that it names exists and is whole, where the name is a path of this system."""
    inner = folder / "inner"
    inner.mkdir()
    shutil.copy(folder / "config.json", inner)
    weights = load_file(folder / "model.safetensors")
    found = str(folder / "model.safetensors") if name.startswith("/") else name
    index = {"weight_map": dict.fromkeys(weights, found)}
    (inner / "model.safetensors.index.json").write_text(json.dumps(index))
    refused(inner, "names the file", "which is not in its folder")


def test_shards_in_a_folder_below_are_read(folder):
    (folder / "parts").mkdir()
    (folder / "model.safetensors").rename(folder / "parts" / "all.safetensors")
    weights = load_file(folder / "parts" / "all.safetensors")
    index = {"weight_map": dict.fromkeys(weights, "parts/all.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    decoder = load_decoder(folder, LoadOptions())
    assert decoder.is_tail


def test_a_tensor_that_lies_in_two_shards(folder):
    weights = load_file(folder / "model.safetensors")
    other = {"lm_head.weight": torch.zeros_like(weights["lm_head.weight"])}
    save_file(other, folder / "other.safetensors")
    names = dict.fromkeys(weights, "model.safetensors") | {"model.norm.weight": "other.safetensors"}
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": names}))
    refused(folder, "tensor lm_head.weight lies in two files", "other.safetensors")


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"intermediate_size": 64}, ("has shape", "config.json implies")),
        ({"num_hidden_layers": 3, "layer_types": None}, ("layers.2", "is missing from")),
        ({"num_hidden_layers": 1}, ("does not explain", "model.layers.1")),
        ({"vocab_size": 95}, ("embed_tokens.weight has shape (96, 48)", "implies (95, 48)")),
        ({"vocab_size": 128}, ("embed_tokens.weight has shape (96, 48)", "implies (128, 48)")),
        ({"head_dim": 24}, ("q_norm.weight has shape (12,)", "implies (24,)")),
        ({"head_dim": 6, "num_attention_heads": 8}, ("has shape", "config.json implies")),
        ({"attention_bias": True}, ("q_proj.bias", "is missing from")),
        ({"model_type": "llama"}, ("does not explain", "k_norm.weight")),
        ({"model_type": "qwen2"}, ("q_proj.bias", "is missing from")),
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


@pytest.mark.parametrize("name", ["self_attn.q_proj.bias", "mlp.gate_proj.bias"])
@pytest.mark.parametrize("last", [None, 1])
def test_a_bias_that_no_flag_speaks_of(folder, name, last):
    file = folder / "model.safetensors"
    weights = load_file(file)
    rows = len(weights[f"model.layers.0.{name.replace('bias', 'weight')}"])
    save_file(weights | {f"model.layers.0.{name}": torch.ones(rows)}, file)
    with pytest.raises(CheckpointError, match=rf"does not explain: model\.layers\.0\.{name}"):
        load_decoder(folder, LoadOptions(last=last))


def test_a_tokenizer_with_more_tokens_than_the_embedding_has_rows(folder):
    """A prompt of such a token is refused before any pass, and the next one runs."""
    tokenizer = train("gpt-2", 400)
    tokenizer.save(str(folder / "tokenizer.json"))
    engine = Engine.load(str(folder), speculative=SpeculativeConfig(method="off"))
    assert engine.tokenizer.vocab_size > engine.stage.vocab_size == 96
    beyond = max(tokenizer.encode("the quick").ids)
    assert beyond >= 96
    for prompt in ("the quick", [1, 96], [1, beyond]):
        with pytest.raises(RequestError, match=r"prompt token \d+ is outside the vocabulary of 96"):
            engine.generate(prompt, max_tokens=2)
    assert len(list(engine.generate([1, 95], max_tokens=2, ignore_eos=True))) > 0


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
