"""The tables of `docs/demo.md` from the measurements of the `evaluate` step."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

CHAINS = (1, 2, 3, 4, 6)


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.0f} %"


def named(report: dict[str, Any], prefix: str) -> dict[str, dict[str, float]]:
    return {k.removeprefix(prefix): v for k, v in report.items() if k.startswith(prefix)}


def losses(report: dict[str, Any]) -> str:
    rows = [
        [part, f"{r['loss']:.3f}", f"{r['entropy']:.3f}", f"{r['perplexity']:.2f}"]
        for part, r in named(report, "held-out ").items()
    ]
    return table(["part", "loss", "entropy", "perplexity"], rows)


def copying(report: dict[str, Any]) -> str:
    rows = [
        [f"{size} tokens", percent(r["lines"]), percent(r["exact"])]
        for size, r in named(report, "copy ").items()
    ]
    return table(["chunk", "lines reproduced", "whole answer exact"], rows)


def prompts(report: dict[str, Any]) -> str:
    found = named(report, "workload ")
    loops = [
        [
            name,
            f"{r['tokens']:.0f}",
            percent(r["repeat_output"]),
            percent(r["repeat_context"]),
            percent(r.get("lines")),
        ]
        for name, r in found.items()
    ]
    head = ["workload", "tokens", "repeats in output", "in context", "lines reproduced"]
    return "\n\n".join((table(head, loops), drafters(found)))


def drafters(found: dict[str, dict[str, float]]) -> str:
    head = ["workload", "MTP agreement (fresh)", "MTP length, k = 1", "draft agreement (fresh)"]
    rows = []
    for name, r in found.items():
        pairs = [
            f"{percent(r[f'{who}_agreement'])} ({percent(r[f'{who}_agreement_fresh'])})"
            for who in ("mtp", "draft")
        ]
        lengths = [f"{r[f'draft_length_{k}']:.2f}" for k in CHAINS]
        rows.append([name, pairs[0], f"{r['mtp_length_1']:.2f}", pairs[1], *lengths])
    return table([*head, *(f"draft length, k = {k}" for k in CHAINS)], rows)


def training(log: Path) -> str:
    """Every fifteenth line of the target's log, and all of its held-out losses."""
    steps, held_out = [], []
    for line in log.read_text().splitlines():
        if match := re.search(r"step (\d+) tokens (\d+) [\d.]+ len (\d+) .*?(code=.*)", line):
            parts = re.findall(r"=([\d.]+)", match[4])
            steps.append([match[1], f"{int(match[2]) / 1e6:.2f} M", match[3], *parts])
        elif match := re.search(r"held-out after (\d+) tokens: (.*)", line):
            parts = re.findall(r"=([\d.]+)", match[2])
            held_out.append([f"{int(match[1]) / 1e6:.2f} M", *parts])
    names = ["code", "edits", "structured"]
    return "\n\n".join(
        (
            "Training loss, mean of the 25 steps before:",
            table(["step", "tokens", "row length", *names], steps[::15] + steps[-1:]),
            "Held-out loss, rows of 1,024:",
            table(["tokens", *names], held_out[::2] + held_out[-1:]),
        )
    )


def write(work: Path) -> None:
    """Write the tables to `tables.md` in the work folder."""
    report = json.loads((work / "report.json").read_text())
    parts = (losses(report), copying(report), prompts(report), training(work / "train.log"))
    (work / "tables.md").write_text("\n\n".join(parts) + "\n")
