"""Whether features and tokens are paired as a drafter was trained: a grid of shifts.

    python benchmarks/alignment.py [--target demo] [--method mtp|eagle3] [--draft-model MODEL]
        [--prompts N] [--tokens N]

Teacher-forced on the target's own greedy text. The feature of position i is paired with the token
at i + 1 + p, taps are read s layers later, and the drafter says what stands at i + 2; (0, 0) is how
drafting pairs them. A wrong tap costs little acceptance, so the mean log-probability of the
target's tokens stands beside it, compared prompt by prompt. One tap before MTP's is the hidden
state before the final norm. Prints a Markdown table; the last line is one line of JSON.
"""

import argparse
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from outrider.assemble.drafter import load_drafting
from outrider.assemble.engine import Engine
from outrider.assemble.target import load_target
from outrider.bench import workload
from outrider.config.settings import SpeculativeConfig, TargetConfig
from outrider.costs.rounds import read_taps
from outrider.draft.heads.one_token import Head

PARTS = ("code", "re-emit", "structured")
PAIRINGS = TAP_SHIFTS = (-1, 0, 1)
Cell = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class Text:
    """A prompt of `start` tokens, its greedy continuation, and states by tap [tokens, width]."""

    tokens: Sequence[int]
    start: int
    taps: Mapping[int, Tensor]


@dataclass(frozen=True, kw_only=True)
class Score:
    """Of one text: mean log-probability of the target's tokens, and share of them drafted."""

    logprob: float
    acceptance: float


def texts(engine: Engine, layers: int, prompts: int, new: int) -> list[Text]:
    """Greedy continuations of held-out prompts, in equal parts, with every layer's states."""
    numbers, found = range(-1, layers + 1), []
    for part in PARTS:
        for case in workload.load(part).prompts[: -(-prompts // len(PARTS))]:
            generation = engine.generate(case.text, max_tokens=new)
            list(generation)
            result = generation.result
            tokens = [*result.prompt_token_ids, *result.token_ids]
            states = read_taps(engine.stage, tokens, numbers).chunk(len(numbers), -1)
            taps = dict(zip(numbers, states, strict=True))
            found.append(Text(tokens=tokens, start=len(result.prompt_token_ids), taps=taps))
    return found


@torch.inference_mode()
def score(head: Head, text: Text, cell: Cell, layers: int) -> Score | None:
    """One cell for one text; None where a shifted tap does not exist."""
    pairing, shift = cell
    taps = [tap + shift for tap in head.taps]
    if taps[0] < -1 or taps[-1] > layers:
        return None
    rows = len(text.tokens) - 3  # all shifts score the same tokens
    features = head.read(torch.cat([text.taps[tap][1 : rows + 1] for tap in taps], -1))
    tokens = torch.tensor(text.tokens)
    outputs = head.run(features, tokens[2 + pairing : 2 + pairing + rows], head.new_state())
    # Row r is position r + 1 and says what stands at r + 3: the second token of the output first.
    first = max(text.start - 2, 0)
    logprobs = head.predict(outputs[first:])[0].log_softmax(-1)
    wanted = tokens[3 + first :]
    picked = logprobs.gather(1, wanted[:, None]).squeeze(1)
    return Score(  # what a reduced vocabulary cannot draft has no probability, whatever is shifted
        logprob=float(picked[torch.isfinite(picked)].mean()),
        acceptance=float((logprobs.argmax(-1) == wanted).float().mean()),
    )


def grid(head: Head, given: Sequence[Text], layers: int, shifts: Sequence[int]) -> dict[Cell, Any]:
    """Scores by (pairing, tap shift): one for each text, in the same order."""
    cells = [(pairing, shift) for pairing in PAIRINGS for shift in shifts]
    scored = {cell: [score(head, text, cell, layers) for text in given] for cell in cells}
    return {cell: found for cell, found in scored.items() if None not in found}


def below(found: Mapping[Cell, Sequence[Score]], cell: Cell) -> tuple[float, float]:
    """By how many nats a cell lies below (0, 0), paired by text, and the standard error."""
    pairs = zip(found[0, 0], found[cell], strict=True)
    gaps = [right.logprob - wrong.logprob for right, wrong in pairs]
    return statistics.fmean(gaps), statistics.stdev(gaps) / len(gaps) ** 0.5


def accepted(scores: Sequence[Score]) -> float:
    """Share of the target's tokens that are drafted, over all texts alike."""
    return statistics.fmean(one.acceptance for one in scores)


def table(found: Mapping[Cell, Sequence[Score]]) -> str:
    lines = [
        "| pairing | taps | log-probability | below (0, 0) | acceptance |",
        "|---|---|---|---|---|",
    ]
    for (pairing, shift), scores in found.items():
        gap, error = below(found, (pairing, shift))
        logprob = statistics.fmean(one.logprob for one in scores)
        apart = "" if (pairing, shift) == (0, 0) else f"{gap:.3f} ± {error:.3f}"
        lines.append(
            f"| {pairing:+d} | {shift:+d} | {logprob:.3f} | {apart} | {accepted(scores):.1%} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--target", default="demo")
    parser.add_argument("--method", default="eagle3", choices=("mtp", "eagle3"))
    parser.add_argument("--draft-model")
    parser.add_argument("--prompts", type=int, default=24)
    parser.add_argument("--tokens", type=int, default=128)
    options = parser.parse_args()
    model = options.draft_model or ("demo-eagle3" if options.method == "eagle3" else None)
    engine = Engine.load(options.target, speculative=SpeculativeConfig(method="off"))
    target = load_target(TargetConfig(path=options.target))
    head = load_drafting(SpeculativeConfig(method=options.method, draft_model=model), target)
    assert isinstance(head, Head)
    layers = target.decoder.config.num_layers
    given = texts(engine, layers, options.prompts, options.tokens)
    found = grid(head, given, layers, TAP_SHIFTS)
    print(table(found))
    cells = {f"{p:+d},{s:+d}": [vars(one) for one in scores] for (p, s), scores in found.items()}
    print(json.dumps(cells))


if __name__ == "__main__":
    main()
