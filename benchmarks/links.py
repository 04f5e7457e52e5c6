"""Real drafters over a slow link: depth, width, fallback and jitter, as ratios within one run.

    python benchmarks/links.py measure --out FILE [--target demo] [--draft demo-draft] [--prompts 4]
        [--tokens 200] [--rtt 100] [--jitter 20] [--rounds 2] [--legs TEXT]
    python benchmarks/links.py show FILE

The target in two stages, each in a process, half of the round trip on each way; `--jitter` is how
far each way may differ. Legs take turns, `--rounds` times; every leg is one line of JSON in FILE,
and an interrupted run goes on where it was. Outputs of all legs must equal plain decoding's.
"""

import argparse
from contextlib import closing
from dataclasses import dataclass

from windows import Cell, commands, layer_times, put, read

from outrider.assemble.engine import Engine
from outrider.bench import workload
from outrider.config.settings import (
    LinkConfig,
    RunConfig,
    SpeculativeConfig,
    StagesConfig,
    TargetConfig,
    VerifyWindowConfig,
)
from outrider.costs.pipeline import Pipeline, law
from outrider.sampling.params import SamplingParams
from outrider.telemetry.counters import conditional_acceptance, merge


@dataclass(frozen=True, kw_only=True)
class Leg:
    """One way of decoding a workload; `rtt` and `jitter` are shares of those asked for."""

    name: str
    workload: str
    method: str = "suffix"
    width: int = 8
    depth: int = 1
    fallback: bool = False
    auto: bool = False
    rtt: float = 1.0
    jitter: float = 0.0


LEGS = (
    Leg(name="re-emit plain", workload="re-emit", method="off"),
    Leg(name="re-emit depth 1", workload="re-emit"),
    Leg(name="re-emit depth 1, 16 rows", workload="re-emit", width=16),
    Leg(name="re-emit depth 1, 32 rows", workload="re-emit", width=32),
    Leg(name="re-emit depth 1, 64 rows", workload="re-emit", width=64),
    Leg(name="re-emit depth 16", workload="re-emit", depth=16),
    Leg(name="re-emit depth 16, jitter", workload="re-emit", depth=16, jitter=1.0),
    Leg(name="re-emit controlled", workload="re-emit", depth=16, width=16, auto=True),
    Leg(name="re-emit depth 1, 0 ms", workload="re-emit", rtt=0.0),
    Leg(name="re-emit depth 16, 0 ms", workload="re-emit", depth=16, rtt=0.0),
    Leg(
        name="re-emit controlled, 0 ms",
        workload="re-emit",
        depth=16,
        width=16,
        auto=True,
        rtt=0.0,
    ),
    Leg(name="code plain", workload="code", method="off"),
    Leg(name="code depth 16", workload="code", depth=16),
    Leg(name="code depth 16, fallback", workload="code", depth=16, fallback=True),
    Leg(name="code depth 4, fallback", workload="code", depth=4, fallback=True),
    Leg(name="code controlled, fallback", workload="code", depth=16, fallback=True, auto=True),
)
RATIOS = (
    ("re-emit depth 16", "re-emit depth 1", 3.0),
    ("re-emit depth 16", "re-emit depth 1, at its best width", 1.3),
    ("re-emit depth 16", "its law", 0.8),
    ("re-emit depth 16, jitter", "re-emit depth 16", 0.8),
    ("re-emit depth 16, 0 ms", "re-emit depth 1, 0 ms", 0.9),
    ("code depth 16, fallback", "code depth 16", 1.5),
    ("code depth 16, fallback", "code plain", 2.0),
)


def config(options: argparse.Namespace, leg: Leg) -> RunConfig:
    half = options.rtt / 2 * leg.rtt
    return RunConfig(
        target=TargetConfig(path=options.target, threads=1),
        speculative=SpeculativeConfig(
            method=leg.method,
            draft_model=options.draft if leg.fallback else None,
            ngram_fallback="draft" if leg.fallback else "none",
            max_draft_tokens="auto" if leg.auto else leg.width - (leg.depth == 1),
            verify_window=VerifyWindowConfig(max_tokens=leg.width, depth=leg.depth),
        ),
        stages=StagesConfig(
            count=2,
            processes=True,
            link=LinkConfig(delay_ms=half, jitter_ms=options.jitter * leg.jitter),
        ),
    )


