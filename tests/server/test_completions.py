"""`/v1/completions`: the tokens of the engine alone, whatever else runs, in OpenAI's form."""

import asyncio
import json

import pytest

from outrider.sampling.params import SamplingParams
from tests.exactness.targets import engine, generate, prompts
from tests.server.world import MODEL, events, letters


def alone(world, prompt, settings, size, **more):
    """What plain decoding gives."""
    made = engine(type(world.stage)(*plain(world.stage)), None, tokenizer=world.engine.tokenizer)
    return generate(made, prompt, settings, size, **more).result


def plain(stage):
    return stage.decoder, "log", 8


PROMPTS = prompts(16)
SETTINGS = {
    "greedy": {"temperature": 0},
    "seeded": {"temperature": 0.4, "seed": 20, "top_p": 0.95, "repetition_penalty": 1.05},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_sixteen_clients_get_what_each_would_get_alone(world, settings, stream):
    async def one(client, prompt):
        body = {"prompt": prompt, "max_tokens": 24, "stream": stream, **settings}
        response = await client.post("/v1/completions", json=body)
        assert response.status_code == 200, response.text
        if not stream:
            return response.json()["choices"][0]["text"]
        return "".join(event["choices"][0]["text"] for event in events(response))

    async def everyone():
        async with world.client() as client:
            return await asyncio.gather(*[one(client, prompt) for prompt in PROMPTS])

    texts = asyncio.run(everyone())
    assert texts == [alone(world, prompt, settings, 24).text for prompt in PROMPTS]
    total = world.service.scheduler.snapshot().result(60).counters["tested"]
    assert 0 < total.accepted < total.verified


def test_the_answer_has_every_part(world):
    body = {"prompt": PROMPTS[1], "max_tokens": 12, "model": MODEL, "seed": 4, "temperature": 1}
    found = world.complete(**body)
    result = alone(world, PROMPTS[1], {"temperature": 1, "seed": 4}, 12)
    assert (found["object"], found["model"], found["seed"]) == ("text_completion", MODEL, 4)
    (choice,) = found["choices"]
    assert choice == {
        "index": 0,
        "text": result.text,
        "logprobs": None,
        "finish_reason": "length",
    }
    assert found["usage"] == {
        "prompt_tokens": 20,
        "completion_tokens": 12,
        "total_tokens": 32,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    assert found["timings"]["predicted_n"] == 12
    assert found["timings"]["draft_n"] >= found["timings"]["draft_n_accepted"]


def test_a_seed_is_drawn_and_reported(world):
    first = world.complete(prompt=PROMPTS[1], temperature=1)
    again = world.complete(prompt=PROMPTS[1], temperature=1, seed=first["seed"])
    assert again["choices"][0]["text"] == first["choices"][0]["text"]


@pytest.mark.parametrize("stream", [False, True])
def test_lists_of_prompts_and_choices(world, stream):
    sent = [letters(PROMPTS[1]), letters(PROMPTS[2])]
    body = {"prompt": sent, "n": 3, "max_tokens": 6, "temperature": 1.2, "seed": 7}
    if stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        found = events(world.ask("/v1/completions", body))
        texts = [""] * 6
        for event in found[:-1]:
            for choice in event["choices"]:
                texts[choice["index"]] += choice["text"]
        assert found[-1]["choices"] == []
        usage = found[-1]["usage"]
    else:
        answer = world.complete(**body)
        texts = [choice["text"] for choice in answer["choices"]]
        usage = answer["usage"]
    expected = []
    for prompt in PROMPTS[1:3]:
        for choice in range(3):
            settings = {"temperature": 1.2, "seed": 7, "choice": choice}
            expected.append(alone(world, prompt, settings, 6).text)
    assert texts == expected
    assert len(set(texts[:3])) > 1
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (51, 36)


def test_stop_strings_cut_text_and_count(world):
    whole = alone(world, PROMPTS[1], {}, 30).text
    stop = whole[9:12]
    expected = alone(world, PROMPTS[1], {}, 30, stop=[stop])
    found = world.complete(prompt=PROMPTS[1], max_tokens=30, temperature=0, stop=stop)
    assert found["choices"][0]["text"] == whole[: whole.index(stop)] == expected.text
    assert found["choices"][0]["finish_reason"] == "stop"
    assert found["usage"]["completion_tokens"] == len(expected.token_ids)


@pytest.mark.parametrize("drafts", [{}, {"max_draft_tokens": 0}, {"max_draft_tokens": 3}])
def test_speculation_per_request(world, drafts):
    body = {"prompt": PROMPTS[4], "max_tokens": 30, "temperature": 0, "speculative": drafts}
    found = world.complete(**body)
    timings = found["timings"]
    assert found["choices"][0]["text"] == alone(world, PROMPTS[4], {}, 30).text
    if drafts.get("max_draft_tokens") == 0:
        assert timings["draft_n"] == 0
        assert timings["speculative_windows"] == 29
    else:
        assert timings["draft_n_accepted"] > 0
        most = drafts.get("max_draft_tokens", 7)
        assert len(timings["speculative_accepted_per_position"]) <= most


def test_the_trace_names_the_source_of_every_token(world):
    body = {"prompt": PROMPTS[4], "max_tokens": 30, "temperature": 0, "stream": True}
    found = events(world.ask("/v1/completions", {**body, "speculative": {"trace": True}}))
    traces = [e["choices"][0]["trace"] for e in found if "trace" in e["choices"][0]]
    text = "".join(event["choices"][0]["text"] for event in found)
    assert "".join(part for trace in traces for part in trace["texts"]) == text
    sources = [source for trace in traces for source in trace["sources"]]
    assert set(sources) == {"suffix", "target"}
    timings = found[-1]["timings"]
    assert sources.count("suffix") == timings["draft_n_accepted"]
    rejecting = sum(trace["corrected"] for trace in traces)
    assert 0 < rejecting <= timings["speculative_windows"]


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_of_speculated_tokens(world, stream):
    body = {"prompt": PROMPTS[4], "max_tokens": 20, "temperature": 0, "logprobs": 2}
    result = alone(world, PROMPTS[4], {"logprobs": 2}, 20)
    decode = world.engine.tokenizer.decode
    if stream:
        found = events(world.ask("/v1/completions", {**body, "stream": True}))
        parts = [e["choices"][0]["logprobs"] for e in found if e["choices"][0]["logprobs"]]
        logprobs = {key: [one for part in parts for one in part[key]] for key in parts[0]}
    else:
        logprobs = world.complete(**body)["choices"][0]["logprobs"]
    assert logprobs["tokens"] == [decode([token]) for token in result.token_ids]
    assert logprobs["token_logprobs"] == [entry.logprob for entry in result.logprobs]
    for place, (top, entry) in enumerate(
        zip(logprobs["top_logprobs"], result.logprobs, strict=True)
    ):
        assert top[decode([entry.token])] == entry.logprob
        assert logprobs["text_offset"][place] == len(decode(PROMPTS[4])) + len(
            decode(result.token_ids[:place])
        )


def test_echo_scores_the_prompt(world):
    written = alone(world, PROMPTS[1], {"logprobs": 1}, 10)
    whole = [*PROMPTS[1], *written.token_ids]
    found = world.complete(prompt=whole, max_tokens=0, echo=True, logprobs=1)
    (choice,) = found["choices"]
    decode = world.engine.tokenizer.decode
    assert choice["text"] == decode(whole)
    assert choice["logprobs"]["tokens"] == [decode([token]) for token in whole]
    assert choice["logprobs"]["token_logprobs"][0] is None
    assert choice["logprobs"]["token_logprobs"][20:] == [e.logprob for e in written.logprobs]
    assert found["usage"]["completion_tokens"] == 0
    more = world.complete(prompt=whole, max_tokens=1, temperature=0, echo=True, logprobs=1)
    assert len(more["choices"][0]["logprobs"]["tokens"]) == len(whole) + 1
    assert (
        more["choices"][0]["logprobs"]["token_logprobs"][:-1]
        == (choice["logprobs"]["token_logprobs"])
    )


def test_echo_in_a_stream_comes_first(world):
    body = {"prompt": "hello", "max_tokens": 2, "echo": True, "stream": True}
    found = events(world.ask("/v1/completions", body))
    assert found[0]["choices"][0]["text"] == "hello"


def test_neutral_and_unused_fields_change_nothing(world):
    plain_body = {"prompt": PROMPTS[1], "temperature": 0}
    neutral = {
        "n": 1,
        "logit_bias": {},
        "user": "u",
        "metadata": {"a": "b"},
        "stop": None,
        "seed": None,
        "best_of": 1,
        "suffix": "",
        "stream": False,
        "echo": False,
        "service_tier": "auto",
    }
    one, two = (world.complete(**body) for body in (plain_body, plain_body | neutral))
    assert one["choices"] == two["choices"]


def test_models_and_health(world):
    (model,) = world.get("/v1/models").json()["data"]
    assert (model["id"], model["object"], model["method"]) == (MODEL, "model", "tested")
    health = world.get("/health")
    assert health.json() == {"status": "ok", "running": 0, "waiting": 0}


def test_defaults_are_the_models_own(world):
    world.service.scheduler.defaults = SamplingParams(temperature=0.8, top_k=5)
    found = world.complete(prompt=PROMPTS[1], seed=3)
    expected = alone(world, PROMPTS[1], {"temperature": 0.8, "top_k": 5, "seed": 3}, 16)
    assert found["choices"][0]["text"] == expected.text


def test_json_is_utf8_and_compact_enough(world):
    response = world.ask("/v1/completions", {"prompt": "a", "max_tokens": 1})
    assert response.headers["content-type"] == "application/json"
    assert json.loads(response.content.decode("utf-8"))


def test_what_lm_eval_sends(world):
    """Its `local-completions` reads these fields, so that the context's length cuts them."""
    body = {
        "model": MODEL,
        "prompt": [PROMPTS[1], PROMPTS[2]],
        "temperature": 0,
        "max_tokens": 1,
        "logprobs": 1,
        "seed": 1234,
        "echo": True,
    }
    for prompt, choice in zip(PROMPTS[1:3], world.complete(**body)["choices"], strict=True):
        logprobs = choice["logprobs"]
        assert {len(values) for values in logprobs.values()} == {len(prompt) + 1}
        scored = slice(len(prompt) - 4, -1)
        for token, own, top in zip(
            logprobs["tokens"][scored],
            logprobs["token_logprobs"][scored],
            logprobs["top_logprobs"][scored],
            strict=True,
        ):
            assert top[token] == own <= max(top.values()) < 0
