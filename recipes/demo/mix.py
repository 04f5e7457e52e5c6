"""Training rows: code, edits and structured text in fixed shares, each a function of a seed."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer

from recipes.demo import corpus, edits, structured, tokens

PARTS = ("code", "edits", "structured")
SHARES = (0.22, 0.62, 0.16)
REPEAT = "# Edit: repeat\n"
# Answers of edits can be predicted, unlike new code, whose noise would drown what they teach.
ANSWER_WEIGHT, RENAMED_WEIGHT = 4.0, 10.0
SCRAMBLED, FROM_STRUCTURED = 0.3, 0.15


Row = tuple[list[int], list[float]]


@dataclass(frozen=True)
class Stage:
    """One stage of the curriculum, up to a share of the training time.

    `noise` is the share of the edit rows whose chunks are random tokens.
    """

    until: float
    length: int
    chunk: tuple[int, int]
    noise: float


# Short rows first, so that the model learns to copy early; half of the time at 1,024 tokens.
CURRICULUM = (
    Stage(0.27, 256, (10, 70), 0.8),
    Stage(0.47, 512, (30, 220), 0.12),
    Stage(1.01, 1024, (60, 450), 0.12),
)
LATER = Stage(1.01, 1024, (60, 450), 0.2)


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
        self.renames = edits.Renames.of(tokenizer, self.texts)

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
        return edits.make_edit(rng, chunk, self.renames)

    def answer(self, edit: edits.Edit) -> Row:
        """The answer with its weights; the suffix, and the token after it, count most."""
        encoding = self.tokenizer.encode(edit.answer)
        weights = [ANSWER_WEIGHT] * (len(encoding.ids) + 1)
        for match in re.finditer(rf"\b{re.escape(edit.new)}\b", edit.answer):
            for at, (_, end) in enumerate(encoding.offsets):
                if end == match.end():
                    weights[at] = weights[at + 1] = RENAMED_WEIGHT
        return [*encoding.ids, self.end], weights

    def edits(self, rng: random.Random, length: int, chunk: tuple[int, int]) -> Row:
        """Edits packed while they fit, then code."""
        row, weights = [], []
        low, high = chunk
        for _ in range(20):
            room = (length - len(row) - 30) // 2
            if room < low:
                break
            edit = self.edit(rng, rng.randint(low, min(high, room)))
            if edit is None:
                continue
            prompt = self.encode(edit.prompt)
            answer, counts = self.answer(edit)
            if len(row) + len(prompt) + len(answer) <= length:
                row += prompt + answer
                weights += [1.0] * len(prompt) + counts
        rest = length - len(row)
        return (row + self.code(rng, rest) if rest else row), weights + [1.0] * rest

    def noise(self, rng: random.Random, length: int) -> Row:
        """Random tokens, the request to repeat them, the tokens again, many times.

        Only the context predicts them. Without these rows a model of this size had learned no
        copying after 1.9 M tokens, because guessing from habit was good enough. While rows are
        short, chunks are too, and their tokens distinct; later tokens recur within a chunk, so that
        the place to copy from is told by several tokens, not by one, and half of the requests are
        renames of a name strewn among them: in code a name to change is too rare to learn from.
        """
        row, weights = [], []
        while len(row) < length:
            size = 2 + int(rng.expovariate(1 / 8))
            some = rng.sample(range(self.end), size)
            if length > 256:
                some = rng.choices(some, k=2 * size + rng.randint(0, length // 8))
            if length > 256 and rng.random() < 0.5:
                asked, answer = self._drill(rng, rng.sample(range(self.end), rng.randint(20, 100)))
            else:
                asked, answer = self._repeat(some)
            row += [*asked[0], *answer[0], self.end]
            weights += [*asked[1], *answer[1], ANSWER_WEIGHT]
        return row[:length], weights[:length]

    def _repeat(self, some: list[int]) -> tuple[Row, Row]:
        request = self.encode(REPEAT)
        asked = [*some, *request], [0.0] * len(some) + [1.0] * len(request)
        return asked, (some, [ANSWER_WEIGHT] * len(some))

    def _drill(self, rng: random.Random, some: list[int]) -> tuple[Row, Row]:
        """Random tokens with a name among them, and the same with a suffix to the name."""
        old = rng.choice(self.renames.names)
        new = old + rng.choice(self.renames.suffixes)
        title = self.encode(f"# {rng.choice(self.renames.names)}.py\n")
        before, after, weights = [*title], [], []
        for token in some:
            if rng.random() < 0.15:
                space = rng.choice(("", " "))
                before += self.encode(space + old)
                renamed = self.encode(space + new)
                after += renamed
                weights += [ANSWER_WEIGHT] * (len(renamed) - 1) + [RENAMED_WEIGHT]
            before.append(token)
            after.append(token)
            weights.append(ANSWER_WEIGHT)
        request = [*self.encode(f"# Edit: rename `{old}` to `{new}`\n"), *title]
        asked = [*before, *request], [0.0] * len(before) + [1.0] * len(request)
        return asked, (after, weights)

    def row(self, rng: random.Random, part: str, stage: Stage) -> Row:
        """Token ids and how much each counts in the loss."""
        if part == "edits" and rng.random() < stage.noise:
            return self.noise(rng, stage.length)
        if part == "edits":
            return self.edits(rng, stage.length, stage.chunk)
        make = self.code if part == "code" else self.structured
        return make(rng, stage.length), [1.0] * stage.length

    def batch(
        self, seed: str, stage: Stage, rows: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Token ids and weights [rows, length], and each row's part index [rows]."""
        rng = random.Random(seed)
        parts = rng.choices(range(len(PARTS)), SHARES, k=rows)
        ids, weights = zip(*(self.row(rng, PARTS[part], stage) for part in parts), strict=True)
        return torch.tensor(ids), torch.tensor(weights), torch.tensor(parts)
