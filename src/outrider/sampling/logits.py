"""From one row of logits to the distribution that a token is drawn from.

Order: logit bias; repetition, presence and frequency penalty; temperature; top-k; top-p; min-p.
The repetition penalty looks at prompt and output (as Hugging Face), presence and frequency at the
output only (as OpenAI and vLLM). Filters are thresholds on the value: tokens tied with the last
one kept are kept too, so the result depends on no sort order. Everything works on one row at a
time and in a fixed order, so the bits of a row do not depend on its neighbours.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from outrider.errors import StageError, StateError
from outrider.sampling.params import SamplingParams
from outrider.sampling.rng import draw


class TokenCounts:
    """Counts over a growing token list that can be cut back to any shorter length.

    Keeps two float32 tables [vocab] (exact below 2**24 tokens), one over all tokens and one over
    the generated ones, i.e. those at `prompt_len` and after. Pushing or dropping a token costs
    two writes; the tables are made at the first `tables` call.
    """

    def __init__(self, tokens: Sequence[int] = (), *, prompt_len: int | None = None) -> None:
        self._tokens = list(tokens)
        self._prompt_len = len(self._tokens) if prompt_len is None else prompt_len
        self._tables: tuple[torch.Tensor, torch.Tensor] | None = None

    def __len__(self) -> int:
        return len(self._tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        """Append `tokens`."""
        self._add(len(self._tokens), tokens, 1.0)
        self._tokens.extend(tokens)

    def cut(self, length: int) -> None:
        """Forget the tokens at `length` and after; raise StateError if there are fewer."""
        if not 0 <= length <= len(self._tokens):
            raise StateError(
                f"the token counts hold {len(self._tokens)} tokens and cannot be cut to {length}: "
                f"windows must be picked in order, without a gap."
            )
        dropped = self._tokens[length:]
        del self._tokens[length:]
        self._add(length, dropped, -1.0)

    def tables(self, vocab: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (all, generated) counts, each float32 [vocab]; valid until the next change."""
        if self._tables is None:
            self._tables = (
                torch.zeros(vocab, device=device),
                torch.zeros(vocab, device=device),
            )
            self._add(0, self._tokens, 1.0)
        return self._tables

    def _add(self, position: int, tokens: Sequence[int], amount: float) -> None:
        """Add `amount` for `tokens`, of which the first stands at `position`."""
        if self._tables is None or not tokens:
            return
        everything, generated = self._tables
        ids = torch.tensor(tokens, device=everything.device)
        amounts = torch.full((len(ids),), amount, device=everything.device)
        everything.index_add_(0, ids, amounts)
        first = max(0, self._prompt_len - position)
        generated.index_add_(0, ids[first:], amounts[first:])


