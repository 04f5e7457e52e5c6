"""SmolLM2 from its package, and llama.cpp's own server on the same file.

`run.py test-llama-cpp` installs both; here a missing one is an error, never a skip.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
import xllamacpp

from outrider.bench.server_peers import parameters
from outrider.formats import hub as packaged

Ask = Callable[..., Any]


@pytest.fixture(scope="session")
def smollm2() -> Path:
    return packaged.packaged_path("smollm2")


@contextmanager
def serve(file: Path) -> Iterator[Ask]:
    """Ask llama.cpp's server with a file: the path and the fields of the request."""
    settings = parameters(xllamacpp, file, threads=2)
    # Keys and values in fp32, as here; its own default is fp16.
    settings.cache_type_k = settings.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    settings.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    server = xllamacpp.Server(settings)
    address = server.listening_address

    def ask(path: str, **fields: Any) -> Any:
        body = json.dumps(fields).encode()
        request = Request(f"{address}{path}", body, {"Content-Type": "application/json"})
        with urlopen(request, timeout=60) as answer:
            return json.loads(answer.read())

    yield ask
    del server


@pytest.fixture(scope="session")
def ask(smollm2: Path) -> Iterator[Ask]:
    with serve(smollm2) as ask:
        yield ask
