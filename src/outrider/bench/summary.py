"""A report in a few lines: for the terminal, and as the one line of JSON. Pure."""

from outrider.bench.record import Record
from outrider.bench.template import fill

COPIED = ("schema", "verdict", "sentence", "method", "workload", "speedup")


def summary(record: Record) -> Record:
    """The last line of `--json`: small enough to read, whole figures in the report."""
    model = record["model"]
    speeds = {row["name"]: row["value"] for row in record["speeds"]}
    return {
        **{key: record[key] for key in COPIED},
        "tokens_per_second": speeds,
        "acceptance_rate": record["acceptance"]["rate"],
        "mean_acceptance_length": record["acceptance"]["mean_acceptance_length"],
        "predicted_speedup": model["prediction"]["speedup"] if model else None,
        "prediction_flagged": model["flagged"] if model else None,
        "best_max_draft_tokens": model["best_k"] if model else None,
        "failed_gates": [g["name"] for g in record["gates"] if g["state"] != "passed"],
    }


def lines(record: Record) -> list[str]:
    """The text for the terminal, gates first; each figure with its formula."""
    return fill("summary.txt", record=record).splitlines()
