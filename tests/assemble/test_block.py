"""Block drafters and `auto`, from configuration to text."""

import json
import shutil
from contextlib import closing

import pytest

from outrider import demo
from outrider.assemble import auto
from outrider.assemble.engine import Engine
from outrider.assemble.inspection import inspect
from outrider.config.settings import SpeculativeConfig, StagesConfig, VerifyWindowConfig
from outrider.costs.batch_model import Costs
from outrider.errors import CheckpointError, ConfigError
from outrider.sampling.params import SamplingParams
from tests.exactness.targets import make_target
from tests.helpers.blocks import LIKELY_BLOCKS
from tests.helpers.runs import random_tokens

PROMPT = random_tokens(7, seed=3) * 4
METHODS = {"dflash": "dflash", "dspark": "dspark", "dspark-bonus": "dspark"}
PIPELINED = VerifyWindowConfig(depth=2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny target with drafters in folders below it."""
    place = tmp_path_factory.mktemp("target")
    make_target("hybrid", place)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(demo.path("demo") / name, place / name)
    return place


def run(folder, speculative, stages=None, **sampling):
    given = SpeculativeConfig(**speculative)
    with closing(Engine.load(str(folder), speculative=given, stages=stages)) as engine:
        request = engine.generate(
            PROMPT, max_tokens=40, sampling=SamplingParams(**sampling), ignore_eos=True
        )
        list(request)
        request.counters.check()
        return request, engine


@pytest.fixture(scope="module")
def plain(folder):
    return run(folder, {"method": "off"})[0].result.token_ids


@pytest.mark.parametrize("name", LIKELY_BLOCKS)
def test_drafts_change_no_token(folder, plain, name):
    speculative = {"method": METHODS[name], "draft_model": str(folder / name)}
    for more in ({"max_draft_tokens": 3}, {}):
        request, engine = run(folder, {**speculative, **more})
        assert request.result.token_ids == plain
        # Left to itself the controller may find that passes are too cheap to draft for.
        assert request.counters.accepted > 0 or not more
        assert engine.specs[1].attention.layers == 2
    cut = StagesConfig(count=2)
    request, _ = run(folder, {**speculative, "max_draft_tokens": 3}, cut)
    assert request.result.token_ids == plain


def test_low_confidence_ends_a_draft_before_it_is_verified(folder, plain):
    speculative = {
        "method": "dspark",
        "draft_model": str(folder / "dspark"),
        "max_draft_tokens": 4,
    }
    whole, _ = run(folder, speculative)
    short, _ = run(folder, {**speculative, "min_probability": 0.5})
    assert short.result.token_ids == plain
    assert 0 < short.counters.proposed < whole.counters.proposed


def test_sampled_drafts_are_judged_by_rejection_sampling(folder):
    speculative = {
        "method": "dspark",
        "draft_model": str(folder / "dspark"),
        "draft_temperature": 0.5,
        "max_draft_tokens": 3,
    }
    one, _ = run(folder, speculative, temperature=0.5, seed=3)
    other, _ = run(folder, speculative, temperature=0.5, seed=3)
    assert one.result.token_ids == other.result.token_ids
    assert 0 < one.counters.accepted < one.counters.verified


@pytest.mark.parametrize(
    ("speculative", "error", "message"),
    [
        (
            {"method": "dflash", "draft_model": "dspark"},
            ConfigError,
            "lineage is dspark .*True.*one row late.*method = 'dspark'",
        ),
        (
            {"method": "dflash", "draft_model": "dspark-bonus"},
            ConfigError,
            "False .*only drafts would not end where confidence is low",
        ),
        ({"method": "dspark", "draft_model": "dflash"}, ConfigError, "one row early"),
        ({"method": "draft", "draft_model": "dflash"}, ConfigError, "drafts nothing by itself"),
        ({"method": "eagle3", "draft_model": "dflash"}, ConfigError, "drafts nothing by itself"),
        ({"method": "dspark", "draft_model": "eagle3"}, CheckpointError, "Eagle3.*not supported"),
        (
            {"method": "dflash", "draft_model": "dflash", "max_draft_tokens": 5},
            ConfigError,
            "max_draft_tokens = 5 is more than a block of .* drafts: lower it to 4",
        ),
        (
            {"method": "dflash", "draft_model": "dflash", "verify_window": PIPELINED},
            ConfigError,
            "hidden states of each window before it drafts the next",
        ),
        ({"method": "dflash"}, ConfigError, "needs speculative.draft_model.*'demo-dflash'"),
    ],
)
def test_what_does_not_fit_is_refused(folder, speculative, error, message):
    if name := speculative.get("draft_model"):
        speculative = {**speculative, "draft_model": str(folder / name)}
    with pytest.raises(error, match=message):
        run(folder, speculative)


def shortened(folder, place, length):
    """The DFlash drafter with a context of its own of `length` tokens."""
    shutil.copytree(folder / "dflash", place)
    raw = json.loads((place / "config.json").read_text())
    (place / "config.json").write_text(json.dumps({**raw, "max_position_embeddings": length}))
    return {"method": "dflash", "draft_model": str(place), "max_draft_tokens": 3}


def test_that_a_text_has_outgrown_a_drafter_is_said_once(folder, plain, tmp_path, caplog):
    given = SpeculativeConfig(**shortened(folder, tmp_path / "short", 40))
    with closing(Engine.load(str(folder), speculative=given)) as engine:
        for _ in range(2):
            request = engine.generate(PROMPT, max_tokens=40, ignore_eos=True)
            list(request)
            assert request.counters.verified > 0
            assert request.result.token_ids == plain
    said = [text for record in caplog.records if "outgrown" in (text := record.getMessage())]
    assert len(said) == 1
    assert said[0].startswith(f"the drafter {tmp_path / 'short'} has a context of 40 tokens")


def test_a_drafter_without_room_for_a_block_is_refused(folder, tmp_path):
    speculative = shortened(folder, tmp_path / "short", 5)
    with pytest.raises(CheckpointError, match="context of 5 tokens has no room for a token and a"):
        run(folder, speculative)


def test_inspect_shows_both_facts(folder):
    found = inspect(str(folder / "dspark-bonus"))
    assert found["architecture"] == "dspark"
    assert found["packaging"] == "speculators"
    assert found["lineage"] == "dspark (tensor markov_head.markov_w1.weight)"
    assert found["sample_from_anchor"] == "False (config.json: sample_from_anchor)"
    assert (found["first_row"], found["max_drafts"]) == (1, 4)


@pytest.mark.parametrize(
    ("name", "best", "methods"),
    [
        ("dspark-bonus", "dspark", ["dspark", "mtp", "suffix"]),
        ("dflash", "dflash", ["dflash", "mtp", "suffix"]),
        ("eagle3", "mtp", ["eagle3", "mtp", "suffix"]),
        (None, "suffix", ["mtp", "suffix"]),
    ],
)
def test_auto_takes_the_best_by_the_cost_model_and_says_so(
    folder, plain, monkeypatch, caplog, name, best, methods
):
    def measure(target, draft, sources, **given):
        cost = 0.1 if sources[-1] == best else 5.0
        return Costs(verify=[1.0] * 9, draft={sources[-1]: [cost] * 8})

    monkeypatch.setattr(auto, "measure_costs", measure)
    model = str(folder / name) if name else None
    request, engine = run(folder, {"method": "auto", "draft_model": model, "max_draft_tokens": 3})
    assert request.result.token_ids == plain
    assert engine.speculation.method == best
    assert engine.picked in caplog.text
    assert engine.picked.startswith(f"speculative.method = 'auto' picked '{best}', expected")
    assert [word for word in methods if f"{word} " in engine.picked.split(":")[1]] == methods


def test_auto_with_real_costs_runs(folder, plain):
    request, engine = run(folder, {"method": "auto", "draft_model": str(folder / "dspark")})
    assert request.result.token_ids == plain
    assert engine.speculation.method in ("dspark", "mtp", "suffix")


def test_auto_never_leaves_out_the_drafter_that_was_given(folder):
    speculative = {"method": "auto", "verify_window": PIPELINED}
    assert run(folder, speculative)[1].speculation.method == "suffix"
    with pytest.raises(ConfigError, match="hidden states of each window"):
        run(folder, {**speculative, "draft_model": str(folder / "dflash")})
