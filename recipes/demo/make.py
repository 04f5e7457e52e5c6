"""Make the demo family: `python -m recipes.demo.make STEP --work DIR`."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

# Large tensors come and go every step; without this glibc returns them to the system each time.
MALLOC = {
    "MALLOC_MMAP_THRESHOLD_": "1000000000",
    "MALLOC_TRIM_THRESHOLD_": "4000000000",
    "MALLOC_TOP_PAD_": "200000000",
}


def manifest(args: argparse.Namespace) -> None:
    """Rewrite the manifest from this interpreter's standard library."""
    from recipes.demo import corpus

    corpus.write_manifest(list(corpus.scan(corpus.library_root())))


def tokenizer(args: argparse.Namespace) -> None:
    """Train the tokenizer on the training files and structured text."""
    from recipes.demo import corpus, structured, tokens

    code = [source.text for source in corpus.load() if not source.held_out]
    tokens.train([*code, *map(structured.document, range(1500))]).save(
        str(args.work / "tokenizer.json")
    )


def target(args: argparse.Namespace) -> None:
    """Train the target."""
    from recipes.demo import train

    train.run(args.work, args.minutes or 70)


def longer(args: argparse.Namespace) -> None:
    """Train the target on, on long rows."""
    from recipes.demo import train

    train.run(args.work, args.minutes or 50, train.LONGER)


def finish(args: argparse.Namespace) -> None:
    """Unlearn loops, and go on learning, at a low rate."""
    from recipes.demo import train

    train.run(args.work, args.minutes or 8, train.FINISH)


def text(args: argparse.Namespace) -> None:
    """Let the target write the text that drafters are distilled on."""
    from recipes.demo import generate

    generate.run(args.work, args.minutes or 8)


def mtp(args: argparse.Namespace) -> None:
    """Train the MTP layer with the trunk frozen."""
    from recipes.demo import distill

    distill.run(args.work, "mtp", args.minutes or 12, args.processes)


def mtp_before(args: argparse.Namespace) -> None:
    """The same layer reading the hidden state before the final norm, for comparison only."""
    from recipes.demo import distill

    distill.run(args.work, "mtp-before", args.minutes or 3, args.processes)


def eagle3(args: argparse.Namespace) -> None:
    """Train the EAGLE-3 drafter with the target frozen."""
    from recipes.demo import distill

    distill.run(args.work, "eagle3", args.minutes or 15, args.processes)


def draft(args: argparse.Namespace) -> None:
    """Distil the draft model."""
    from recipes.demo import distill

    distill.run(args.work, "draft", args.minutes or 28, args.processes)


def readings(args: argparse.Namespace) -> None:
    """Let the target read that text once for all drafters of hidden states."""
    from recipes.demo import block
    from recipes.demo import readings as reading

    reading.run(args.work, block.TAPS, args.processes)


def dflash(args: argparse.Namespace) -> None:
    """Distil the DFlash drafter."""
    from recipes.demo import distill

    distill.run(args.work, "dflash", args.minutes or 16, args.processes)


def dspark(args: argparse.Namespace) -> None:
    """Distil the DSpark drafter whose first row predicts (anchor-first), from DFlash's trunk."""
    from recipes.demo import distill

    distill.run(args.work, "dspark", args.minutes or 10, args.processes)


def dspark_bonus(args: argparse.Namespace) -> None:
    """Distil the DSpark drafter whose first row predicts nothing, from DFlash's trunk."""
    from recipes.demo import distill

    distill.run(args.work, "dspark_bonus", args.minutes or 8, args.processes)


def prompts(args: argparse.Namespace) -> None:
    """Write the held-out prompts that ship with the package."""
    from recipes.demo import tokens, workloads

    workloads.write(args.output / "workloads", tokens.load(args.work / "tokenizer.json"))


def notices(args: argparse.Namespace) -> None:
    """Copy the library's licence and its files' own notices to LICENSES/."""
    from recipes.demo import licences

    licences.write(Path("LICENSES"))


def export(args: argparse.Namespace) -> None:
    """Write the model folders, from whatever has been trained so far."""
    from recipes.demo import export as exporting

    exporting.run(args.work, args.output)


def evaluate(args: argparse.Namespace) -> None:
    """Measure the exported models."""
    from recipes.demo import evaluate as evaluating
    from recipes.demo import report

    evaluating.run(args.work, args.output)
    report.write(args.work)


ORDER = (
    manifest,
    notices,
    tokenizer,
    prompts,
    target,
    longer,
    finish,
    text,
    readings,
    mtp_before,
    mtp,
    eagle3,
    draft,
    dflash,
    dspark,
    dspark_bonus,
    export,
    evaluate,
)
STEPS = {step.__name__: step for step in ORDER}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("step", choices=STEPS)
    parser.add_argument("--work", type=Path, default=Path("build/demo"))
    parser.add_argument("--output", type=Path, default=Path("src/outrider/demo"))
    parser.add_argument("--minutes", type=float, help="training time of this step in all")
    parser.add_argument("--processes", type=int, default=2, choices=(1, 2))
    args = parser.parse_args()
    if not MALLOC.items() <= os.environ.items():
        os.execve(
            sys.executable,
            [sys.executable, "-m", "recipes.demo.make", *sys.argv[1:]],
            {**os.environ, **MALLOC},
        )
    args.work.mkdir(parents=True, exist_ok=True)
    STEPS[args.step](args)


if __name__ == "__main__":
    main()
