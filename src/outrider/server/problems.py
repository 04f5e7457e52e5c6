"""Refusals and failures as clients see them: OpenAI's error object, and never a stack trace.

What a client sent comes back in 200 letters at most, whichever way it came into a message.
"""

import re
from dataclasses import dataclass, field

from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from outrider.errors import (
    BusyError,
    CheckpointError,
    ConfigError,
    DownError,
    LengthError,
    OutriderError,
    RequestError,
    shown,
)

LONG_WORD = re.compile(r"[^\s'\"()]{201,}")
MOST_LETTERS = 600
"""No sentence of the server's own is longer."""
KEPT_FRONT, KEPT_END = 120, 80


class UnknownField(ValueError):
    """A field that no model of a body has; its text is the field's name."""


@dataclass(slots=True, eq=False)
class Problem(Exception):
    """An answer other than 200."""

    status: int
    message: str
    code: str | None = None
    param: str | None = None
    headers: dict[str, str] = field(default_factory=dict)

    def body(self) -> dict[str, object]:
        """The JSON object."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        kind = {401: "authentication_error", 429: "rate_limit_error"}.get(self.status, kind)
        return {
            "error": {
                "message": _cut(self.message),
                "type": kind,
                "param": self.param and shown(self.param),
                "code": self.code,
            }
        }

    def response(self) -> JSONResponse:
        return JSONResponse(self.body(), status_code=self.status, headers=self.headers)


def unknown_model(name: str, served: str) -> Problem:
    """The answer to a name of a model that is not served."""
    told = f"model: {shown(name)!r} is not served here; {shown(served)!r} is."
    return Problem(404, told, "model_not_found", "model")


def _cut(message: str) -> str:
    """A message without what no sentence of the server's own would hold."""
    message = LONG_WORD.sub(lambda word: shown(word[0]), message)
    if len(message) <= MOST_LETTERS:
        return message
    return f"{message[:KEPT_FRONT]}… …{message[-KEPT_END:]}"


def problem_of(error: BaseException) -> Problem:
    """The problem that a client is told for an exception."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, ValidationError):
        return _invalid(error)
    if isinstance(error, HTTPException):
        headers = dict(error.headers or {})
        return Problem(error.status_code, str(error.detail), headers=headers)
    if isinstance(error, DownError):
        return Problem(503, str(error), "engine_down", headers={"Retry-After": "1"})
    if isinstance(error, BusyError):
        down = "going down" in str(error)
        code = "shutting_down" if down else "queue_full"
        return Problem(503 if down else 429, str(error), code, headers={"Retry-After": "1"})
    if isinstance(error, LengthError):
        return Problem(400, str(error), "context_length_exceeded", "prompt")
    if isinstance(error, RequestError | ConfigError | CheckpointError):
        return Problem(400, str(error))
    if isinstance(error, OutriderError):
        return Problem(500, str(error), "engine_error")
    return Problem(500, "the server failed on this request; its log says why.")


def _invalid(error: ValidationError) -> Problem:
    """The first fault that pydantic found, with the field that it is in.

    Where a field has several types, a fault within one says more than not being the others.
    """
    faults = error.errors(include_url=False, include_input=False)
    first = next((one for one in faults if not one["type"].endswith("_type")), faults[0])
    if first["type"] == "json_invalid":
        return Problem(400, f"the body is not valid JSON: {first['msg']}.", "invalid_json")
    # Pydantic puts the type that it tried between the names.
    names = [
        shown(str(part))
        for part in first["loc"]
        if isinstance(part, int) or (part.isidentifier() and part != "str")
    ]
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, UnknownField):
        names.append(shown(str(cause)))
        told = f"{'.'.join(names)} is not a field that this server knows: leave it out."
        return Problem(400, told, "unknown_field", names[0])
    field_name, place = (names[0] if names else None), ".".join(names)
    said = first["msg"].removeprefix("Value error, ")
    if first["type"] == "model_type":  # Its own message names one of our classes.
        said = "must be a JSON object"
    return Problem(400, f"{place or 'the body'}: {said}.", "invalid_value", field_name)
