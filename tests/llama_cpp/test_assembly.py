"""From a configuration to a GGUF target that llama.cpp runs."""

import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from outrider import ConfigError, Engine, SpeculativeConfig, StateConfig, TargetConfig, demo
from outrider.assemble import gguf_target as llamacpp
from outrider.assemble import limits
from outrider.assemble.memory_check import Allocated
from outrider.cli.main import main
from outrider.config.settings import RunConfig
from outrider.costs import timing
from outrider.costs.batch_model import Costs
from recipes import gguf

TOKENS = 48


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("gguf")
    found = {name: folder / f"{name}.gguf" for name in ("demo", "demo-draft")}
    for name, file in found.items():
        gguf.convert(demo.path(name), file, pre="qwen2")
    return found


@pytest.fixture(scope="module")
def prompts() -> list[str]:
    lines = demo.workloads()["code"].read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["prompt"] for line in lines[:3]]


def target(file: Path, **settings: object) -> TargetConfig:
    given = {"backend": "llama.cpp", "max_length": 1024, "threads": 1, **settings}
    return TargetConfig(path=str(file), **given)  # type: ignore[arg-type]


def texts(engine: Engine, prompts: list[str]) -> list[tuple[int, ...]]:
    found = []
    for prompt in prompts:
        generation = engine.generate(prompt, max_tokens=TOKENS, ignore_eos=True)
        list(generation)
        engine.stage.check()
        found.append(generation.result.token_ids)
    return found


@pytest.fixture(scope="module")
def plain(files: dict[str, Path], prompts: list[str]) -> Iterator[list[tuple[int, ...]]]:
    engine = Engine.load(target(files["demo"]), speculative=SpeculativeConfig(method="off"))
    yield texts(engine, prompts)
    engine.close()


def test_auto_takes_llama_cpp_and_says_so(files, caplog):
    engine = Engine.load(target(files["demo"], backend="auto"))
    assert engine.describe()["backend"] == "llama.cpp"
    assert "target.backend = 'auto' picked 'llama.cpp'" in caplog.text
    engine.close()


def test_auto_takes_torch_where_a_setting_needs_it(files, caplog):
    engine = Engine.load(target(files["demo"], backend="auto", dtype="bfloat16"))
    assert engine.describe()["backend"] == "torch"
    assert "picked 'torch': target.dtype = 'bfloat16' means nothing" in caplog.text
    engine.close()


@pytest.mark.parametrize("settings", [{"backend": "llama.cpp"}, {"gpu_layers": 3}])
def test_a_folder_is_refused(settings):
    with pytest.raises(ConfigError, match=r"needs llama\.cpp, but demo is no GGUF file"):
        Engine.load(TargetConfig(path="demo", **settings))


def test_layers_for_a_gpu_that_is_not_there_are_refused(files):
    with pytest.raises(ConfigError, match=r"target\.gpu_layers = 3 .*compiled for the CPU"):
        Engine.load(target(files["demo"], gpu_layers=3))


def test_too_long_a_context_is_refused(files):
    with pytest.raises(ConfigError, match=r"target\.max_length = 999999 exceeds the \d+ positions"):
        Engine.load(target(files["demo"], max_length=999_999))


def test_a_draft_model_in_a_folder_runs_by_torch(files, prompts, plain):
    speculative = SpeculativeConfig(
        method="draft", draft_model="demo-draft", max_draft_tokens=3, draft_temperature=0.0
    )
    engine = Engine.load(target(files["demo"]), speculative=speculative)
    assert engine.describe()["draft_backend"] == "torch"
    assert texts(engine, prompts) == plain
    engine.close()


def test_the_controller_has_costs_of_both_models(files, prompts, plain, monkeypatch):
    measured: list[Costs] = []

    def measure(*parts: object, **settings: object) -> Costs:
        measured.append(timing.measure_costs(*parts, **settings))  # type: ignore[arg-type]
        return measured[-1]

    monkeypatch.setattr(limits, "measure_costs", measure)
    speculative = SpeculativeConfig(method="suffix+draft", draft_model=str(files["demo-draft"]))
    engine = Engine.load(target(files["demo"]), speculative=speculative)
    (costs,) = measured
    assert len(costs.verify) == 16
    assert all(ms > 0 for ms in (*costs.verify, *costs.draft["draft"]))
    assert costs.draft["suffix"] == ()
    assert texts(engine, prompts) == plain
    assert engine.stage.num_sessions == 0
    engine.close()


