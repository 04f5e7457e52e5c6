"""Distil drafters on the frozen target: MTP layer, EAGLE-3, draft model, block drafters.

Three quarters of the rows are text that the target wrote itself, the rest come from the training
mix; the labels are the target's distributions.
"""

from __future__ import annotations

import functools
import random
from pathlib import Path

import torch
from torch import nn

from recipes.demo import (
    block,
    corpus,
    eagle3,
    fast_kernels,
    generate,
    heads,
    mix,
    model,
    parallel,
    readings,
    tokens,
    train,
    unroll,
)

ROW_TOKENS = 2048
OWN_TEXT = 0.75
HARD_SHARE = 0.5


class MtpStudent(unroll.Unrolled):
    """The MTP layer in training; most of all its first step, which most rounds use alone."""

    steps, decay = 2, 0.5

    def __init__(self, target: nn.Module, post_norm: bool, work: Path) -> None:
        super().__init__()
        self.taught = heads.Taught(target, work)
        self.mtp = heads.Mtp(target.config)
        self.post_norm = post_norm

    def read(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Unrolled`."""
        if self.post_norm:
            after = self.taught.recall(ids)[1]
            return after, self.taught.target.lm_head(after)
        before, _, logits = self.taught.read(ids)
        return before, logits

    def step(
        self, hidden: torch.Tensor, ids: torch.Tensor, past: unroll.Past
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Unrolled`; the next step reads the normed output."""
        base, first = self.taught.target.model, past.steps
        places = torch.arange(first, first + ids.shape[1])[None].expand(3, len(ids), -1)
        rope = base.rotary_emb(hidden, places)
        out = self.mtp(hidden, base.embed_tokens(ids), rope, past)
        return self.taught.target.lm_head(out), out

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean loss and accepted drafts, per row [B]."""
        return self.losses(ids)


class EagleStudent(eagle3.Student):
    """The EAGLE-3 drafter in training."""

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean loss and accepted drafts, per row [B]; taught on the draft vocabulary alone."""
        return self.losses(ids, self.eagle.kept)


class DraftStudent(nn.Module):
    """The draft model in training, on the target's own text alone.

    What stands in no 8-gram before counts more: of what does, n-grams take care.
    """

    own_share = 1.0
    shares = (0.6, 0.15, 0.25)

    def __init__(self, target: nn.Module, work: Path) -> None:
        super().__init__()
        self.taught = heads.Taught(target, work)
        self.draft = model.build(model.draft_config())

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean loss and agreement per row [B]."""
        taught = self.taught.target.lm_head(self.taught.recall(ids)[1]).float()
        logits = self.draft(input_ids=ids, use_cache=False).logits.float()
        best = taught.argmax(-1)
        weight = 1 + (block.FRESH_WEIGHT - 1) * torch.stack([block.is_fresh(row) for row in ids])
        loss, _ = block.missed(logits.log_softmax(-1), taught.log_softmax(-1), best, HARD_SHARE)
        loss = loss * weight / weight.mean(1, keepdim=True)
        return loss.mean(1), (logits.argmax(-1) == best).float().mean(1)


def student(name: str, work: Path) -> nn.Module:
    """The student of a run; "mtp" reads behind the final norm, "mtp-before" before it."""
    target = generate.load_target(work)
    if name == "draft":
        return DraftStudent(target, work)
    if name == "eagle3":
        return EagleStudent(target, eagle3.vocabulary(work), work)
    if name in block.LAYOUTS:
        return block.Student(target, block.LAYOUTS[name], work)
    return MtpStudent(target, name == "mtp", work)


class Rows:
    """Draws batches of about 2,048 tokens, one part at a time, a part as often as `shares` say;
    `own_share` of them are the target's own text."""

    def __init__(self, work: Path, net: nn.Module) -> None:
        self.work, self.own_share = work, getattr(net, "own_share", OWN_TEXT)
        self.shares = getattr(net, "shares", (1, 1, 1))
        self.own: dict[str, list[torch.Tensor]] = {part: [] for part in mix.PARTS}
        for file in sorted((work / "generated").glob("*.pt")):
            shard = torch.load(file)
            self.own[shard["part"]] += list(shard["ids"].long())

    @functools.cached_property
    def real(self) -> mix.Mix:
        return mix.Mix(tokens.load(self.work / "tokenizer.json"), corpus.load(), held_out=False)

    def batch(self, seed: str) -> tuple[torch.Tensor, int]:
        rng = random.Random(seed)
        part = rng.choices(range(len(mix.PARTS)), self.shares)[0]
        name = mix.PARTS[part]
        if self.own[name] and rng.random() < self.own_share:
            size = len(self.own[name][0])
            return torch.stack(rng.sample(self.own[name], round(ROW_TOKENS / size))), part
        stage = mix.CURRICULUM[rng.choice((1, 2))]
        return torch.tensor(
            [self.real.row(rng, name, stage)[0] for _ in range(ROW_TOKENS // stage.length)]
        ), part


def worker(
    rank: int, net: nn.Module, shared: parallel.Shared, work: Path, name: str, minutes: float
) -> None:
    """Train one student until the time is up."""
    torch.set_num_threads(1)
    fast_kernels.install()
    rows = Rows(work, net)
    rates = parallel.Rates(matrices=3e-3, others=3e-3, decay=0.05, warmup=0.03, hold=0.35)
    optimizer = parallel.ShardedOptimizer(net, shared, rank, rates)
    step = parallel.resume(work / name, net, optimizer).get("step", 0)
    progress = parallel.Progress(minutes, parallel.spent(work / name))
    sums, saved, share = torch.zeros(3, 3), progress.spent, progress.tick()
    while share < 1.0:
        ids, part = rows.batch(f"{name}-{rank}-{step}")
        with fast_kernels.half_precision():
            loss, agree = net(ids)
        loss.mean().backward()
        optimizer.step(share)
        step += 1
        sums[part] += torch.stack([loss.detach().mean(), agree.mean(), torch.ones(())])
        share = parallel.common_clock(shared, rank, progress)
        if rank == 0 and step % 50 == 0:
            means = sums / sums[:, 2:].clamp(min=1)
            text = " ".join(
                f"{p}={m[0]:.3f}/{m[1]:.3f}" for p, m in zip(mix.PARTS, means, strict=True)
            )
            train.log(work, f"{name} step {step} {share:.3f} loss/accepted {text}")
            sums.zero_()
        if progress.spent - saved > train.SAVE_SECONDS or share >= 1.0:
            saved = progress.spent
            parallel.save(work / name, net, optimizer, {"step": step, "seconds": progress.spent})


def run(work: Path, name: str, minutes: float, ranks: int) -> None:
    """Distil, or go on distilling, one student with one or two processes."""
    if name != "mtp-before":
        readings.run(work, block.TAPS, ranks)
    net = student(name, work)
    shared = parallel.share(net, ranks)
    torch.multiprocessing.spawn(worker, (net, shared, work, name, minutes), nprocs=ranks)
