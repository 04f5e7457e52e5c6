"""Drafting methods side by side: every leg of a prompt in one run, each beside plain decoding.

    python benchmarks/methods.py SPEC... [--target demo] [--workloads A,B] [--prompts N]
        [--tokens N] [--repeats N]

SPEC is METHOD[=DRAFT_MODEL][@LENGTH]: `suffix`, `draft=demo-draft`, `suffix+draft=demo-draft@4`;
without a length the controller chooses. `sweep:SPEC` stands for SPEC and its lengths 1 to 16.
Engines are made anew for each workload, so what a controller learned on one does not help it on the
next. Every output is checked against plain decoding. *All* is code, re-emit and structured text.
Ratios are of medians per prompt, summed over prompts, with a bootstrap interval of 95 %. Prints a
Markdown table; the last line is one line of JSON.
"""

import argparse
import json
import time
from collections.abc import Iterator, Sequence

from outrider.assemble.engine import Engine
from outrider.bench import workload
from outrider.bench.stats import Timed, disagreement, estimate, speedup
from outrider.config.settings import SpeculativeConfig

HELD_OUT = ("code", "re-emit", "structured")
SWEEP = range(1, 17)
EVERY = 4
"""Legs of speculation between two plain ones."""


def config(spec: str) -> SpeculativeConfig:
    """The settings that a SPEC stands for."""
    rest, _, length = spec.partition("@")
    method, _, model = rest.partition("=")
    return SpeculativeConfig(
        method=method, draft_model=model or None, max_draft_tokens=int(length) if length else "auto"
    )


def spelled_out(specs: Sequence[str]) -> list[str]:
    """SPECs with sweeps in full."""
    found = []
    for spec in specs:
        name = spec.removeprefix("sweep:")
        found += [name, *(f"{name}@{length}" for length in SWEEP)] if name != spec else [spec]
    return found


def leg(engine: Engine, prompt: str, tokens: int) -> tuple[float, tuple[int, ...]]:
    """Milliseconds behind the first token, and the tokens."""
    generation = engine.generate(prompt, max_tokens=tokens)
    pieces = iter(generation)
    next(pieces)
    start = time.perf_counter()
    list(pieces)
    return 1e3 * (time.perf_counter() - start), tuple(generation.result.token_ids)


def rounds(
    plain: Engine, engines: dict[str, Engine], prompt: str, options: argparse.Namespace
) -> Iterator[tuple[str, Timed]]:
    """Each variant's times for one prompt, all beside the same plain legs."""
    expected = leg(plain, prompt, options.tokens)[1]
    around: list[tuple[float, ...]] = []
    found: dict[str, list[float]] = {name: [] for name in engines}
    for _ in range(options.repeats):
        beside = [leg(plain, prompt, options.tokens)[0]]
        for number, (name, engine) in enumerate(engines.items(), 1):
            took, tokens = leg(engine, prompt, options.tokens)
            if tokens != expected:
                raise SystemExit(f"{name}: the output is not that of plain decoding")
            found[name].append(took)
            if number % EVERY == 0 or number == len(engines):
                beside.append(leg(plain, prompt, options.tokens)[0])
        around.append(tuple(beside))
    for name, times in found.items():
        yield name, Timed(tokens=len(expected), plain=tuple(around), speculative=tuple(times))


def measure(part: str, specs: Sequence[str], options: argparse.Namespace) -> dict:
    """Samples by SPEC."""
    plain = Engine.load(options.target, speculative=SpeculativeConfig(method="off"))
    engines = {spec: Engine.load(options.target, speculative=config(spec)) for spec in specs}
    found: dict[str, list[Timed]] = {spec: [] for spec in specs}
    for prompt in workload.load(part).prompts[: options.prompts]:
        for name, timed in rounds(plain, engines, prompt.text, options):
            found[name].append(timed)
    for engine in (plain, *engines.values()):
        engine.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("specs", nargs="+", metavar="SPEC")
    parser.add_argument("--target", default="demo")
    parser.add_argument("--workloads", default="code,re-emit,structured,prose")
    parser.add_argument("--prompts", type=int, default=6, help="of each workload")
    parser.add_argument("--tokens", type=int, default=192)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    specs, workloads = spelled_out(options.specs), options.workloads.split(",")
    found = {part: measure(part, specs, options) for part in workloads}
    if set(HELD_OUT) <= set(workloads):
        found["all"] = {s: [one for part in HELD_OUT for one in found[part][s]] for s in specs}
    print(f"| method | {' | '.join(found)} |\n|---|{'---|' * len(found)}")
    told: dict[str, dict[str, list[float]]] = {}
    for spec in specs:
        cells = {name: estimate(samples[spec], speedup, 0) for name, samples in found.items()}
        told[spec] = {name: [one.value, one.low, one.high] for name, one in cells.items()}
        shown = (f"{one.value:.2f} ({one.low:.2f} to {one.high:.2f})" for one in cells.values())
        print(f"| {spec} | {' | '.join(shown)} |")
    drift = {name: disagreement(samples[specs[0]]) for name, samples in found.items()}
    print("Plain legs of a round lie apart by", {k: f"{v:.1%}" for k, v in drift.items()})
    print(json.dumps(told))


if __name__ == "__main__":
    main()
