"""What taking rows back costs, per policy, on a hybrid of 8 layers and width 256.

    python benchmarks/rollback.py [--quick] [--threads N]

Rounds of 8 rows of which 1 to 7 are kept, in turn with rounds of a second state that keeps all 8.
Counted as rollback, wherever the time runs: settling, the copy before a window, restoring it and
the pass over the kept rows (checkpoint). Folding the log into a base happens inside later passes,
rejections or not. Then bytes at one layer of Qwen3.5-27B's shape, from real tensor storage. The
last line is one line of JSON.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from plain import SHAPES, prefill

from outrider.kernels.pass_plan import Span
from outrider.models.decoder import Decoder
from outrider.models.load import LoadOptions, load_decoder
from outrider.state.delta_log import DeltaState
from outrider.state.sequence import SequenceState
from outrider.state.spec import POLICIES, DeltaSpec, Policy, Rollback, StateSpec

ROWS = 8
CONTEXT = 200
CAPACITIES = (4, 8, 64)
LAYER_27B = DeltaSpec(
    layers=1,
    key_heads=16,
    value_heads=48,
    key_width=128,
    value_width=128,
    channels=10240,
    taps=4,
)


@dataclass(slots=True)
class Clock:
    """Milliseconds of one round by part."""

    parts: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def measure(self, part: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.parts[part] = self.parts.get(part, 0.0) + (time.perf_counter() - start) * 1e3


def run_round(decoder: Decoder, state: SequenceState, keep: int, clock: Clock) -> None:
    """One window of ROWS rows of which `keep` stay; a full accept takes nothing back."""
    start, tokens = state.length, torch.randint(0, decoder.config.vocab_size, (ROWS,))
    copies = state.rollback(ROWS) is Rollback.CHECKPOINT
    with clock.measure("rollback"):
        saved = state.checkpoint() if copies else None
    hidden, _ = decoder.run(decoder.embed(tokens), [Span(state, ROWS, revocable=not copies)])
    decoder.logits(hidden)
    with clock.measure("rollback"):
        if saved is None:
            state.settle(start + keep)
            state.raise_floor(start + keep)
        elif keep < ROWS:
            state.restore(saved)
            decoder.run(decoder.embed(tokens[:keep]), [Span(state, keep, revocable=False)])


def timed_round(decoder: Decoder, state: SequenceState, keep: int) -> dict[str, float]:
    clock = Clock()
    with clock.measure("round"):
        run_round(decoder, state, keep, clock)
    return clock.parts


def measure(decoder: Decoder, policy: Policy, rounds: int) -> dict[str, Any]:
    """Milliseconds per round: means for what happens in some rounds only, medians for rounds."""
    tokens = torch.randint(0, decoder.config.vocab_size, (CONTEXT,))
    rejecting, accepting = (prefill(decoder, tokens, policy, ROWS) for _ in range(2))
    ours, theirs = [], []
    for turn in range(rounds + 4):
        ours.append(timed_round(decoder, rejecting, turn % (ROWS - 1) + 1))
        theirs.append(timed_round(decoder, accepting, ROWS))
    ours, theirs = ours[4:], theirs[4:]
    return {
        "rollback_ms": statistics.fmean(parts["rollback"] for parts in ours),
        "round_ms": statistics.median(parts["round"] for parts in ours),
        "accepting_round_ms": statistics.median(parts["round"] for parts in theirs),
    }


def held_bytes(policy: Policy, capacity: int) -> int:
    """Bytes that torch allocated for one recurrent layer of the 27B shape."""
    spec = StateSpec(attention=None, delta=LAYER_27B, policy=policy, capacity=capacity)
    store = DeltaState(spec, torch.device("cpu"))
    return sum(tensor.untyped_storage().nbytes() for tensor in store.tensors())


def load(folder: Path) -> Decoder:
    class_name, settings = SHAPES["hybrid 8x256"]
    model_class = getattr(transformers, class_name)
    torch.manual_seed(0)
    model_class(model_class.config_class(**settings)).eval().save_pretrained(folder)
    return load_decoder(folder, LoadOptions())


def show(times: dict[str, dict[str, Any]], sizes: dict[str, dict[str, int]]) -> None:
    print(f"\nms per round of {ROWS} rows at {CONTEXT} keys and more, 1 to {ROWS - 1} rows kept")
    print("policy      rollback  share  round | accepting all: round")
    for policy, ms in times.items():
        share = ms["rollback_ms"] / ms["round_ms"]
        print(
            f"{policy:<11} {ms['rollback_ms']:8.3f} {share:6.1%} {ms['round_ms']:6.2f} | "
            f"{ms['accepting_round_ms']:20.2f}"
        )
    print("\nMiB of one recurrent layer of Qwen3.5-27B's shape, by rollback capacity")
    print("policy      " + "".join(f"{capacity:>9}" for capacity in CAPACITIES))
    for policy, held in sizes.items():
        print(f"{policy:<12}" + "".join(f"{size / 2**20:9.1f}" for size in held.values()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    with torch.inference_mode(), tempfile.TemporaryDirectory() as folder:
        decoder = load(Path(folder))
        rounds = 28 if options.quick else 210
        times = {policy: measure(decoder, policy, rounds) for policy in POLICIES}
    sizes = {p: {str(c): held_bytes(p, c) for c in CAPACITIES} for p in POLICIES}
    show(times, sizes)
    print(json.dumps({"threads": options.threads, "ms": times, "bytes_27b_layer": sizes}))


if __name__ == "__main__":
    main()
