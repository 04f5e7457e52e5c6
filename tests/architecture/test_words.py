"""A docstring says what a thing is or does: it begins with no clause that must be unpacked."""

import ast

import pytest

from tests.architecture.source import Source, sources

OPENERS = ("What ", "Whether ", "Whoever ", "How many ", "How much ")


def riddles(tree: ast.Module) -> list[int]:
    """Lines of docstrings, those of attributes included, that begin with an opener."""
    bodies = [node.body for node in ast.walk(tree) if isinstance(getattr(node, "body", 0), list)]
    return [
        statement.lineno
        for body in bodies
        for statement in body
        if isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and str(statement.value.value).lstrip().startswith(OPENERS)
    ]


@pytest.mark.parametrize("source", sources(), ids=lambda source: source.path)
def test_docstrings_name_a_thing(source: Source) -> None:
    assert riddles(source.tree) == []


def test_a_clause_is_found() -> None:
    attribute = 'x: int\n"""How many there are."""'
    method = 'class C:\n    def f(self):\n        """Whether it is."""'
    assert riddles(ast.parse(attribute)) == [2]
    assert riddles(ast.parse(method)) == [3]
    assert riddles(ast.parse('"""What it does."""')) == [1]
