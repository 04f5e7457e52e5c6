"""How long accepted drafts are: each part of the held-out set, each position, fresh text apart.

    python benchmarks/acceptance.py [--target demo] [--method M] [--draft-model MODEL]
        [--lengths 1,2,3] [--prompts N] [--tokens N]

Temperature 0. *Length* is tokens per target pass, the target's own included. *Fresh* counts only
tokens that are in no 8-gram which stands earlier in the context; a pass counts for its fresh tokens
by their share of it. *By position* is the share of windows with a draft there that kept it. Prints
a Markdown table; the last line is one line of JSON.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from outrider.assemble.engine import Engine
from outrider.bench import workload
from outrider.config.settings import SpeculativeConfig
from outrider.telemetry.counters import Counters, merge

PARTS = ("code", "re-emit", "structured")
GRAM = 8


@dataclass(frozen=True, kw_only=True)
class Run:
    """One prompt's counters, and for each pass behind the first token which of its tokens are
    fresh."""

    counters: Counters
    passes: tuple[tuple[bool, ...], ...]


def fresh(prompt: Sequence[int], output: Sequence[int]) -> list[bool]:
    """For each output token: is it in no 8-gram that occurred before."""
    ids, seen = [*prompt, *output], set()
    repeated = [False] * len(ids)
    for end in range(GRAM, len(ids) + 1):
        gram = tuple(ids[end - GRAM : end])
        if gram in seen:
            repeated[end - GRAM : end] = [True] * GRAM
        seen.add(gram)
    return [not one for one in repeated[len(prompt) :]]


def run(engine: Engine, prompt: str, new: int) -> Run:
    generation = engine.generate(prompt, max_tokens=new)
    pieces = [piece for piece in generation if piece.tokens]
    result = generation.result
    flags = iter(fresh(result.prompt_token_ids, result.token_ids))
    by_pass = [tuple(next(flags) for _ in piece.tokens) for piece in pieces]
    return Run(counters=generation.counters, passes=tuple(by_pass[1:]))


def mean_length(runs: Sequence[Run], *, only_fresh: bool = False) -> float:
    """Tokens per pass, over all tokens or over fresh ones."""
    tokens = passes = 0.0
    for flags in (flags for one in runs for flags in one.passes):
        count = sum(flags) if only_fresh else len(flags)
        tokens += count
        passes += count / len(flags)
    return tokens / passes if passes else 0.0


def measure(engine: Engine, prompts: int, new: int) -> dict[str, list[Run]]:
    """Runs by part, as many prompts of each."""
    found = {}
    for part in PARTS:
        cases = workload.load(part).prompts[:prompts]
        found[part] = [run(engine, case.text, new) for case in cases]
    return found


def row(name: str, runs: Sequence[Run]) -> dict[str, Any]:
    counters = merge([one.counters for one in runs])
    pairs = zip(counters.accepted_at, counters.verified_at, strict=False)
    return {
        "part": name,
        "length": mean_length(runs),
        "fresh": mean_length(runs, only_fresh=True),
        "by_position": [accepted / verified for accepted, verified in pairs if verified],
        "verified": counters.verified,
        "accepted": counters.accepted,
        "passes": counters.windows_judged,
    }


def rows(found: dict[str, list[Run]]) -> list[dict[str, Any]]:
    everything = [one for runs in found.values() for one in runs]
    return [*(row(part, runs) for part, runs in found.items()), row("all", everything)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--target", default="demo")
    parser.add_argument("--method", default="mtp")
    parser.add_argument("--draft-model")
    parser.add_argument("--lengths", default="1,2,3,4,6")
    parser.add_argument("--prompts", type=int, default=32, help="of each part")
    parser.add_argument("--tokens", type=int, default=384)
    options = parser.parse_args()
    print("| drafts | part | length | fresh | accepted / verified | by position |")
    print("|---|---|---|---|---|---|")
    told = []
    for drafts in map(int, options.lengths.split(",")):
        config = SpeculativeConfig(
            method=options.method, draft_model=options.draft_model, max_draft_tokens=drafts
        )
        engine = Engine.load(options.target, speculative=config)
        for one in rows(measure(engine, options.prompts, options.tokens)):
            places = " ".join(f"{share:.2f}" for share in one["by_position"])
            kept = f"{one['accepted']} / {one['verified']}"
            cells = [
                drafts,
                one["part"],
                f"{one['length']:.2f}",
                f"{one['fresh']:.2f}",
                kept,
                places,
            ]
            print(f"| {' | '.join(map(str, cells))} |", flush=True)
            told.append({"drafts": drafts, **one})
    print(json.dumps(told))


if __name__ == "__main__":
    main()
