"""SmolLM2 from its package, and llama.cpp's own server on the same file.

`run.py test-llama-cpp` installs both; here a missing one is an error, never a skip.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
import xllamacpp

from outrider.bench.llamacpp import LlamaCppPeer, parameters
from outrider.models import packaged

Ask = Callable[..., Any]


@pytest.fixture(scope="session")
def smollm2() -> Path:
    return packaged.path("smollm2")


@pytest.fixture(scope="session")
def ask(smollm2: Path) -> Iterator[Ask]:
    """Ask llama.cpp's server: the path and the fields of the request."""
    server, peer = LlamaCppPeer("llama.cpp", parameters(xllamacpp, smollm2)).start()

    def ask(path: str, **fields: Any) -> Any:
        body = json.dumps(fields).encode()
        request = Request(f"{peer.url}{path}", body, {"Content-Type": "application/json"})
        with urlopen(request, timeout=60) as answer:
            return json.loads(answer.read())

    yield ask
    del server
