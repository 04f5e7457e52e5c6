"""Settings that are fine alone and wrong together."""

from dataclasses import replace

import pytest

from outrider.assemble.limits import window_limits
from outrider.config.checks import check
from outrider.config.settings import (
    LinkConfig,
    RunConfig,
    SpeculativeConfig,
    StagesConfig,
    TargetConfig,
    VerifyWindowConfig,
)
from outrider.engine.ledger import Ledger
from outrider.errors import ConfigError


def refusal(**sections) -> str:
    with pytest.raises(ConfigError) as caught:
        check(RunConfig(**sections))
    return str(caught.value)


def said(config: RunConfig) -> str | None:
    """The refusal, None where there is none."""
    try:
        check(config)
    except ConfigError as error:
        return str(error)
    return None


def fallback(**settings) -> str:
    return refusal(speculative=SpeculativeConfig(ngram_fallback="draft", **settings))


def test_what_is_consistent_passes_unchanged():
    config = RunConfig(target=TargetConfig(device="cuda:1", exact=False))
    assert check(config) is config


def test_fallback_needs_an_ngram_method():
    assert fallback(method="off", draft_model="demo-draft") == (
        "speculative.ngram_fallback = 'draft' could never run: it needs an n-gram method, but "
        "speculative.method = 'off'; for n-grams with a draft model behind them in one window "
        "use speculative.method = 'suffix+draft'."
    )


def test_fallback_needs_a_draft_model():
    assert "it needs speculative.draft_model, but none is set" in fallback()


def test_fallback_needs_windows_in_flight():
    found = fallback(draft_model="demo-draft")
    assert "it needs windows in flight, but speculative.verify_window.depth = 1" in found
    assert "'suffix+draft'" in found


@pytest.mark.parametrize("window", [{"depth": 2}, {"runahead_tokens": 8}])
def test_fallback_that_can_run_passes(window):
    speculative = SpeculativeConfig(
        ngram_fallback="draft",
        draft_model="demo-draft",
        verify_window=VerifyWindowConfig(**window),
    )
    check(RunConfig(speculative=speculative))


def room(method: str = "suffix", **settings) -> SpeculativeConfig:
    """Settings of the window by their own names, all others as those of [speculative]."""
    window = {key: settings.pop(key) for key in ("depth", "max_tokens", "runahead_tokens")}
    return SpeculativeConfig(
        method=method,
        verify_window=VerifyWindowConfig(**window),
        draft_model="demo-draft" if "draft" in (method, settings.get("ngram_fallback")) else None,
        **settings,
    )


ROOMS = [
    {"depth": depth, "max_tokens": rows, "runahead_tokens": ahead, "max_draft_tokens": drafts}
    for depth in (1, 2)
    for rows in (None, 1, 2, 8)
    for ahead in (None, 1, 2, 8)
    for drafts in ("auto", 0, 1, 7, 8)
]
PLAIN = "to decode plainly."


def could_draft(speculative: SpeculativeConfig) -> bool:
    """Whether some window of an epoch holds a draft, of a drafter that always has more."""
    limits = window_limits(speculative)
    wanted = speculative.max_draft_tokens
    wanted = limits.width if wanted == "auto" else wanted
    ledger = Ledger(length=2, width=limits.width, depth=limits.depth, runahead=limits.runahead)
    while ledger.row_room:
        if min(wanted, ledger.draft_room) > 0:
            return True
        if ledger.begun:
            break
        ledger.issue(0)
    return False


@pytest.mark.parametrize("method", ["suffix", "draft", "auto", "fallback"])
def test_what_could_never_draft_is_refused_and_nothing_else(method):
    """Every pair of settings that leaves no row to a draft; all others have one."""
    more = {"ngram_fallback": "draft"} if method == "fallback" else {}
    possible = 0
    for settings in ROOMS:
        speculative = room("suffix" if more else method, **settings, **more)
        found = said(RunConfig(speculative=speculative))
        possible += found is None
        if could_draft(speculative):
            others = ("does not fit", "needs windows in flight")
            assert found is None or any(words in found for words in others), settings
        else:
            assert found is not None, settings
            assert PLAIN in found or "needs windows in flight" in found, settings
    assert possible > 60


