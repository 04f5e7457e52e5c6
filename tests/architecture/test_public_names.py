"""One list of public names: in `__all__`, in the stub, and importable."""

import ast
import importlib
from pathlib import Path

import pytest

import outrider

PUBLIC = {
    "CheckpointError",
    "Commit",
    "ConfigError",
    "Context",
    "Draft",
    "Drafter",
    "Engine",
    "Generation",
    "GenerationResult",
    "LinkConfig",
    "Needs",
    "OutriderError",
    "Piece",
    "RequestError",
    "RunConfig",
    "SamplingParams",
    "SpeculativeConfig",
    "StageError",
    "StagesConfig",
    "StateConfig",
    "StateError",
    "TargetConfig",
    "VerifyWindowConfig",
    "__version__",
}


def stub_tree() -> ast.Module:
    return ast.parse(Path(outrider.__file__).with_suffix(".pyi").read_text(encoding="utf-8"))


def stub_imports() -> dict[str, str]:
    """Each re-exported name of the stub and the module it comes from."""
    imports = [node for node in stub_tree().body if isinstance(node, ast.ImportFrom)]
    return {alias.asname or "": node.module or "" for node in imports for alias in node.names}


def test_the_list_is_the_agreed_one():
    assert set(outrider.__all__) == PUBLIC
    assert len(outrider.__all__) == len(PUBLIC)
    assert dir(outrider) == sorted(PUBLIC)


def test_the_stub_declares_the_same_names():
    assert {*stub_imports(), "__version__"} == PUBLIC


@pytest.mark.parametrize("name", sorted(stub_imports()))
def test_a_name_is_the_object_that_the_stub_declares(name):
    home = importlib.import_module(stub_imports()[name])
    assert getattr(outrider, name) is getattr(home, name)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        outrider.Nonsense  # noqa: B018
