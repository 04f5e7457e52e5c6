"""GGUF files give the logits of the models that they were made from."""

from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from gguf import quants
from gguf.constants import GGML_QUANT_SIZES
from torch import Tensor

from outrider.errors import CheckpointError
from outrider.formats.gguf_file import SUPPORTED, dequantise, open_gguf
from outrider.models.load import LoadOptions, load_decoder
from outrider.models.model_file import count_parameters, is_gguf, load_tokenizer, open_tensors
from tests.helpers.gguf_files import MODELS, Content, build, content, quantised, rounded, write
from tests.helpers.runs import random_tokens, run

SIMPLE = (Kind.F16, Kind.BF16, Kind.Q8_0, Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1)
K_QUANTS = (Kind.Q2_K, Kind.Q3_K, Kind.Q4_K, Kind.Q5_K, Kind.Q6_K)


def logits(path: Path, **options: int) -> Tensor:
    decoder = load_decoder(path, LoadOptions(**options))
    return run(decoder, decoder.new_state("log", 0), random_tokens(70), revocable=False)


@pytest.mark.parametrize("name", MODELS)
@torch.inference_mode()
def test_logits_equal_those_of_the_folder(name: str, tmp_path: Path) -> None:
    model = build(name)
    model.save_pretrained(tmp_path / "folder")
    file = write(content(model), tmp_path / "model.gguf")
    expected = model(torch.tensor([random_tokens(70)])).logits[0]
    ours = logits(file)
    assert expected.std() > 0.1
    torch.testing.assert_close(ours, logits(tmp_path / "folder"), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(ours, expected, atol=1e-4, rtol=0)
    assert count_parameters(file) == count_parameters(tmp_path / "folder") + 8 * ("llama3" in name)


@pytest.mark.parametrize("kind", SIMPLE, ids=lambda kind: kind.name)
@pytest.mark.parametrize("name", ["llama", "qwen35"])
@torch.inference_mode()
def test_a_quantised_file_is_the_model_of_its_rounded_numbers(
    name: str, kind: Kind, tmp_path: Path
) -> None:
    whole = content(build(name))
    small = quantised(whole, kind)
    ours = logits(write(small, tmp_path / "small.gguf"))
    assert torch.equal(ours, logits(write(rounded(small), tmp_path / "rounded.gguf")))
    assert not torch.equal(ours, logits(write(whole, tmp_path / "whole.gguf")))


@pytest.mark.parametrize("kind", K_QUANTS, ids=lambda kind: kind.name)
def test_k_quants_are_read_in_slabs(
    kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their bytes cannot be made with the library, so random ones stand in; scales are halved."""
    raw = np.random.default_rng(0).integers(0, 64, (40, GGML_QUANT_SIZES[kind][1]), dtype=np.uint8)
    path = tmp_path / "k.gguf"
    write(Content(architecture="llama", tensors={"w": raw}, kinds={"w": kind}), path)
    monkeypatch.setattr("outrider.formats.gguf_file.SLAB_BYTES", 7 * raw.shape[1])
    found = dequantise(open_gguf(path).tensors["w"])
    assert found.shape == (40, 256)
    assert found.std() > 0
    assert np.array_equal(found.numpy(), quants.dequantize(raw, kind))


def test_a_q4_k_block_is_scale_times_code_minus_minimum(tmp_path: Path) -> None:
    """Worked by hand: d 0.5, dmin 0.25, all scales 3 and minima 2, codes 5 and 9."""
    scales = bytes([3] * 4 + [2] * 4 + [0x23] * 4)
    block = np.float16([0.5, 0.25]).tobytes() + scales + bytes([0x95] * 128)
    raw = np.frombuffer(block, dtype=np.uint8).reshape(1, -1).copy()
    path = tmp_path / "block.gguf"
    write(Content(architecture="llama", tensors={"w": raw}, kinds={"w": Kind.Q4_K}), path)
    found = dequantise(open_gguf(path).tensors["w"]).flatten().tolist()
    low, high = 0.5 * 3 * 5 - 0.25 * 2, 0.5 * 3 * 9 - 0.25 * 2
    assert found == ([low] * 32 + [high] * 32) * 4


@torch.inference_mode()
def test_a_split_model_equals_the_whole(tmp_path: Path) -> None:
    whole = content(build("qwen3"))
    names = list(whole.tensors)
    parts = [names[:5], names[5:9], names[9:]]
    paths = [tmp_path / f"m-{at:05}-of-00003.gguf" for at in (1, 2, 3)]
    for at, part in enumerate(parts):
        piece = Content(
            architecture="qwen3",
            metadata=whole.metadata if at == 0 else {},
            tensors={name: whole.tensors[name] for name in part},
        )
        write(piece, paths[at], no=at, count=3, tensors=len(names))
    assert torch.equal(logits(paths[0]), logits(write(whole, tmp_path / "whole.gguf")))
    with pytest.raises(CheckpointError, match=r"later part: name the first, m-00001-of-00003.gguf"):
        open_gguf(paths[1])
    paths[1].rename(paths[1].with_name("aside"))
    with pytest.raises(CheckpointError, match=r"m-00002-of-00003.gguf cannot be read"):
        open_gguf(paths[0])
    paths[2].rename(paths[1])
    paths[1].with_name("aside").rename(paths[2])
    with pytest.raises(CheckpointError, match="says that it is part 2 of its model, not 1"):
        open_gguf(paths[0])
    alone = write(whole, tmp_path / "alone.gguf", no=0, count=2, tensors=9)
    with pytest.raises(CheckpointError, match="one of 2 parts, which are found by their names"):
        open_gguf(alone)


@torch.inference_mode()
def test_a_range_of_layers_leaves_the_others(tmp_path: Path) -> None:
    file = write(content(build("qwen35")), tmp_path / "m.gguf")
    stage = load_decoder(file, LoadOptions(first=1, last=3))
    assert len(stage.layers) == 2
    assert stage.embedding is None
    assert stage.head is None


@torch.inference_mode()
def test_layers_for_multi_token_prediction_are_left(tmp_path: Path) -> None:
    plain = content(build("qwen35"))
    more = Content(
        architecture="qwen35",
        metadata={
            **plain.metadata,
            "qwen35.block_count": 5,
            "qwen35.nextn_predict_layers": 1,
        },
        tensors={**plain.tensors, "blk.4.nextn.eh_proj.weight": np.zeros((64, 128), np.float32)},
    )
    ours = logits(write(more, tmp_path / "more.gguf"))
    assert torch.equal(ours, logits(write(plain, tmp_path / "plain.gguf")))
    config, _ = open_tensors(tmp_path / "more.gguf")
    assert (config.num_layers, config.mtp_layers) == (4, 1)


def test_folders_and_other_files_are_told_apart(tmp_path: Path) -> None:
    file = write(content(build("llama")), tmp_path / "m.gguf")
    assert is_gguf(file)
    with pytest.raises(CheckpointError, match=r"holds GGUF files: name one itself, such as .*m.gg"):
        is_gguf(tmp_path)
    other = tmp_path / "model.bin"
    other.write_bytes(b"x")
    with pytest.raises(CheckpointError, match=r"neither a model folder nor a \.gguf file"):
        is_gguf(other)
    with pytest.raises(CheckpointError, match=r"tokenizer\.ggml\.model is missing"):
        load_tokenizer(file)


CHANGES: dict[str, tuple[dict[str, object], str]] = {
    "another architecture": ({"general.architecture": "gemma3"}, "'gemma3' is not supported"),
    "experts": ({"llama.expert_count": 8}, r"llama\.expert_count = 8 asks for arithmetic"),
    "logit scale": ({"llama.logit_scale": 0.5}, r"llama\.logit_scale = 0\.5 asks"),
    "window": ({"llama.attention.sliding_window": 64}, r"sliding_window = 64 asks"),
    "long rope": (
        {"llama.rope.scaling.type": "longrope", "llama.rope.scaling.factor": 2.0},
        "rope type 'longrope' is not supported",
    ),
    "partial rotation": ({"llama.rope.dimension_count": 8}, "rotates a part of each head"),
    "odd rotation": ({"llama.rope.dimension_count": 7}, "dimension_count = 7 does not fit"),
    "value width": ({"llama.attention.value_length": 8}, "values of another width"),
    "no heads": ({"llama.attention.head_count": 0}, "layers of 0 heads"),
    "many heads": ({"llama.attention.head_count": 8}, r"attn_q\.weight has shape"),
    "many layers": ({"llama.block_count": 4_000_000_000}, "which 21 tensors cannot be"),
    "one layer more": ({"llama.block_count": 3}, r"layers\.2\..* is missing"),
    "one layer less": ({"llama.block_count": 1}, r"does not explain: blk\.1\."),
    "long context": ({"llama.context_length": 4_000_000_000}, "is not from 1 to"),
    "text for number": ({"llama.embedding_length": "64"}, "is '64' where a whole number is needed"),
    "hidden size": ({"llama.embedding_length": 32}, "has shape"),
    "vocabulary": ({"llama.vocab_size": 95}, r"token_embd\.weight has shape"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_metadata_that_does_not_fit_is_refused(change: str, tmp_path: Path) -> None:
    values, message = CHANGES[change]
    plain = content(build("llama"))
    architecture = str(values.pop("general.architecture", "llama"))
    changed = Content(
        architecture=architecture,
        metadata={**plain.metadata, **values},
        tensors=plain.tensors,
    )
    path = write(changed, tmp_path / "m.gguf")
    with pytest.raises(CheckpointError, match=message):
        load_decoder(path, LoadOptions())


def test_types_that_are_known_and_not_supported_are_named(tmp_path: Path) -> None:
    assert Kind.IQ4_XS not in SUPPORTED
    raw = np.zeros((96, GGML_QUANT_SIZES[Kind.IQ4_NL][1] * 2), dtype=np.uint8)
    plain = content(build("llama"))
    changed = Content(
        architecture="llama",
        metadata=plain.metadata,
        tensors={**plain.tensors, "token_embd.weight": raw},
        kinds={"token_embd.weight": Kind.IQ4_NL},
    )
    path = write(changed, tmp_path / "m.gguf")
    with pytest.raises(
        CheckpointError, match=r"token_embd\.weight is of type IQ4_NL, which is not"
    ):
        load_decoder(path, LoadOptions())
