"""Tensors say whether the head is the embedding; a flag that cannot be true is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from outrider.errors import CheckpointError
from outrider.kernels.pass_plan import Span
from outrider.models.load import LoadOptions, load_decoder
from tests.helpers.checkpoints import save_model
from tests.helpers.gguf_files import build, content, write
from tests.helpers.runs import random_tokens, run

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


def edit(folder: Path, **changes: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def tensors(folder: Path, **changes: Tensor | None) -> None:
    """Write tensors, by their names; None takes one away."""
    file = folder / "model.safetensors"
    weights = {**load_file(file), **changes}
    save_file({k: v for k, v in weights.items() if v is not None}, file, metadata={"format": "pt"})


@torch.inference_mode()
def ours(folder: Path) -> Tensor:
    decoder = load_decoder(folder, LoadOptions())
    return run(decoder, decoder.new_state("log", 4), random_tokens(20), revocable=False)


@torch.inference_mode()
def theirs(folder: Path) -> Tensor:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model(torch.tensor([random_tokens(20)])).logits[0]


@torch.inference_mode()
def cut(folder: Path) -> Tensor:
    """The logits of two stages, the second of which has no embedding."""
    first, second = (
        load_decoder(folder, LoadOptions(first=first, last=first + 1)) for first in (0, 1)
    )
    rows = first.embed(torch.tensor(random_tokens(20)))
    for stage in (first, second):
        state = stage.new_state("log", 4)
        rows, _ = stage.run(rows, [Span(state, 20, revocable=False)])
    return second.logits(rows)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("head", ["other", "copy"])
@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_a_head_in_the_file_is_used_whatever_the_flag_says(
    name: str, head: str, tied: bool, tmp_path: Path
) -> None:
    save_model(name, tmp_path)
    edit(tmp_path, tie_word_embeddings=tied)
    if head == "copy":
        embedding = load_file(tmp_path / "model.safetensors")[EMBEDDING]
        tensors(tmp_path, **{HEAD: embedding.clone()})
    expected = theirs(tmp_path)
    torch.testing.assert_close(ours(tmp_path), expected, atol=1e-4, rtol=0)
    torch.testing.assert_close(cut(tmp_path), expected, atol=1e-4, rtol=0)


def test_the_two_heads_differ(tmp_path: Path) -> None:
    """The comparison above can fail: the embedding as the head gives other logits."""
    save_model("llama", tmp_path)
    own = ours(tmp_path)
    tensors(tmp_path, **{HEAD: load_file(tmp_path / "model.safetensors")[EMBEDDING].clone()})
    assert float((own - ours(tmp_path)).abs().max()) > 0.1


def test_without_a_head_the_embedding_is_it(tmp_path: Path) -> None:
    save_model("llama-tied", tmp_path)
    assert HEAD not in load_file(tmp_path / "model.safetensors")
    expected = theirs(tmp_path)
    torch.testing.assert_close(ours(tmp_path), expected, atol=1e-4, rtol=0)
    torch.testing.assert_close(cut(tmp_path), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("span", [(0, None), (0, 1), (1, 2)])
def test_untied_without_a_head_is_refused_by_every_stage(
    span: tuple[int, int | None], tmp_path: Path
) -> None:
    """transformers draws a random head there."""
    save_model("llama-tied", tmp_path)
    edit(tmp_path, tie_word_embeddings=False)
    options = LoadOptions(first=span[0], last=span[1])
    with pytest.raises(CheckpointError, match=r"tie_word_embeddings is false .* lm_head\.weight"):
        load_decoder(tmp_path, options)


def test_a_gguf_file_is_tied_where_it_has_no_head(tmp_path: Path) -> None:
    file = write(content(build("llama")), tmp_path / "model.gguf")
    decoder = load_decoder(file, LoadOptions())
    assert not decoder.config.tied_embeddings
    tied = write(content(build("llama-tied")), tmp_path / "tied.gguf")
    assert load_decoder(tied, LoadOptions()).config.tied_embeddings


@pytest.mark.parametrize("span", [(0, None), (0, 1)])
def test_layers_beyond_the_last_are_refused_by_every_stage(
    span: tuple[int, int | None], tmp_path: Path
) -> None:
    save_model("qwen3-deep", tmp_path)
    edit(tmp_path, num_hidden_layers=2, layer_types=None)
    options = LoadOptions(first=span[0], last=span[1])
    with pytest.raises(CheckpointError, match=r"does not explain: model\.layers\.2"):
        load_decoder(tmp_path, options)
