"""How often each token came before, for the penalties; one object per session.

Row i of a window sees the tokens up to and including its own input, so a window pushes its
tokens one by one, and the next window cuts back to where it starts.
"""

from collections.abc import Sequence

import torch

from outrider.errors import StateError


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
