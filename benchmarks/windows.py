"""Windows in flight over a link: tokens/s by round trip, acceptance and depth, beside the plan.

    python benchmarks/windows.py measure --out FILE [--target demo] [--stages 2] [--rtts 0,20,...]
        [--rates 0.5,...] [--depths 1,2,...] [--width 8] [--tokens 2000] [--seconds 2]
        [--passes 3] [--in-process]
    python benchmarks/windows.py show FILE [--plot PNG]

`measure` cuts the target into stages (processes, unless --in-process) with half of the round trip
on each way and decodes with a drafter that knows the target's own output and is wrong at each place
with a fixed chance, for about `--seconds`. The cells of a round trip run in turn, `--passes` times,
each time with stages of their own and behind layer times of its own, so that a slow moment of the
machine hits all of them. Every run is appended to FILE as one line of JSON, so an interrupted
measurement goes on where it was. `show` prints Markdown: the measured surface, the law, and how far
`outrider plan` is off, each at the acceptance that the cell had, medians of the passes. `--plot`
draws the surface (needs matplotlib). Output must equal plain decoding in every cell.
"""

import argparse
import json
import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from outrider.assemble.engine import Engine
from outrider.assemble.planning import measure_overhead
from outrider.assemble.target import load_target
from outrider.config.settings import (
    LinkConfig,
    RunConfig,
    SpeculativeConfig,
    StagesConfig,
    TargetConfig,
    VerifyWindowConfig,
)
from outrider.costs.known_text import KnownTextDrafter
from outrider.costs.layers import measure_layers
from outrider.costs.pipeline import Pipeline, law, plain, speed
from outrider.engine.draft_budget import FixedBudget
from outrider.engine.facade import WindowLimits
from outrider.sampling.params import SamplingParams
from outrider.telemetry.counters import Counters, conditional_acceptance

PROMPT = "def rename(path, pairs):\n    for old, new in pairs:\n        path = path.replace("
GREEDY = SamplingParams()
Cell = dict[str, Any]


def erring(truth: Sequence[int], rate: float, vocab: int) -> KnownTextDrafter:
    """Drafts the truth, wrong at each place with chance 1 - `rate`, the same at every asking."""

    def is_wrong(place: int) -> bool:
        return random.Random(place * 7919 + 1).random() >= rate

    def wrong(place: int, count: int) -> set[int]:
        return {at for at in range(count) if is_wrong(place + at)}

    return KnownTextDrafter(truth, vocab, wrong, name="scripted")


def config(options: argparse.Namespace, rtt: float) -> RunConfig:
    window = VerifyWindowConfig(depth=max(options.depths), max_tokens=options.width)
    ways = options.stages if options.stages > 1 else 2
    return RunConfig(
        target=TargetConfig(path=options.target, threads=options.threads),
        speculative=SpeculativeConfig(verify_window=window),
        stages=StagesConfig(
            count=options.stages,
            processes=not options.in_process,
            link=LinkConfig(delay_ms=rtt / ways),
        ),
    )


def truth_of(options: argparse.Namespace) -> tuple[list[int], list[int]]:
    """The prompt's tokens, and with them what plain decoding in one process makes of it."""
    target = TargetConfig(path=options.target, threads=options.threads)
    with closing(Engine.load(target, speculative=SpeculativeConfig(method="off"))) as engine:
        request = engine.generate(
            PROMPT, sampling=GREEDY, max_tokens=options.tokens, ignore_eos=True
        )
        list(request)
        prompt = list(request.result.prompt_token_ids)
        return prompt, prompt + list(request.result.token_ids)


def measure(options: argparse.Namespace) -> None:
    done = read(options.out) if options.out.exists() else []
    with options.out.open("a", encoding="utf-8") as file:
        known = {(cell["pass"], cell["rtt"], cell["rate"], cell["depth"]) for cell in done}
        prompt, truth = truth_of(options)
        for number, rtt in product(range(options.passes), options.rtts):
            wanted = [key for key in cells(options, rtt) if (number, *key) not in known]
            if not wanted:
                continue
            beside = {"pass": number, "beforehand": layer_times(options)}
            with closing(Engine.load_run(config(options, rtt))) as engine:
                run = partial(run_cell, engine, options, prompt, truth)
                run((rtt, 0.9, 2))  # the first one warms up
                for key in wanted:
                    cell = run(key)
                    put(file, cell | beside)
                    print(*key, f"{cell['speed']:.1f} tokens/s", flush=True)


