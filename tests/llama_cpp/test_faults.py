"""What is wrong with a file, a pair of files or the settings is one clear error, and nothing stays.

llama.cpp ends its process on some damaged files: these are met in a process of their own.
"""

import gc
import os
import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from gguf import GGUFReader

from outrider import CheckpointError, ConfigError, Engine, SpeculativeConfig, TargetConfig
from outrider.assemble import gguf_target as llamacpp
from outrider.assemble.memory_check import MARGIN_BYTES
from outrider.errors import StageError
from outrider.formats.gguf_file import open_gguf
from outrider.formats.gguf_tokenizer import read_gguf_tokenizer
from outrider.llamacpp.library import probe
from tests.helpers.gguf_files import Content, build, content, write
from tests.helpers.gguf_tokens import byte_level_metadata

CONTEXT = {"n_ctx": 256, "n_batch": 64, "n_ubatch": 64, "n_rs_seq": 4}
MUTATIONS = 100
PROMPT = [5, 6, 7, 8] * 4


def tiny(kind: str = "llama", size: int = 96, **metadata: object) -> Content:
    plain = content(build(kind))
    found = {**plain.metadata, **byte_level_metadata("gpt-2", size=size), **metadata}
    return Content(architecture=plain.architecture, metadata=found, tensors=plain.tensors)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tiny(), tmp_path_factory.mktemp("whole") / "model.gguf")


def load(target: Path, draft: Path | None = None, **settings: object) -> Engine:
    speculative = SpeculativeConfig(
        method="off" if draft is None else "draft",
        draft_model=str(draft) if draft else None,
        max_draft_tokens=3,
    )
    chosen = TargetConfig(path=str(target), backend="llama.cpp", **settings)  # type: ignore[arg-type]
    return Engine.load(chosen, speculative=speculative)


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """No file stays open and no process behind."""
    yield
    gc.collect()
    held = [link for link in map(_target, Path("/proc/self/fd").iterdir()) if ".gguf" in link]
    assert held == []
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii")
    assert children.split() == []


def _target(link: Path) -> str:
    """What a file descriptor stands for; "" where it was closed meanwhile."""
    try:
        return os.readlink(link)
    except FileNotFoundError:
        return ""


def test_a_hundred_damaged_files_are_refused_or_run(file: Path, tmp_path: Path) -> None:
    """One bit of the head is flipped, or the file cut: refused with the reason, or it decodes."""
    whole, chance = file.read_bytes(), random.Random(12)
    start, damaged, outcomes = int(GGUFReader(file).data_offset), tmp_path / "damaged.gguf", []
    for number in range(MUTATIONS):
        raw = bytearray(whole)
        if number % 4:
            raw[chance.randrange(start)] ^= 1 << chance.randrange(8)
        else:
            del raw[chance.randrange(len(raw)) :]
        damaged.write_bytes(raw)
        outcomes.append(_outcome(damaged))
    assert len(set(map(_kind, outcomes))) > 8, "the damage should be told apart"
    refused = [outcome for outcome in outcomes if outcome]
    assert len(refused) > MUTATIONS // 2
    assert all(str(damaged) in outcome for outcome in refused)


def _outcome(path: Path) -> str:
    """What is said of a file before llama.cpp is let near it in this process; "" for nothing."""
    try:
        read_gguf_tokenizer(open_gguf(path))
        probe(path, CONTEXT)
    except CheckpointError as error:
        return str(error)
    return ""


def _kind(message: str) -> str:
    return re.sub(r"\d+|'[^']*'", "", message)


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        ({"llama.attention.layer_norm_rms_epsilon": -1.0}, r"SIGABRT on this file \(ops\.cpp"),
        ({"llama.block_count": 0}, "SIGABRT on this file"),
        ({"llama.attention.head_count": 3}, "has wrong shape"),
        ({"llama.block_count": 1}, "wrong number of tensors"),
        ({"llama.rope.dimension_count": 15}, "invalid n_rot"),
    ],
)
def test_metadata_that_ends_llama_cpp_is_an_error(
    metadata: dict[str, object], said: str, tmp_path: Path
) -> None:
    broken = write(tiny(**metadata), tmp_path / "broken.gguf")
    with pytest.raises(CheckpointError, match=said) as caught:
        load(broken)
    assert str(broken) in str(caught.value)
    assert str(caught.value).endswith("fetch it again.")


