"""A fault as clients see it: one of them gets an error, the others their answers, and the server
goes on."""

import asyncio
import json
import re
import threading

import httpx
import pytest

from outrider.draft.lookup.suffix import SuffixDrafter
from outrider.engine.facade import EngineFacade
from outrider.stage.local import LocalStage
from outrider.verify.sampler import Sampler
from tests.exactness.test_one_fault import Fault
from tests.server.world import listening, running

CLIENTS = 8
BODY = {"prompt": [5, 9, 5, 9, 5], "max_tokens": 400, "ignore_eos": True}


async def stream(client, arm):
    """The text of one stream, and the error that ended it."""
    text, error, events = "", None, 0
    async with client.stream("POST", "/v1/completions", json={**BODY, "stream": True}) as answer:
        assert answer.status_code == 200
        async for line in answer.aiter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line[6:])
            if "error" in event:
                error = event["error"]
                continue
            text += event["choices"][0]["text"]
            events += 1
            if events == 3:
                arm()
    return text, error


@pytest.mark.parametrize(
    ("owner", "name", "errors"),
    [(Sampler, "pick", 1), (SuffixDrafter, "propose", 0), (LocalStage, "run_batch", 0)],
    ids=["sampler", "drafter", "stage"],
)
def test_one_fault_beside_other_streams(hybrid, monkeypatch, owner, name, errors):
    with running(hybrid.stage("log", 8)) as world, listening(world) as address:
        truth = world.complete(**BODY)["choices"][0]["text"]
        fault, armed = Fault(), []
        monkeypatch.setattr(owner, name, fault.wrap(getattr(owner, name)))

        def arm():
            armed.append(1)
            if len(armed) == CLIENTS:
                fault.armed.set()

        async def all_at_once():
            async with httpx.AsyncClient(base_url=address, timeout=60) as client:
                return await asyncio.gather(*[stream(client, arm) for _ in range(CLIENTS)])

        found = asyncio.run(all_at_once())
        assert fault.raised == 1
        failed = [error for _, error in found if error]
        assert len(failed) == errors
        assert all(error["code"] == "engine_error" for error in failed)
        assert all("planted" not in error["message"] for error in failed)
        assert all(text == truth for text, error in found if error is None)
        assert all(truth.startswith(text) for text, _ in found)
        assert world.get("/health").json() == {"status": "ok", "running": 0, "waiting": 0}
        figures = world.get("/metrics").text
        assert ('outrider_streams_failed_total{code="engine_error"} 1.0' in figures) == bool(errors)
        for figure, there in (
            ("drafter_faults", name == "propose"),
            ("restarts", owner is LocalStage),
        ):
            lines = re.findall(rf"^outrider_{figure}_total{{.*}} (.*)$", figures, re.MULTILINE)
            assert (sum(map(float, lines)) > 0) == there
        assert world.complete(**BODY)["choices"][0]["text"] == truth


def test_a_penalty_that_could_only_give_infinities_is_a_400(hybrid):
    with running(hybrid.stage("log", 8)) as world:
        body = {"prompt": "a a a", "temperature": 1, "repetition_penalty": 1e-40}
        answer = world.ask("/v1/completions", body)
        assert answer.status_code == 400
        assert "repetition_penalty = 1e-40 is out of range" in answer.text


def test_an_engine_that_is_down_is_a_503_with_its_reason(hybrid, monkeypatch):
    with running(hybrid.stage("log", 8)) as world:
        ended = threading.Event()

        def failing(self, rows):
            ended.set()
            raise RuntimeError("the device is gone")

        monkeypatch.setattr(EngineFacade, "step", failing)
        answer = world.ask("/v1/completions", BODY)
        assert (answer.status_code, ended.is_set()) == (500, True)
        for found in (
            world.get("/health"),
            world.get("/metrics"),
            world.ask("/v1/completions", BODY),
            world.ask("/v1/completions", {**BODY, "stream": True}),
        ):
            assert found.status_code == 503, found.text
            assert found.json()["error"]["code"] == "engine_down"
            assert "the device is gone" in found.text
