"""The layer contracts have teeth: each planted import breaks the contract that forbids it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.source import PACKAGE, ROOT

PLANTED = [
    ("models/planted.py", "import outrider.verify", "Layers"),
    ("models/planted.py", "def f():\n    import outrider.engine", "Layers"),
    ("kernels/planted.py", "import outrider.models", "Layers"),
    ("engine/planted.py", "import outrider.config", "Layers"),
    ("draft/planted.py", "import outrider.verify", "Drafters do not verify"),
    ("utils.py", "", "Layers"),
    (
        "records.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import outrider.state",
        "Layers",
    ),
    ("draft/planted.py", "import outrider.draft.lookup", "Drafter families are independent"),
    ("engine/planted.py", "import outrider.draft.lookup", "The engine sees protocols"),
    ("engine/planted.py", "import outrider.models", "The engine sees protocols"),
    ("verify/planted.py", "import outrider.state", "Verification is arithmetic"),
    ("draft/planted.py", "import outrider.telemetry", "Parts do not report"),
    ("config/planted.py", "import torch", "Torch-free modules"),
    ("errors.py", "import torch", "Torch-free modules"),
    ("engine/ledger.py", "import torch", "Torch-free modules"),
]


def lint(folder: Path) -> str:
    """What lint-imports says of a copy of the package, on one line per contract."""
    program = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run(
        [program, "--no-cache", "--config", ROOT / "pyproject.toml"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


@pytest.fixture
def copy(tmp_path):
    shutil.copytree(
        PACKAGE, tmp_path / "outrider", ignore=shutil.ignore_patterns("*.safetensors", "*.pyc")
    )
    return tmp_path


def test_the_package_keeps_every_contract(copy):
    report = lint(copy)
    assert " 0 broken" in report, report


@pytest.mark.parametrize(("path", "code", "contract"), PLANTED)
def test_a_planted_import_breaks_its_contract(copy, path, code, contract):
    with (copy / "outrider" / path).open("a", encoding="utf-8") as file:
        file.write(f"\n{code}\n")
    report = lint(copy)
    assert [line for line in report.splitlines() if contract in line and "BROKEN" in line], report
