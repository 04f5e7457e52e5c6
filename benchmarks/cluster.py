"""What stages on Ray cost beside stages in one process and in processes of one machine.

    ray start --head --include-dashboard=false
    python benchmarks/cluster.py [--address auto] [--target demo] [--stages 2] [--rtts 0,100]
        [--depth 16] [--tokens 300] [--rounds 3]

Decodes one prompt plainly and with n-gram drafts (8 rows, `--depth` windows in flight; one where
there is no round trip to hide). The ways take turns in every round, and the table gives medians:
tokens/s, and for plain decoding what a token takes more than in one process. Output must be the
same everywhere.
"""

import argparse
import statistics
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

from outrider.assemble.engine import Engine
from outrider.config.settings import (
    LinkConfig,
    RunConfig,
    SpeculativeConfig,
    StagesConfig,
    TargetConfig,
    VerifyWindowConfig,
)

WIDTH = 8
WAYS = ("one process", "processes", "Ray")
METHODS = ("off", "suffix")
Cell = tuple[str, str]


def config(options: argparse.Namespace, way: str, rtt: float) -> RunConfig:
    stages = StagesConfig(
        count=options.stages,
        processes=way == "processes",
        address=options.address if way == "Ray" else None,
        link=LinkConfig(delay_ms=rtt / options.stages),
    )
    window = VerifyWindowConfig(max_tokens=WIDTH, depth=options.depth if rtt else 1)
    return RunConfig(
        target=TargetConfig(path=options.target, threads=1),
        speculative=SpeculativeConfig(
            method="suffix", max_draft_tokens=WIDTH - 1, verify_window=window
        ),
        stages=stages,
    )


def decode(engine: Engine, prompt: str, tokens: int, method: str) -> tuple[float, tuple[int, ...]]:
    """Tokens a second behind the prompt, and what they were."""
    request = engine.generate(prompt, max_tokens=tokens, ignore_eos=True, method=method)
    list(request)
    counters = request.counters
    return (counters.emitted - 1) * 1e3 / counters.predicted_ms, request.result.token_ids


def measure(options: argparse.Namespace, rtt: float) -> dict[Cell, float]:
    """Median tokens/s by way and method."""
    prompt = Path(options.prompt).read_text(encoding="utf-8")
    found: dict[Cell, list[float]] = {}
    outputs = set()
    with ExitStack() as stack:
        engines = {
            way: stack.enter_context(closing(Engine.load_run(config(options, way, rtt))))
            for way in WAYS
        }
        for number in range(options.rounds + 1):
            for method in METHODS:
                for way, engine in engines.items():
                    speed, output = decode(engine, prompt, options.tokens, method)
                    outputs.add(output)
                    if number:  # the first one warms up
                        found.setdefault((way, method), []).append(speed)
    if len(outputs) != 1:
        raise SystemExit("outputs differ")
    return {cell: statistics.median(speeds) for cell, speeds in found.items()}


def table(rtt: float, found: dict[Cell, float]) -> Iterator[str]:
    """Markdown rows."""
    here, fast = found[WAYS[0], "off"], found[WAYS[0], "suffix"]
    for way in WAYS:
        plain, drafted = found[way, "off"], found[way, "suffix"]
        more = 1e3 / plain - 1e3 / here
        yield (
            f"| {rtt:g} ms | {way} | {plain:.1f} | {more:+.2f} ms | {drafted:.1f} "
            f"| {drafted / fast:.2f} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--address", default="auto")
    parser.add_argument("--target", default="demo")
    parser.add_argument("--prompt", default="examples/rename.txt")
    parser.add_argument("--stages", type=int, default=2)
    parser.add_argument("--rtts", default="0,100")
    parser.add_argument("--depth", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print("| round trip | stages in | plain tokens/s | a token more | drafted tokens/s | ratio |")
    print("|---|---|---|---|---|---|")
    for rtt in map(float, options.rtts.split(",")):
        print("\n".join(table(rtt, measure(options, rtt))), flush=True)


if __name__ == "__main__":
    main()
