"""A GGUF file of a block drafter drafts what its folder drafts."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from outrider.assemble.inspection import inspect
from outrider.draft.block.block_drafter import BlockDrafter
from outrider.draft.block.block_loader import holds_block_drafter, load_block
from outrider.errors import CheckpointError
from outrider.models.load import LoadOptions, load_decoder
from outrider.records import Commit, Context
from recipes import gguf_block
from recipes.gguf import write as write_file
from tests.draft.block.recorder import Recorder
from tests.helpers.blocks import HIDDEN, MASK, VOCAB, Kind, write
from tests.helpers.checkpoints import save_model

SPARK = Kind(packaging="DeepSpec", anchor_first=True, markov="vanilla", confidence=True)
KINDS = {
    "dflash": Kind(),
    "dflash-sliding": Kind(window=7, causal=False),
    "dspark": SPARK,
    "dspark-log-snr": replace(SPARK, log_snr=True),
    "dspark-bonus-reduced": replace(SPARK, packaging="speculators", anchor_first=False, reduced=40),
}
TOKENS = [str(n) for n in range(VOCAB)]


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    folder = tmp_path_factory.mktemp("target")
    save_model("qwen3_5", folder)
    return load_decoder(folder, LoadOptions())


def made(kind, folder, change=None):
    write(kind, folder)
    content = gguf_block.content(folder, TOKENS)
    if change is not None:
        change(content)
    return write_file(content, folder / "drafter.gguf")


OLDER_TENSORS = {
    "fc.": "dspark.fc.",
    "enc.output_norm.": "dspark.hidden_norm.",
    "markov_w1.": "dspark.markov_head_a.",
    "markov_w2.": "dspark.markov_head_b.",
    "conf_proj.": "dspark.confidence_head.",
    "log_snr_fc": "dspark.log_snr_fc",
}
OLDER_KEYS = ("block_size", "target_layers", "markov_rank", "min_log_snr", "max_log_snr")


def older(content):
    """The form that files had before llama.cpp took the architecture in (PrismML's fork, #127)."""
    metadata, tensors = content.metadata, content.tensors
    for key in [key for key in metadata if key.startswith("dflash.")]:
        own = key.removeprefix("dflash.") in OLDER_KEYS
        metadata[key.replace("dflash.", "dspark.dspark." if own else "dspark.")] = metadata.pop(key)
    layers = metadata["dspark.dspark.target_layers"]
    metadata["dspark.dspark.target_layers"] = [layer - 1 for layer in layers]
    mask = metadata.pop("tokenizer.ggml.mask_token_id")
    metadata["dspark.dspark.mask_token_id"] = mask
    metadata["dspark.dspark.log_snr_conditioning"] = "dspark.dspark.min_log_snr" in metadata
    metadata["tokenizer.ggml.model"] = "none"
    del metadata["tokenizer.ggml.tokens"], metadata["dspark.vocab_size"]
    for name in list(tensors):
        start = next((start for start in OLDER_TENSORS if name.startswith(start)), None)
        if start is not None:
            tensors[name.replace(start, OLDER_TENSORS[start], 1)] = tensors.pop(name)
    object.__setattr__(content, "architecture", "dspark")


def drafted(path, target):
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(20, 2 * HIDDEN, generator=generator) * 2
    tokens = torch.randint(0, MASK, (21,), generator=generator).tolist()
    chooser = Recorder()
    drafter = BlockDrafter(load_block(path, target), chooser)
    drafter.observe(Commit(position=0, tokens=tuple(tokens), features=features))
    return drafter.propose(Context(tokens), 8), chooser.rows


@pytest.mark.parametrize("name", KINDS)
def test_a_file_drafts_what_its_folder_drafts(target, tmp_path, name):
    path = made(KINDS[name], tmp_path)
    (mine, rows), (theirs, others) = drafted(path, target), drafted(tmp_path, target)
    assert mine.tokens == theirs.tokens
    assert mine.confidence == pytest.approx(theirs.confidence, abs=1e-5)
    torch.testing.assert_close(torch.stack(rows), torch.stack(others), atol=1e-5, rtol=1e-5)
    assert holds_block_drafter(path)


@pytest.mark.parametrize("name", ["dspark", "dspark-log-snr"])
def test_the_older_form_drafts_what_its_folder_drafts(target, tmp_path, name):
    path = made(KINDS[name], tmp_path, older)
    (mine, rows), (theirs, others) = drafted(path, target), drafted(tmp_path, target)
    assert mine.tokens == theirs.tokens
    torch.testing.assert_close(torch.stack(rows), torch.stack(others), atol=1e-5, rtol=1e-5)
    taps = [load_block(one, target).config.taps for one in (path, tmp_path)]
    assert taps[0] == taps[1]
    assert holds_block_drafter(path)


def test_both_facts_come_from_the_file(tmp_path):
    found = inspect(str(made(SPARK, tmp_path / "spark")))
    assert found["lineage"] == "dspark (tensor markov_head.markov_w1.weight)"
    assert found["sample_from_anchor"] == "True (GGUF default with Markov)"
    found = inspect(str(made(KINDS["dspark-bonus-reduced"], tmp_path / "bonus")))
    assert found["sample_from_anchor"] == "False (metadata: sample_from_anchor)"
    found = inspect(str(made(Kind(), tmp_path / "flash")))
    assert found["sample_from_anchor"] == "False (GGUF default without Markov)"


def test_four_tensors_too_many_are_named(target, tmp_path):
    def rename(content):  # as conditioning would look that this engine did not know
        for layer in ("fc1", "fc2"):
            for kind in ("weight", "bias"):
                value = content.tensors.pop(f"log_snr_{layer}.{kind}")
                content.tensors[f"snr_{layer}.{kind}"] = value

    path = made(replace(SPARK, log_snr=True), tmp_path, rename)
    names = "snr_fc1.bias, snr_fc1.weight, snr_fc2.bias, snr_fc2.weight"
    with pytest.raises(
        CheckpointError, match=f"tensors that its metadata does not explain: {names}"
    ):
        load_block(path, target)


def test_what_a_file_lacks_is_named(target, tmp_path):
    def unmasked(content):
        del content.metadata["tokenizer.ggml.mask_token_id"]

    def floats(content):
        content.tensors["d2t"] = content.tensors["d2t"].astype(np.float32)

    for name, kind, change, message in (
        ("mask", SPARK, unmasked, "tokenizer.ggml.mask_token_id is missing"),
        ("map", KINDS["dspark-bonus-reduced"], floats, "d2t is of type F32 where I64 is needed"),
    ):
        path = made(kind, tmp_path / name, change)
        with pytest.raises(CheckpointError, match=message):
            load_block(path, target)
