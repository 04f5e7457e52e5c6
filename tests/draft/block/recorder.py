"""A chooser that keeps what it was shown."""

import torch

from outrider.draft.token_choice import DraftToken, GreedyChooser
from tests.helpers.blocks import VOCAB


class Recorder(GreedyChooser):
    """Greedy, and keeps the rows that it was shown and their positions."""

    def __init__(self, vocab_size: int = VOCAB, min_probability: float = 0.0) -> None:
        super().__init__(vocab_size=vocab_size, min_probability=min_probability)
        self.rows: list[torch.Tensor] = []
        self.positions: list[int] = []

    def choose(
        self, logits: torch.Tensor, position: int, confidence: float | None = None
    ) -> DraftToken | None:
        self.rows.append(logits[0].clone())
        self.positions.append(position)
        return super().choose(logits, position, confidence)