def test_plain_decoding_that_was_asked_for_needs_no_room():
    found = [said(RunConfig(speculative=room("off", **settings))) for settings in ROOMS]
    assert found.count(None) > 120
    assert all("does not fit" in words for words in found if words)


def test_a_window_of_one_row_alone_holds_no_draft():
    window = VerifyWindowConfig(max_tokens=1)
    assert refusal(speculative=SpeculativeConfig(verify_window=window)) == (
        "speculative.verify_window.max_tokens = 1 would never draft by speculative.method = "
        "'suffix', since the pending token takes the one row: use at least 2, or "
        "speculative.method = 'off' to decode plainly."
    )
    check(RunConfig(speculative=SpeculativeConfig(verify_window=replace(window, depth=2))))


def test_one_row_that_runs_ahead_holds_no_draft():
    window = VerifyWindowConfig(runahead_tokens=1)
    found = fallback(draft_model="demo-draft", verify_window=window)
    assert found.startswith("speculative.verify_window.runahead_tokens = 1 would never draft by")
    check(RunConfig(speculative=SpeculativeConfig(method="off", verify_window=window)))


def test_no_drafts_are_not_asked_for_by_their_number():
    assert refusal(speculative=SpeculativeConfig(max_draft_tokens=0)) == (
        "speculative.max_draft_tokens = 0 would never draft by speculative.method = 'suffix': use "
        "at least 1, or speculative.method = 'off' to decode plainly."
    )
    check(RunConfig(speculative=SpeculativeConfig(method="off", max_draft_tokens=0)))


def test_draft_model_that_nothing_uses():
    assert refusal(speculative=SpeculativeConfig(draft_model="demo-draft")) == (
        "speculative.draft_model = 'demo-draft' would never be used by speculative.method = "
        "'suffix': leave it out."
    )


@pytest.mark.parametrize("method", ["draft", "suffix+draft", "ngram-cache+draft"])
def test_draft_methods_need_a_draft_model(method):
    assert refusal(speculative=SpeculativeConfig(method=method)) == (
        f"speculative.method = {method!r} needs speculative.draft_model, but none is set: name a "
        "model folder, a hub ID@REVISION or 'demo-draft'."
    )


def test_eagle3_names_its_own_demo():
    assert refusal(speculative=SpeculativeConfig(method="eagle3")).endswith("or 'demo-eagle3'.")


def test_mtp_is_in_the_target():
    speculative = SpeculativeConfig(method="mtp", draft_model="demo-draft")
    assert "would never be used by speculative.method = 'mtp'" in refusal(speculative=speculative)


@pytest.mark.parametrize("window", [{"depth": 2}, {"runahead_tokens": 8}])
@pytest.mark.parametrize(("method", "model"), [("mtp", None), ("eagle3", "demo-eagle3")])
def test_drafters_of_hidden_states_need_one_window_at_a_time(method, model, window):
    speculative = SpeculativeConfig(
        method=method, draft_model=model, verify_window=VerifyWindowConfig(**window)
    )
    assert refusal(speculative=speculative) == (
        f"speculative.method = {method!r} reads the target's hidden states of each window before "
        "it drafts the next: set speculative.verify_window.depth = 1 and no runahead_tokens."
    )


def test_draft_temperature_that_nothing_uses():
    assert refusal(speculative=SpeculativeConfig(draft_temperature=0.5)).startswith(
        "speculative.draft_temperature = 0.5 would never be used by speculative.method = 'suffix'"
    )


@pytest.mark.parametrize("window", [{"depth": 2}, {"runahead_tokens": 8}])
def test_sampled_drafts_need_one_window_at_a_time(window):
    speculative = SpeculativeConfig(
        method="draft",
        draft_model="demo-draft",
        draft_temperature=0.5,
        verify_window=VerifyWindowConfig(**window),
    )
    assert refusal(speculative=speculative).startswith(
        "speculative.draft_temperature = 0.5 needs one window at a time"
    )


