"""The corpus: pinned, held-out files apart from the training files."""

import json
import platform

import pytest

from recipes.demo import corpus

MANIFEST = json.loads(corpus.MANIFEST.read_text())
on_pinned_python = platform.python_version() == corpus.PYTHON_VERSION


def test_manifest_names_every_held_out_file():
    held_out = {f["path"] for f in MANIFEST["files"] if f["split"] == "held-out"}
    assert held_out == set(corpus.HELD_OUT) == set(MANIFEST["held_out_runs"])


def test_manifest_respects_the_exclusions():
    assert all(corpus.is_included(f["path"]) for f in MANIFEST["files"])
    for path in ("test/x.py", "encodings/cp037.py", "pydoc_data/topics.py", "site-packages/a/b.py"):
        assert not corpus.is_included(path)


@pytest.mark.parametrize("path", corpus.HELD_OUT)
def test_held_out_files_share_under_a_twentieth_of_their_runs(path):
    counts = MANIFEST["held_out_runs"][path]
    assert counts["shared"] < 0.05 * counts["runs"]


def test_library_is_the_manifests_and_so_are_the_overlaps():
    if not on_pinned_python:
        with pytest.raises(SystemExit, match=r"3\.11\.7's standard library; this interpreter is"):
            corpus.library_root()
        return
    sources = corpus.load()
    trained = set()
    for source in sources:
        if not source.held_out:
            trained |= corpus.line_runs(source.text)
    for source in sources:
        if source.held_out:
            runs = corpus.line_runs(source.text)
            counts = MANIFEST["held_out_runs"][source.path]
            assert (len(runs), len(runs & trained)) == (counts["runs"], counts["shared"])


def test_no_near_duplicates_are_left():
    if on_pinned_python:
        assert corpus.near_duplicates(corpus.load()) == {}


def test_another_version_is_refused(monkeypatch):
    monkeypatch.setattr(platform, "python_version", lambda: "3.12.1")
    with pytest.raises(SystemExit, match=r"this interpreter is 3\.12\.1"):
        corpus.library_root()


def test_shared_runs_are_counted_over_non_blank_lines():
    lines = [f"line {i}" for i in range(6)]
    runs = corpus.line_runs("\n".join(lines))
    assert len(runs) == 2
    assert corpus.shared_with(runs, corpus.line_runs("\n\n  ".join(lines[:5]))) == 0.5
