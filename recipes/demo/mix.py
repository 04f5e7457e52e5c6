"""Training rows: code, edits and structured text in fixed shares, each a function of a seed."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer

from recipes.demo import corpus, edits, structured, tokens

PARTS = ("code", "edits", "structured")
SHARES = (0.38, 0.42, 0.2)
REPEAT = "# Edit: repeat\n"
SCRAMBLED, FROM_STRUCTURED = 0.3, 0.15


@dataclass(frozen=True)
class Stage:
    """One stage of the curriculum, up to a share of the training time.

    `noise` is the share of the edit rows whose chunks are random tokens.
    """

    until: float
    length: int
    chunk: tuple[int, int]
    noise: float


# Short rows first, so that the model learns to copy early; the last third at 1,024 tokens.
CURRICULUM = (
    Stage(0.27, 256, (10, 70), 0.8),
    Stage(0.63, 512, (30, 220), 0.12),
    Stage(1.01, 1024, (60, 450), 0.05),
)


def stage_at(progress: float) -> Stage:
    return next(stage for stage in CURRICULUM if progress < stage.until)


class Mix:
    """Draws rows of `length` token ids. Held-out mixes draw from held-out files and seeds only."""

    def __init__(self, tokenizer: Tokenizer, sources: list[corpus.Source], held_out: bool) -> None:
        self.tokenizer = tokenizer
        self.end = tokenizer.token_to_id(tokens.END)
        self.texts = [s.text for s in sources if s.held_out == held_out]
        self.weights = [len(text) for text in self.texts]
        self.ids = [[*e.ids, self.end] for e in tokenizer.encode_batch(self.texts)]
        self.base_seed = structured.HELD_OUT_SEED if held_out else 0
        names = {name for text in self.texts for name in edits.names_of(text)}
        self.names = sorted(name for name in names if len(name) < 24)

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text).ids

    def code(self, rng: random.Random, length: int) -> list[int]:
        """One stretch of a file; short files are followed by others."""
        ids = rng.choices(self.ids, self.weights)[0]
        start = rng.randrange(max(1, len(ids) - length // 2))
        row = ids[start : start + length]
        while len(row) < length:
            row = row + rng.choices(self.ids, self.weights)[0][: length - len(row)]
        return row

    def structured_text(self, rng: random.Random) -> str:
        return structured.document(self.base_seed + rng.randrange(structured.HELD_OUT_SEED))

    def structured(self, rng: random.Random, length: int) -> list[int]:
        """Whole documents, the last one cut."""
        row: list[int] = []
        while len(row) < length:
            row += [*self.encode(self.structured_text(rng)), self.end]
        return row[:length]

    def edit(self, rng: random.Random, size: int) -> edits.Edit | None:
        """An edit whose chunk has about `size` tokens."""
        if rng.random() < FROM_STRUCTURED:
            text = self.structured_text(rng)
            size = int(size * 0.7)
        else:
            text = rng.choices(self.texts, self.weights)[0]
        chunk = edits.cut_chunk(rng, text, size)
        if rng.random() < SCRAMBLED:
            chunk = edits.scramble(rng, chunk, self.names)
        return edits.make_edit(rng, chunk, self.names)

    def edits(self, rng: random.Random, length: int, chunk: tuple[int, int]) -> list[int]:
        """Edits packed while they fit, then code."""
        row: list[int] = []
        low, high = chunk
        for _ in range(20):
            room = (length - len(row) - 30) // 2
            if room < low:
                break
            edit = self.edit(rng, rng.randint(low, min(high, room)))
            if edit is None:
                continue
            ids = [*self.encode(edit.prompt), *self.encode(edit.answer), self.end]
            if len(row) + len(ids) <= length:
                row += ids
        return row + self.code(rng, length - len(row)) if len(row) < length else row

    def noise(self, rng: random.Random, length: int, chunk: tuple[int, int]) -> list[int]:
        """Random tokens, few at a time, the request to repeat them, the tokens again.

        Only the context predicts them. Without these rows a model of this size had learned no
        copying after 1.4 M tokens, because guessing from habit was good enough.
        """
        request = self.encode(REPEAT)
        row: list[int] = []
        while len(row) < length:
            size = 2 + int(rng.expovariate(1 / 8))
            some = rng.sample(range(self.end), min(size, chunk[1]))
            row += [*some, *request, *some, self.end]
        return row[:length]

    def row(self, rng: random.Random, part: str, stage: Stage) -> list[int]:
        if part == "edits" and rng.random() < stage.noise:
            return self.noise(rng, stage.length, stage.chunk)
        if part == "edits":
            return self.edits(rng, stage.length, stage.chunk)
        return (
            self.code(rng, stage.length) if part == "code" else self.structured(rng, stage.length)
        )

    def batch(self, seed: str, stage: Stage, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Token ids [rows, length] and each row's part index [rows]."""
        rng = random.Random(seed)
        parts = rng.choices(range(len(PARTS)), SHARES, k=rows)
        ids = [self.row(rng, PARTS[part], stage) for part in parts]
        return torch.tensor(ids), torch.tensor(parts)