def test_drafts_must_fit_the_window_that_was_asked_for():
    window = VerifyWindowConfig(max_tokens=8)
    check(RunConfig(speculative=SpeculativeConfig(max_draft_tokens=7, verify_window=window)))
    found = refusal(speculative=SpeculativeConfig(max_draft_tokens=8, verify_window=window))
    assert found.startswith(
        "speculative.max_draft_tokens = 8 does not fit speculative.verify_window.max_tokens = 8"
    )


@pytest.mark.parametrize("device", ["tpu", "cpu:0", "cuda:x", "cuda:"])
def test_unknown_device(device):
    assert refusal(target=TargetConfig(device=device)) == (
        f"target.device = {device!r} is not a device: use 'cpu', 'cuda' or 'cuda:N'."
    )


def test_exact_holds_on_the_cpu_only():
    found = refusal(target=TargetConfig(device="cuda", exact=True))
    assert found.startswith("target.exact = true cannot hold with target.device = 'cuda'")


def test_named_layers_agree_with_the_number_of_stages():
    assert refusal(stages=StagesConfig(count=3, layers="5,3")) == (
        "stages.layers = '5,3' names 2 stages and stages.count is 3: make them agree, or leave "
        "stages.layers out to cut evenly."
    )
    assert check(RunConfig(stages=StagesConfig(count=2, layers="5,3"))).stages.sizes == (5, 3)


@pytest.mark.parametrize("layers", ["5;3", "5,0", "5,", "a"])
def test_layers_are_a_list_of_numbers(layers):
    with pytest.raises(ConfigError, match="is not a list of layer counts: write 5,3"):
        StagesConfig(layers=layers)


@pytest.mark.parametrize("resources", ["cpus", "cpus=x", "=2", "cpus=0", "front=-1, back=1"])
def test_resources_are_amounts_by_name(resources):
    with pytest.raises(ConfigError, match="which is no amount: write cpus=4 front=1"):
        StagesConfig(resources=resources)


def test_resources_are_those_of_each_stage_or_of_all():
    on = {"address": "auto", "count": 2}
    each = check(RunConfig(stages=StagesConfig(resources="cpus=2 front=1, gpus=1", **on)))
    assert each.stages.wants == ({"cpus": 2.0, "front": 1.0}, {"gpus": 1.0})
    assert StagesConfig(resources="cpus=2", **on).wants == ({"cpus": 2.0},) * 2
    assert StagesConfig(count=3).wants == ({},) * 3
    found = refusal(stages=StagesConfig(resources="a=1, b=1", address="auto", count=3))
    assert "is for 2 stages and stages.count is 3" in found


@pytest.mark.parametrize(
    ("stages", "said"),
    [
        (StagesConfig(processes=True, address="auto"), "leave one of the two out"),
        (StagesConfig(resources="cpus=2"), "stages.resources = 'cpus=2' needs a Ray cluster"),
        (StagesConfig(tls="keys"), "stages.tls = 'keys' needs a Ray cluster"),
    ],
)
def test_what_needs_a_cluster_has_one(stages, said):
    assert said in refusal(stages=stages)


def test_jitter_is_at_most_the_delay():
    found = refusal(stages=StagesConfig(link=LinkConfig(delay_ms=5.0, jitter_ms=6.0)))
    assert "stages.link.jitter_ms = 6.0 exceeds stages.link.delay_ms = 5.0" in found


@pytest.mark.parametrize(
    "stages",
    [
        StagesConfig(count=2),
        StagesConfig(processes=True),
        StagesConfig(link=LinkConfig(delay_ms=1.0)),
    ],
)
def test_sampled_drafts_need_the_whole_target(stages):
    speculative = SpeculativeConfig(method="draft", draft_model="demo-draft", draft_temperature=0.5)
    found = refusal(stages=stages, speculative=speculative)
    assert "needs the whole target in one process" in found


def test_int8_is_refused_naming_its_successor():
    config = RunConfig(target=TargetConfig(path="x", quantize="int8"))
    with pytest.raises(ConfigError, match="'q8' in compiled kernels") as caught:
        check(config)
    assert "target.quantize = 'int8'" in str(caught.value)
