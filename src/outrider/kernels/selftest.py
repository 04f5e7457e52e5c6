"""Choosing, on this processor, the cheapest kernel that keeps a row's bits in any window.

Nothing about a kernel is assumed. Each candidate runs the same rows alone and among others, and
the first whose results are equal bit for bit is taken; the last candidate of every list runs rows
one by one and is invariant by construction.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from outrider.kernels import attention, delta
from outrider.kernels.fused import Fused, can_fuse, has_numba, load_fused
from outrider.kernels.linear import Linear, LinearPlan, Quantize, Use, candidates, make_linear

TRIED_ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 31, 33, 64, 65, 256)
DISTINCT_ROWS = 8
TILES = (1, 4, 8, 16)
EACH_ROW = 0


@dataclass(slots=True)
class Kernels:
    """Choices so far, by shape; passed along while a model loads and kept for reports.

    fused: whether to use the compiled kernels where they are installed.
    """

    exact: bool
    quantize: Quantize = "none"
    fused: bool = True
    layers: str = ""
    linear: dict[tuple[int, int, bool, torch.dtype, Use], LinearPlan] = field(default_factory=dict)
    attention_tile: dict[tuple[int, int, int], int] = field(default_factory=dict)
    delta_tile: dict[tuple[int, int, int, int], int] = field(default_factory=dict)

    def make_linear(
        self, weight: Tensor, bias: Tensor | None = None, *, use: Use = "layer"
    ) -> Linear:
        """A layer under the plan for its shape and use, which is found when they first come."""
        key = (*weight.shape, bias is not None, weight.dtype, use)
        if key not in self.linear:
            tried = candidates(
                weight, exact=self.exact, quantize=self.quantize, use=use, fused=self.fused
            )
            self.linear[key] = next(plan for plan in tried if self._passes(weight, bias, plan))
        return make_linear(weight, bias, self.linear[key])

    def _passes(self, weight: Tensor, bias: Tensor | None, plan: LinearPlan) -> bool:
        if not self.exact or plan.rows == 0:
            return True
        return _linear_is_invariant(make_linear(weight, bias, plan), weight)

    def whole(self) -> "Kernels":
        """Kernels for small parts that are not rounded."""
        return self if self.quantize == "none" else Kernels(exact=self.exact, fused=self.fused)

    def fuse(self, like: Tensor) -> Fused | None:
        """Compiled kernels for layers with weights like this one, unless there are none."""
        if not self.fused or not can_fuse(like):
            self.layers = "torch" if has_numba() else "torch; faster by pip install numba"
            return None
        self.layers = "compiled"
        return load_fused()

    def report(self) -> dict[str, str]:
        """Chosen plans in words, for `outrider doctor` and `inspect`."""
        lines = {
            f"linear {out}x{inner} {str(dtype).removeprefix('torch.')}": str(plan)
            for (out, inner, _, dtype, _), plan in self.linear.items()
        }
        lines |= {f"attention {key}": f"tile {tile}" for key, tile in self.attention_tile.items()}
        lines |= {"layers": self.layers} if self.layers else {}
        return lines | {f"delta {key}": f"tile {tile}" for key, tile in self.delta_tile.items()}

    def tile_for_attention(self, heads: int, group: int, width: int) -> int:
        """Row multiple for attention of one shape; 0 means each row by itself."""
        key = (heads, group, width)
        if key not in self.attention_tile:
            probe = AttentionProbe(heads, group, width)
            self.attention_tile[key] = self._first(probe.is_invariant)
        return self.attention_tile[key]

    def tile_for_delta(self, key_heads: int, heads: int, key_width: int, width: int) -> int:
        """Row multiple for the delta rule of one shape; 0 means each row by itself."""
        key = (key_heads, heads, key_width, width)
        if key not in self.delta_tile:
            probe = DeltaProbe(key_heads, heads, key_width, width)
            self.delta_tile[key] = self._first(probe.is_invariant)
        return self.delta_tile[key]

    def _first(self, passes: Callable[[int], bool]) -> int:
        if not self.exact:
            return 1
        return next((tile for tile in TILES if passes(tile)), EACH_ROW)


def _linear_is_invariant(layer: Linear, weight: Tensor) -> bool:
    seed = torch.Generator().manual_seed(0)
    rows = torch.randn(DISTINCT_ROWS, weight.shape[1], generator=seed).to(weight)
    layer(rows)  # a layer that rounds by its first rows has some to judge by
    alone = torch.cat([layer(row) for row in rows.split(1)])
    for count in TRIED_ROWS:
        repeats = -(-count // DISTINCT_ROWS)
        among = layer(rows.repeat(repeats, 1)[:count])
        if not torch.equal(among, alone.repeat(repeats, 1)[:count]):
            return False
    return True


@dataclass(frozen=True, slots=True)
class AttentionProbe:
    """Runs attention of one shape over random keys at several lengths and window widths."""

    heads: int
    group: int
    width: int
    starts: Sequence[int] = (0, 60, 200, 1100)
    windows: Sequence[int] = (2, 3, 5, 8, 17, 33)

    def is_invariant(self, tile: int) -> bool:
        seed = torch.Generator().manual_seed(0)
        shape = (1 + (max(self.starts) + max(self.windows)) // attention.PAGE, self.heads)
        keys, values = torch.randn(2, *shape, attention.PAGE, self.width, generator=seed).unbind()
        q = torch.randn(max(self.windows), self.heads, self.group, self.width, generator=seed)
        return all(self._agrees(q, keys, values, start, tile) for start in self.starts)

    def _agrees(self, q: Tensor, keys: Tensor, values: Tensor, start: int, tile: int) -> bool:
        shape = attention.Heads(self.heads, self.group, self.width, tile)
        table = attention.BiasTable(self.group, tile, q.device)

        def run(first: int, rows: int) -> Tensor:
            part, at = slice(first, first + rows), start + first
            block = attention.make_block(part, at, shape, {}, q)
            return attention.attend(q[part], keys, values, block, table.at(at, rows))

        alone = torch.cat([run(row, 1) for row in range(len(q))])
        return all(
            torch.equal(run(first, rows), alone[first : first + rows])
            for rows in self.windows
            for first in {0, len(q) - rows}
        )


@dataclass(frozen=True, slots=True)
class DeltaProbe:
    """Runs the delta rule of one shape over chunks, each in windows of several widths or whole."""

    key_heads: int
    heads: int
    key_width: int
    width: int
    chunk: int = 32
    windows: Sequence[int] = (2, 3, 5, 8, 13, 16, 31, 32)

    def is_invariant(self, tile: int) -> bool:
        alone = self._run(1, 1, tile)
        cuts = [(width, 1) for width in self.windows] + [(self.chunk, 4)]
        return all(torch.equal(self._run(*cut, tile), alone) for cut in cuts)

    @property
    def _heads(self) -> tuple[int, int]:
        return self.key_heads, self.heads

    def _inputs(self, count: int) -> tuple[torch.Generator, tuple[Tensor, ...]]:
        """Keys and queries, values, decays and strengths of `count` chunks."""
        seed, rows = torch.Generator().manual_seed(0), self.chunk * count
        keys = torch.randn(rows, 2, self.key_heads, self.key_width, generator=seed)
        group = self.heads // self.key_heads
        return seed, (
            torch.nn.functional.normalize(keys, dim=-1),
            torch.randn(rows, self.key_heads, group, self.width, generator=seed),
            -torch.rand(rows, self.heads, generator=seed) * 0.1,
            torch.rand(rows, self.heads, generator=seed),
        )

    def _run(self, window: int, together: int, tile: int, count: int = 4) -> Tensor:
        """All rows of `count` chunks, `window` of one at a time or `together` whole ones."""
        rows = self.chunk * count
        seed, inputs = self._inputs(count)
        table = delta.chunk_table(self.chunk, torch.device("cpu"))
        slots = [self._slot(seed, table.visible) for _ in range(count)]
        outputs, done = [], 0
        while done < rows:
            chunk, first = divmod(done, self.chunk)
            size = min(window, self.chunk - first)
            plan = delta.make_rows(first, size, self._heads, self.key_width, table, tile, together)
            pairs, values, *gates = (x[done : done + size * together] for x in inputs)
            plan.target.copy_(pairs.view(plan.target.shape))
            gone = slots[chunk : chunk + together]
            outputs.append(delta.apply_rows(plan, values, (gates[0], gates[1]), gone))
            done += size * together
        return torch.cat(outputs)

    def _slot(self, seed: torch.Generator, like: Tensor) -> delta.Slot:
        wide = self.heads // self.key_heads * self.width
        base = torch.randn(self.key_heads, self.key_width, wide, generator=seed)
        wanted = torch.zeros(self.heads, self.chunk, self.width)
        log = delta.Log.new(self.key_heads, self.heads, self.key_width, like)
        return delta.Slot(base, wanted, log)
