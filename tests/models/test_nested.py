"""A whole Qwen3.5 folder, text and vision: its text part loads, with a notice."""

import logging

import pytest
import torch
from transformers import Qwen3_5Config, Qwen3_5ForConditionalGeneration

from outrider.models.load import LoadOptions, load_decoder
from tests.helpers.checkpoints import HYBRID, VOCAB
from tests.helpers.runs import random_tokens, run

VISION = {
    "depth": 1,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_heads": 2,
    "out_hidden_size": HYBRID["hidden_size"],
    "num_position_embeddings": 16,
    "patch_size": 4,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    torch.manual_seed(0)
    # The special tokens of images must lie in the tiny vocabulary.
    ids = {
        f"{name}_token_id": VOCAB - 1 - place
        for place, name in enumerate(("image", "video", "vision_start", "vision_end"))
    }
    config = Qwen3_5Config(text_config=dict(HYBRID), vision_config=VISION, **ids)
    made = Qwen3_5ForConditionalGeneration(config).eval()
    folder = tmp_path_factory.mktemp("nested")
    made.save_pretrained(folder)
    return made, folder


def test_the_text_part_loads_with_a_notice_and_agrees(model, caplog):
    made, folder = model
    with caplog.at_level(logging.INFO, logger="outrider"):
        decoder = load_decoder(folder, LoadOptions())
    assert "under model.visual.* are not loaded" in caplog.text
    tokens = random_tokens(20)
    with torch.inference_mode():
        logits = run(decoder, decoder.new_state("log", 4), tokens, revocable=False)
        expected = made(torch.tensor([tokens]), use_cache=False).logits[0]
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)
