"""The server's description of itself against what it does, and the paths that tell of the model."""

import pytest

from outrider.server.app import application
from tests.server.world import running

KEY = {"authorization": "Bearer key"}


@pytest.fixture(scope="module")
def guarded(hybrid):
    with running(hybrid.stage("log", 8), config={"api_key": "key"}) as world:
        world.service.model = "some/deep/name"
        yield world


def document(world):
    return world.get("/openapi.json").json()


def ask(world, path, kind, headers):
    path = path.replace("{model}", world.service.model)
    return world.ask(path, {}, **headers) if kind == "post" else world.get(path, **headers)


def test_the_key_is_asked_for_where_the_description_says_so(guarded):
    told = document(guarded)
    assert told["security"] == [{"key": []}]
    open_paths = []
    for path, operations in told["paths"].items():
        for kind in {"get", "post"} & set(operations):
            asked = operations[kind].get("security", told["security"]) != []
            answers = operations[kind]["responses"]
            status = ask(guarded, path, kind, {}).status_code
            assert (status == 401) == asked == ("401" in answers), path
            assert str(ask(guarded, path, kind, KEY).status_code) in answers, path
            open_paths += [] if asked else [path]
    assert open_paths == ["/health", "/metrics", "/openapi.json", "/"]


def test_without_a_key_none_is_described(world):
    assert "security" not in document(world)
    assert "securitySchemes" not in document(world)["components"]


def test_every_path_is_described(guarded):
    routes = {
        (route.path.replace(":path", ""), method.lower())
        for route in application(guarded.service).routes
        for method in route.methods - {"HEAD"}
    }
    described = {
        (path, kind)
        for path, operations in document(guarded)["paths"].items()
        for kind in {"get", "post"} & set(operations)
    }
    assert routes == described


def test_descriptions_of_fields_hold(guarded):
    schemas = document(guarded)["components"]["schemas"]
    assert schemas["Completion"]["additionalProperties"] is False
    assert schemas["Speculative"]["additionalProperties"] is False
    assert schemas["Completion"]["properties"]["logit_bias"]["maxProperties"] == 4096
    assert "16" in schemas["Completion"]["properties"]["max_tokens"]["description"]


def test_one_model(guarded):
    """Its name holds slashes, escaped or not."""
    (listed,) = guarded.get("/v1/models", **KEY).json()["data"]
    assert listed["id"] == "some/deep/name"
    for name in ("some/deep/name", "some%2Fdeep%2Fname"):
        found = guarded.get(f"/v1/models/{name}", **KEY)
        assert (found.status_code, found.json()) == (200, listed)
    for name in ("some/deep", "other", "some/deep/name/more", "a%20b"):
        found = guarded.get(f"/v1/models/{name}", **KEY)
        error = found.json()["error"]
        assert (found.status_code, error["code"]) == (404, "model_not_found")
        assert (error["type"], error["param"]) == ("invalid_request_error", "model")
        assert "'some/deep/name' is" in error["message"]
    assert guarded.get("/v1/models/some/deep/name").status_code == 401


def test_names_that_clients_make_up_make_no_figures(guarded):
    for number in range(5):
        guarded.get(f"/v1/models/made-up-{number}", **KEY)
    text = guarded.get("/metrics").text
    assert "made-up" not in text
    assert 'path="/v1/models/{model}",status="404"' in text
