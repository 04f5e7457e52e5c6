"""From events to the JSON that clients know, whole or in chunks."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from outrider.engine.scheduler import ChatTokenizer, GenerationResult, Piece, TokenLogprob
from outrider.server.plan import Plan
from outrider.telemetry.counters import merge, timings

UNFINISHED = "\N{REPLACEMENT CHARACTER}"
Json = dict[str, Any]


@dataclass(slots=True)
class Answer:
    """Puts the events of a plan's sequences into OpenAI's objects."""

    plan: Plan
    tokenizer: ChatTokenizer
    offsets: dict[int, int] = field(default_factory=dict)
    results: dict[int, GenerationResult] = field(default_factory=dict)

    def opening(self, index: int) -> Json:
        """The first chunk of a choice: the assistant's role, or the prompt given back."""
        if self.plan.kind == "chat":
            return self._chunk(index, {"delta": {"role": "assistant", "content": ""}})
        return self._chunk(index, {"text": self._prompt(index)})

    def piece(self, index: int, piece: Piece, texts: Sequence[str] | None) -> Json:
        """The chunk of one piece; `texts` are those of its tokens, if they are to be told."""
        shown: Json = {}
        if self.plan.logprobs:
            shown["logprobs"] = self._logprobs(index, piece.logprobs)
        if texts is not None:
            shown["trace"] = {
                "tokens": list(piece.tokens),
                "texts": list(texts),
                "sources": list(piece.sources),
                "corrected": piece.corrected,
            }
        return self._chunk(index, self._content(piece.text) | shown)

    def end(self, index: int, result: GenerationResult) -> Json:
        """The last chunk of a choice, with its figures."""
        self.results[index] = result
        shown = self._content("") | {"finish_reason": result.finish_reason}
        chunk = self._chunk(index, shown)
        return chunk | {"timings": result.timings, "seed": result.seed}

    def usage_chunk(self) -> Json:
        """The chunk behind all others, where it was asked for."""
        return self._head(streamed=True) | {"choices": [], "usage": self.usage()}

    def whole(self) -> Json:
        """The answer in one piece, once all sequences have ended."""
        results = [self.results[index] for index in range(len(self.plan.sequences))]
        total = merge([result.counters for result in results])
        return self._head(streamed=False) | {
            "choices": [self._choice(index, result) for index, result in enumerate(results)],
            "usage": self.usage(),
            "timings": timings(total),
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

    def _choice(self, index: int, result: GenerationResult) -> Json:
        text = "" if self.plan.discards else result.text
        logprobs = None
        if self.plan.logprobs:
            entries = () if self.plan.discards else result.logprobs
            logprobs = self._logprobs(index, entries, result)
        shown: Json = {"index": index, "logprobs": logprobs, "finish_reason": result.finish_reason}
        if self.plan.kind == "chat":
            return shown | {"message": {"role": "assistant", "content": text, "refusal": None}}
        return shown | {"text": (self._prompt(index) if self.plan.echo else "") + text}

    def _prompt(self, index: int) -> str:
        return self.plan.prompts[index // self.plan.n]

    def _content(self, text: str) -> Json:
        if self.plan.kind == "text":
            return {"text": text}
        return {"delta": {"content": text} if text else {}}

    def _chunk(self, index: int, shown: Json) -> Json:
        choice = {"index": index, "logprobs": None, "finish_reason": None} | shown
        return self._head(streamed=True) | {"choices": [choice]}

    def _head(self, *, streamed: bool) -> Json:
        suffix = ".chunk" if streamed else ""
        kind = {"text": "text_completion", "chat": f"chat.completion{suffix}"}[self.plan.kind]
        plan = self.plan
        return {"id": plan.id, "object": kind, "created": plan.created, "model": plan.model}

    def _logprobs(
        self,
        index: int,
        entries: Sequence[TokenLogprob],
        whole: GenerationResult | None = None,
    ) -> Json:
        if self.plan.kind == "chat":
            return {"content": [self._chat_entry(entry) for entry in entries], "refusal": None}
        echoed = whole is not None and self.plan.echo
        prompt = self.plan.sequences[index].tokens if echoed else ()
        scores = whole.prompt_logprobs if whole is not None and echoed else ()
        known: list[TokenLogprob | None] = [*(None for _ in prompt[:1]), *scores, *entries]
        tokens = [*prompt, *(entry.token for entry in entries)]
        texts = [self._token(token) for token in tokens]
        start = self.offsets.get(index, 0 if echoed else len(self._prompt(index)))
        offsets = [start + len("".join(texts[:place])) for place in range(len(texts))]
        self.offsets[index] = start + len("".join(texts))
        return {
            "tokens": texts,
            "token_logprobs": [entry.logprob if entry else None for entry in known],
            "top_logprobs": [self._top(entry) if entry else None for entry in known],
            "text_offset": offsets,
        }

    def _top(self, entry: TokenLogprob) -> dict[str, float]:
        """The alternatives by text; the chosen token is among them even if it is none."""
        top = {self._token(token): logprob for token, logprob in entry.top}
        return top | {self._token(entry.token): entry.logprob}

    def _chat_entry(self, entry: TokenLogprob) -> Json:
        top = [self._spelled(token, logprob) for token, logprob in entry.top]
        return self._spelled(entry.token, entry.logprob) | {"top_logprobs": top}

    def _spelled(self, token: int, logprob: float) -> Json:
        text = self._token(token)
        raw = None if text == f"token_id:{token}" else list(text.encode())
        return {"token": text, "logprob": logprob, "bytes": raw}

    def _token(self, token: int) -> str:
        """A token's text; one that is no whole character is named by its id, to stay distinct."""
        text = self.tokenizer.decode([token], skip_special=False)
        return f"token_id:{token}" if UNFINISHED in text or not text else text
