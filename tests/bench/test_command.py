"""`outrider bench` in this process, over a scripted world: outputs and exit codes."""

import json

import pytest

from outrider.cli.main import main
from tests.bench.world import (
    ScriptedDrafter,
    ScriptedStage,
    make_engine,
    make_workload,
    module_clock,
)

FEW = ("--tokens", "31", "--repeats", "2", "--prompts", "2")


@pytest.fixture
def bench(world, tmp_path, monkeypatch, capsys):
    """Run the command on scripted parts; returns (exit code, stdout, stderr)."""
    file = tmp_path / "prompts.jsonl"
    rows = [{"id": prompt.id, "prompt": prompt.text} for prompt in make_workload().prompts]
    file.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    folder = tmp_path / "target"
    folder.mkdir()
    monkeypatch.setattr("outrider.cli.bench.time", module_clock(world))

    def run(*arguments, fault=None, target=str(folder), **drafter):
        engine = make_engine(ScriptedStage(world, fault), lambda: ScriptedDrafter(world, **drafter))
        engine.describe = lambda: {"exact": True}
        run.methods = []

        def load(config, sequences=1, drafters=None):
            run.methods.append(config.speculative.method)
            return engine

        monkeypatch.setattr("outrider.assemble.engine.Engine.load_run", load)
        words = ["bench", "--target", target, "--method", "suffix", "--workload", str(file)]
        with pytest.raises(SystemExit) as ended:
            main([*words, *FEW, *arguments])
        return (ended.value.code or 0, *capsys.readouterr())

    return run


def test_the_last_line_is_json_with_the_verdict(bench):
    code, out, err = bench("--json")
    assert code == 0
    last = json.loads(out.splitlines()[-1])
    assert last["verdict"] == "pays"
    assert last["speedup"]["value"] > 4
    assert out.count("\n") == 1
    assert "Speculation pays" in err


def test_this_engine_loaded_to_decode_plainly_is_a_peer(bench):
    code, out, _ = bench("--json", "--peer", "plain")
    assert code == 0
    assert bench.methods == ["suffix", "off"]
    speeds = json.loads(out.splitlines()[-1])["tokens_per_second"]
    assert speeds["plain alone"] == pytest.approx(speeds["plain"])


def test_without_json_the_report_is_the_output(bench):
    code, out, _ = bench()
    assert code == 0
    assert out.splitlines()[-1].startswith("Speculation pays, 4.7")


@pytest.mark.parametrize(
    ("parts", "gate"),
    [
        ({"silent": 1}, "drafts were verified"),
        ({"name": "draft"}, "the drafter is the one asked for"),
        ({"fault": lambda rows, place: int(rows > 1)}, "same output as plain decoding"),
    ],
)
def test_a_failed_gate_exits_with_3_and_gives_no_speed(bench, parts, gate):
    code, out, err = bench("--json", **parts)
    assert code == 3
    last = json.loads(out.splitlines()[-1])
    assert (last["verdict"], last["speedup"], last["tokens_per_second"]) == ("failed", None, {})
    assert gate in last["failed_gates"]
    assert "tokens/s" not in err


def test_drift_is_inconclusive_and_cannot_satisfy_a_threshold(bench, world):
    world.drift_per_pass = 0.005
    assert bench("--json")[0] == 0
    code, out, _ = bench("--json", "--fail-under", "1.0")
    assert json.loads(out.splitlines()[-1])["verdict"] == "inconclusive"
    assert code == 4


def test_fail_under_is_a_threshold_on_the_speed_up(bench):
    assert bench("--fail-under", "4")[0] == 0
    code, _, err = bench("--fail-under", "5")
    assert code == 4
    assert "4.72 is below --fail-under 5" in err


def test_reports_are_written_and_compared(bench, tmp_path, world, capsys):
    files = [tmp_path / name for name in ("a.json", "b.json", "a.html")]
    bench("--output", str(files[0]), "--html", str(files[2]))
    world.step *= 2
    bench("--output", str(files[1]))
    assert files[2].read_text(encoding="utf-8").startswith("<!doctype html>")
    record = json.loads(files[0].read_text(encoding="utf-8"))
    assert record["provenance"]["config"]["speculative.method"] == "suffix"
    compare = ["bench", "compare", str(files[0]), str(files[1]), "--json"]
    with pytest.raises(SystemExit) as ended:
        main([*compare, "--fail-under", "0.9"])
    assert ended.value.code == 4
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert last["verdict"] == "slower"
    assert last["ratio"] == pytest.approx(0.51, abs=0.01)


def test_an_interrupt_reports_nothing(bench, tmp_path):
    def interrupt(rows, place):
        raise KeyboardInterrupt

    file = tmp_path / "out.json"
    code, out, err = bench("--json", "--output", str(file), fault=interrupt)
    assert (code, out) == (130, "")
    assert "interrupted" in err
    assert not file.exists()
    assert not list(tmp_path.glob(".outrider-*"))


def test_a_report_that_cannot_be_written_leaves_no_other(bench, tmp_path):
    code, _, err = bench("--output", str(tmp_path / "a.json"), "--html", str(tmp_path))
    assert code == 1
    assert f"--html {tmp_path} cannot be written (is a directory)" in err
    assert not (tmp_path / "a.json").exists()
    assert not list(tmp_path.glob(".outrider-*"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--repeats", "0"), "--repeats 0 is out of range: use 1 or more"),
        (("--tokens", "4"), "--tokens 4 is out of range: use 8 or more"),
        (("--pause", "-1"), "must not be negative"),
        (("--workload", "random"), "says nothing about text"),
        (("--peer", "vllm"), "'vllm' is not known"),
        (("--output", "/nowhere/x.json"), "cannot be written"),
    ],
)
def test_bad_flags_are_refused(bench, arguments, message):
    code, out, err = bench(*arguments)
    assert (code, out) == (1, "")
    assert message in err
