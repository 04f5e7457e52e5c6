"""The report: JSON that can be read back, a page that loads nothing, reports set side by side."""

import copy
import json
import re
from html.parser import HTMLParser

import pytest

from outrider.bench import provenance, record
from outrider.bench import report as pages
from outrider.bench.legs import Leg, Refusal
from outrider.bench.peers import PeerTarget, make
from outrider.bench.record import compare
from outrider.bench.run import Settings, measure
from outrider.errors import ConfigError, RequestError
from tests.bench.world import (
    ScriptedDrafter,
    ScriptedStage,
    World,
    make_engine,
    make_workload,
    module_clock,
    text,
)


class ScriptedPeer:
    def __init__(self, name, step_ms=None):
        self.name, self.step_ms, self.runs = name, step_ms, 0

    def run(self, prompt, count, clock):
        self.runs += 1
        if self.step_ms is None:
            raise Refusal("not supported with <stateful> models")
        tokens = tuple(text(len(prompt) + place) for place in range(count))
        marks = tuple((place + 1, place * self.step_ms) for place in range(count))
        return Leg(kind=self.name, tokens=tokens, marks=marks)


def measured(**settings):
    with pytest.MonkeyPatch.context() as patch:
        world = World()
        for module in ("loop", "session"):
            patch.setattr(f"outrider.engine.{module}.time", module_clock(world))
        engine = make_engine(ScriptedStage(world), lambda: ScriptedDrafter(world, wrong=2))
        peers = [ScriptedPeer("steady", 30.0), ScriptedPeer("stateless")]
        sizes = {"prompts": 3, "tokens": 31, "repeats": 2, "calibration_repeats": 2} | settings
        run = measure(
            engine, engine.tokenizer.encode, make_workload(), Settings(**sizes), world.tools, peers
        )
        return record.build(run, "suffix", {"threads": 2, "processor": "x<y"}), peers


@pytest.fixture(scope="module")
def report():
    return measured()[0]


def test_it_survives_a_file(report, tmp_path):
    file = tmp_path / "a.json"
    file.write_text(json.dumps(report), encoding="utf-8")
    assert record.read(file) == report


def test_counters_hold_no_time(report):
    assert not [key for key in report["counters"] if "ms" in key or "second" in key]
    assert report["counters"]["by_source"]["suffix"]["accepted"] > 0


def test_the_last_line_holds_the_verdict(report):
    line = pages.summary(report)
    assert json.loads(json.dumps(line))["verdict"] == "pays"
    assert line["failed_gates"] == []


def test_a_peer_that_refuses_is_a_row_that_says_so(report):
    rows = {row["name"]: row for row in report["speeds"]}
    assert rows["steady"]["value"] == pytest.approx(1e3 / 30)
    assert rows["steady"]["same_output"] is True
    assert rows["stateless"]["refused"] == "not supported with <stateful> models"
    assert any("stateless" in line and "refused" in line for line in pages.lines(report))


def test_a_peer_that_refused_is_not_asked_again():
    _, (steady, stateless) = measured()
    assert (steady.runs, stateless.runs) == (1 + 2 * 3, 1)


def test_each_figure_stands_beside_its_formula(report):
    shown = "\n".join(pages.lines(report))
    for name in ("speed", "speedup", "acceptance_rate", "mean_acceptance_length", "copied"):
        assert f"({report['formulas'][name]})" in shown


class Reader(HTMLParser):
    """Collects tags, and whatever would be fetched."""

    def __init__(self):
        super().__init__()
        self.tags, self.fetched = [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        names = ("src", "href", "srcset", "data")
        self.fetched += [value for name, value in attrs if name in names]


def test_the_page_is_self_contained_and_escaped(report):
    html = pages.render(report)
    reader = Reader()
    reader.feed(html)
    assert reader.fetched == []
    assert "script" not in reader.tags
    assert "link" not in reader.tags
    assert "url(" not in html
    assert "@import" not in html
    assert reader.tags.count("figure") == 6
    assert reader.tags.count("svg") == 6
    assert "prefers-color-scheme:dark" in html
    assert "<stateful>" not in html
    assert "x&lt;y" in html
    assert not re.search(r"\b(nan|inf)\b", html)


def test_a_failed_run_has_a_page_too(report):
    failed = copy.deepcopy(report) | {"verdict": "failed", "speedup": None, "speeds": []}
    failed |= {"model": None, "round": None, "categories": [], "prompts": [], "context": []}
    html = pages.render(failed)
    assert 'class="failed"' in html
    assert "tokens/s" not in html


def changed(report, **changes):
    other = copy.deepcopy(report)
    for path, value in changes.items():
        *parents, last = path.split("__")
        place = other
        for key in parents:
            place = place[key]
        place[last] = value
    return other


def test_a_report_equals_itself(report):
    found = compare(report, report)
    assert found["ratio"] == 1.0
    assert found["verdict"] == "same within the intervals"
    assert found["warnings"] == []


def test_a_faster_report_is_faster_and_another_machine_is_warned_of(report):
    other = changed(report, provenance__processor="other")
    row = next(row for row in other["speeds"] if row["name"] == "speculative")
    row.update({key: row[key] * 2 for key in ("value", "low", "high")})
    found = compare(report, other)
    assert found["verdict"] == "faster"
    assert found["ratio"] == pytest.approx(2.0)
    assert found["warnings"] == ["processor differs: x<y in A, other in B"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"workload__version": "0"}, "only reports on the same prompts"),
        ({"settings__tokens": 5}, "settings.tokens is 31 in A and 5 in B"),
        ({"speedup": None}, "report B has no speeds"),
    ],
)
def test_what_cannot_be_compared_is_refused(report, changes, message):
    with pytest.raises(RequestError, match=message):
        compare(report, changed(report, **changes))


@pytest.mark.parametrize("text", ["{", "[]", '{"schema": "outrider-bench/0"}'])
def test_other_files_are_no_reports(tmp_path, text):
    file = tmp_path / "x.json"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(RequestError, match="name a "):
        record.read(file)


def test_provenance_hashes_files_and_names_the_code(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"abc")
    (tmp_path / "notes.txt").write_bytes(b"abc")
    facts = provenance.collect([tmp_path], ["outrider", "bench"])
    digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert facts["files"] == {str(tmp_path): {"model.safetensors": digest}}
    assert facts["command"] == ["outrider", "bench"]
    assert facts["packages"]["torch"]
    assert facts["processor"]
    json.dumps(facts)


def test_unknown_peers_are_refused(tmp_path):
    target = PeerTarget(target=tmp_path, draft=None, dtype="float32", device="cpu")
    with pytest.raises(ConfigError, match=r"'vllm' is not known: use 'transformers', 'llama.cpp'"):
        make("vllm", target)
