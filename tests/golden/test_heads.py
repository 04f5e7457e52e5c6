"""Logits equal those of the `speculators` package, over several steps (`make_heads.py`)."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from outrider.draft.heads.eagle3 import load_eagle3
from outrider.draft.heads.mtp import load_mtp
from outrider.draft.heads.one_token import Head
from outrider.models.decoder import Decoder
from outrider.models.load import LoadOptions, load_decoder
from tests.helpers.checkpoints import save_model
from tests.helpers.heads import add_mtp

FOLDER = Path(__file__).parent / "heads"
OPTIONS, STEPS, CLOSE = LoadOptions(), 3, 1e-4


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    folder = tmp_path_factory.mktemp("target")
    save_model("qwen3_5", folder)
    return load_decoder(folder, OPTIONS)


def largest_difference(head: Head, vectors: dict[str, torch.Tensor], row: int) -> float:
    """Draft behind pair `row` for all steps, feeding the vectors' own tokens."""
    state, tokens, worst = head.new_state(), vectors["tokens"], 0.0
    output = head.run(head.read(vectors["taps"][: row + 1]), tokens[: row + 1], state)[-1:]
    for step in range(STEPS):
        logits, feature = head.predict(output)
        found = logits[:, head.ids] if head.ids is not None else logits
        worst = max(worst, float((found - vectors[f"logits.{step}"][row]).abs().max()))
        if step + 1 < STEPS:
            output = head.run(feature, tokens[row + 1 + step, None], state)
    return worst


@pytest.mark.parametrize("name", ["eagle3-llama", "eagle3-qwen3", "eagle3-1"])
@torch.inference_mode()
def test_eagle3(target: Decoder, name: str) -> None:
    head = load_eagle3(FOLDER / name, target)
    assert head.taps == (0, 1, 3)
    vectors = load_file(FOLDER / name / "vectors.safetensors")
    rows = len(vectors["tokens"]) - STEPS
    assert max(largest_difference(head, vectors, row) for row in range(rows)) < CLOSE


@torch.inference_mode()
def test_mtp(target: Decoder, tmp_path: Path) -> None:
    """Its training runs each step over all rows, so here each step has a state of its own."""
    tensors = load_file(FOLDER / "mtp" / "model.safetensors")
    save_model("qwen3_5", tmp_path)
    add_mtp(tmp_path, {name: value for name, value in tensors.items() if name.startswith("mtp.")})
    ends = replace(
        target,
        embedding=tensors["embed_tokens.weight"],
        head=target.kernels.linear(tensors["lm_head.weight"]),
    )
    head = load_mtp(tmp_path, ends)
    vectors = load_file(FOLDER / "mtp" / "vectors.safetensors")
    rows = len(vectors["logits.0"])
    features = vectors["taps"][:rows]
    for step in range(STEPS):
        tokens = vectors["tokens"][step + 1 : step + 1 + rows]
        outputs = head.run(features, tokens, head.new_state())
        logits, features = head.predict(outputs)
        assert float((logits - vectors[f"logits.{step}"]).abs().max()) < CLOSE
