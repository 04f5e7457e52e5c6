"""`/metrics`: the engine's own counts under the names that dashboards use."""

import json
import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tests.exactness.targets import prompts
from tests.server.world import events

PROMPT = prompts()[4]
DASHBOARD = Path(__file__).parents[2] / "docs/grafana/outrider.json"


def samples(world):
    text = world.get("/metrics").text
    families = text_string_to_metric_families(text)
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def test_speculation_is_counted_by_method(world):
    body = {"prompt": PROMPT, "max_tokens": 40, "temperature": 0, "stream": True}
    timings = events(world.ask("/v1/completions", body))[-1]["timings"]
    plain = {"max_draft_tokens": 0}
    world.complete(**{**body, "stream": False}, speculative=plain)
    found = samples(world)
    tested = ("method", "tested")
    prefix = "outrider_spec_decode_num"
    assert found[f"{prefix}_draft_tokens_total", tested] == timings["draft_n"]
    assert found[f"{prefix}_accepted_tokens_total", tested] == timings["draft_n_accepted"] > 0
    assert 0 < found[f"{prefix}_drafts_total", tested] <= timings["speculative_windows"]
    per_place = [
        found[f"{prefix}_accepted_tokens_per_pos_total", tested, ("position", str(place))]
        for place in range(len(timings["speculative_accepted_per_position"]))
        if (f"{prefix}_accepted_tokens_per_pos_total", tested, ("position", str(place))) in found
    ]
    assert sum(per_place) == timings["draft_n_accepted"]
    assert found[f"{prefix}_draft_tokens_total", ("method", "off")] == 0
    assert found["outrider_generation_tokens_total", ("method", "off")] == 40
    assert (
        found["outrider_spec_decode_draft_length_count", tested] == (timings["speculative_windows"])
    )
    assert found["outrider_rollbacks_total", ("kind", "log"), tested] == timings["rollback_log_n"]


def test_requests_latencies_and_load(world):
    world.complete(prompt=PROMPT, max_tokens=9, temperature=0)
    world.ask("/v1/completions", {"prompt": 5})
    found = samples(world)
    path = ("path", "/v1/completions")
    assert found["outrider_requests_total", path, ("status", "200")] == 1
    assert found["outrider_requests_total", path, ("status", "400")] == 1
    assert found["outrider_time_to_first_token_seconds_count",] == 1
    assert found["outrider_inter_token_latency_seconds_count",] == 8
    assert found["outrider_request_duration_seconds_count",] == 1
    assert found["outrider_sequences_running",] == found["outrider_sequences_waiting",] == 0
    assert found["outrider_prefixes_kept",] == 1


def test_the_dashboard_asks_for_figures_that_exist(world):
    world.complete(prompt=PROMPT, max_tokens=40, temperature=0)
    text = world.get("/metrics").text
    names = {
        sample.name for family in text_string_to_metric_families(text) for sample in family.samples
    }
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    asked = {
        name
        for panel in dashboard["panels"]
        for target in panel["targets"]
        for name in re.findall(r"outrider_\w+", target["expr"])
    }
    assert len(asked) > 12
    assert asked - names == set()
