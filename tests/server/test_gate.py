"""Which names, pages and kinds of body the server lets in; what it says of its engine's silence."""

import asyncio
import json
import threading

import pytest
from starlette.middleware.cors import CORSMiddleware

from outrider.config.settings import ServerConfig
from outrider.errors import BusyError, StageError
from outrider.server import app
from outrider.server.access import names_server
from tests.server.test_refusals import refused
from tests.server.world import running

BODY = {"prompt": "a", "max_tokens": 1}
JSON = json.dumps(BODY).encode()
OWN = (
    "localhost",
    "localhost:8000",
    "LOCALHOST:1",
    "localhost.",
    "127.0.0.1:8000",
    "127.9.9.9",
    "[::1]:80",
    "[::1]",
)
OTHERS = (
    "evil.example",
    "evil.example:8000",
    "192.168.1.5:8000",
    "localhost.evil.example",
    "",
    "::1",
)
OTHERS += "[::1].evil.example", "user@localhost", "localhost:x"
PAGES = "http://evil.example", "null", "http://localhost:3000", "file://", "https://localhost.evil"


def status(world, path="/v1/completions", **headers):
    return world.ask(path, JSON, **headers).status_code


def code(response):
    return response.json()["error"]["code"]


@pytest.mark.parametrize("host", OWN)
def test_loopbacks_names_are_the_servers(world, host):
    assert status(world, host=host) == 200
    assert world.get("/health", host=host).status_code == 200


@pytest.mark.parametrize("host", OTHERS)
def test_another_name_is_refused_on_loopback(world, host):
    """A site that points its own name at this machine must not be served by that name."""
    for answer in (
        world.ask("/v1/completions", JSON, host=host),
        world.get("/", host=host),
        world.get("/nowhere", host=host),
    ):
        refused(answer, 403, None, "server.allowed_hosts")
        assert code(answer) == "host_not_allowed"
    assert world.service.metrics.requests._metrics == {}, "nothing was asked"


@pytest.mark.parametrize("origin", PAGES)
def test_a_page_of_another_site_is_refused(world, origin):
    """Whatever type it sends, and whether the answer could be read or not."""
    for kind in ("text/plain", "application/json"):
        answer = world.ask("/v1/completions", JSON, origin=origin, **{"content-type": kind})
        refused(answer, 403, None, "server.allowed_origins")
        assert code(answer) == "origin_not_allowed"
        assert "access-control-allow-origin" not in answer.headers
    refused(world.get("/v1/models", origin=origin), 403, None, "may not ask")


def test_the_servers_own_page_may_ask(world):
    for host in ("localhost", "127.0.0.1:8000"):
        assert status(world, host=host, origin=f"http://{host}") == 200
    assert world.get("/").status_code == 200


@pytest.mark.parametrize(
    ("settings", "host", "let_in"),
    [
        ({"api_key": "key"}, "llm.example.com", True),
        ({"host": "0.0.0.0"}, "llm.example.com", True),
        ({"host": "localhost"}, "llm.example.com", False),
        ({"host": "::1"}, "llm.example.com", False),
        ({"host": "127.0.0.3"}, "llm.example.com", False),
        ({"allowed_hosts": "llm.example.com, other"}, "LLM.example.com:443", True),
        ({"allowed_hosts": "llm.example.com"}, "localhost:8000", True),
        ({"allowed_hosts": "llm.example.com"}, "a.llm.example.com", False),
        ({"allowed_hosts": "[2001:db8::1]"}, "[2001:db8::1]:8000", True),
        ({"allowed_hosts": "*"}, "anything", True),
        ({"host": "0.0.0.0", "allowed_hosts": "llm.example.com"}, "evil.example", False),
        ({"host": "10.0.0.7", "allowed_hosts": "llm"}, "10.0.0.7:8000", True),
        ({"api_key": "key", "allowed_hosts": "llm"}, "evil.example", False),
    ],
)
def test_names_by_setting(settings, host, let_in):
    assert names_server(host, ServerConfig(**settings)) is let_in


def test_pages_elsewhere_are_refused_with_a_key_too(hybrid):
    with running(hybrid.stage("log", 8), config={"api_key": "key", "host": "0.0.0.0"}) as world:
        known = {"authorization": "Bearer key"}
        refused(world.ask("/v1/completions", BODY, origin=PAGES[0], **known), 403, None, "may not")
        assert status(world, origin="https://llm.example", host="llm.example", **known) == 200


def test_an_allowed_page_may_ask_and_read(hybrid):
    allowed = "https://app.example.com, http://localhost:3000"
    with running(hybrid.stage("log", 8), config={"allowed_origins": allowed}) as world:
        page = {"origin": "http://localhost:3000"}
        for answer in (
            world.ask("/v1/completions", BODY, **page),
            world.ask("/v1/completions", {"prompt": 5}, **page),
            world.get("/nowhere", **page),
        ):
            assert answer.headers["access-control-allow-origin"] == page["origin"]
            assert "Origin" in answer.headers["vary"]
        refused(world.get("/v1/models", origin="http://evil.example"), 403, None, "may not ask")
        asked = {
            "access-control-request-method": "POST",
            "access-control-request-headers": "authorization, content-type, x-stainless-lang",
        }
        answer = send(world, "OPTIONS", "/v1/chat/completions", **page, **asked)
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == page["origin"]
        assert "POST" in answer.headers["access-control-allow-methods"]
        assert "x-stainless-lang" in answer.headers["access-control-allow-headers"]
        refused(send(world, "OPTIONS", "/v1/models", origin="null", **asked), 403, None, "may not")