def test_a_load_that_hangs_ends(file: Path) -> None:
    with pytest.raises(CheckpointError, match="was still loading it after 0 s"):
        probe(file, CONTEXT, seconds=0.01)


def test_an_unknown_tensor_type_is_named(file: Path, tmp_path: Path) -> None:
    raw = file.read_bytes()
    name = b"output_norm.weight"
    at = raw.index(name) + len(name) + 4 + 8  # behind the rank and the only dimension
    unknown = tmp_path / "unknown.gguf"
    unknown.write_bytes(raw[:at] + (142).to_bytes(4, "little") + raw[at + 4 :])
    with pytest.raises(CheckpointError, match=r"type 142 \(PQ2_0 of PrismML\)"):
        load(unknown)


def test_a_draft_of_an_unknown_architecture_is_refused(file: Path, tmp_path: Path) -> None:
    whole = tiny()
    draft = tmp_path / "draft.gguf"
    write(Content(architecture="abacus", metadata=whole.metadata, tensors=whole.tensors), draft)
    with pytest.raises(CheckpointError, match=r"draft_model = .* cannot be loaded: .*'abacus'"):
        load(file, draft)


def test_a_draft_that_is_cut_short_is_refused(file: Path, tmp_path: Path) -> None:
    draft = tmp_path / "short.gguf"
    draft.write_bytes(file.read_bytes()[:-4096])
    with pytest.raises(CheckpointError, match=r"draft_model = .* cannot be loaded: .*whole GGUF"):
        load(file, draft)


def test_a_draft_with_another_vocabulary_is_refused(file: Path, tmp_path: Path) -> None:
    other = tiny()
    tokens = list(other.metadata["tokenizer.ggml.tokens"])
    tokens[40], tokens[41] = tokens[41], tokens[40]
    other.metadata["tokenizer.ggml.tokens"] = tokens
    draft = write(other, tmp_path / "other.gguf")
    with pytest.raises(ConfigError, match="has another vocabulary than the target: id 40"):
        load(file, draft)


@pytest.mark.parametrize("who", ["target", "draft"])
def test_memory_that_is_not_there_is_refused(
    file: Path, who: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Target and draft model are counted together: the target alone would fit."""
    free = (400 if who == "draft" else 100) * 2**10 + MARGIN_BYTES
    monkeypatch.setattr(llamacpp, "free_bytes", lambda: free)
    with pytest.raises(ConfigError, match="the states do not fit") as caught:
        load(file, file if who == "draft" else None)
    assert "lower target.max_length" in str(caught.value)
    if who == "draft":
        load(file).close()


def test_a_prompt_beyond_a_small_context_is_refused(file: Path) -> None:
    engine = load(file, max_length=8)
    with pytest.raises(Exception, match="the prompt has 16 tokens and the context 8"):
        engine.generate(PROMPT)
    generation = engine.generate(PROMPT[:4])
    list(generation)
    assert generation.result.finish_reason == "length"
    assert len(generation.result.token_ids) == 4
    engine.close()


def test_a_pass_that_fails_ends_what_was_in_it_and_nothing_else(file: Path) -> None:
    """The library does not say which sequence it failed on."""
    engine = load(file, max_length=64)
    alone = engine.generate(PROMPT, max_tokens=8, ignore_eos=True)
    expected = [token for piece in alone for token in piece.tokens]
    call = engine.stage.decoder.context._call  # type: ignore[attr-defined]
    with pytest.MonkeyPatch.context() as broken:
        broken.setattr(call, "llama_decode", lambda *_: 1)
        ended = engine.generate(PROMPT, max_tokens=8, ignore_eos=True)
        with pytest.raises(StageError, match=r"could not run 16 rows \(status 1\)"):
            list(ended)
        ended.close()
    assert engine.stage.num_sessions == 0
    again = engine.generate(PROMPT, max_tokens=8, ignore_eos=True)
    assert [token for piece in again for token in piece.tokens] == expected
    engine.stage.check()
    engine.close()
