"""The cost model against measurement: `outrider bench` for each draft length and workload.

    python benchmarks/prediction.py --target MODEL [--method M] [--workloads A,B] [--lengths 1,2,4]
        [BENCH FLAGS]

Prints a Markdown row per run: the speed-up predicted from costs measured apart from the rounds, the
one measured, and how far they lie apart. Flags that it does not know go to `outrider bench`. The
last line is one line of JSON.
"""

import argparse
import json
import subprocess
import sys
from typing import Any

COMMAND = "from outrider.cli.main import main; main()"
COLUMNS = (
    "workload",
    "drafts at most",
    "tokens per pass",
    "round in plain steps",
    "predicted",
    "measured (95 %)",
    "apart",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--target", default="demo")
    parser.add_argument("--method", default="suffix")
    parser.add_argument("--workloads", default="code,re-emit")
    parser.add_argument("--lengths", default="1,2,3,4,5,6,7,8")
    options, others = parser.parse_known_args()
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
    rows = []
    for workload in options.workloads.split(","):
        for length in options.lengths.split(","):
            found = bench(options, workload, length, others)
            rows.append({**found, "workload": workload, "length": int(length)})
            print(line(rows[-1]), flush=True)
    print(json.dumps(rows))


def bench(
    options: argparse.Namespace, workload: str, length: str, others: list[str]
) -> dict[str, Any]:
    """One run's last line; raises where a gate failed."""
    words = [sys.executable, "-c", COMMAND, "bench", "--target", options.target, "--json"]
    words += ["--method", options.method, "--workload", workload, "--max-draft-tokens", length]
    done = subprocess.run([*words, *others], stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def line(row: dict[str, Any]) -> str:
    up, said = row["speedup"], row["predicted_speedup"]
    cells = [
        row["workload"],
        str(row["length"]),
        f"{row['mean_acceptance_length']:.2f}",
        f"{row['mean_acceptance_length'] / said:.2f}",
        f"{said:.2f}x",
        f"{up['value']:.2f}x ({up['low']:.2f} to {up['high']:.2f})",
        f"{said / up['value'] - 1:+.1%}",
    ]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