def measure(options: argparse.Namespace) -> None:
    done = read(options.out) if options.out.exists() else []
    with options.out.open("a", encoding="utf-8") as file:
        if not done:
            put(file, layer_times(options) | {"round_trip_ms": options.rtt})
        known = {(cell["leg"], cell["round"]) for cell in done if "leg" in cell}
        legs = [leg for leg in LEGS if options.legs in leg.name]
        if not legs:
            raise SystemExit(f"--legs {options.legs!r} is in no leg's name: leave it out for all.")
        truths = {name: plain(options, name) for name in {leg.workload for leg in legs}}
        for number in range(options.rounds):
            for leg in legs:
                if (leg.name, number) not in known:
                    cell = run_leg(options, leg, truths[leg.workload])
                    put(file, cell | {"leg": leg.name, "round": number})
                    print(leg.name, f"{cell['speed']:.1f} tokens/s", flush=True)


def plain(options: argparse.Namespace, name: str) -> list[tuple[str, tuple[int, ...]]]:
    """Prompts with what plain decoding in one process makes of them."""
    target = TargetConfig(path=options.target, threads=1)
    cases = workload.load(name).prompts[: options.prompts]
    with closing(Engine.load(target, speculative=SpeculativeConfig(method="off"))) as engine:
        return [(case.text, outcome(engine, case.text, options).token_ids) for case in cases]


def outcome(engine: Engine, prompt: str, options: argparse.Namespace):
    request = engine.generate(prompt, sampling=SamplingParams(), max_tokens=options.tokens)
    list(request)
    return request.result


def run_leg(
    options: argparse.Namespace, leg: Leg, truths: list[tuple[str, tuple[int, ...]]]
) -> Cell:
    counted = []
    with closing(Engine.load_run(config(options, leg))) as engine:
        list(engine.generate(truths[0][0], sampling=SamplingParams(), max_tokens=4))
        for prompt, tokens in truths:
            request = engine.generate(prompt, sampling=SamplingParams(), max_tokens=options.tokens)
            list(request)
            if request.result.token_ids != tokens:
                raise SystemExit(f"{leg.name}: output differs from plain decoding")
            counted.append(request.counters)
    total = merge(counted)
    tokens_made = total.emitted - total.first_tokens
    return {
        "tokens": tokens_made,
        "speed": tokens_made * 1e3 / total.predicted_ms,
        "acceptance": conditional_acceptance(total),
        "width": leg.width,
        "epochs": total.epochs_closed,
        "windows": total.windows_judged,
        "voided": total.windows_voided,
        "fallback_tokens": total.fallback_tokens,
        "occupancy_ms": total.occupancy_ms,
        "verify_ms": total.verify_ms,
        "draft_ms": total.draft_ms,
    }


def show(options: argparse.Namespace) -> None:
    head, *cells = read(options.file)
    best: dict[str, Cell] = {}
    for cell in cells:
        if cell["speed"] > best.get(cell["leg"], {"speed": 0.0})["speed"]:
            best[cell["leg"]] = cell
    print("| leg | tokens/s | acceptance | windows | voided |\n|---|---|---|---|---|")
    for name, cell in best.items():
        told = [
            f"{cell['speed']:.1f}",
            f"{cell['acceptance']:.3f}",
            cell["windows"],
            cell["voided"],
        ]
        print(f"| {name} | {' | '.join(map(str, told))} |")
    speeds = {name: cell["speed"] for name, cell in best.items()}
    wide = [speeds[name] for name in speeds if name == "re-emit depth 1" or name.endswith("rows")]
    if wide:
        speeds["re-emit depth 1, at its best width"] = max(wide)
    if deep := best.get("re-emit depth 16"):
        pipeline = Pipeline(
            stages=head["stages"], round_trip_ms=head["round_trip_ms"], parallel=head["parallel"]
        )
        speeds["its law"] = law(pipeline, deep["acceptance"], deep["width"])
    print("\n| ratio | found | wanted |\n|---|---|---|")
    for one, other, least in RATIOS:
        if {one, other} <= speeds.keys():
            print(f"| {one} / {other} | {speeds[one] / speeds[other]:.2f} | {least} |")


def main() -> None:
    parser, ask, _ = commands(__doc__, show)
    ask.add_argument("--draft", default="demo-draft")
    ask.add_argument("--prompts", type=int, default=4)
    ask.add_argument("--tokens", type=int, default=200)
    ask.add_argument("--rtt", type=float, default=100.0)
    ask.add_argument("--jitter", type=float, default=20.0)
    ask.add_argument("--rounds", type=int, default=2)
    ask.add_argument("--legs", default="", help="only those with this in their name")
    ask.set_defaults(run=measure, stages=2, width=8, depths=[16], threads=1, in_process=False)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
