"""State of a session where logits become tokens: settings, randomness, counts."""

from collections.abc import Sequence

import torch

from outrider.errors import ConfigError, StageError
from outrider.records import SamplerOutput, TokenLogprob, Window
from outrider.sampling.logits import TokenCounts
from outrider.sampling.params import SamplingParams
from outrider.sampling.rng import Key
from outrider.verify.verifiers import LogitRows, Pick, pick_greedy, pick_matching, pick_rejection


class Sampler:
    """Picks the target's tokens for one session, window by window."""

    def __init__(
        self,
        sampling: SamplingParams,
        history: Sequence[int] = (),
        *,
        prompt_len: int | None = None,
    ) -> None:
        """Open a session whose prompt is the first `prompt_len` tokens of `history` (None: all).

        `history` is copied, and only if penalties need it. Raises ConfigError if a
        seed is needed and missing (see `with_seed`).
        """
        if sampling.seed is None and not sampling.greedy:
            raise ConfigError(
                "seed = None cannot be sampled with: draw one for the request with "
                "SamplingParams.with_seed() before it is opened."
            )
        self._sampling = sampling
        self._key = Key(seed=sampling.seed or 0, choice=sampling.choice)
        self.counts = TokenCounts(history, prompt_len=prompt_len) if sampling.penalized else None

    def pick(
        self, window: Window, logits: torch.Tensor, largest: Sequence[int] | None = None
    ) -> SamplerOutput:
        """Return the target's token after each wanted row of `window`.

        `logits` [window.wanted, vocab]: the rows wanted, i.e. the window's last ones. Windows may
        start anywhere up to the end of the history known so far: what lies after the start is
        forgotten first. Prefill windows need not be shown if the history held the prompt.
        `largest`: the likeliest token of each row, where that was found for many sessions at once.
        Raises StageError if the rows do not fit the window, StateError if tokens are missing.
        """
        unwanted, given = len(window.tokens) - window.wanted, list(window.given)
        given_rows = logits.shape[:-1] if largest is None else (len(largest),)
        if given_rows != (window.wanted,):
            raise StageError(
                f"window {window.id} wants {window.wanted} rows of logits and got shape "
                f"{list(logits.shape)}; hand over the last rows only."
            )
        known = unwanted + len(given)
        self.enter(window, known)
        if known == len(window.tokens):
            return SamplerOutput(tokens=window.given, logprobs=self._logprobs(logits, given))
        rows = LogitRows(
            logits=logits[len(given) :] if given else logits,
            inputs=window.tokens[known:],
            position=window.start + known + 1,
            draft_probs=_draft_probs(window, known),
            largest=None if largest is None else largest[len(given) :],
        )
        tokens = given + self._verifier(rows)(rows, self._sampling, self._key, self.counts)
        return SamplerOutput(tokens=tuple(tokens), logprobs=self._logprobs(logits, tokens))

    def cut(self, length: int) -> None:
        """Forget the tokens at `length` and after, as when a state settles there."""
        if self.counts is not None:
            self.counts.cut(length)

    def enter(self, window: Window, known: int) -> None:
        """Let the counts end right before the input of the first row that is picked for."""
        if self.counts is not None:
            self.counts.cut(window.start)
            self.counts.extend(window.tokens[:known])

    def _verifier(self, rows: LogitRows) -> Pick:
        if self._sampling.greedy:
            return pick_greedy
        return pick_matching if rows.draft_probs is None else pick_rejection

    def _logprobs(self, logits: torch.Tensor, tokens: list[int]) -> tuple[TokenLogprob, ...]:
        top = self._sampling.logprobs
        if top is None:
            return ()
        return tuple(_logprob(row, token, top) for row, token in zip(logits, tokens, strict=True))


def _draft_probs(window: Window, unwanted: int) -> torch.Tensor | None:
    """Return the distributions [wanted - 1, vocab] of the drafts that the wanted rows judge."""
    if window.draft_probs is None:
        return None
    if not isinstance(window.draft_probs, torch.Tensor):
        raise StageError(
            f"window {window.id} carries draft_probs of type "
            f"{type(window.draft_probs).__name__}; hand over a tensor [drafts, vocab]."
        )
    return window.draft_probs[unwanted:]


def _logprob(row: torch.Tensor, token: int, top: int) -> TokenLogprob:
    """Return the log-probability of `token` under the raw logits `row` [vocab]."""
    best = row.topk(min(top, len(row)))
    normalizer = row.logsumexp(-1)
    values = (best.values - normalizer).tolist()
    pairs = zip(best.indices.tolist(), values, strict=True)
    return TokenLogprob(token=token, logprob=float(row[token] - normalizer), top=tuple(pairs))


def make_sampler(sampling: SamplingParams, prompt_len: int) -> Sampler:
    """The sampler of a session; penalties need its prompt shown as windows."""
    return Sampler(sampling, prompt_len=prompt_len)
