"""llama.cpp's server as a peer, on a tiny file of our own."""

from pathlib import Path

import pytest

from outrider.bench.legs import Refusal
from outrider.bench.peers import PeerTarget, make
from outrider.errors import ConfigError
from tests.helpers.gguf_files import build, content, write
from tests.helpers.gguf_tokens import byte_level_metadata


def target(path: Path, draft: Path | None = None) -> PeerTarget:
    return PeerTarget(target=path, draft=draft, dtype="float32", device="cpu")


@pytest.fixture(scope="module")
def gguf(tmp_path_factory) -> Path:
    whole = content(build("llama"))
    size = whole.tensors["token_embd.weight"].shape[0]
    whole.metadata.update(byte_level_metadata("gpt-2", size))
    return write(whole, tmp_path_factory.mktemp("gguf") / "tiny.gguf")


def test_every_variant_decodes(gguf):
    for peer, name in zip(
        make("llama.cpp:n_max=2,size_n=3,size_m=4", target(gguf, gguf)),
        ("plain", "n-gram", "draft"),
        strict=True,
    ):
        leg = peer.run([5, 6, 7, 8] * 4, 12, iter(range(100)).__next__)
        assert leg.kind == f"llama.cpp {name}"
        assert len(leg.tokens) == 12
        assert leg.ms > 0


def test_a_folder_is_a_refusal(tmp_path):
    (peer,) = make("llama.cpp", target(tmp_path))
    with pytest.raises(Refusal, match="GGUF files only"):
        peer.run([1], 4, lambda: 0.0)


def test_a_broken_file_is_a_refusal(tmp_path):
    file = tmp_path / "broken.gguf"
    file.write_bytes(b"GGUF")
    with pytest.raises(Refusal, match=r"\w+"):
        make("llama.cpp", target(file))[0].run([1], 4, lambda: 0.0)


@pytest.mark.parametrize("settings", ["drafts=4", "n_max=many"])
def test_unknown_settings_are_refused(gguf, settings):
    with pytest.raises(ConfigError, match="not among its settings: use numbers for n_max"):
        make(f"llama.cpp:{settings}", target(gguf))