def test_nothing_is_kept_for_drafts_that_nobody_makes(files):
    engine = Engine.load(target(files["demo"]), speculative=SpeculativeConfig(method="off"))
    assert engine.describe()["snapshots"] == 0
    engine.close()


def test_windows_fit_the_capacity_that_was_set(files, prompts, plain):
    engine = Engine.load(target(files["demo"]), state=StateConfig(capacity=5))
    assert engine.describe()["snapshots"] == 5
    assert engine.speculation.windows.width == 6
    assert texts(engine, prompts) == plain
    engine.close()


def test_a_small_micro_batch_means_checkpoints_and_names_the_setting(files, prompts, plain, caplog):
    speculative = SpeculativeConfig(
        method="draft", draft_model=str(files["demo-draft"]), max_draft_tokens=7
    )
    engine = Engine.load(target(files["demo"], micro_batch=8), speculative=speculative)
    assert caplog.text.count("target.micro_batch = 8 runs 8 rows at once") == 1
    generation = engine.generate(prompts[0], max_tokens=TOKENS, ignore_eos=True)
    list(generation)
    assert generation.result.token_ids == plain[0]
    assert set(generation.counters.rollbacks) == {"checkpoint"}
    assert 0 < generation.counters.accepted < generation.counters.verified
    engine.close()


def test_a_capacity_that_the_micro_batch_cannot_hold_is_refused(files):
    with pytest.raises(ConfigError, match=r"target\.micro_batch = 8 runs 8 rows"):
        Engine.load(target(files["demo"], micro_batch=8), state=StateConfig(capacity=7))


def test_several_sequences_do_not_touch_each_other(files, prompts, plain):
    speculative = SpeculativeConfig(
        method="draft", draft_model=str(files["demo-draft"]), max_draft_tokens=4
    )
    config = RunConfig(target=target(files["demo"]), speculative=speculative)
    engine = Engine.load_run(config, sequences=3)
    running = [engine.generate(text, max_tokens=TOKENS, ignore_eos=True) for text in prompts]
    while not all(one.done for one in running):
        engine.step()
        engine.stage.check()
    assert [one.result.token_ids for one in running] == plain
    assert all(0 < one.counters.accepted < one.counters.verified for one in running)
    engine.close()


@pytest.mark.parametrize("rollback", ["snapshots", "checkpoint"])
def test_memory_is_computed_as_the_library_takes_it(files, rollback, caplog, monkeypatch):
    known: list[Allocated] = []
    monkeypatch.setattr(llamacpp, "check_allocations_fit", lambda found, _free: known.extend(found))
    speculative = SpeculativeConfig(method="draft", draft_model=str(files["demo-draft"]))
    config = RunConfig(
        target=target(files["demo"]),
        speculative=speculative,
        state=StateConfig(rollback=rollback),
    )
    with caplog.at_level(logging.DEBUG, logger="outrider.llama.cpp"):
        Engine.load_run(config, sequences=2).close()
    sizes = re.findall(r"(?:kv_cache|memory_recurrent): size = +([\d.]+) MiB", caplog.text)
    assert len(sizes) >= 3, "keys and values of both, recurrent states of the target"
    assert [one.sequences for one in known] == [2, 2]
    computed = sum(one.bytes for one in known) / 2**20
    assert computed == pytest.approx(sum(map(float, sizes)), abs=0.02 * len(sizes))


def test_the_command_says_which_backend_ran(files, capsys):
    words = ["generate", "--target", str(files["demo"]), "--backend", "llama.cpp", "--json"]
    with pytest.raises(SystemExit) as left:
        main([*words, "--threads", "1", "--max-tokens", "4", "def add(a, b):"])
    assert left.value.code in (0, None)
    assert json.loads(capsys.readouterr().out)["timings"]["backend"] == "llama.cpp"
