"""The delta rule read from base and log, against the plain recurrence in float64."""

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from outrider.kernels import delta
from outrider.kernels.delta import Log, Slot, apply_rows, chunk_table, fold, make_rows
from outrider.kernels.selftest import EACH_ROW, TILES, Kernels

KEY_HEADS, GROUP, KEY_WIDTH, WIDTH = 2, 3, 16, 8
HEADS = KEY_HEADS * GROUP


def inputs(count: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Unit keys and queries [n, 2, K, A], values [n, K, r, D], decay and strength [n, V]."""
    seed = torch.Generator().manual_seed(count)
    pairs = torch.randn(count, 2, KEY_HEADS, KEY_WIDTH, generator=seed)
    pairs = pairs / pairs.norm(dim=-1, keepdim=True)
    values = torch.randn(count, KEY_HEADS, GROUP, WIDTH, generator=seed)
    decay = -torch.rand(count, HEADS, generator=seed)
    return pairs, values, decay, torch.rand(count, HEADS, generator=seed)


def recurrence(pairs: Tensor, values: Tensor, decay: Tensor, strength: Tensor) -> Tensor:
    """S <- exp(g) S + k d^T, d = b (v - S^T k), out = S^T q; token by token, in float64."""
    state = torch.zeros(HEADS, KEY_WIDTH, WIDTH, dtype=torch.float64)
    outputs = []
    for pair, value, g, b in zip(pairs, values, decay, strength, strict=True):
        key, query = pair.double().repeat_interleave(GROUP, 1)
        state = state * g.double().exp()[:, None, None]
        recalled = torch.einsum("had,ha->hd", state, key)
        correction = b.double()[:, None] * (value.flatten(0, 1).double() - recalled)
        state = state + torch.einsum("ha,hd->had", key, correction)
        outputs.append(torch.einsum("had,ha->hd", state, query))
    return torch.stack(outputs).view(values.shape)


def new_slot(chunk: int) -> Slot:
    """As a window that was taken back left it."""
    return Slot(
        torch.zeros(KEY_HEADS, KEY_WIDTH, GROUP * WIDTH),
        torch.full((HEADS, chunk, WIDTH), 7.0),
        Log.over(
            torch.full((KEY_HEADS, KEY_WIDTH, chunk), 5.0),
            torch.full((HEADS, chunk), -50.0),
            torch.full((HEADS, chunk, chunk), 3.0),
        ),
    )


def following(slot: Slot, chunk: int, count: int) -> Iterator[Slot]:
    """`count` slots, each with the base that the rows of the one before leave."""
    for _ in range(count):
        base, slot = fold(slot), new_slot(chunk)
        slot.base.copy_(base)
        yield slot


def run(chunk: int, widths: list[int], tile: int) -> Tensor:
    """A width above `chunk` is several whole chunks at once."""
    pairs, values, decay, strength = inputs(sum(widths))
    table = chunk_table(chunk, torch.device("cpu"))
    slots, done, outputs = [new_slot(chunk)], 0, []
    for width in widths:
        first, part, count = done % chunk, slice(done, done + width), max(width // chunk, 1)
        fresh = following(slots[-1], chunk, count) if first == 0 and done else slots[-1:]
        rows = make_rows(first, width // count, (KEY_HEADS, HEADS), KEY_WIDTH, table, tile, count)
        rows.target.copy_(pairs[part].view(rows.target.shape))
        gates = decay[part], strength[part]
        outputs.append(apply_rows(rows, values[part], gates, keep(fresh, slots)))
        done += width
    return torch.cat(outputs)


def keep(new: Iterable[Slot], slots: list[Slot]) -> Iterator[Slot]:
    for slot in new:
        slots.append(slot)
        yield slot


@pytest.mark.parametrize(
    ("chunk", "widths", "tile"),
    [
        (8, [1] * 40, 1),
        (8, [8] * 5, 4),
        (8, [3, 5, 8, 1, 7, 2, 2, 4, 8], 4),
        (32, [32, 32, 9], 16),
        (1, [1] * 20, 8),
        (8, [3, 5, 24, 8, 2, 6, 16, 1], 4),
        (1, [1, 7, 2], 4),
    ],
)
def test_outputs_equal_the_recurrence(chunk: int, widths: list[int], tile: int) -> None:
    expected = recurrence(*inputs(sum(widths)))
    torch.testing.assert_close(run(chunk, widths, tile).double(), expected, atol=1e-5, rtol=0)


def test_extreme_decay_stays_finite() -> None:
    """Entries of taken-back rows with huge decays must not reach later rows as inf * 0."""
    table = chunk_table(4, torch.device("cpu"))
    slot = new_slot(4)
    slot.log.decays.fill_(-1e30)
    pairs, values, decay, strength = inputs(1)
    rows = make_rows(0, 1, (KEY_HEADS, HEADS), KEY_WIDTH, table, 1)
    rows.target.copy_(pairs.view(rows.target.shape))
    out = apply_rows(rows, values, (decay, strength), [slot])
    expected = recurrence(pairs, values, decay, strength)
    torch.testing.assert_close(out.double(), expected, atol=1e-5, rtol=0)


def test_a_batch_that_rounds_differently_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The self-test runs chunks one by one and together, and takes no tile if they disagree."""
    weigh = delta._weigh

    def otherwise(rows: delta.Rows, *rest: Any) -> tuple[Tensor, Tensor]:
        faded, mixing = weigh(rows, *rest)
        return faded, mixing * (1 + 2.0**-22) if rows.chunks > 1 else mixing

    assert Kernels(exact=True).tile_for_delta(KEY_HEADS, HEADS, KEY_WIDTH, WIDTH) in TILES
    monkeypatch.setattr(delta, "_weigh", otherwise)
    assert Kernels(exact=True).tile_for_delta(KEY_HEADS, HEADS, KEY_WIDTH, WIDTH) == EACH_ROW
