"""No module imports itself by way of others, inside packages too, where import-linter is blind."""

import ast
from graphlib import CycleError, TopologicalSorter

import pytest

from tests.architecture.source import PACKAGE, sources


def name_of(path: str) -> str:
    """The module that a file below the package is."""
    stem = f"{PACKAGE.name}/{path}".removesuffix(".py").removesuffix("/__init__")
    return stem.replace("/", ".")


def imports(tree: ast.AST, modules: set[str]) -> set[str]:
    """Modules of `modules` that a file imports anywhere in it, names that are modules included."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found & modules


def check(trees: dict[str, ast.AST]) -> None:
    """Raise CycleError where modules, by name, import each other in a circle."""
    graph = {name: imports(tree, set(trees)) - {name} for name, tree in trees.items()}
    TopologicalSorter(graph).prepare()


def test_no_module_imports_itself_by_way_of_others():
    trees = {name_of(source.path): source.tree for source in sources()}
    assert "outrider.engine.loop" in trees
    assert "outrider.engine.session" in imports(trees["outrider.engine.loop"], set(trees))
    check(trees)


def test_a_circle_is_found():
    circle = {
        "outrider.a.one": ast.parse("def f():\n    from outrider.a import two"),
        "outrider.a.two": ast.parse("import outrider.a.one"),
    }
    with pytest.raises(CycleError):
        check(circle)
