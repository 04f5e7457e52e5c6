"""The tokens that a draft model's state must consume or forget before it can draft. Knows no model.

A wrong answer here corrupts drafts in silence: acceptance falls and nothing else shows it. So the
decision is a small pure type, and it follows four rules. All but the last token of a context are
to be consumed before drafting, which starts from exactly that last token. A step is recorded after
it has happened, a failed one never. A reset counts as "nothing consumed" before the first pass of
the new prefill. A state goes back only to a length that it can restore; below that it is reset.
"""

from collections.abc import Sequence

from outrider.errors import StateError
from outrider.records import Commit, Context


class DraftSync:
    """The tokens that one draft state has consumed, compared with one session's contexts.

    Committed tokens never change and commits only append. So what was found equal to committed
    tokens once (`final` of them) is not compared again: the work per call is that of the new
    tokens. A context that contradicts this is refused as far as a look at its length and one token
    can tell.
    """

    def __init__(self) -> None:
        self._consumed: list[int] = []
        self._final = 0

    @property
    def length(self) -> int:
        """Number of tokens that the state has consumed."""
        return len(self._consumed)

    @property
    def consumed(self) -> tuple[int, ...]:
        """The tokens that the state has consumed."""
        return tuple(self._consumed)

    @property
    def final(self) -> int:
        """Number of them that are known to be committed, so that no plan goes back below."""
        return self._final

    def plan(self, context: Context, *, lowest: int = 0, saved: int | None = None) -> int:
        """Return how many consumed tokens to keep, where `restorable` lets the state go back to.

        The state goes back there (0: it is reset), then consumes the rest of `context` but for its
        last token. `context` is not empty.
        """
        self._check(context)
        common = self._common(context, len(context) - 1)
        self._final = min(common, len(context.committed))
        if common == self.length:
            return common
        return restorable(common, lowest, saved) or 0

    def holds(self, context: Context) -> bool:
        """True if exactly `context`, its last token included, was consumed."""
        self._check(context)
        return self.length == len(context) == self._common(context, self.length)

    def record_reset(self) -> None:
        """The state holds nothing now; to be called before the prefill that follows."""
        self.record_trim(0)

    def record_trim(self, length: int) -> None:
        """The state went back to `length` tokens."""
        if length > self.length:
            raise StateError(
                f"the draft state cannot be trimmed to {length} tokens: it consumed {self.length}."
            )
        del self._consumed[length:]
        self._final = min(self._final, length)

    def record(self, tokens: Sequence[int]) -> None:
        """The state consumed `tokens`; to be called after the pass."""
        self._consumed.extend(tokens)

    def observe(self, commit: Commit) -> None:
        """Learn which consumed tokens became final."""
        skipped = self._final - commit.position
        if 0 <= skipped < len(commit.tokens):
            consumed = self._consumed[self._final : self._final + len(commit.tokens) - skipped]
            self._final += common_prefix(consumed, commit.tokens[skipped:])

    def _common(self, context: Context, wanted: int) -> int:
        """Length of the common prefix of what was consumed and the first `wanted` tokens."""
        stop = min(wanted, self.length)
        known = min(self._final, stop)
        return known + common_prefix(self._consumed[known:stop], between(context, known, stop))

    def _check(self, context: Context) -> None:
        final = self._final
        if final > len(context.committed) or (
            final and context.committed[final - 1] != self._consumed[final - 1]
        ):
            raise StateError(
                f"the draft state knows {final} committed tokens that this context of "
                f"{len(context.committed)} contradicts; use one drafter per session."
            )


def restorable(length: int, lowest: int, saved: int | None) -> int | None:
    """The greatest length of at most `length` that a state can go back to, or None.

    It can go back to any from `lowest` on, and to that of a `saved` copy.
    """
    if length >= lowest:
        return length
    return saved if saved is not None and saved <= length else None


def between(context: Context, start: int, stop: int) -> list[int]:
    """Return the tokens `start` .. `stop - 1` of a context, optimistic suffix included."""
    committed = len(context.committed)
    tokens = list(context.committed[start:stop])
    if stop > committed:
        tokens += context.suffix[max(start - committed, 0) : stop - committed]
    return tokens


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many leading tokens two sequences share."""
    if one == other:
        return len(one)
    for count, (mine, theirs) in enumerate(zip(one, other, strict=False)):
        if mine != theirs:
            return count
    return min(len(one), len(other))
