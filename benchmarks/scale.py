"""What limits stages on many machines: tables for docs/scale.md, from the planner's model.

    python benchmarks/scale.py

Nothing is measured here. The model: 64 layers of 8 ms for one row and 0.3 ms for each further one
(27B parameters in 16 bits at 100 GB/s of memory), 1 ms of every stage's pass beside its layers,
10 KiB a row from stage to stage. One request, unless a column says otherwise.
"""

from collections.abc import Iterator

from outrider.costs.pipeline import Pipeline, best, plain, steps

LAYERS = 64
ROWS = 16
LAYER_MS, ROW_MS, BARE_MS = 8.0, 0.3, 1.0
ROW_BITS = 5120 * 2 * 8
HOPS = {"0.25 ms, 10 Gbit/s": (0.25, 1e4), "10 ms, 1 Gbit/s": (10.0, 1e3)}
STAGES = (1, 2, 5, 10, 32, 64)
MACHINES = ((10, 10), (100, 10), (100, 50), (1000, 10), (1000, 50))
"""Machines, and how many of them one chain has."""
HOURS_BETWEEN_FAILURES = 2000.0
REQUEST_S = 60.0


def pipeline(count: int, hop_ms: float, mbps: float) -> Pipeline:
    """`count` stages of equal size, a link into each and one back."""
    layers = LAYERS / count

    def passes() -> list[float]:
        return [BARE_MS + layers * (LAYER_MS + ROW_MS * row) for row in range(ROWS)]

    return Pipeline(
        stages=[passes() for _ in range(count)],
        round_trip_ms=count * hop_ms if count > 1 else 0.0,
        row_ms=ROW_BITS / (mbps * 1e3) if count > 1 else 0.0,
        window_ms=0.5,
    )


def single(acceptance: float) -> Iterator[str]:
    """Tokens a second of one request, by stages and links."""
    heads = [f"{hop}: plain | best | rows x windows" for hop in HOPS]
    yield f"| stages | {' | '.join(heads)} |"
    yield "|" + "---|" * (1 + 3 * len(HOPS))
    for count in STAGES:
        cells = [str(count)]
        for hop in HOPS.values():
            line = pipeline(count, *hop)
            shape = best(line, acceptance, steps(ROWS), (1, 2, 4, 8, 16, 32, 64))
            cells += [f"{plain(line):.2f}", f"{shape.speed:.1f}", f"{shape.width} x {shape.depth}"]
        yield f"| {' | '.join(cells)} |"


def many() -> Iterator[str]:
    """Whole clusters: chains side by side, each as full as its slowest stage allows."""
    yield "| machines | chains x stages | rows/s | windows/s at a chain's coordinator | failures |"
    yield "|---|---|---|---|---|"
    for machines, count in MACHINES:
        line, chains = pipeline(count, *HOPS["0.25 ms, 10 Gbit/s"]), machines // count
        windows = 1e3 / line.pace_ms(ROWS)
        every = HOURS_BETWEEN_FAILURES / machines
        hit = count * REQUEST_S / (HOURS_BETWEEN_FAILURES * 3600.0)
        yield (
            f"| {machines:,} | {chains} x {count} | {chains * windows * ROWS:,.0f} | {windows:.0f} "
            f"| every {every:,.0f} h, {hit:.3%} of requests |"
        )


def main() -> None:
    for acceptance in (0.8, 0.95):
        print(f"\nacceptance {acceptance}\n")
        print("\n".join(single(acceptance)))
    print()
    print("\n".join(many()))


if __name__ == "__main__":
    main()
