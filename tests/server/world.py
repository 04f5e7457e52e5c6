"""A server in this process around a tiny target, and how to ask it."""

import asyncio
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from outrider.config.settings import ServerConfig
from outrider.draft.lookup.suffix import SuffixDrafter
from outrider.engine.prefix import PrefixCache
from outrider.engine.scheduler import Scheduler
from outrider.formats.chat_template import ChatTemplate
from outrider.formats.tokenizer import Tokenizer
from outrider.server.app import Service, application
from outrider.server.listen import Listener, bind, settings
from tests.exactness.targets import Letters, admission, engine
from tests.helpers.checkpoints import VOCAB

MODEL = "tiny"
SEED = {"temperature": 0.8, "seed": 11}


class ChatLetters(Letters):
    """Letters with a chat template: roles and contents in one line."""

    has_chat_template = True

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        return super().decode(ids)

    def token_bytes(self, token_id: int, *, skip_special: bool = True) -> bytes:
        return self.decode([token_id]).encode()

    def token_name(self, token_id: int) -> str:
        return self.decode([token_id])

    def encode_chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> list[int]:
        return self.encode("".join(f"{m['role']}: {m['content']}\n" for m in messages))


def byte_tokens() -> Tokenizer:
    """96 tokens of byte-level BPE: parts of characters, words, an added token, special ones."""
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,:;!?()-"
    parts = ["Ġ", "Ċ", "â", "Ĥ", "¬", "Ã", "©", "ð", "Ł", "ĺ", "Ģ"]
    merges = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("â", "Ĥ"), ("ð", "Ł")]
    tokens = [*letters, *parts, *(left + right for left, right in merges)]
    backend = Backend(models.BPE(vocab={t: at for at, t in enumerate(tokens)}, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return _finished(backend)


def piece_tokens() -> Tokenizer:
    """96 tokens as SentencePiece has them: spaces are letters, bytes a last resort."""
    bytes_ = [f"<0x{byte:02X}>" for byte in (0xE2, 0x82, 0xAC, 0xC3, 0xA9, 0x41, 0x0A)]
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,:;!?()-"
    names = ["<unk>", *bytes_, "▁", *letters, "th", "the", "▁the", "▁▁", "é", "▁a"]
    merges = [("t", "h"), ("th", "e"), ("▁", "the"), ("▁", "▁"), ("▁", "a")]
    kind = {"byte_fallback": True, "fuse_unk": True, "unk_token": "<unk>"}
    vocab = {name: at for at, name in enumerate(names)}
    backend = Backend(models.BPE(vocab=vocab, merges=merges, **kind))
    spaces = normalizers.Replace(" ", "▁")
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)])
    backend.add_special_tokens([AddedToken("<unk>", special=True)])
    return _finished(backend)


def _finished(backend: Backend) -> Tokenizer:
    """With `<s>` in front, `</s>` as the end, and what else is missing to a vocabulary of 96."""
    backend.add_special_tokens([AddedToken("<s>"), AddedToken("</s>")])
    missing = VOCAB - backend.get_vocab_size()
    backend.add_tokens([AddedToken(f"<extra{at}>", normalized=False) for at in range(missing)])
    start, end = backend.token_to_id("<s>"), backend.token_to_id("</s>")
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", start)]
    )
    special = {"bos_token": "<s>", "eos_token": "</s>"}
    source = (
        "{% for m in messages %}{% if m.content == 'refuse' * 40000 %}"
        "{{ raise_exception('no: ' + m.content) }}{% endif %}{{ m.content }}{% endfor %}"
    )
    return Tokenizer(
        backend,
        special_tokens=special,
        end_tokens=[end],
        template=ChatTemplate(source, special, "a test"),
        origin="a test",
    )


@dataclass
class World:
    """One server."""

    service: Service
    stage: Any

    @property
    def engine(self):
        return self.service.scheduler._engine

    def app(self):
        return application(self.service)

    def client(self) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(self.app(), raise_app_exceptions=False)
        return httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=60)

    def ask(self, path: str, body: Any, **headers: str) -> httpx.Response:
        """One request of a client of its own; `body` as JSON, or bytes as they are."""

        async def one() -> httpx.Response:
            async with self.client() as client:
                sent = {"content": body} if isinstance(body, bytes) else {"json": body}
                typed = {"content-type": "application/json"} | headers
                return await client.post(path, headers=typed, **sent)

        return asyncio.run(one())

    def get(self, path: str, **headers: str) -> httpx.Response:
        async def one() -> httpx.Response:
            async with self.client() as client:
                return await client.get(path, headers=headers)

        return asyncio.run(one())

    def complete(self, **body: Any) -> dict[str, Any]:
        response = self.ask("/v1/completions", body)
        assert response.status_code == 200, response.text
        return response.json()


@contextmanager
def running(
    stage, drafter=SuffixDrafter, *, chat=True, config=None, tokenizer=None, **limits
) -> Iterator[World]:
    """A server on `stage` while it is in use; nothing may be left on it."""
    if tokenizer is None:
        tokenizer = ChatLetters()
        tokenizer.has_chat_template = chat
    own = engine(stage, drafter, tokenizer=tokenizer)
    own.prefixes = PrefixCache(stage, 1 << 28)
    scheduler = Scheduler(own, tokenizer, admission(**limits))
    config = ServerConfig(**(config or {}))
    try:
        yield World(Service(scheduler=scheduler, config=config, model=MODEL), stage)
    finally:
        scheduler.close()
        assert stage.num_sessions == 0


def events(response: httpx.Response) -> list[dict[str, Any]]:
    """The JSON of a stream's events; the last one must be the end mark."""
    lines = [line for line in response.text.split("\n\n") if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line[6:]) for line in lines[:-1]]


def letters(ids: Sequence[int]) -> str:
    """A text that the tokenizer turns into these ids."""
    return "".join(chr(token if token >= 32 else token + VOCAB) for token in ids)


@contextmanager
def listening(world: World) -> Iterator[str]:
    """The server on a free loopback port, as the command line runs it; its address."""
    server = Listener(settings(world.service), world.service)
    with bind("127.0.0.1", 0) as sock:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{sock.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(60)
            assert not thread.is_alive()
