"""Who may ask, and how much they may send."""

import asyncio
import hashlib
import hmac
import re
from collections.abc import Sequence

from starlette.requests import ClientDisconnect, Request

from outrider.server.problems import Problem


def owner(request: Request, keys: Sequence[str]) -> str:
    """Whose key a request carries, as a digest; "" where no key is asked for.

    Every key is compared, and in constant time. Raises Problem 401.
    """
    if not keys:
        return ""
    kind, _, given = request.headers.get("authorization", "").partition(" ")
    digest = hashlib.sha256(given.strip().encode()).digest()
    matches = [hmac.compare_digest(digest, hashlib.sha256(key.encode()).digest()) for key in keys]
    if not any(matches) or kind.lower() != "bearer":
        raise Problem(
            401,
            "no valid API key: send one in the header 'Authorization: Bearer KEY'.",
            "invalid_api_key",
            headers={"WWW-Authenticate": "Bearer"},
        )
    return digest.hex()


def check_json(request: Request) -> None:
    """Raise Problem 415 unless the body is declared as JSON.

    A web page elsewhere may send other types without asking first.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if not re.fullmatch(r"application/([\w.+-]+\+)?json", kind):
        raise Problem(
            415,
            f"the body has the Content-Type {kind!r}: send JSON as 'application/json'.",
            "unsupported_media_type",
        )
    coding = request.headers.get("content-encoding", "identity").strip().lower()
    if coding != "identity":
        raise Problem(
            415,
            f"the body has the Content-Encoding {coding!r}: send it as it is.",
            "unsupported_media_type",
        )


async def read(request: Request, most_bytes: int, seconds: float) -> bytes:
    """The body; raises Problem 413 where it is too large, 408 where it comes too slowly."""
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > most_bytes:
        raise _too_large(most_bytes)
    body = bytearray()
    try:
        async with asyncio.timeout(seconds):
            async for part in request.stream():
                body += part
                if len(body) > most_bytes:
                    raise _too_large(most_bytes)
    except TimeoutError:
        raise Problem(
            408,
            f"the body did not arrive within {seconds:g} s.",
            "body_timeout",
            headers={"Connection": "close"},
        ) from None
    except ClientDisconnect:
        raise Problem(400, "the client left before the body was complete.") from None
    return bytes(body)


def _too_large(most_bytes: int) -> Problem:
    return Problem(
        413,
        f"the body is larger than {most_bytes >> 20} MiB (server.max_body_mib): send less.",
        "body_too_large",
        headers={"Connection": "close"},
    )
