"""Memory moved on one thread is the same memory."""

import pytest
import torch
from torch.nn.functional import embedding

from outrider.state.memory import ALONE, copy, gather, zeros

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("sizes", [(3, 0, 4), (7, 100, 64)])
def test_zeros_and_copies(dtype, sizes):
    result = zeros(sizes, dtype, CPU)
    assert torch.equal(result, torch.zeros(sizes, dtype=dtype))
    wider = zeros((sizes[0], sizes[1] + 5, sizes[2]), dtype, CPU)
    source = torch.randn(sizes).to(dtype)
    copy(source, wider[:, : sizes[1]])
    assert torch.equal(wider[:, : sizes[1]], source)
    assert not wider[:, sizes[1] :].any()


@pytest.mark.parametrize("width", [8, 576, ALONE + 1])
@pytest.mark.parametrize("rows", [1, 5, 130])
def test_gathered_rows(width, rows):
    table, places = torch.randn(9, width), torch.randint(0, 9, (rows,))
    assert torch.equal(gather(table, places), embedding(places, table))
