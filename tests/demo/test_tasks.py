"""The generated parts of the mix, and the prompts that ship."""

import json
import random

import pytest

from outrider import demo
from outrider.errors import CheckpointError
from recipes.demo import edits, structured, workloads


def test_edit_renames_whole_words_everywhere():
    assert edits.rename("area = are(are, care)", "are", "x") == "area = x(x, care)"


def test_edit_answer_is_the_chunk_renamed():
    chunk = "def total(rows):\n    return sum(rows)\n"
    renames = edits.Renames(names=["rows"], suffixes=["_list"])
    edit = edits.make_edit(random.Random(0), chunk, renames)
    title = "# rows_rows.py\n"
    assert edit.prompt == f"{title}{chunk}# Edit: rename `rows` to `rows_list`\n{title}"
    assert edit.answer == "def total(rows_list):\n    return sum(rows_list)\n"
    taken = edits.Renames(names=["rows"], suffixes=[""])
    assert edits.make_edit(random.Random(0), chunk, taken) is None


@pytest.mark.parametrize("kind", structured.KINDS)
def test_structured_text_is_a_function_of_its_seed(kind):
    assert structured.document(5, kind) == structured.document(5, kind)
    assert structured.document(5, kind) != structured.document(6, kind)


def test_json_documents_parse():
    for seed in range(20):
        text = structured.document(seed, "json")
        try:
            json.loads(text)
        except json.JSONDecodeError:
            assert all(json.loads(line) for line in text.splitlines())


def test_workloads_ship_with_distinct_prompts():
    found = demo.workloads()
    assert set(found) == set(workloads.WORKLOADS)
    for name, file in found.items():
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        assert 20 <= len(rows) <= 50
        assert len({row["prompt"] for row in rows}) == len({row["id"] for row in rows}) == len(rows)
        assert all(row["id"].startswith(name) for row in rows)
        assert all(("expected" in row) == (name == "re-emit") for row in rows)


def test_unknown_name_lists_the_shipped_ones():
    with pytest.raises(CheckpointError, match=r"'demo-nothing'.*'demo', .*'demo-draft'"):
        demo.path("demo-nothing")


def test_missing_weights_are_told_from_unknown_names(tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "__file__", str(tmp_path / "__init__.py"))
    with pytest.raises(CheckpointError, match="'demo' is missing from this installation"):
        demo.path("demo")
