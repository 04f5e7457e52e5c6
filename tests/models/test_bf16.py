"""bfloat16 weights: as close to fp32 as transformers' own bfloat16, and the same row bits."""

from pathlib import Path

import pytest
import torch

from outrider.models.load import LoadOptions, load_decoder
from outrider.models.selfcheck import rows_are_invariant
from tests.helpers.checkpoints import save_model
from tests.helpers.runs import random_tokens, run


@pytest.mark.parametrize("name", ["qwen3_5", "qwen3", "llama-biased"])
@torch.inference_mode()
def test_error_is_that_of_the_format(name: str, tmp_path: Path) -> None:
    reference = save_model(name, tmp_path)
    tokens = random_tokens(60)
    exact = reference(torch.tensor([tokens])).logits[0]
    theirs = reference.to(torch.bfloat16)(torch.tensor([tokens])).logits[0].float()
    decoder = load_decoder(tmp_path, LoadOptions(dtype=torch.bfloat16))
    ours = run(decoder, decoder.new_state("log", 8), tokens, revocable=False)
    assert ours.dtype == torch.float32
    error, expected = (ours - exact).abs().mean(), (theirs - exact).abs().mean()
    assert 0 < error < 1.5 * expected
    assert rows_are_invariant(decoder)
