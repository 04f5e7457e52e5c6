"""Files stay small enough to be named by one noun, functions to be read on a screen."""

import statistics

from tests.architecture.source import functions, sources

MOST_LINES_IN_A_FILE = 400
MOST_LINES_IN_A_FUNCTION = 60
MOST_LINES_IN_ALL = 12_000


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


def test_the_package_stays_under_its_ceiling():
    """Lines with text; blank ones separate and are free."""
    lines = [line for source in sources() for line in source.text.splitlines() if line.strip()]
    assert len(lines) < MOST_LINES_IN_ALL
