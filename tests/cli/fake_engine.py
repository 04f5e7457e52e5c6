"""An engine that follows a script, in place of `outrider.assemble`; torch-free."""

import sys
import time
from dataclasses import dataclass, field
from types import ModuleType

import outrider
from outrider.errors import OutriderError, RequestError
from outrider.sampling.params import SamplingParams
from outrider.telemetry.counters import Counters, timings


@dataclass
class Script:
    """What the engine answers: pieces, then at the end text that was held back."""

    pieces: tuple[str, ...] = ("def ", "f():", " 🙂\n")
    held: str = ""
    plain_tokens: tuple[int, ...] | None = None
    fail_after: int | None = None
    wait_after: int | None = None
    endless: bool = False
    interrupt_after: int | None = None
    chat_template: bool = True
    load_error: OutriderError | None = None
    calls: list = field(default_factory=list)
    configs: list = field(default_factory=list)
    chats: list = field(default_factory=list)
    closed: int = 0


@dataclass
class Piece:
    text: str
    tokens: tuple[int, ...] = (1,)
    sources: tuple[str, ...] = ("suffix",)


@dataclass
class Result:
    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    usage: dict
    timings: dict
    seed: int = 7
    budget: tuple[str, ...] = ()


class Generation:
    def __init__(self, script: Script, method: str | None, max_tokens: int) -> None:
        self.script, self.method = script, method
        self.pieces = script.pieces[:max_tokens]
        self.done: list[str] = []
        self.reason, self.closed = "cancelled", False

    def __iter__(self):
        script = self.script
        while True:
            for place, text in enumerate(self.pieces):
                if place == script.wait_after:
                    time.sleep(600)
                if place == script.fail_after:
                    raise OutriderError("stage 0 died: start it again.")
                if place == script.interrupt_after:
                    raise KeyboardInterrupt
                self.done.append(text)
                yield Piece(text)
            if not script.endless:
                break
        self.reason = "stop"

    def close(self) -> None:
        self.closed = True

    @property
    def result(self) -> Result:
        text = "".join(self.done) + (self.script.held if self.reason == "stop" else "")
        tokens = tuple(range(len(self.done)))
        plain = self.method == "off"
        if plain and self.script.plain_tokens is not None:
            tokens = self.script.plain_tokens
        spent = 8 if plain else 4
        ended = self.closed or self.reason == "stop"
        counters = Counters(first_tokens=1, emitted=len(tokens), predicted_ms=spent * ended)
        usage = {"prompt_tokens": 2, "completion_tokens": len(tokens), "total_tokens": 2}
        return Result(text, tokens, self.reason, usage, timings(counters))


class Tokenizer:
    def __init__(self, script: Script) -> None:
        self.script = script
        self.has_chat_template = script.chat_template

    def encode_chat(self, messages, **options) -> list[int]:
        self.script.chats.append(([dict(message) for message in messages], options))
        return list(range(len(messages)))


class Engine:
    script = Script()

    def __init__(self) -> None:
        self.tokenizer = Tokenizer(self.script)
        self.sampling_defaults = SamplingParams(temperature=0.5, top_k=11)

    @classmethod
    def load_run(cls, config, sequences=1, drafters=None) -> "Engine":
        cls.script.configs.append(config)
        if cls.script.load_error:
            raise cls.script.load_error
        return cls()

    def generate(self, prompt, *, method=None, max_tokens=None, **options) -> Generation:
        if prompt in ("", []):
            raise RequestError("prompt is empty: give at least one token.")
        self.script.calls.append({"prompt": prompt, "method": method, "max_tokens": max_tokens})
        self.script.calls[-1].update(options)
        return Generation(self.script, method, max_tokens)

    def close(self) -> None:
        self.script.closed += 1


def modules(script: Script) -> dict[str, ModuleType]:
    """Modules to stand in for `outrider.assemble` and those below it, by their full names."""
    package, engine, inspection = (
        ModuleType(f"outrider.assemble{part}") for part in ("", ".engine", ".inspection")
    )
    engine.Engine = type("Engine", (Engine,), {"script": script})
    inspection.inspect = lambda path: {
        "model": path,
        "layers": {"attention": 2, "gated delta net": 6},
        "parameters": 1234567,
        "drafters": ["suffix", "ngram-cache"],
        "tied_embeddings": True,
    }
    inspection.doctor = lambda: {"torch": "2", "kernels": []}
    package.engine, package.inspection = engine, inspection
    return {module.__name__: module for module in (package, engine, inspection)}


def install(**settings) -> None:
    """Stand in for the engine in a whole process."""
    stand_ins = modules(Script(**settings))
    sys.modules.update(stand_ins)
    outrider.assemble = stand_ins["outrider.assemble"]
