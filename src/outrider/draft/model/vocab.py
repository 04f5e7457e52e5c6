"""The target's token ids in a draft model: those that it shares, and those that it lacks.

A target may know more tokens than its draft model, as a fine-tune that thinks does. They are never
proposed. Where one occurs in a text, the draft model's state consumes the row of another token in
its place, so that positions agree and drafting goes on; what was consumed is still recorded by the
target's ids. Drafts right after such a token may be worse; what is committed never changes.
"""

from collections.abc import Mapping

from outrider.errors import ConfigError


def missing_tokens(target: Mapping[int, str], rows: int) -> list[int]:
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
