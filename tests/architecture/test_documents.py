"""README and documents: the example runs, commands exist, links lead somewhere."""

import ast
import re
import subprocess
import sys

import pytest

from outrider.server.metrics import SIMPLE, TIMES
from tests.architecture.source import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCUMENTS = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])


def python_examples() -> list[str]:
    return re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_the_python_example_is_valid_and_short():
    (example,) = python_examples()
    ast.parse(example)
    assert example.count("\n") <= 10


def test_the_python_example_runs_and_speculates(tmp_path):
    """Under a heavy load the controller may decode this short text plainly: three tries."""
    (example,) = python_examples()
    lengths = []
    while len(lengths) < 3 and max(lengths, default=1.0) <= 1:
        done = subprocess.run(
            [sys.executable, "-c", example],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        text, length = re.fullmatch(r"(.+?)(\d+\.?\d*)\n", done.stdout, re.DOTALL).groups()
        assert len(text) > 100
        lengths.append(float(length))
    assert max(lengths) > 1


def test_both_forms_of_each_first_command_are_given():
    for name in ("demo", "test"):
        assert f"make {name}" in README
        assert f"python3 run.py {name}" in README


def test_make_targets_are_commands_of_run_py():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = re.search(r"^TARGETS = (.*)$", makefile, re.MULTILINE)
    assert targets is not None
    names = set(re.findall(r'^    "([a-z-]+)": ', (ROOT / "run.py").read_text(), re.MULTILINE))
    assert set(targets[1].split()) == names


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_relative_links_lead_to_files(path):
    links = re.findall(r"\]\(([^)#:]+)\)", path.read_text(encoding="utf-8"))
    assert [link for link in links if not (path.parent / link).exists()] == []


def test_every_decision_is_listed():
    folder = ROOT / "docs" / "decisions"
    listed = set(re.findall(r"\]\(([a-z-]+\.md)\)", (folder / "README.md").read_text()))
    assert listed == {path.name for path in folder.glob("*.md")} - {"README.md"}


VOCABULARY = (ROOT / "docs" / "vocabulary.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`(\w+/[\w/]*(?:\.py)?)`", VOCABULARY))))
def test_the_vocabulary_names_files_that_exist(path):
    assert (ROOT / "src" / "outrider" / path).exists()


def test_every_metric_of_the_server_is_listed():
    page = (ROOT / "docs" / "serve.md").read_text(encoding="utf-8")
    names = [f"{name}_total" for name, _, _ in (*SIMPLE, *TIMES)]
    assert [name for name in names if f"`{name}`" not in page] == []
