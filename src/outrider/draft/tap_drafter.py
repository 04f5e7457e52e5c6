"""The target's hidden states that a drafter has not consumed yet.

They come with the commits; drafters that read them catch up when they are next asked. What waits
is bounded: a drafter that is never asked consumes a full backlog all the same.
"""

from abc import abstractmethod
from dataclasses import dataclass, field

import torch
from torch import Tensor

from outrider.draft.base import Drafter
from outrider.draft.token_choice import Chooser
from outrider.errors import StageError
from outrider.records import Commit, Context, Needs

PASS_ROWS = 256
"""Rows that may wait, and rows of a catch-up pass at most."""


@dataclass(slots=True)
class Backlog:
    """Rows [taps x hidden] from position `start` on, each with the token that follows it."""

    start: int = 0
    tokens: list[int] = field(default_factory=list)
    _rows: list[Tensor] = field(default_factory=list)

    @property
    def full(self) -> bool:
        """True if rows are to be consumed although no draft is asked for."""
        return len(self.tokens) >= PASS_ROWS

    @property
    def end(self) -> int:
        """Position after the last row."""
        return self.start + len(self.tokens)

    def copy(self) -> "Backlog":
        """An independent one; the rows themselves never change."""
        return Backlog(self.start, list(self.tokens), list(self._rows))

    def nbytes(self) -> int:
        return sum(row.nbytes for row in self._rows)

    def check(self, name: str, context: Context) -> None:
        """StageError unless `context` is the committed tokens that the rows belong to."""
        if context.suffix or len(context) != self.end + 1:
            raise StageError(
                f"{name} was asked to follow {len(context)} tokens, but has the target's "
                f"hidden states of {self.end}: it drafts behind committed tokens only."
            )

    def add(self, commit: Commit) -> None:
        """Keep a commit's rows; StageError where there are none, or they leave a gap."""
        features = commit.features
        if not isinstance(features, Tensor):
            raise StageError("a commit came without the hidden states that the drafter asked for.")
        first = commit.position + len(commit.tokens) - 1 - len(features)
        if first != self.end:
            raise StageError(
                f"hidden states from position {first} on came, but {self.end} is the next one."
            )
        # A part of a pass's rows is copied, so that the others need not stay for it.
        whole = features.untyped_storage().nbytes() == features.nbytes
        self._rows.append(features if whole else features.clone())
        self.tokens += commit.tokens[-len(features) :]

    def oldest(self) -> tuple[Tensor, Tensor]:
        """Up to `PASS_ROWS` of the oldest rows: features [n, width], tokens int64 [n]."""
        rows = torch.cat(self._rows)
        self._rows = [rows]
        tokens = torch.tensor(self.tokens[:PASS_ROWS], device=rows.device)
        return rows[:PASS_ROWS], tokens

    def drop(self, count: int) -> None:
        """Forget `count` of the rows that `oldest` gave, which were consumed."""
        rest = self._rows[0][count:]
        self._rows = [rest] if len(rest) else []
        del self.tokens[:count]
        self.start += count


class TapDrafter(Drafter):
    """Common part of drafters that read hidden states; one window at a time, since true features
    come with the verdict."""

    def __init__(self, name: str, taps: tuple[int, ...], chooser: Chooser) -> None:
        """`chooser` picks from logits over the target's vocabulary."""
        self.name, self.needs = name, Needs(taps)
        self._chooser, self.backlog = chooser, Backlog()

    def observe(self, commit: Commit) -> None:
        """Keep the features; a full backlog is consumed at once."""
        self.backlog.add(commit)
        if self.backlog.full:
            with torch.inference_mode():  # which takes longer than to keep a row
                self._catch_up()

    def _catch_up(self) -> None:
        """Consume every feature that has come."""
        while self.backlog.tokens:
            features, tokens = self.backlog.oldest()
            self._consume(features, tokens)
            self.backlog.drop(len(tokens))

    @abstractmethod
    def _consume(self, features: Tensor, tokens: Tensor) -> None:
        """Run over true features [n, width], each with its next token [n]."""
