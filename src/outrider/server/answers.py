"""From events to the JSON that clients know, whole or in chunks.

Both are made of the same parts: a chunk holds one, a whole answer all of them joined.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from outrider.engine.scheduler import Event, GenerationResult, Piece, Scheduler, TokenLogprob
from outrider.server.places import Names, Places, prompt_places
from outrider.server.sequences import Plan
from outrider.telemetry.counters import merge, timings

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """A token as log-probabilities tell it: its place in the text, and no entry for a prompt's
    first token, which nothing was said of."""

    token: int
    entry: TokenLogprob | None
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The addition of one event to a choice. `opens` a choice, `result` ends it."""

    text: str = ""
    logprobs: Sequence[Scored] = ()
    trace: Json | None = None
    opens: bool = False
    result: GenerationResult | None = None

    @property
    def empty(self) -> bool:
        """True if no chunk is worth sending."""
        wanted = self.opens or self.result or self.trace
        return not (wanted or self.text or self.logprobs)


@dataclass(slots=True, kw_only=True)
class Choice:
    """One sequence's answer as it grows.

    `given` counts the characters of the text that became final. Tokens whose text did not, since
    it may begin a stop string or a character is incomplete, wait (first for their place, then in
    `held`), so that they are told with their text, or at the end of a text that was cut.
    """

    plan: Plan
    index: int
    scheduler: Scheduler
    names: Names
    given: int = 0
    opened: bool = False
    places: Places = field(default_factory=Places)
    unplaced: deque[tuple[int, TokenLogprob | None]] = field(default_factory=deque)
    held: deque[Scored] = field(default_factory=deque)
    _spell: Callable[[int], str] | None = None

    def take(self, event: Event) -> list[Part]:
        """The parts that an event brings, empty ones left out."""
        found = [] if self.opened or not isinstance(event, Piece) else [self._opening(event)]
        if isinstance(event, GenerationResult):
            found.append(self._end(event))
        elif isinstance(event, Piece) and not self.plan.discards:
            found.append(self._piece(event))
        return [part for part in found if not part.empty]

    def _opening(self, first: Piece) -> Part:
        """The assistant's role, or the prompt given back."""
        self.opened = True
        plan, tokens = self.plan, self.plan.sequences[self.index].tokens
        prompt = plan.prompts[self.index // plan.n]
        self.given = self.places.length = len(prompt)
        if not plan.echo:
            return Part(opens=plan.kind == "chat")
        if not plan.logprobs:
            return Part(text=prompt, opens=True)
        entries = (None, *first.prompt_logprobs)
        offsets = prompt_places(self.scheduler, tokens, prompt)
        scored = [
            Scored(token=token, entry=entry, offset=offset)
            for token, entry, offset in zip(tokens, entries, offsets, strict=True)
        ]
        return Part(text=prompt, logprobs=scored, opens=True)

    def _piece(self, piece: Piece) -> Part:
        plan = self.plan
        self.given += len(piece.text)
        if not (plan.logprobs or plan.trace):
            return Part(text=piece.text)
        texts, told = self._texts(piece), self._released()
        trace = {
            "tokens": list(piece.tokens),
            "texts": texts,
            "sources": list(piece.sources),
            "corrected": piece.corrected,
        }
        return Part(
            text=piece.text,
            logprobs=told if plan.logprobs else (),
            trace=trace if plan.trace else None,
        )

    def _texts(self, piece: Piece) -> list[str]:
        """The text of each token, all of which are held from now on."""
        if self._spell is None:
            self._spell = self.scheduler.speller(self.plan.sequences[self.index].tokens)
        entries = piece.logprobs or [None] * len(piece.tokens)
        texts = []
        for token, entry in zip(piece.tokens, entries, strict=True):
            texts.append(self._spell(token))
            self.unplaced.append((token, entry))
            self._hold(self.places.add(bytes(self.names.bytes(token)), texts[-1]))
        more = self.given - self.places.length
        if texts and more > 0:  # The output ended in the midst of a character.
            texts[-1] += piece.text[-more:]
            self._hold(self.places.finish(piece.text[-more:]))
        return texts

    def _hold(self, places: Sequence[int]) -> None:
        for place in places:
            token, entry = self.unplaced.popleft()
            self.held.append(Scored(token=token, entry=entry, offset=place))

    def _released(self) -> list[Scored]:
        """The tokens whose text is out."""
        found = []
        while self.held and self.held[0].offset <= self.given:
            found.append(self.held.popleft())
        return found

    def _end(self, result: GenerationResult) -> Part:
        self._hold(self.places.finish(""))
        left = [replace(one, offset=min(one.offset, self.given)) for one in self.held]
        self.held.clear()
        return Part(result=result, logprobs=left if self.plan.logprobs else ())


@dataclass(slots=True)
class Answer:
    """Puts the parts of a plan's choices into OpenAI's objects."""

    plan: Plan
    names: Names
    results: dict[int, GenerationResult] = field(default_factory=dict)

    def chunk(self, index: int, part: Part) -> Json:
        """A part as a chunk of a stream; the last one of a choice has its figures."""
        shown: Json = {"index": index, "logprobs": None, "finish_reason": None}
        shown |= self._delta(part)
        if part.logprobs:
            shown["logprobs"] = self._logprobs([part])
        if part.trace:
            shown["trace"] = part.trace
        chunk = self._head(streamed=True) | {"choices": [shown]}
        if self.plan.include_usage:
            chunk["usage"] = None
        if part.result is None:
            return chunk
        self.results[index] = part.result
        shown["finish_reason"] = self._reason(part.result)
        return chunk | {"timings": part.result.timings, "seed": part.result.seed}

    def usage_chunk(self) -> Json:
        """The chunk after all others, where it was asked for."""
        return self._head(streamed=True) | {"choices": [], "usage": self.usage()}

    def whole(self, choices: Sequence[Sequence[Part]]) -> Json:
        """The answer in one piece from the parts of each choice, the last of them its result."""
        shown = [self._choice(index, parts) for index, parts in enumerate(choices)]
        results = [self.results[index] for index in range(len(choices))]
        total = timings(merge([result.counters for result in results]))
        return self._head(streamed=False) | {
            "choices": shown,
            "usage": self.usage(),
            "timings": results[0].timings | total,
            "seed": results[0].seed,
        }

    def usage(self) -> Json:
        """Tokens in and out; each prompt counts once, however many choices it has."""
        results = self.results.values()
        prompts = self.plan.sequences[:: self.plan.n]
        generated = 0 if self.plan.discards else sum(len(one.token_ids) for one in results)
        prompt = sum(len(one.tokens) for one in prompts)
        reused = sum(one.counters.reused for i, one in self.results.items() if not i % self.plan.n)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": generated,
            "total_tokens": prompt + generated,
            "prompt_tokens_details": {"cached_tokens": reused},
        }

    def _choice(self, index: int, parts: Sequence[Part]) -> Json:
        result = parts[-1].result
        assert result is not None
        self.results[index] = result
        text = "".join(part.text for part in parts)
        shown: Json = {
            "index": index,
            "logprobs": self._logprobs(parts) if self.plan.logprobs else None,
            "finish_reason": self._reason(result),
        }
        if self.plan.trace:
            shown["trace"] = [part.trace for part in parts if part.trace]
        if self.plan.kind == "chat":
            return shown | {"message": {"role": "assistant", "content": text, "refusal": None}}
        return shown | {"text": text}

    def _reason(self, result: GenerationResult) -> str:
        """Why a choice ended; a token that is not shown is no reason."""
        return "length" if self.plan.discards else result.finish_reason

    def _delta(self, part: Part) -> Json:
        if self.plan.kind == "text":
            return {"text": part.text}
        if part.opens:
            return {"delta": {"role": "assistant", "content": ""}}
        return {"delta": {"content": part.text} if part.text else {}}

    def _head(self, *, streamed: bool) -> Json:
        suffix = ".chunk" if streamed else ""
        kind = {"text": "text_completion", "chat": f"chat.completion{suffix}"}[self.plan.kind]
        plan = self.plan
        return {"id": plan.id, "object": kind, "created": plan.created, "model": plan.model}

    def _logprobs(self, parts: Iterable[Part]) -> Json:
        scored = [one for part in parts for one in part.logprobs]
        if self.plan.kind == "chat":
            content = [self._chat_entry(one.entry) for one in scored if one.entry]
            return {"content": content, "refusal": None}
        return {
            "tokens": [self.names.name(one.token) for one in scored],
            "token_logprobs": [one.entry.logprob if one.entry else None for one in scored],
            "top_logprobs": [self._top(one.entry) if one.entry else None for one in scored],
            "text_offset": [one.offset for one in scored],
        }

    def _top(self, entry: TokenLogprob) -> dict[str, float]:
        """The alternatives by name; the chosen token is among them even if it is none."""
        top = {name: logprob for name, _, logprob in self.names.alternatives(entry)}
        return top | {self.names.name(entry.token): entry.logprob}

    def _chat_entry(self, entry: TokenLogprob) -> Json:
        chosen = self._spelled(self.names.name(entry.token), entry.token, entry.logprob)
        top = [self._spelled(*alternative) for alternative in self.names.alternatives(entry)]
        return chosen | {"top_logprobs": top}

    def _spelled(self, name: str, token: int, logprob: float) -> Json:
        return {"token": name, "logprob": logprob, "bytes": self.names.bytes(token)}
