"""Train the target on the mix; two processes, bf16 matrix products, fp32 weights."""

from __future__ import annotations

import dataclasses
import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from recipes.demo import corpus, fast_kernels, mix, model, parallel, tokens, unloop

SAVE_SECONDS = 240


@dataclass(frozen=True)
class Phase:
    """A training run: where it saves, its rates, how it treats its own loops."""

    folder: str
    starts_from: str | None
    rates: parallel.Rates
    tokens_per_rank: int
    unloop_from: float
    loops: unloop.Plan

    def stage(self, share: float) -> mix.Stage:
        """The curriculum is the first phase's; later ones stay at long rows."""
        return mix.LATER if self.starts_from else mix.stage_at(share)


MAIN = Phase("target", None, parallel.Rates(), 2048, 0.54, unloop.Plan(48, 100, 3, 40, 0.3))
# As long again on long rows, where copying with a rename is learned.
LONGER = Phase(
    "longer",
    "target",
    parallel.Rates(matrices=2e-3, others=2e-3, warmup=0.02, hold=0.35),
    2048,
    0.6,
    unloop.Plan(32, 200, 3, 40, 0.4),
)
# At a low rate, and much about loops: long greedy outputs were still two fifths repeats.
FINISH = Phase(
    "finish",
    "longer",
    parallel.Rates(matrices=1.2e-3, others=1.2e-3, warmup=0.03),
    2048,
    0.0,
    unloop.Plan(24, 300, 2, 40, 0.5),
)


def log(work: Path, line: str) -> None:
    """One timestamped line to the training log."""
    with (work / "train.log").open("a") as file:
        file.write(f"{time.strftime('%H:%M:%S')} {line}\n")


def token_losses(net: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    """Cross entropy per position [B, T - 1] in nats."""
    with fast_kernels.half_precision():
        logits = net(input_ids=ids[:, :-1], use_cache=False).logits
    loss = F.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten(), reduction="none")
    return loss.view(len(ids), -1)


def validation(tokenizer: Any, sources: list[corpus.Source]) -> dict[str, torch.Tensor]:
    """Held-out rows of each part, always the same: ids and weights [2, 8, 1024]."""
    held_out = mix.Mix(tokenizer, sources, held_out=True)
    stage, rng = dataclasses.replace(mix.LATER, noise=0.0), random.Random(1)
    return {
        p: torch.stack(
            [torch.tensor(held_out.row(rng, p, stage), dtype=torch.float64) for _ in range(8)], 1
        )
        for p in mix.PARTS
    }


@torch.no_grad()
def validate(net: nn.Module, rows: dict[str, torch.Tensor]) -> str:
    """Mean held-out loss of each part, and of the answers to edits, in nats per token."""
    means = {}
    for part, (ids, weights) in rows.items():
        losses = torch.cat([token_losses(net, pair) for pair in ids.long().split(2)])
        means[part] = losses.mean()
        if part == "edits":
            means["answers"] = losses[weights[:, 1:] > 1].mean()
    return " ".join(f"{name}={float(value):.3f}" for name, value in means.items())


class PartMeans:
    """Running mean of the training loss by part."""

    def __init__(self) -> None:
        self.sums, self.counts = [0.0] * 3, [0] * 3

    def add(self, losses: torch.Tensor, parts: torch.Tensor) -> None:
        for loss, part in zip(losses.mean(1).tolist(), parts.tolist(), strict=True):
            self.sums[part] += loss
            self.counts[part] += 1

    def take(self) -> str:
        text = " ".join(
            f"{name}={s / max(c, 1):.3f}"
            for name, s, c in zip(mix.PARTS, self.sums, self.counts, strict=True)
        )
        self.sums, self.counts = [0.0] * 3, [0] * 3
        return text


def worker(
    rank: int, net: nn.Module, shared: parallel.Shared, work: Path, minutes: float, phase: Phase
) -> None:
    """One of the two training processes."""
    torch.set_num_threads(1)
    fast_kernels.install()
    tokenizer = tokens.load(work / "tokenizer.json")
    sources = corpus.load()
    rows = mix.Mix(tokenizer, sources, held_out=False)
    held_out = validation(tokenizer, sources) if rank == 0 else {}
    optimizer = parallel.ShardedOptimizer(net, shared, rank, phase.rates)
    state = parallel.resume(work / phase.folder, net, optimizer)
    step, seen = state.get("step", 0), state.get("tokens", 0)
    progress = parallel.Progress(minutes, state.get("seconds", 0.0))
    loops, loops_at, repeats = unloop.OwnLoops(rows, phase.loops, rank), None, 0.0
    means, saved, share = PartMeans(), progress.spent, progress.tick()
    while share < 1.0:
        stage = phase.stage(share)
        ids, weights, parts = rows.batch(
            f"{rank}-{step}", stage, phase.tokens_per_rank // stage.length
        )
        losses = token_losses(net, ids)
        (losses * weights[:, 1:]).mean().backward()
        if share >= phase.unloop_from:
            if loops_at is None or step - loops_at >= phase.loops.refresh_steps:
                loops_at, repeats = step, loops.refresh(net)
            loops.loss(net).backward()
        norm = optimizer.step(share)
        step, seen = step + 1, seen + phase.tokens_per_rank * shared.ranks
        means.add(losses.detach(), parts)
        share = parallel.common_clock(shared, rank, progress)
        if rank == 0 and step % 25 == 0:
            where = f"step {step} tokens {seen} {share:.3f} len {stage.length} norm {norm:.2f}"
            log(work, f"{where} {means.take()} repeats {repeats:.2f}")
        if progress.spent - saved > SAVE_SECONDS or share >= 1.0:
            saved = progress.spent
            state = {"step": step, "tokens": seen, "seconds": progress.spent}
            parallel.save(work / phase.folder, net, optimizer, state)
            if rank == 0:
                log(work, f"held-out after {seen} tokens: {validate(net, held_out)}")


def run(work: Path, minutes: float, phase: Phase = MAIN) -> None:
    """Train, or go on training, for `minutes` in all."""
    net = model.build(model.target_config())
    if phase.starts_from:
        net.load_state_dict(torch.load(work / phase.starts_from / "model.pt"))
    shared = parallel.share(net)
    arguments = (net, shared, work, minutes, phase)
    torch.multiprocessing.spawn(worker, arguments, nprocs=shared.ranks)
