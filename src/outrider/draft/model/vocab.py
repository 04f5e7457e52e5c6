"""The target's token ids in a draft model: which it shares, and which it lacks.

A target may know more tokens than its draft model, as a fine-tune that thinks does. They are never
proposed. Where one stands in a text, the draft model's state consumes the row of another token in
its place, so that positions agree and drafting goes on; what was consumed is still recorded by the
target's ids. Drafts right after such a token may be worse; what is committed never changes.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from outrider.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Rows:
    """The `count` rows of a draft model's embedding, and the one that stands for ids beyond."""

    count: int
    instead: int = 0

    def of(self, tokens: Sequence[int]) -> list[int]:
        """The rows to embed for the target's ids."""
        return [token if token < self.count else self.instead for token in tokens]


def make_rows(count: int, end_tokens: Iterable[int]) -> Rows:
    """Rows of a model with `count` of them: its first end token stands for what it lacks, since
    a text rarely goes on from there by the words before it; without one, id 0."""
    return Rows(count, min((token for token in end_tokens if token < count), default=0))


def lacking(target: Mapping[int, str], rows: int) -> list[int]:
    """Ids of the target's tokens beyond `rows` rows, in order; padding rows are no tokens."""
    return sorted(token for token in target if token >= rows)


def shared_vocabulary(target: Mapping[int, str], draft: Mapping[int, str]) -> int:
    """Return how many ids, from 0 on, mean the same to both; only these may be proposed.

    The mappings hold the string of every id that a tokenizer knows. Over the ids that both reach,
    each must be the same string in both, or unknown to both: sizes prove nothing. Ids beyond are
    rows that one model has more of, padding mostly. Raises ConfigError for the first difference.
    """
    shared = 1 + min(max(target, default=-1), max(draft, default=-1))
    if shared == 0:
        raise ConfigError(
            "speculative.draft_model has no token in common with the target: one of the "
            "tokenizers is empty; use a draft model of the target's family."
        )
    for token_id in range(shared):
        mine, theirs = target.get(token_id), draft.get(token_id)
        if mine != theirs:
            raise ConfigError(
                f"speculative.draft_model has another vocabulary than the target: id {token_id} "
                f"is {_shown(mine)} to the target and {_shown(theirs)} to the draft model; use a "
                f"draft model of the target's family."
            )
    return shared


def _shown(token: str | None) -> str:
    return "no token" if token is None else repr(token)
