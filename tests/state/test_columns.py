"""Convolution columns: any script of passes and rollbacks reads the right inputs."""

import hypothesis.strategies as st
import torch
from hypothesis import given

from outrider.state.delta_log import Columns

LAYERS, CHANNELS, TAPS, CAPACITY, SLACK = 2, 3, 4, 6, 5


def new_columns() -> Columns:
    return Columns(torch.zeros(LAYERS, CAPACITY + TAPS - 1 + SLACK, CHANNELS), TAPS, SLACK)


def inputs(start: int, rows: int, layer: int, salt: int) -> torch.Tensor:
    at = torch.arange(start, start + rows)[:, None] + 1.0
    return at * 10 + layer + salt * 1000.0 + torch.zeros(rows, CHANNELS)


@given(st.lists(st.tuples(st.integers(1, 25), st.integers(0, CAPACITY)), min_size=1, max_size=40))
def test_passes_read_the_inputs_before_them(script: list[tuple[int, int]]) -> None:
    columns = new_columns()
    truth = [torch.zeros(TAPS - 1, CHANNELS) for _ in range(LAYERS)]
    length, peak = 0, 0
    for salt, (rows, back) in enumerate(script):
        columns.reserve(length, rows)
        for layer in range(LAYERS):
            new = inputs(length, rows, layer, salt)
            truth[layer] = torch.cat([truth[layer][: TAPS - 1 + length], new])
            window = columns.extend(layer, length, new)
            assert torch.equal(window, truth[layer][length:])
            assert window.is_contiguous()
        length += rows
        peak = max(peak, length)
        length = max(length - back, peak - CAPACITY, 0)
    assert columns.storage.shape[1] == CAPACITY + TAPS - 1 + SLACK


def test_clear_starts_again_from_zeros() -> None:
    columns = new_columns()
    columns.reserve(0, 30)
    columns.extend(0, 0, inputs(0, 30, 0, 1))
    columns.clear()
    columns.reserve(0, 1)
    new = inputs(0, 1, 0, 2)
    assert torch.equal(columns.extend(0, 0, new), torch.cat([torch.zeros(3, CHANNELS), new]))
