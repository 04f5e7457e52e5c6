"""Every file and function that docs/architecture.md names for a step of a window's life exists."""

import ast
import re

import pytest

from tests.architecture.source import ROOT, Source, sources

STEPS = [
    "propose",
    "issue",
    "submit",
    "run",
    "settle",
    "rollback",
    "judge",
    "commit",
    "emit",
    "observe",
]
SECTION = re.search(
    r"^## The life of a window\n(.*?)^## ",
    (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"),
    re.MULTILINE | re.DOTALL,
)
assert SECTION is not None
NAMED = re.findall(r"`([a-z_/]+\.py)(?::([A-Za-z_.]+))?`", SECTION[1])
FILES = {source.path: source for source in sources()}


def defined(source: Source) -> set[str]:
    """Names of a file's classes and functions, methods as `Class.method`."""
    kinds = ast.ClassDef | ast.FunctionDef
    found = {node.name for node in source.tree.body if isinstance(node, kinds)}
    for node in source.tree.body:
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{one.name}" for one in node.body if isinstance(one, kinds)}
    return found


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_what_is_named_exists(file: str, name: str) -> None:
    assert file in FILES
    assert not name or name in defined(FILES[file])


def test_every_step_has_a_line_that_names_a_function() -> None:
    rows = re.findall(r"^\| ([a-z ]+) \| `[a-z_/]+\.py:[A-Za-z_.]+` \|", SECTION[1], re.MULTILINE)
    assert set(STEPS) <= set(rows)


def test_the_verbs_of_the_loop_are_its_functions() -> None:
    loop = FILES["engine/loop.py"]
    first = (ast.get_docstring(loop.tree) or "").splitlines()[0]
    verbs = re.findall(r"[a-z]+", first.partition(":")[2])
    assert len(verbs) == 8
    assert set(verbs) <= defined(loop)
