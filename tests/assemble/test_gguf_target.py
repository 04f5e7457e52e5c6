"""A GGUF file as target and as draft model, from configuration to text."""

from pathlib import Path

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


@pytest.mark.parametrize("quantize", ["none", "int8"])
def test_speculation_changes_no_token(file: Path, quantize: str) -> None:
    target = TargetConfig(path=str(file), backend="torch", quantize=quantize)
    plain = tokens(target, SpeculativeConfig(method="off"))
    assert tokens(target, SpeculativeConfig(method="suffix")) == plain
    drafted = SpeculativeConfig(method="draft", draft_model=str(file))
    assert tokens(target, drafted) == plain


def test_kernels_are_reported_by_name(file: Path) -> None:
    engine = Engine.load(TargetConfig(path=str(file), backend="torch", quantize="int8"))
    kernels = engine.describe()["kernels"]
    assert isinstance(kernels, dict)
    linear = {name: plan for name, plan in kernels.items() if name.startswith("linear")}
    assert {plan.partition("/")[0] for plan in linear.values()} == {"half", "int8", "int8-logits"}


def test_a_file_is_inspected_without_loading_it(file: Path) -> None:
    facts = inspect(str(file))
    assert facts["layers"] == {"delta": 2, "attention": 2}
    assert facts["vocab_size"] == 96


def test_a_draft_model_that_is_damaged_is_refused(file: Path, tmp_path: Path) -> None:
    short = tmp_path / "short.gguf"
    short.write_bytes(file.read_bytes()[:-4096])
    with pytest.raises(CheckpointError, match=r"draft_model = .* cannot be loaded: .*whole GGUF"):
        Engine.load(
            TargetConfig(path=str(file), backend="torch"),
            speculative=SpeculativeConfig(method="draft", draft_model=str(short)),
        )