def cells(options: argparse.Namespace, rtt: float) -> Iterator[tuple[float, float, int]]:
    """Plain decoding (rate 0, depth 1), then every rate and depth."""
    yield rtt, 0.0, 1
    for rate in options.rates:
        for depth in options.depths:
            yield rtt, rate, depth


def run_cell(
    engine: Engine,
    options: argparse.Namespace,
    prompt: list[int],
    truth: list[int],
    key: tuple[float, float, int],
) -> Cell:
    rtt, rate, depth = key
    vocab = engine.stage.vocab_size
    engine.speculation = replace(
        engine.speculation,
        method="scripted",
        drafter=(lambda *_: erring(truth, rate, vocab)) if rate else None,
        budget=lambda: FixedBudget(options.width),
        windows=WindowLimits(width=options.width, depth=depth),
    )
    # Slow cells make fewer tokens, so that each takes about as long as asked.
    expected = (1 / (1 - rate)) / max(rtt / 1e3, 0.01)
    count = min(options.tokens, max(int(expected * options.seconds), 12))
    request = engine.generate(prompt, sampling=GREEDY, max_tokens=count, ignore_eos=True)
    list(request)
    if list(request.result.token_ids) != truth[len(prompt) : len(prompt) + count]:
        raise SystemExit(f"cell {key}: output differs from plain decoding")
    return cell_of(key, request.counters)


def cell_of(key: tuple[float, float, int], counters: Counters) -> Cell:
    rtt, rate, depth = key
    tokens = counters.emitted - counters.first_tokens
    return {
        "rtt": rtt,
        "rate": rate,
        "depth": depth,
        "tokens": tokens,
        "speed": tokens * 1e3 / counters.predicted_ms,
        "acceptance": conditional_acceptance(counters),
        "epochs": counters.epochs_closed,
        "windows": counters.windows_judged,
        "voided": counters.windows_voided,
        "skipped": counters.windows_skipped,
        "stale_ms": counters.stale_ms,
        "occupancy_ms": counters.occupancy_ms,
    }


def layer_times(options: argparse.Namespace) -> Cell:
    """What the plan knows of the target and of stages on this machine."""
    run = config(options, 0.0)
    target = load_target(run.target)
    times = measure_layers(target.decoder)
    beside = measure_overhead(run, target, times)
    sizes = [len(part) for part in split(range(len(times.kinds)), options.stages)]
    return {
        "stages": times.stages(sizes, wired=not options.in_process),
        "width": options.width,
        "parallel": not options.in_process,
        **asdict(beside),
        "target": options.target,
        "layer_ms": {kind: list(curve) for kind, curve in times.layer.items()},
    }


def split(layers: range, count: int) -> list[range]:
    """As an even cut does."""
    even, more = divmod(len(layers), count)
    sizes = [even + (number < more) for number in range(count)]
    return [layers[sum(sizes[:n]) : sum(sizes[: n + 1])] for n in range(count)]


def put(file: Any, cell: Cell) -> None:
    file.write(json.dumps(cell) + "\n")
    file.flush()


def read(path: Path) -> list[Cell]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def show(options: argparse.Namespace) -> None:
    runs: dict[tuple[float, float, int], list[Cell]] = {}
    for cell in read(options.file):
        key = cell["rtt"], cell["rate"], cell["depth"]
        runs.setdefault(key, []).append(cell | expected(cell))
    found = [usual(cells) for cells in runs.values()]
    print("\n".join(surface(found)))
    offs = [abs(cell["off"]) for cell in found]
    print(f"\nplan: off by {statistics.median(offs):.1%} at the median, {max(offs):.1%} at worst")
    if options.plot:
        plot(found, options.plot)


def expected(cell: Cell) -> Cell:
    """What law and plan say of a run from the layer times before it."""
    pipeline, width = pipeline_of(cell), cell["beforehand"]["width"]
    if not cell["rate"]:
        return dict.fromkeys(("law", "plan"), plain(pipeline))
    return {
        "law": law(pipeline, cell["acceptance"], width),
        "plan": speed(pipeline, cell["acceptance"], width, cell["depth"]),
    }


def usual(runs: Sequence[Cell]) -> Cell:
    """The medians of a cell's runs."""
    names = ("acceptance", "speed", "law", "plan")
    middle = {name: statistics.median(cell[name] for cell in runs) for name in names}
    return runs[0] | middle | {"off": middle["plan"] / middle["speed"] - 1}


