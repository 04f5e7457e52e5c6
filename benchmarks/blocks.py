"""Whether a block drafter's rows and taps are read as it was trained: a grid of shifts.

    python -m benchmarks.blocks [--target demo] [--draft-model demo-dflash] [--prompts N]
        [--tokens N]

Teacher-forced on the target's own greedy text: at every few positions a block is run, every row's
predecessor is the target's token, and so is what the row is asked for. Rows are read r rows later,
taps s layers later; (0, 0) is how drafting reads them. Prints a Markdown table; the last line is
one line of JSON.
"""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from benchmarks.alignment import Cell, Score, Text, table, texts
from outrider.assemble.engine import Engine
from outrider.assemble.target import load_target
from outrider.config.settings import SpeculativeConfig, TargetConfig
from outrider.draft.block.block_drafter import BlockModel
from outrider.draft.block.block_loader import load_block
from outrider.draft.block.block_trunk import BlockContext, Trunk
from outrider.draft.token_choice import DraftToken
from outrider.formats.hub import resolve

SHIFTS = (-1, 0, 1)
STRIDE = 5


@dataclass
class Forced:
    """Chooses the tokens that are given, and keeps the log-probabilities that it was shown."""

    tokens: Sequence[int]
    rows: list[Tensor] = field(default_factory=list)

    def choose(self, logits: Tensor, position: int, sure: float | None = None) -> DraftToken | None:
        del position, sure
        self.rows.append(logits[0].log_softmax(-1))
        return DraftToken(token=self.tokens[len(self.rows) - 1], confidence=1.0)


@dataclass(frozen=True)
class Shifted:
    """A trunk whose rows are read `rows` later."""

    trunk: Trunk
    rows: int

    def run(self, x: Tensor, context: BlockContext, wanted: int) -> Tensor:
        return self.trunk.run(x, context, len(x)).roll(-self.rows, 0)[:wanted]


@torch.inference_mode()
def score(model: BlockModel, text: Text, cell: Cell, layers: int) -> Score | None:
    """One cell for one text; None where a shifted tap does not exist."""
    shift, later = cell
    taps = [tap + later for tap in model.config.taps]
    if min(taps) < -1 or max(taps) > layers:
        return None
    features = torch.cat([text.taps[tap] for tap in taps], -1)
    shifted = replace(model, trunk=Shifted(model.trunk, shift))
    pairs = list(_judged(shifted, model.trunk, text, features))
    picked = torch.tensor([float(row[token]) for row, token in pairs])
    hits = [int(row.argmax()) == token for row, token in pairs]
    return Score(logprob=float(picked[picked.isfinite()].mean()), acceptance=sum(hits) / len(hits))


def _judged(
    shifted: BlockModel, trunk: Trunk, text: Text, features: Tensor
) -> Iterator[tuple[Tensor, int]]:
    """Rows and the tokens wanted of them; a block's first and last row are no row when shifted."""
    most, context = shifted.config.max_drafts, BlockContext(trunk)
    for anchor in range(text.start, len(text.tokens) - most, STRIDE):
        trunk.consume(features[context.length : anchor], context)
        wanted = text.tokens[anchor + 1 : anchor + 1 + most]
        chooser = Forced(wanted)
        shifted.draft(context, text.tokens[anchor], most, chooser)
        yield from zip(chooser.rows[1:-1], wanted[1:-1], strict=True)


def grid(model: BlockModel, given: Sequence[Text], layers: int) -> Mapping[Cell, Any]:
    """Scores by (row shift, tap shift): one for each text, in the same order."""
    cells = [(rows, taps) for rows in SHIFTS for taps in SHIFTS]
    scored = {cell: [score(model, text, cell, layers) for text in given] for cell in cells}
    return {cell: found for cell, found in scored.items() if None not in found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--target", default="demo")
    parser.add_argument("--draft-model", default="demo-dflash")
    parser.add_argument("--prompts", type=int, default=24)
    parser.add_argument("--tokens", type=int, default=128)
    options = parser.parse_args()
    engine = Engine.load(options.target, speculative=SpeculativeConfig(method="off"))
    target = load_target(TargetConfig(path=options.target))
    model = load_block(resolve(options.draft_model), target.ends)
    layers = target.decoder.config.num_layers
    found = grid(model, texts(engine, layers, options.prompts, options.tokens), layers)
    print(table(found).replace("pairing", "rows"))
    cells = {f"{r:+d},{s:+d}": [vars(one) for one in scores] for (r, s), scores in found.items()}
    print(json.dumps(cells))


if __name__ == "__main__":
    main()