_NUCLEUS_HEADS = (1_024, 16_384)
"""Numbers of the largest entries that are sorted before a whole vocabulary is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """Probabilities `probs`, float64 [n], of the tokens `ids`, int64 [n] ascending.

    `ids` None stands for the whole vocabulary.
    """

    probs: torch.Tensor
    ids: torch.Tensor | None = None

    def draw(self, uniform: float) -> int:
        """Return the token that `uniform` in [0, 1) selects."""
        index = draw(self.probs, uniform)
        return index if self.ids is None else int(self.ids[index])

    def dense(self, vocab: int) -> torch.Tensor:
        """Return the probabilities over all tokens, float64 [vocab]."""
        if self.ids is None:
            return self.probs
        return self.probs.new_zeros(vocab).index_copy_(0, self.ids, self.probs)

    def _keep(self, mask: torch.Tensor) -> "Distribution":
        """Return the entries where `mask` [n] holds, not normalised."""
        kept = mask.nonzero().squeeze(-1)
        return Distribution(
            probs=self.probs[kept], ids=kept if self.ids is None else self.ids[kept]
        )


def adjusts(sampling: SamplingParams) -> bool:
    """True if `adjust` changes anything."""
    return bool(sampling.logit_bias) or sampling.penalized


def adjust(row: torch.Tensor, sampling: SamplingParams, counts: TokenCounts | None) -> torch.Tensor:
    """Return `row` [vocab] with bias and penalties applied; `row` itself is never changed.

    `counts` must stand at the row's own input token; it may be None without penalties. Raises
    ConfigError if the bias names a token outside the vocabulary.
    """
    if sampling.logit_bias:
        row = _biased(row, sampling)
    if not sampling.penalized:
        return row
    assert counts is not None, "penalties need the counts of the tokens before the row"
    everything, generated = counts.tables(len(row), row.device)
    if sampling.repetition_penalty != 1.0:
        row = _repetition(row, everything, sampling.repetition_penalty)
    if sampling.presence_penalty:
        row = row - sampling.presence_penalty * (generated > 0)
    if sampling.frequency_penalty:
        row = row - sampling.frequency_penalty * generated
    return row


def distribution(
    row: torch.Tensor, sampling: SamplingParams, counts: TokenCounts | None
) -> Distribution:
    """Return what a token after `row` [vocab] is drawn from; temperature must be above 0.

    Raises StageError if the row holds NaN or infinity where it decides.
    """
    row = adjust(row, sampling, counts)
    largest = _finite_max(row)
    ids = _top_k(row, sampling.top_k)
    kept = row if ids is None else row[ids]
    found = Distribution(probs=_softmax(kept, largest, sampling.temperature), ids=ids)
    if sampling.top_p < 1.0:
        found = _renormalized(found._keep(found.probs >= _nucleus_cut(found.probs, sampling.top_p)))
    if sampling.min_p > 0.0:
        cut = sampling.min_p * found.probs.max()
        found = _renormalized(found._keep(found.probs >= cut))
    return found


def probabilities(
    row: torch.Tensor, sampling: SamplingParams, counts: TokenCounts | None
) -> torch.Tensor:
    """Return `distribution` as float64 [vocab], filtered tokens at 0."""
    return distribution(row, sampling, counts).dense(len(row))


def _biased(row: torch.Tensor, sampling: SamplingParams) -> torch.Tensor:
    sampling.check_vocabulary(len(row))
    ids = torch.tensor(list(sampling.logit_bias), device=row.device)
    bias = torch.tensor(list(sampling.logit_bias.values()), device=row.device, dtype=row.dtype)
    return row.index_add(0, ids, bias)


def _repetition(row: torch.Tensor, everything: torch.Tensor, penalty: float) -> torch.Tensor:
    """Divide seen tokens' positive logits by `penalty`, multiply their negative ones by it."""
    penalized = torch.where(row > 0, row / penalty, row * penalty)
    return torch.where(everything > 0, penalized, row)


def _top_k(row: torch.Tensor, k: int) -> torch.Tensor | None:
    """Return the ids, ascending, of the `k` largest logits and their ties; None for all."""
    if k == 0 or k >= len(row):
        return None
    least = row.topk(k).values[-1]
    return (row >= least).nonzero().squeeze(-1)


def _softmax(row: torch.Tensor, largest: torch.Tensor, temperature: float) -> torch.Tensor:
    """Softmax in float64; the maximum goes first, so a tiny temperature cannot overflow."""
    return torch.softmax((row.double() - largest.double()) / temperature, dim=-1)


def _finite_max(row: torch.Tensor) -> torch.Tensor:
    largest = row.max()
    if not torch.isfinite(largest):
        raise StageError(
            f"the largest logit of a row is {float(largest)}: the target computed NaN or "
            f"infinity; check the checkpoint and its dtype."
        )
    return largest


def _nucleus_cut(probs: torch.Tensor, top_p: float) -> torch.Tensor:
    """Return the smallest probability in the smallest set of likeliest tokens of mass `top_p`.

    Sorts a head of the vocabulary first; the sums are the same as over all of it.
    """
    for size in (*_NUCLEUS_HEADS, len(probs)):
        head = probs.topk(min(size, len(probs))).values
        reached = int((head.cumsum(0) < top_p).sum())
        if reached < len(head):
            return head[reached]
    return head[-1]


def _renormalized(found: Distribution) -> Distribution:
    return Distribution(probs=found.probs / found.probs.sum(), ids=found.ids)
