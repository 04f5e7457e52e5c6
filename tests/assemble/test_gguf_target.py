"""A GGUF file as target and as draft model, from configuration to text."""

from pathlib import Path

import numpy as np
import pytest

from outrider import CheckpointError, Engine, SpeculativeConfig, TargetConfig
from outrider.assemble.inspection import inspect
from tests.helpers.gguf_files import Content, build, content, write
from tests.helpers.gguf_tokens import byte_level_metadata

PROMPT = "def fib(n):\n    return n if n < 2 else fib(n"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    plain = content(build("qwen35"))
    metadata = {**plain.metadata, **byte_level_metadata("qwen2", size=96)}
    given = Content(architecture="qwen35", metadata=metadata, tensors=plain.tensors)
    return write(given, tmp_path_factory.mktemp("gguf") / "hybrid.gguf")


def tokens(target: TargetConfig, speculative: SpeculativeConfig) -> tuple[int, ...]:
    engine = Engine.load(target, speculative=speculative)
    stream = engine.generate(PROMPT, max_tokens=40, ignore_eos=True)
    text = "".join(piece.text for piece in stream)
    assert text == stream.result.text
    assert len(stream.result.token_ids) == 40
    return stream.result.token_ids


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_speculation_changes_no_token(file: Path, dtype: str) -> None:
    target = TargetConfig(path=str(file), backend="torch", dtype=dtype)
    plain = tokens(target, SpeculativeConfig(method="off"))
    assert tokens(target, SpeculativeConfig(method="suffix")) == plain
    drafted = SpeculativeConfig(method="draft", draft_model=str(file))
    assert tokens(target, drafted) == plain


def test_kernels_are_reported_by_name(file: Path) -> None:
    engine = Engine.load(TargetConfig(path=str(file), backend="torch", dtype="bfloat16"))
    assert engine.describe()["kernels"] == {"layers": "compiled"}
    assert engine.describe()["exact"] is True


def test_a_file_is_inspected_without_loading_it(file: Path) -> None:
    facts = inspect(str(file))
    assert facts["layers"] == {"delta": 2, "attention": 2}
    assert facts["vocab_size"] == 96


@pytest.fixture(scope="module")
def with_mtp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file whose metadata name an MTP layer, with a tensor of one."""
    plain = content(build("qwen35"))
    more = {"qwen35.block_count": 5, "qwen35.nextn_predict_layers": 1}
    metadata = {**plain.metadata, **byte_level_metadata("qwen2", size=96), **more}
    tensors = {**plain.tensors, "blk.4.nextn.eh_proj.weight": np.zeros((64, 128), np.float32)}
    given = Content(architecture="qwen35", metadata=metadata, tensors=tensors)
    return write(given, tmp_path_factory.mktemp("gguf") / "mtp.gguf")


def test_auto_takes_what_works_where_the_layer_for_mtp_cannot_be_read(with_mtp: Path) -> None:
    target = TargetConfig(path=str(with_mtp), backend="torch")
    engine = Engine.load(target, speculative=SpeculativeConfig(method="auto"))
    assert engine.picked is not None
    assert "picked 'suffix'" in engine.picked
    assert "mtp" not in engine.picked
    plain = tokens(target, SpeculativeConfig(method="off"))
    assert tokens(target, SpeculativeConfig(method="auto")) == plain


def test_mtp_layers_of_gguf_files_are_refused_by_name(with_mtp: Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        Engine.load(str(with_mtp), speculative=SpeculativeConfig(method="mtp"))
    assert str(caught.value) == (
        f"{with_mtp} is a GGUF file, and MTP layers of GGUF files are not read: use another "
        "method, such as suffix."
    )
    facts = inspect(str(with_mtp))
    assert facts["mtp_layers"] == 1
    assert facts["drafters"] == ["suffix", "ngram-cache"]


def test_a_draft_model_that_is_damaged_is_refused(file: Path, tmp_path: Path) -> None:
    short = tmp_path / "short.gguf"
    short.write_bytes(file.read_bytes()[:-4096])
    with pytest.raises(CheckpointError, match=r"draft_model = .* cannot be loaded: .*whole GGUF"):
        Engine.load(
            TargetConfig(path=str(file), backend="torch"),
            speculative=SpeculativeConfig(method="draft", draft_model=str(short)),
        )
