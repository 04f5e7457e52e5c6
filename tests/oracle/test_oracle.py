"""The oracle is independent of the package, and right in cases that can be worked out by hand."""

import ast
from pathlib import Path

import numpy as np
import pytest

from tests.oracle.decoder import cut
from tests.oracle.sampling import adjusted, choose, probabilities, uniform


def imported(file: Path) -> set[str]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    names = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    return names | {n.module or "" for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}


def test_the_oracle_imports_nothing_of_the_package():
    files = [Path(__file__).with_name(name) for name in ("decoder.py", "sampling.py")]
    names = set().union(*map(imported, files))
    assert not [name for name in names if name.split(".")[0] == "outrider"]
    assert {name for name in names if name.startswith("tests")} == {"tests.oracle.sampling"}


def test_penalties_by_hand():
    row = adjusted(
        np.array([2.0, -2.0, 1.0, 0.5]),
        prompt=[1],
        output=[0, 0],
        settings={
            "logit_bias": {3: 1.0},
            "repetition_penalty": 2.0,
            "presence_penalty": 0.25,
            "frequency_penalty": 0.125,
        },
    )
    assert row.tolist() == [2.0 / 2 - 0.25 - 0.25, -4.0, 1.0, 1.5]


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({"top_k": 2}, {0, 1}),
        ({"top_p": 0.5}, {0}),
        ({"top_p": 0.51}, {0, 1}),
        ({"min_p": 0.5}, {0, 1}),
        ({"top_k": 3, "min_p": 0.2}, {0, 1, 2}),
    ],
)
def test_filters_by_hand(settings, kept):
    row = np.log(np.array([0.5, 0.25, 0.125, 0.125 / 2, 0.125 / 2]))
    probs = probabilities(row, {"temperature": 1.0, **settings})
    assert set(np.nonzero(probs)[0].tolist()) == kept
    assert probs.sum() == pytest.approx(1.0)


def test_the_drawn_token_is_the_first_whose_cumulative_weight_exceeds_the_number():
    row = np.log(np.array([0.25, 0.25, 0.5]))
    number = uniform(seed=5, position=3)
    token, margin = choose(row, [0, 1], [2], {"temperature": 1.0, "seed": 5})
    assert token == (0 if number < 0.25 else 1 if number < 0.5 else 2)
    assert margin == pytest.approx(min(abs(number - edge) for edge in (0.25, 0.5, 1.0)))


def test_the_first_end_wins():
    def text(tokens):
        return "".join("ab"[token] for token in tokens)

    assert cut([0, 1, 0, 1], text, max_tokens=4, stops=["ba"]).text == "a"
    assert cut([0, 1, 0, 1], text, max_tokens=4, end_tokens=[1], stops=["ba"]).tokens == (0, 1)
    assert cut([0, 0, 0], text, max_tokens=2).reason == "length"
