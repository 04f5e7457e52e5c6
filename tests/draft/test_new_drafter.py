"""The page on a new drafter: its drafter is added to a copy of the package as it says, and runs."""

import ast
import os
import re
import shutil
import subprocess
import sys

import pytest

from tests.architecture.source import PACKAGE, ROOT
from tests.architecture.test_contracts import lint

PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
SECTION = PAGE.split("\n## A new drafter\n")[1].split("\n## ")[0]
DRAFTER, EXAMPLE = re.findall(r"```python\n(.*?)```", SECTION, re.DOTALL)
EDITS = [
    ("config/settings.py", '    "ngram-cache",\n', '    "bigram",\n'),
    ("config/settings.py", 'NGRAM_METHODS = ("suffix", ', '"bigram", '),
    (
        "assemble/drafter.py",
        '    "ngram-cache": NgramCacheDrafter,\n',
        '    "bigram": BigramDrafter,\n',
    ),
    (
        "assemble/drafter.py",
        "from outrider.draft.base import ChainDrafter, Drafter\n",
        "from outrider.draft.bigram import BigramDrafter\n",
    ),
]
"""File, what stands there once, and what the page adds after it."""


@pytest.fixture(scope="module")
def extended(tmp_path_factory):
    """A folder with a copy of the package to which the drafter was added; weights are linked."""
    folder = tmp_path_factory.mktemp("extended")
    package = folder / "outrider"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("*.safetensors", "*.pyc"))
    for weights in PACKAGE.rglob("*.safetensors"):
        (package / weights.relative_to(PACKAGE)).symlink_to(weights)
    (package / "draft" / "bigram.py").write_text(DRAFTER, encoding="utf-8")
    for name, anchor, added in EDITS:
        text = (package / name).read_text(encoding="utf-8")
        assert text.count(anchor) == 1, (name, anchor)
        (package / name).write_text(text.replace(anchor, anchor + added), encoding="utf-8")
    return folder


def test_it_drafts_and_the_text_is_that_of_plain_decoding(extended):
    done = subprocess.run(
        [sys.executable, "-c", EXAMPLE],
        env={**os.environ, "PYTHONPATH": str(extended)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (method, accepted, text), (off, none, plain) = map(ast.literal_eval, done.stdout.splitlines())
    assert (method, off) == ("bigram", "off")
    assert accepted > 0 == none
    assert text == plain


def test_it_keeps_every_contract(extended):
    assert " 0 broken" in lint(extended)


@pytest.mark.parametrize(
    "path", sorted(set(re.findall(r"`(?:src/outrider/)?(\w+/[\w/.]+)`", SECTION)))
)
def test_the_page_names_files_that_exist(path):
    roots = (ROOT, PACKAGE)
    assert path == "draft/bigram.py" or any((root / path).exists() for root in roots)
