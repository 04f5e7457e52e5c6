"""Under int8 a row keeps its bits in every window, and a settled state those of a stepped one."""

from pathlib import Path

import pytest
import torch

from outrider.kernels.selftest import Kernels
from outrider.models.decoder import Decoder
from outrider.models.load import LoadOptions, load_decoder
from outrider.models.selfcheck import rows_are_invariant
from tests.helpers.checkpoints import ARCHITECTURES, save_model
from tests.helpers.gguf_files import build, content, write
from tests.helpers.runs import random_tokens, run, same_state, step

FOLDERS = ("llama-biased", "qwen3", "qwen3_5-tied")


def load(path: Path, **options: str) -> Decoder:
    return load_decoder(path, Kernels(exact=True, **options), LoadOptions())


@pytest.fixture(scope="module", params=FOLDERS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(request.param)
    save_model(request.param, path)
    return path


@torch.inference_mode()
def test_windows_equal_steps(folder: Path) -> None:
    decoder = load(folder, quantize="int8")
    assert rows_are_invariant(decoder)
    tokens = random_tokens(100)
    plain = decoder.new_state("log", 0)
    run(decoder, plain, tokens[:70], revocable=False)
    steps = step(decoder, plain, tokens[70:])
    for width in (*range(1, 10), 16, 17, 30):
        state = decoder.new_state("log", 30)
        run(decoder, state, tokens[:70], revocable=False)
        assert torch.equal(run(decoder, state, tokens[70 : 70 + width]), steps[:width])
        state.settle(71)
        state.raise_floor(71)
        again = run(decoder, state, tokens[71 : 70 + width]) if width > 1 else None
        assert again is None or torch.equal(again, steps[1:width])


@torch.inference_mode()
def test_a_settled_state_equals_a_stepped_one(folder: Path) -> None:
    decoder = load(folder, quantize="int8")
    tokens = random_tokens(90)
    state, plain = decoder.new_state("log", 8), decoder.new_state("log", 0)
    for one in (state, plain):
        run(decoder, one, tokens[:66], revocable=False)
    run(decoder, state, [*tokens[66:69], 1, 2])
    state.settle(69)
    state.raise_floor(69)
    step(decoder, plain, tokens[66:69])
    assert same_state(state, plain)


@pytest.mark.parametrize("name", ARCHITECTURES)
@torch.inference_mode()
def test_int8_is_near_the_whole_numbers_and_not_them(name: str, tmp_path: Path) -> None:
    save_model(name, tmp_path)
    tokens = random_tokens(64)
    small, whole = load(tmp_path, quantize="int8"), load(tmp_path)
    rows = [run(one, one.new_state("log", 0), tokens, revocable=False) for one in (small, whole)]
    error = (rows[0] - rows[1]).norm() / rows[1].norm()
    assert 0 < error < 0.03


@torch.inference_mode()
def test_a_gguf_file_is_rounded_as_its_folder_is(tmp_path: Path) -> None:
    model = build("qwen3")
    model.save_pretrained(tmp_path / "folder")
    file = write(content(model), tmp_path / "m.gguf")
    tokens = random_tokens(40)
    ours, theirs = (load(path, quantize="int8") for path in (file, tmp_path / "folder"))
    assert torch.equal(
        run(ours, ours.new_state("log", 0), tokens, revocable=False),
        run(theirs, theirs.new_state("log", 0), tokens, revocable=False),
    )