def pipeline_of(cell: Cell) -> Pipeline:
    names = ("stages", "parallel", "window_ms", "draft_ms", "crowding", "void_ms")
    known = {name: cell["beforehand"][name] for name in names}
    return Pipeline(**known, round_trip_ms=cell["rtt"])


def surface(found: Sequence[Cell]) -> Iterator[str]:
    """A Markdown row for each round trip and rate: speed by depth, the law, the plan's errors."""
    depths = sorted({cell["depth"] for cell in found if cell["rate"]})
    names = ["round trip", "acceptance", *(f"depth {depth}" for depth in depths), "law", "plan off"]
    yield f"| {' | '.join(names)} |\n|{'---|' * len(names)}"
    for rtt, rate in dict.fromkeys((cell["rtt"], cell["rate"]) for cell in found):
        row = {c["depth"]: c for c in found if (c["rtt"], c["rate"]) == (rtt, rate)}
        speeds = [f"{row[d]['speed']:.1f}" if d in row else "" for d in depths]
        deepest = row[max(row)]
        offs = ", ".join(f"{cell['off']:+.0%}" for cell in row.values())
        rates = f"{rate:g} ({deepest['acceptance']:.3f})" if rate else "plain"
        told = [f"{rtt:g} ms", rates, *speeds, f"{deepest['law']:.1f}", offs]
        yield f"| {' | '.join(told)} |"


def plot(found: Sequence[Cell], path: Path) -> None:
    """One panel per acceptance: tokens/s over round trip by depth, the law dashed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rates = sorted({cell["rate"] for cell in found} - {0.0})
    figure, axes = pyplot.subplots(1, len(rates), figsize=(3.2 * len(rates), 3.4), squeeze=False)
    for axis, rate in zip(axes[0], rates, strict=True):
        for depth in sorted({cell["depth"] for cell in found if cell["rate"] == rate}):
            line = [c for c in found if (c["rate"], c["depth"]) == (rate, depth)]
            axis.plot([c["rtt"] for c in line], [c["speed"] for c in line], "o-", label=f"{depth}")
        deepest = [c for c in found if c["rate"] == rate and c["depth"] == depth]
        axis.plot([c["rtt"] for c in deepest], [c["law"] for c in deepest], "k--", label="law")
        bare = [c for c in found if not c["rate"]]
        axis.plot([c["rtt"] for c in bare], [c["speed"] for c in bare], ":", label="plain")
        axis.set_title(f"acceptance {rate:g}")
        axis.set_xlabel("round trip, ms")
        axis.set_yscale("log")
    axes[0][0].set_ylabel("tokens/s")
    axes[0][0].legend(title="depth", fontsize=7, loc="upper right")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def numbers(kind: type) -> Any:
    return lambda text: [kind(word) for word in text.split(",")]


def commands(
    description: str, show: Callable[[argparse.Namespace], None]
) -> tuple[argparse.ArgumentParser, argparse.ArgumentParser, argparse.ArgumentParser]:
    """A parser, and those of its commands `measure` and `show` with what both scripts ask."""
    parser = argparse.ArgumentParser(description=description.partition("\n")[0])
    names = parser.add_subparsers(required=True)
    ask, told = names.add_parser("measure"), names.add_parser("show")
    ask.add_argument("--out", type=Path, required=True)
    ask.add_argument("--target", default="demo")
    told.add_argument("file", type=Path)
    told.set_defaults(run=show)
    return parser, ask, told


def main() -> None:
    parser, ask, told = commands(__doc__, show)
    ask.add_argument("--stages", type=int, default=2)
    ask.add_argument("--threads", type=int, default=1)
    ask.add_argument("--rtts", type=numbers(float), default=[0.0, 20.0, 50.0, 100.0, 200.0])
    ask.add_argument("--rates", type=numbers(float), default=[0.5, 0.7, 0.8, 0.9, 0.95, 0.99])
    ask.add_argument("--depths", type=numbers(int), default=[1, 2, 4, 8, 16])
    ask.add_argument("--width", type=int, default=8)
    ask.add_argument("--tokens", type=int, default=2000)
    ask.add_argument("--seconds", type=float, default=2.0)
    ask.add_argument("--passes", type=int, default=3)
    ask.add_argument("--in-process", action="store_true")
    ask.set_defaults(run=measure)
    told.add_argument("--plot", type=Path)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
