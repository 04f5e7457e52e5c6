"""Settings that are fine alone and wrong together."""

import pytest

from outrider.config.checks import check
from outrider.config.run import (
    LinkConfig,
    RunConfig,
    SpeculativeConfig,
    StagesConfig,
    TargetConfig,
    VerifyWindowConfig,
)
from outrider.errors import ConfigError


def refusal(**sections) -> str:
    with pytest.raises(ConfigError) as caught:
        check(RunConfig(**sections))
    return str(caught.value)


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
