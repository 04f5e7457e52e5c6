"""A small set of combinations in which every pair of values occurs."""

from collections.abc import Sequence
from itertools import combinations, product
from typing import Any

Row = tuple[Any, ...]


def pairwise(*axes: Sequence[Any]) -> list[Row]:
    """Rows from the product of `axes`, chosen greedily until every pair has been met."""
    rows = list(product(*axes))
    missing = set().union(*map(pairs, rows))
    chosen = []
    while missing:
        best = max(rows, key=lambda row: len(pairs(row) & missing))
        chosen.append(best)
        missing -= pairs(best)
    return chosen


def pairs(row: Row) -> set[tuple[tuple[int, Any], tuple[int, Any]]]:
    return set(combinations(enumerate(row), 2))
