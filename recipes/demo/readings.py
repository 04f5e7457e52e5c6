"""Hidden states of the target over its own text, kept on disk: block drafters read them many times.

Half of a training step of a block drafter was the frozen target's pass. One file per shard of
generated text holds, in bf16, the tapped layers and the final hidden states of every row.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from recipes.demo import fast_kernels, generate

FOLDER = "readings"
BATCH = 4


@torch.no_grad()
def read(
    target: nn.Module, ids: torch.Tensor, taps: tuple[int, ...]
) -> tuple[torch.Tensor, torch.Tensor]:
    """The tapped layers' outputs, joined [B, T, taps * H], and what the head reads [B, T, H]."""
    found: dict[int, torch.Tensor] = {}

    def keep(tap: int, out: torch.Tensor | tuple[torch.Tensor, ...]) -> None:
        found[tap] = out[0] if isinstance(out, tuple) else out

    layers = target.model.layers
    hooks = [
        layers[tap].register_forward_hook(lambda _, __, out, tap=tap: keep(tap, out))
        for tap in taps
    ]
    final = target.model(input_ids=ids, use_cache=False).last_hidden_state
    for hook in hooks:
        hook.remove()
    return torch.cat([found[tap] for tap in taps], -1), final


class Readings:
    """Finds rows that were read before; files are mapped, not loaded."""

    def __init__(self, work: Path, taps: tuple[int, ...]) -> None:
        self.taps = taps
        self.rows: dict[bytes, tuple[torch.Tensor, torch.Tensor]] = {}
        for file in sorted((work / FOLDER).glob("*.pt")):
            shard = torch.load(file, mmap=True)
            if tuple(shard["taps"]) == taps:
                pairs = zip(shard["features"], shard["final"], strict=True)
                keys = [row.numpy().tobytes() for row in shard["ids"].long()]
                self.rows |= dict(zip(keys, pairs, strict=True))

    def read(self, target: nn.Module, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """As `read`, from the files where all rows of the batch are in them."""
        found = [self.rows.get(row.numpy().tobytes()) for row in ids]
        known = [pair for pair in found if pair is not None]
        if len(known) < len(found):
            return read(target, ids, self.taps)
        features, final = zip(*known, strict=True)
        return torch.stack(features).float(), torch.stack(final).float()


def unread(work: Path) -> list[Path]:
    """Shards of text that have not been read since they, or the target, were made."""
    trunk = generate.trunk(work).stat().st_mtime

    def is_read(file: Path) -> bool:
        mine = work / FOLDER / file.name
        return mine.exists() and mine.stat().st_mtime > max(trunk, file.stat().st_mtime)

    return [file for file in sorted((work / "generated").glob("*.pt")) if not is_read(file)]


def worker(rank: int, work: Path, taps: tuple[int, ...], files: list[list[Path]]) -> None:
    torch.set_num_threads(1)
    fast_kernels.install()
    target = generate.load_target(work)
    for file in files[rank]:
        ids = torch.load(file)["ids"]
        with fast_kernels.half_precision():
            pairs = [read(target, part.long(), taps) for part in ids.split(BATCH)]
        features, final = (torch.cat(part).bfloat16() for part in zip(*pairs, strict=True))
        shard = {"taps": taps, "ids": ids, "features": features, "final": final}
        torch.save(shard, work / FOLDER / f"{file.name}.new")
        (work / FOLDER / f"{file.name}.new").replace(work / FOLDER / file.name)


def run(work: Path, taps: tuple[int, ...], ranks: int) -> None:
    """Read what has not been read yet; about 2.5 kB a token."""
    (work / FOLDER).mkdir(exist_ok=True)
    if files := unread(work):
        shares = [files[rank::ranks] for rank in range(ranks)]
        torch.multiprocessing.spawn(worker, (work, taps, shares), nprocs=ranks)
