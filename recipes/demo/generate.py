"""Text that the target writes itself: what drafters are distilled on.

Prompts come from training files and training seeds; continuations are greedy or sampled. Rows of
one part have one length, so a batch needs no padding.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from transformers import Qwen3_5ForCausalLM

from recipes.demo import corpus, fast_kernels, mix, model, tokens

ROWS = 64
GREEDY_SHARE = 0.75
ORDER = ("code", "edits", "code", "structured", "code")
"""Parts of one shard after the other: code is what drafters find hard."""


@dataclass(frozen=True)
class Plan:
    """Prompt length and number of new tokens of a part."""

    prompt: int
    new: int
    chunk: tuple[int, int] = (0, 0)


PLANS = {
    "code": Plan(96, 416),
    "edits": Plan(400, 368, (50, 340)),
    "structured": Plan(128, 384),
}


def trunk(work: Path) -> Path:
    """The newest weights of the target: those of the last phase that has any."""
    phases = (work / phase / "model.pt" for phase in ("finish", "longer", "target"))
    return next(file for file in phases if file.exists())


def load_target(work: Path) -> Qwen3_5ForCausalLM:
    """The trained target with its weights rounded to bf16, as they are stored, in fp32."""
    net = model.build(model.target_config())
    net.load_state_dict(torch.load(trunk(work)))
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(parameter.bfloat16())
    return net.eval().requires_grad_(False)


def prompt_row(rows: mix.Mix, rng: random.Random, part: str, plan: Plan) -> list[int]:
    """A prompt of exactly `plan.prompt` tokens; edits are preceded by other text."""
    if part == "code":
        return rows.code(rng, plan.prompt)
    if part == "structured":
        return rows.structured(rng, rng.randint(plan.prompt, plan.prompt * 4))[-plan.prompt :]
    while True:
        edit = rows.edit(rng, rng.randint(*plan.chunk))
        ids = rows.encode(edit.prompt) if edit else []
        if 0 < len(ids) < plan.prompt:
            before = rows.structured if rng.random() < 0.3 else rows.code
            return [*before(rng, plan.prompt - 1 - len(ids)), rows.end, *ids]


def pick(logits: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
    """Next token of each row: argmax where the temperature is 0. logits [B, V] -> [B]."""
    noise = -torch.empty_like(logits).exponential_().log()
    return (logits + noise * temperature[:, None]).argmax(-1)


@torch.no_grad()
def continue_rows(
    net: nn.Module,
    ids: torch.Tensor,
    count: int,
    temperature: torch.Tensor,
    mask: torch.Tensor | None = None,
) -> torch.Tensor:
    """Append `count` tokens to prompts [B, P]; `mask` [B, P] marks left padding with 0."""
    rows = [ids]
    out = net(input_ids=ids, attention_mask=mask, use_cache=True, logits_to_keep=1)
    for _ in range(count):
        token = pick(out.logits[:, -1].float(), temperature)
        rows.append(token[:, None])
        if mask is not None:
            mask = torch.cat([mask, mask.new_ones(len(mask), 1)], 1)
        out = net(input_ids=token[:, None], attention_mask=mask, cache=out.cache, use_cache=True)
    return torch.cat(rows, 1)


def worker(rank: int, work: Path, minutes: float) -> None:
    """Write shards of one part after another until the time is up, behind those that are there."""
    torch.set_num_threads(1)
    fast_kernels.install()
    net = load_target(work)
    rows = mix.Mix(tokens.load(work / "tokenizer.json"), corpus.load(), held_out=False)
    folder = work / "generated"
    folder.mkdir(exist_ok=True)
    until, shard = time.monotonic() + minutes * 60, len(list(folder.glob(f"{rank}-*.pt")))
    while time.monotonic() < until:
        torch.manual_seed(1000 * rank + shard)
        part = ORDER[(shard + 2 * rank) % len(ORDER)]
        plan, rng = PLANS[part], random.Random(f"generate-{rank}-{shard}")
        ids = torch.tensor([prompt_row(rows, rng, part, plan) for _ in range(ROWS)])
        warm = torch.rand(ROWS) * 0.8 + 0.2
        temperature = torch.where(torch.rand(ROWS) < GREEDY_SHARE, torch.zeros(()), warm)
        ids = continue_rows(net, ids, plan.new, temperature)
        torch.save(
            {"part": part, "ids": ids.short(), "prompt": plan.prompt}, folder / f"{rank}-{shard}.pt"
        )
        shard += 1


def run(work: Path, minutes: float) -> None:
    torch.multiprocessing.spawn(worker, (work, minutes), nprocs=2)
