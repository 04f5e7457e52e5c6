"""The real hub client against a hub on this machine: what it fetches and how it is refused."""

import sys
from functools import partial
from pathlib import Path

import pytest

from outrider.errors import CheckpointError
from outrider.formats import hub

sys.path.insert(0, str(Path(__file__).parent))
import fake_hub

FILES = {
    "config.json": b"{}",
    "tokenizer.json": b"{ }",
    "model.safetensors": b"weights",
    "pytorch_model.bin": b"pickle",
    "modeling.py": b"import os",
    "README.md": b"# x",
}


@pytest.fixture
def ask(monkeypatch, tmp_path):
    """Resolve a name by the hub at `address`, with a cache of this test's own."""
    monkeypatch.chdir(tmp_path)
    download = hub.snapshot_download

    def resolve(address: str) -> Path:
        options = {"cache_dir": tmp_path / "cache", "endpoint": address, "token": False}
        monkeypatch.setattr(hub, "snapshot_download", partial(download, **options))
        return hub.resolve("org/name@v1")

    return resolve


def test_only_model_files_are_fetched_and_found_again_without_the_hub(ask, monkeypatch, capsys):
    with fake_hub.serve(FILES) as (address, seen):
        folder = ask(address)
    wanted = ["config.json", "model.safetensors", "tokenizer.json"]
    assert sorted(path.name for path in folder.iterdir()) == wanted
    assert (folder / "model.safetensors").read_bytes() == b"weights"
    assert not any("pytorch_model.bin" in line or "modeling.py" in line for line in seen)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert ask(address) == folder


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("GatedRepo", "Model org/name@v1 is gated: accept its terms"),
        ("RepoNotFound", "Model org/name@v1 is not on the hub, or is private"),
        ("RevisionNotFound", "Model org/name has no revision 'v1' on the hub"),
    ],
)
def test_refusals_of_the_hub(ask, code, expected):
    with fake_hub.serve(FILES, refuse=code) as (address, seen), pytest.raises(CheckpointError) as e:
        ask(address)
    assert str(e.value).startswith(expected)
    assert seen


def test_hub_that_cannot_be_reached(ask):
    with fake_hub.serve(FILES) as (address, _):
        pass
    with pytest.raises(CheckpointError, match="not in the local cache and the hub cannot be reac"):
        ask(address)
