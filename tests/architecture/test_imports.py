"""What loads torch and what must not, in a fresh interpreter each time."""

import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "tokenizers", "safetensors", "huggingface_hub", "numpy")
TORCH_FREE = (
    "outrider",
    "outrider.config",
    "outrider.config.sources",
    "outrider.records",
    "outrider.draft.base",
    "outrider.engine.ledger",
    "outrider.errors",
    "outrider.sampling.params",
    "outrider.telemetry.counters",
)


def loaded_after(code: str) -> set[str]:
    """The heavy libraries that a fresh interpreter has loaded after `code`."""
    report = f"import sys; sys.stderr.write(' '.join(set(sys.modules) & set({HEAVY})))"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{report}"], capture_output=True, text=True, check=True
    )
    return set(done.stderr.split())


@pytest.mark.parametrize("module", TORCH_FREE)
def test_module_loads_no_heavy_library(module):
    assert loaded_after(f"import {module}") == set()


def test_public_names_of_records_load_no_heavy_library():
    assert loaded_after("from outrider import Draft, OutriderError, SamplingParams") == set()


def test_the_probe_sees_torch():
    assert "torch" in loaded_after("import torch")


@pytest.mark.parametrize("arguments", [["--help"], ["generate", "--help"], ["--version"]])
def test_help_loads_no_heavy_library(arguments):
    code = f"""
from outrider.cli.main import main
import sys
sys.argv = ["outrider", *{arguments}]
try:
    main()
except SystemExit as stop:
    assert not stop.code, stop.code
"""
    assert loaded_after(code) == set()
