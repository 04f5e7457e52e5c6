"""A report in a few lines: for the terminal, and as the one line of JSON. Pure."""

from collections.abc import Iterator

from outrider.bench.record import FORMULAS, Record


def summary(record: Record) -> Record:
    """The last line of `--json`: small enough to read, whole figures in the report."""
    model = record["model"]
    speeds = {row["name"]: row["value"] for row in record["speeds"]}
    return {
        "schema": record["schema"],
        "verdict": record["verdict"],
        "sentence": record["sentence"],
        "method": record["method"],
        "workload": record["workload"],
        "speedup": record["speedup"],
        "tokens_per_second": speeds,
        "acceptance_rate": record["acceptance"]["rate"],
        "mean_acceptance_length": record["acceptance"]["mean_acceptance_length"],
        "predicted_speedup": model["prediction"]["speedup"] if model else None,
        "prediction_flagged": model["flagged"] if model else None,
        "best_max_draft_tokens": model["best_k"] if model else None,
        "failed_gates": [g["name"] for g in record["gates"] if g["state"] != "passed"],
    }


def lines(record: Record) -> Iterator[str]:
    """What the terminal shows, gates first; each figure with its formula."""
    for gate in record["gates"]:
        yield f"{gate['state']:>12}  {gate['name']}: {gate['detail']}"
    if record["speedup"] is not None:
        yield from _speed_lines(record)
    if record["round"] is not None:
        yield _round_line(record["round"])
    if record["model"] is not None:
        yield from _model_lines(record["model"])
    yield record["sentence"]


def _speed_lines(record: Record) -> Iterator[str]:
    formulas, seen, load = record["formulas"], record["acceptance"], record["workload"]
    yield f"speed in tokens/s ({formulas['speed']}), 95 % interval:"
    for row in record["speeds"]:
        if row["refused"] is not None:
            yield f"  {row['name']:<28} refused: {row['refused']}"
        else:
            other = "  (its output differs)" if row.get("same_output") is False else ""
            bounds = f"{row['low']:.1f} to {row['high']:.1f}"
            yield f"  {row['name']:<28} {row['value']:8.1f}  {bounds}{other}"
    up, formula = record["speedup"], formulas["speedup"]
    yield f"speed-up {up['value']:.2f}x, {up['low']:.2f} to {up['high']:.2f} ({formula})"
    for row in record["categories"] if len(record["categories"]) > 1 else ():
        yield (
            f"  {row['name']:<28} {row['speedup']['value']:8.2f}x, acceptance rate "
            f"{row['acceptance_rate']:.0%}, length {row['mean_acceptance_length']:.2f}, "
            f"copied {row['copied']:.0%}"
        )
    yield f"acceptance rate {seen['rate']:.1%} ({formulas['acceptance_rate']})"
    length = seen["mean_acceptance_length"]
    yield f"mean acceptance length {length:.2f} ({formulas['mean_acceptance_length']})"
    yield f"copied text {load['copied']:.0%} ({formulas['copied']})"


def _round_line(cost: Record) -> str:
    parts = ("draft", "verify", "rollback", "host")
    spent = ", ".join(f"{part} {cost[part] / cost['total']:.1%}" for part in parts)
    return f"a round takes {cost['total']:.2f} ms, a plain step {cost['plain_step']:.2f}: {spent}"


def _model_lines(model: Record) -> Iterator[str]:
    said, unit = model["prediction"], model["plain_step"]
    flag = ", FLAGGED: the model misses something here" if model["flagged"] else ""
    yield (
        f"predicted {said['speedup']:.2f}x ({FORMULAS['predicted']}), {model['difference']:+.1%} "
        f"of what was measured{flag}"
    )
    parts = ", ".join(
        f"{name} {said['round'][name] / unit:.2f}" for name in ("verify", "draft", "rollback")
    )
    yield f"a round costs {said['round_in_plain_steps']:.2f} plain steps of {unit:.2f} ms: {parts}"
    chance = said["break_even_acceptance"]
    shown = "none: not even certain drafts would pay" if chance is None else f"{chance:.0%}"
    yield f"break-even acceptance {shown} ({FORMULAS['break_even']})"
    best = max(model["sweep"], key=lambda point: point["speedup"])
    yield (
        f"best most drafts a round: {best['k']}, for {best['speedup']:.2f}x or "
        f"{best['speedup'] * 1e3 / unit:.0f} tokens/s"
    )
    yield "predicted by most drafts a round: " + ", ".join(
        f"{point['k']}: {point['speedup']:.2f}x" for point in model["sweep"]
    )
