"""A row has the same bits alone and among others, in every operation a pass is made of."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from outrider.kernels.activation import one_plus_exp
from outrider.kernels.conv import causal_conv
from outrider.kernels.linear import Linear, LinearPlan
from outrider.kernels.norm import length_eps, rms_norm, unit_rows
from outrider.kernels.rows import stocked_rows

WIDTHS = (4, 24, 40, 48, 256, 264, 704)
COUNTS = (1, 2, 3, 5, 7, 8, 13, 16, 17, 33, 64, 200)


def among_equals_alone(apply: Callable[[Tensor], Tensor], width: int) -> None:
    rows = torch.randn(max(COUNTS), width, generator=torch.Generator().manual_seed(0)) * 4
    alone = torch.cat([apply(row) for row in rows.split(1)])
    for count in COUNTS:
        assert torch.equal(apply(rows[:count]), alone[:count]), f"{count} rows of width {width}"


@pytest.mark.parametrize("width", WIDTHS)
def test_activations_keep_bits(width: int) -> None:
    among_equals_alone(one_plus_exp, width)
    among_equals_alone(lambda x: x / one_plus_exp(-x), width)
    among_equals_alone(lambda x: torch.exp(x).log1p_(), width)


@pytest.mark.parametrize("width", WIDTHS)
def test_norms_keep_bits(width: int) -> None:
    norm = rms_norm(torch.linspace(0.5, 1.5, width), 1e-6)
    among_equals_alone(norm, width)
    eps = length_eps(1e-6, width // 2)
    among_equals_alone(lambda x: unit_rows(x.view(len(x), 2, -1), eps).flatten(1), width)


@pytest.mark.parametrize("width", WIDTHS)
def test_convolution_keeps_bits(width: int) -> None:
    seed = torch.Generator().manual_seed(1)
    columns = torch.randn(203, width, generator=seed)
    weight = torch.randn(4, width, generator=seed)
    alone = torch.cat([causal_conv(columns[at : at + 4].clone(), weight) for at in range(200)])
    for count in COUNTS:
        assert torch.equal(causal_conv(columns[: count + 3], weight), alone[:count])


def test_values_agree_with_torch() -> None:
    x, functional = torch.linspace(-100, 80, 801), torch.nn.functional
    torch.testing.assert_close(one_plus_exp(-x).reciprocal(), torch.sigmoid(x))
    torch.testing.assert_close(x / one_plus_exp(-x), functional.silu(x))
    rows, weight = torch.randn(5, 24), torch.rand(24)
    expected = functional.rms_norm(rows, (24,), weight, 1e-5)
    torch.testing.assert_close(rms_norm(weight, 1e-5)(rows), expected)
    kernel = torch.randn(4, 24)
    expected = functional.conv1d(rows.t()[None], kernel.t()[:, None], groups=24)[0].t()
    torch.testing.assert_close(causal_conv(rows, kernel), expected)


def test_few_row_counts_are_in_stock() -> None:
    found = {count: stocked_rows(count) for count in range(1, 1025)}
    assert all(count <= rows <= 1.25 * count for count, rows in found.items())
    assert [found[count] for count in range(1, 17)] == list(range(1, 17)), "steps and windows"
    assert [found[count] for count in (17, 64, 65, 80, 81, 256)] == [20, 64, 80, 80, 96, 256]
    assert len(set(found.values())) == 40


def test_a_product_runs_no_other_row_counts() -> None:
    layer = Linear(torch.randn(8, 12), None, LinearPlan("plain", 1))
    seen, kernel = set(), layer.kernel
    layer.kernel = lambda x: (seen.add(len(x)), kernel(x))[1]
    for count in range(1, 100):
        assert layer(torch.randn(count, 12)).shape == (count, 8)
    assert seen == {stocked_rows(count) for count in range(1, 100)}