def test_any_page_may_ask_where_all_are_allowed(hybrid):
    with running(hybrid.stage("log", 8), config={"allowed_origins": "*"}) as world:
        answer = world.ask("/v1/completions", BODY, origin="null")
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == "*"


def test_browsers_are_told_nothing_unless_pages_are_allowed(world):
    kinds = [one.cls for one in world.app().user_middleware]
    assert CORSMiddleware not in kinds
    answer = send(world, "OPTIONS", "/v1/models", **{"access-control-request-method": "GET"})
    refused(answer, 405, None, "Method Not Allowed")


def send(world, method, path, **headers):
    async def one():
        async with world.client() as client:
            return await client.request(method, path, headers=headers)

    return asyncio.run(one())


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "", "json"]
)
def test_a_body_must_be_declared_as_json(world, kind):
    """Other types are those that a page elsewhere can send without being asked back."""
    answer = world.ask("/v1/completions", JSON, **{"content-type": kind})
    refused(answer, 415, None, "send JSON as 'application/json'")
    assert code(answer) == "unsupported_media_type"


@pytest.mark.parametrize("coding", ["gzip", "br"])
def test_an_encoded_body_is_no_json(world, coding):
    headers = {"content-type": "application/json", "content-encoding": coding}
    answer = world.ask("/v1/completions", JSON, **headers)
    refused(answer, 415, None, f"the Content-Encoding '{coding}': send it as it is")


@pytest.mark.parametrize(
    "kind", ["application/json", "Application/JSON; charset=utf-8", "application/vnd.api+json"]
)
def test_kinds_of_json(world, kind):
    assert status(world, **{"content-type": kind}) == 200


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("PUT", "/v1/completions", 405),
        ("DELETE", "/v1/models", 405),
        ("OPTIONS", "/v1/chat/completions", 405),
        ("PATCH", "/", 405),
        ("HEAD", "/v1/completions", 405),
        ("GET", "/v1/other", 404),
    ],
)
def test_wrong_methods_and_paths_are_answered_in_form(world, method, path, expected):
    answer = send(world, method, path)
    assert answer.status_code == expected
    assert answer.headers["content-type"] == "application/json"
    if method != "HEAD":
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    if expected == 405:
        assert answer.headers["allow"]


def test_head_is_get_without_a_body(world):
    for path in ("/", "/health", "/v1/models", "/metrics", "/openapi.json"):
        assert send(world, "HEAD", path).status_code == 200


def test_a_fault_outside_all_paths_is_answered_in_form(world, monkeypatch):
    def broken(self, scope, receive, send):
        raise RuntimeError("/secret/path")

    monkeypatch.setattr(app.Endpoint, "__call__", broken)
    answer = world.get("/health")
    refused(answer, 500, None, "its log says why")
    assert "secret" not in answer.text


def test_an_engine_that_does_not_answer_is_unhealthy(world, monkeypatch):
    monkeypatch.setattr(app, "PATIENCE", 0.05)
    gate, begun = threading.Event(), threading.Event()
    poll = world.stage.run_batch

    def hang():
        begun.set()
        gate.wait(60)
        return poll()

    world.stage.run_batch = hang
    asking = threading.Thread(target=world.ask, args=("/v1/completions", BODY))
    asking.start()
    begun.wait(60)
    for path in ("/health", "/metrics"):
        answer = world.get(path)
        refused(answer, 503, None, "the engine did not answer within 0.05 s")
        assert code(answer) == "engine_silent"
        assert answer.headers["retry-after"] == "1"
    gate.set()
    asking.join(60)
    monkeypatch.undo()
    assert world.get("/health").json() == {"status": "ok", "running": 0, "waiting": 0}


@pytest.mark.parametrize(
    ("error", "named"),
    [
        (BusyError("the server is going down."), "shutting_down"),
        (BusyError("the engine's thread ended: a stage died."), "engine_unavailable"),
        (StageError("the engine's thread ended: a stage died."), "engine_error"),
    ],
)
@pytest.mark.parametrize("raised", [True, False])
def test_an_engine_that_ended_is_unhealthy_and_says_why(world, monkeypatch, error, named, raised):
    def snapshot():
        if raised:
            raise error
        found = app.Scheduler.snapshot(world.service.scheduler)
        found.cancel()
        found = type(found)()
        found.set_exception(error)
        return found

    monkeypatch.setattr(world.service.scheduler, "snapshot", snapshot)
    for path in ("/health", "/metrics"):
        answer = world.get(path)
        refused(answer, 503, None, str(error))
        assert code(answer) == named


def test_a_closed_server_is_unhealthy(hybrid):
    with running(hybrid.stage("log", 8)) as world:
        world.service.scheduler.close()
        refused(world.get("/health"), 503, None, "going down")
