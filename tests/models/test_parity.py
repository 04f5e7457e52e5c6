"""Logits equal those of transformers on tiny checkpoints of every supported architecture."""

from pathlib import Path

import pytest
import torch

from outrider.kernels.pass_plan import Span
from outrider.models.decoder import Decoder
from outrider.models.load import LoadOptions, load_decoder
from tests.helpers.checkpoints import ARCHITECTURES, VOCAB, save_model


def load(folder: Path) -> Decoder:
    return load_decoder(folder, LoadOptions())


@pytest.mark.parametrize("name", ARCHITECTURES)
@torch.inference_mode()
def test_prefill_and_steps_match_transformers(name: str, tmp_path: Path) -> None:
    reference = save_model(name, tmp_path)
    decoder = load(tmp_path)
    tokens = torch.randint(0, VOCAB, (150,), generator=torch.Generator().manual_seed(1))
    expected = reference(tokens[None]).logits[0]
    state = decoder.new_state("log", 8)
    hidden, _ = decoder.run(decoder.embed(tokens[:130]), [Span(state, 130, revocable=False)])
    logits = [decoder.logits(hidden)]
    for position in range(130, 150):
        row = decoder.embed(tokens[position : position + 1])
        hidden, _ = decoder.run(row, [Span(state, 1)])
        state.raise_floor(state.length)
        logits.append(decoder.logits(hidden))
    ours = torch.cat(logits)
    assert expected.std() > 0.1, "the reference must not be degenerate"
    torch.testing.assert_close(ours, expected, atol=1e-4, rtol=0)
