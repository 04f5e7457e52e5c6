"""A damaged GGUF file gives one clear error, in little memory, and leaves nothing behind."""

import os
import random
import struct
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from gguf import GGUFReader

from outrider.errors import CheckpointError
from outrider.formats.gguf_file import open_gguf, read_header
from outrider.models.load import LoadOptions, load_decoder
from outrider.models.model_file import load_tokenizer
from tests.helpers.gguf_files import Content, build, content, write
from tests.helpers.gguf_tokens import byte_level_metadata

MOST_BYTES = 32 << 20
HUGE = (1 << 63) - 1


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    plain = content(build("llama"))
    given = Content(
        architecture="llama",
        metadata={**plain.metadata, **byte_level_metadata("gpt-2", size=96)},
        tensors=plain.tensors,
    )
    path = write(given, tmp_path_factory.mktemp("whole") / "m.gguf")
    load(path)  # what the first load of a process compiles takes more memory than any file here
    return path.read_bytes()


@pytest.fixture(scope="module")
def data_start(whole: bytes, tmp_path_factory: pytest.TempPathFactory) -> int:
    path = tmp_path_factory.mktemp("start") / "m.gguf"
    path.write_bytes(whole)
    return int(GGUFReader(path).data_offset)


def load(path: Path) -> None:
    """Everything that a run reads of a model."""
    load_tokenizer(path)
    load_decoder(path, LoadOptions())


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def outcome(path: Path, raw: bytes) -> str:
    """The refusal of a damaged file, or "" where it loads; anything else fails the test."""
    path.write_bytes(raw)
    files = open_files()
    tracemalloc.start()
    try:
        load(path)
        message = ""
    except CheckpointError as error:
        message = str(error)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < MOST_BYTES
    assert open_files() == files
    return message


def test_the_whole_file_loads(whole: bytes, tmp_path: Path) -> None:
    assert outcome(tmp_path / "m.gguf", whole) == ""


def test_forty_truncations_are_refused(whole: bytes, data_start: int, tmp_path: Path) -> None:
    chance = random.Random(1)
    lengths = [0, 3, 4, 8, 16, 24, data_start, data_start - 1, len(whole) - 64]
    lengths += [chance.randrange(data_start) for _ in range(20)]
    lengths += [chance.randrange(data_start, len(whole) - 64) for _ in range(11)]
    assert len(lengths) == 40
    for length in lengths:
        message = outcome(tmp_path / "m.gguf", whole[:length])
        assert "is not a whole GGUF file" in message, length


def test_forty_flipped_bits_are_refused_or_harmless(
    whole: bytes, data_start: int, tmp_path: Path
) -> None:
    """No checksum guards a file: a flipped bit in a name is found out, one in a float cannot be."""
    chance = random.Random(2)
    refused = 0
    for _ in range(40):
        raw = bytearray(whole)
        raw[chance.randrange(data_start)] ^= 1 << chance.randrange(8)
        refused += bool(outcome(tmp_path / "m.gguf", bytes(raw)))
    assert refused > 10


Change = Callable[[bytes], bytes]


def at(position: int, code: str, value: int) -> Change:
    """Overwrite a number at a fixed place."""

    def change(raw: bytes) -> bytes:
        packed = struct.pack(f"<{code}", value)
        return raw[:position] + packed + raw[position + len(packed) :]

    return change


def behind(text: str, skip: int, code: str, value: int) -> Change:
    """Overwrite a number that lies `skip` bytes behind a name."""

    def change(raw: bytes) -> bytes:
        place = raw.index(struct.pack("<Q", len(text)) + text.encode()) + 8 + len(text) + skip
        return at(place, code, value)(raw)

    return change


def before(text: str, code: str, value: int) -> Change:
    """Overwrite the length in front of a name."""

    def change(raw: bytes) -> bytes:
        place = raw.index(struct.pack("<Q", len(text)) + text.encode())
        return at(place, code, value)(raw)

    return change


def swapped(old: str, new: str) -> Change:
    return lambda raw: raw.replace(old.encode(), new.encode(), 1)


