"""Files stay small enough to be named by one noun, functions to be read on a screen."""

import ast
import statistics

from tests.architecture.source import Source, functions, sources

MOST_LINES_IN_A_FILE = 400
MOST_LINES_IN_A_FUNCTION = 60
MOST_LINES_IN_ALL = 18_640
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def lengths() -> dict[str, int]:
    """Lines of every function, keyed by `file:line name`."""
    return {
        f"{source.path}:{node.lineno} {node.name}": (node.end_lineno or 0) - node.lineno + 1
        for source in sources()
        for node in functions(source)
    }


def test_files_are_short():
    long = {s.path: n for s in sources() if (n := s.text.count("\n")) > MOST_LINES_IN_A_FILE}
    assert long == {}


def test_functions_fit_a_screen():
    assert {name: n for name, n in lengths().items() if n > MOST_LINES_IN_A_FUNCTION} == {}


def test_the_median_function_is_about_ten_lines():
    assert statistics.median(lengths().values()) <= 12


def code_lines(source: Source) -> int:
    """Lines that are neither blank nor comment nor docstring."""
    documented: set[int] = set()
    for node in ast.walk(source.tree):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node) is not None:
            text = node.body[0]
            documented.update(range(text.lineno, (text.end_lineno or text.lineno) + 1))
    lines = enumerate(map(str.strip, source.text.splitlines()), start=1)
    return sum(bool(text) and text[0] != "#" and at not in documented for at, text in lines)


def test_the_package_stays_under_its_ceiling():
    assert sum(map(code_lines, sources())) < MOST_LINES_IN_ALL
