"""A running OpenAI-compatible server as a peer: llama.cpp's, vLLM's, or Outrider's own.

It must hold the same model: prompts go to it as token ids. Tokens that come back are counted by
the server and not compared, since text cannot be told apart from tokens.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from outrider.bench.leg import UNKNOWN, Leg, Refusal, since_first
from outrider.costs.timing import Clock

TIMEOUT = 600.0
"""Seconds that a server may take for one answer."""


class ServerPeer:
    """`/v1/completions` of a server, streamed, so that the prompt's time is left out."""

    def __init__(self, url: str, name: str | None = None) -> None:
        self.name = name or f"server {url}"
        self.url = url

    def run(self, prompt: Sequence[int], count: int, clock: Clock) -> Leg:
        """Decode `count` tokens after the prompt; raises Refusal with the server's words."""
        body = {
            "prompt": list(prompt),
            "max_tokens": count,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        arrivals: list[float] = []
        counted = 0
        for event in self._events(body):
            usage = event.get("usage") or {}
            counted = usage.get("completion_tokens", counted)
            if any(choice.get("text") for choice in event.get("choices", ())):
                arrivals.append(clock())
        return self._leg(arrivals, counted)

    def _leg(self, arrivals: Sequence[float], counted: int) -> Leg:
        if len(arrivals) < 2 or counted < 2:
            raise Refusal(f"the server streamed {len(arrivals)} parts and counted {counted} tokens")
        return Leg(
            kind=self.name,
            tokens=(UNKNOWN,) * counted,
            marks=since_first([(1, arrivals[0]), (counted, arrivals[-1])]),
        )

    def _events(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The JSON of each server-sent event."""
        headers = {"Content-Type": "application/json"}
        request = Request(f"{self.url}/v1/completions", json.dumps(body).encode(), headers)
        try:
            with urlopen(request, timeout=TIMEOUT) as stream:
                for line in stream:
                    text = line.decode("utf-8").strip().removeprefix("data:").strip()
                    if text.startswith("{"):
                        yield json.loads(text)
        except HTTPError as error:
            told = error.read().decode("utf-8", errors="replace")
            raise Refusal(f"{error.code} {' '.join(told.split())[:200]}") from error
        except (URLError, OSError, ValueError) as error:
            raise Refusal(f"no answer: {error}") from error