TOKENS, NAME = "tokenizer.ggml.tokens", "blk.0.attn_k.weight"
LIES: dict[str, tuple[Change, str]] = {
    "magic": (at(0, "I", 0x46554746), "begins with b'FGUF', not b'GGUF'"),
    "version 1": (at(4, "I", 1), "of GGUF version 1"),
    "version 99": (at(4, "I", 99), "of GGUF version 99"),
    "byte order": (at(4, "I", 3 << 24), "big-endian"),
    "tensors": (at(8, "Q", HUGE), "the number of tensors"),
    "tensors + 1": (at(8, "Q", 22), "GGUF"),
    "keys": (at(16, "Q", HUGE), "the number of metadata keys"),
    "keys within the limit": (at(16, "Q", 60_000), "GGUF"),
    "key length": (before("llama.block_count", "Q", HUGE), "length of a metadata key"),
    "value type": (behind("llama.block_count", 0, "I", 77), "is of type 77, which is none"),
    "array of arrays": (behind(TOKENS, 4, "I", 9), "is of type 9, which is none"),
    "array length": (behind(TOKENS, 8, "Q", HUGE), "the item count of"),
    "array past the end": (behind(TOKENS, 8, "Q", 4_000_000), "GGUF"),
    "text length": (behind(TOKENS, 16, "Q", HUGE), "the length of a text of"),
    "text past the end": (behind(TOKENS, 16, "Q", 60_000_000), "runs past its end"),
    "name length": (before(NAME, "Q", HUGE), "length of a tensor's name"),
    "rank 0": (behind(NAME, 0, "I", 0), "has 0 dimensions"),
    "rank": (behind(NAME, 0, "I", 4_000_000_000), "has 4000000000 dimensions"),
    "empty dimension": (behind(NAME, 4, "Q", 0), "has shape"),
    "huge dimension": (behind(NAME, 4, "Q", HUGE), "runs past its end"),
    "other dimension": (behind(NAME, 4, "Q", 32), "is damaged, or holds a type of another"),
    "unknown type": (behind(NAME, 20, "I", 142), r"type 142 (PQ2_0 of PrismML)"),
    "nameless type": (behind(NAME, 20, "I", 9999), "type 9999, which is not supported"),
    "reused type": (behind(NAME, 20, "I", 1), "under a number that means something else"),
    "offset": (behind(NAME, 24, "Q", HUGE), "is damaged"),
    "overlap": (behind(NAME, 24, "Q", 0), "is damaged"),
    "same tensor twice": (swapped("blk.1.attn_k.weight", NAME), "stands there twice"),
    "same key twice": (swapped("llama.block_count", "llama.vocab_sizee"), "llama.block_count"),
    "no such tensor": (swapped(NAME, "blk.0.attn_z.weight"), "k_proj.weight is missing"),
    "alignment": (swapped("llama.block_count", "general.alignment"), "tensors before it end"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_refused(lie: str, whole: bytes, tmp_path: Path) -> None:
    change, message = LIES[lie]
    raw = change(whole)
    assert raw != whole
    found = outcome(tmp_path / "m.gguf", raw)
    assert found
    assert message in found


def test_bytes_behind_the_last_tensor_are_refused(whole: bytes, tmp_path: Path) -> None:
    message = outcome(tmp_path / "m.gguf", whole + bytes(4096))
    assert "puts the end at byte" in message


def test_text_that_is_not_utf8_is_refused(whole: bytes, tmp_path: Path) -> None:
    raw = whole.replace(b"llama.block_count", b"llama.block_coun\xff", 1)
    assert "a metadata key is not UTF-8" in outcome(tmp_path / "m.gguf", raw)


def test_a_file_that_shrinks_is_noticed(whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(whole)
    file = open_gguf(path)
    path.write_bytes(whole[:-4096])
    last = max(file.tensors.values(), key=lambda entry: entry.start)
    with pytest.raises(CheckpointError, match="became shorter while it was read"):
        file.read(last.name)


def test_a_folder_or_nothing_is_no_file(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none.gguf"):
        with pytest.raises(CheckpointError, match="cannot be read"):
            read_header(path)


@pytest.fixture(autouse=True)
def nothing_left(tmp_path: Path) -> Iterator[None]:
    yield
    assert {item.name for item in tmp_path.iterdir()} <= {"m.gguf"}
