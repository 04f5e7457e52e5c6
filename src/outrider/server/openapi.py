"""The server's own description, made from the same models that check requests."""

from typing import Any

from pydantic.json_schema import models_json_schema

from outrider import __version__
from outrider.server.bodies import Chat, Completion

REFERENCE = "#/components/schemas/{model}"
ERROR: dict[str, Any] = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
MODEL_NAME: dict[str, Any] = {
    "name": "model",
    "in": "path",
    "required": True,
    "description": "The model's name; slashes in it may stand as they are.",
    "schema": {"type": "string"},
}
OPEN: dict[str, Any] = {"statuses": ("503",), "open_to_all": True}
STATUSES = {
    "400": "A field, its value or the JSON is wrong; the error names it.",
    "401": "No valid API key.",
    "403": "The host or the origin is not allowed.",
    "404": "No such model or path.",
    "408": "The body, or the whole request, took too long.",
    "413": "The body is too large.",
    "415": "The body is not declared as JSON.",
    "429": "The queue is full; see Retry-After.",
    "503": "The server is going down, or its engine does not answer.",
}


def description(guarded: bool) -> dict[str, Any]:
    """An OpenAPI 3.1 document; `guarded`: an API key is asked for."""
    pairs: Any = [(Chat, "validation"), (Completion, "validation")]
    _, schemas = models_json_schema(pairs, ref_template=REFERENCE)
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "Outrider", "version": __version__},
        "paths": {
            "/v1/chat/completions": {"post": _post("Chat", "Continue a conversation.")},
            "/v1/completions": {"post": _post("Completion", "Continue prompts.")},
            "/v1/models": {"get": _get("The served model, in a list.", statuses=("401",))},
            "/v1/models/{model}": {
                "get": _get("The served model.", statuses=("401", "404")),
                "parameters": [MODEL_NAME],
            },
            "/health": {"get": _get("Whether requests are taken, how many run and wait.", **OPEN)},
            "/metrics": {"get": _get("Figures for Prometheus.", "text/plain", **OPEN)},
            "/openapi.json": {"get": _get("This description.", open_to_all=True)},
            "/": {"get": _get("A page to try the server.", "text/html", open_to_all=True)},
        },
        "components": {"schemas": {**schemas["$defs"], "Error": ERROR}},
    }
    if guarded:
        document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"key": []}]
    return document


def _get(
    text: str,
    kind: str = "application/json",
    *,
    statuses: tuple[str, ...] = (),
    open_to_all: bool = False,
) -> dict[str, Any]:
    """A path that is read; `open_to_all`: no key is asked for, whatever the others ask."""
    answers = {"200": {"description": text, "content": {kind: {}}}}
    found = {"summary": text, "responses": answers | _refusals("403", *statuses)}
    return found | ({"security": []} if open_to_all else {})


def _post(name: str, text: str) -> dict[str, Any]:
    schema = {"$ref": REFERENCE.format(model=name)}
    answer = {
        "description": "The answer, or its chunks as server-sent events with `stream`.",
        "content": {
            "application/json": {"schema": {"type": "object"}},
            "text/event-stream": {"schema": {"type": "string"}},
        },
    }
    return {
        "summary": text,
        "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
        "responses": {"200": answer} | _refusals(*STATUSES),
    }


def _refusals(*statuses: str) -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": REFERENCE.format(model="Error")}}}
    return {one: {"description": STATUSES[one], "content": content} for one in statuses}
