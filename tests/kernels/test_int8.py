"""int8 products against float64 references, and their rows alone and among others."""

import pytest
import torch

from outrider.kernels.int8 import (
    DIGITS,
    VECTOR,
    Int8Inputs,
    Int8Logits,
    Int8Matrix,
    Int8Product,
    can_multiply,
    multiply,
    multiply_widened,
    round_matrix,
)
from outrider.kernels.linear import LinearPlan, candidates, make_linear
from outrider.kernels.selftest import Kernels

SHAPES = ((64, 64), (80, 48), (5, 40), (33, 100), (96, 1), (1, 33))


def pair(out: int, inner: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    seed = torch.Generator().manual_seed(out * inner)
    weight, rows = torch.randn(out, inner, generator=seed), torch.randn(9, inner, generator=seed)
    return weight, rows, torch.randn(out, generator=seed)


def dense(inputs: Int8Inputs, matrix: Int8Matrix, inner: int) -> torch.Tensor:
    """What codes, scales and factors stand for, float64 [out, inner]."""
    columns = matrix.codes.double() * matrix.scale.double()[:, None] * inputs.factor.double()
    return columns.new_zeros(len(columns), inner).index_add_(1, inputs.index, columns)


@pytest.mark.parametrize(("out", "inner"), SHAPES)
@pytest.mark.parametrize("calibrated", [True, False])
def test_codes_are_within_half_a_step(out: int, inner: int, calibrated: bool) -> None:
    weight, rows, _ = pair(out, inner)
    inputs, matrix, _ = round_matrix(weight, rows if calibrated else None)
    index, factor = inputs.index, inputs.factor.double()
    assert len(index) == matrix.codes.shape[1]
    assert len(index) % VECTOR == 0
    assert torch.equal(index[:inner], torch.arange(inner))
    steps = matrix.scale.double()[:, None] * factor[:inner]
    error = (dense(inputs, matrix, inner) - weight).abs()
    # The scale is rounded to 8 bits, so the largest of a row may fall 0.4 % short.
    assert (error <= 0.505 * steps + 0.004 * weight.abs()).all()
    doubled = index[inner:][factor[inner:] != 0]
    assert calibrated or not len(doubled)
    assert (error[:, doubled] <= 1.01 * steps[:, doubled] / DIGITS).all()


def test_a_row_of_zeros_stays_zero() -> None:
    weight = torch.zeros(3, 32)
    assert not dense(*round_matrix(weight, torch.ones(2, 32))[:2], 32).any()


def test_a_row_with_nothing_but_doubled_entries_is_kept() -> None:
    weight, rows = torch.zeros(3, 96), torch.ones(2, 96)
    weight[:, 7], rows[:, 7] = torch.tensor([1e-3, 1.0, 1e3]), 100.0
    wide = dense(*round_matrix(weight, rows)[:2], 96)
    torch.testing.assert_close(wide, weight.double(), rtol=1e-4, atol=0)


@pytest.mark.parametrize(("out", "inner"), SHAPES)
@pytest.mark.parametrize("with_bias", [True, False])
def test_products_equal_the_reference(out: int, inner: int, with_bias: bool) -> None:
    weight, rows, bias = pair(out, inner)
    inputs, matrix, _ = round_matrix(weight, rows)
    product = rows.double() @ dense(inputs, matrix, inner).t()
    given = bias if with_bias else None
    expected = product + bias if with_bias else product
    exact = Int8Product(weight, given, multiply_widened, rows)(rows)
    torch.testing.assert_close(exact.double(), expected, atol=1e-4, rtol=1e-5)
    fast = Int8Product(weight, given, multiply, rows)(rows)
    assert fast.dtype == torch.float32
    largest = rows.double().abs() @ dense(inputs, matrix, inner).abs().t()
    assert ((fast.double() - expected).abs() <= 2**-7 * largest + 1e-4).all()


@pytest.mark.parametrize(("out", "inner"), SHAPES)
def test_the_self_test_finds_a_plan_that_keeps_bits(out: int, inner: int) -> None:
    weight, rows, bias = pair(out, inner)
    kernels = Kernels(exact=True, quantize="int8")
    layer = kernels.make_linear(weight, bias)
    layer(rows)
    alone = torch.cat([layer(row) for row in rows.split(1)])
    for count in range(1, len(rows) + 1):
        assert torch.equal(layer(rows[:count]), alone[:count])
    assert "int8" in kernels.report()[f"linear {out}x{inner} float32"]


USES = {"layer": "int8", "memory": "int8", "head": "int8-logits"}


@pytest.mark.parametrize("use", USES)
def test_a_device_without_the_kernel_widens(use: str) -> None:
    weight = torch.empty(8, 8, device="meta")
    assert not can_multiply(weight)
    name = USES[use].replace("int8", "int8-widened")
    found = candidates(weight, exact=False, quantize="int8", use=use)
    assert found == [LinearPlan(name, 1)]


def test_weights_beyond_the_range_of_fp16_are_rounded_to_int8() -> None:
    weight = torch.eye(8)
    assert candidates(weight, exact=False, quantize="int8", use="memory")[0].kernel == "half"
    found = candidates(weight * 1e5, exact=False, quantize="int8", use="memory")
    assert found == [LinearPlan("int8", 1)]


@pytest.mark.parametrize("with_bias", [True, False])
def test_half_precision_weights_are_nearer_than_a_digit(with_bias: bool) -> None:
    weight, rows, bias = pair(64, 96)
    kernels = Kernels(exact=True, quantize="int8")
    layer = kernels.make_linear(weight, bias if with_bias else None, use="memory")
    assert layer.plan.kernel == "half"
    expected = rows.double() @ weight.double().t() + (bias if with_bias else 0.0)
    assert 0 < (layer(rows).double() - expected).norm() < 5e-4 * expected.norm()
    assert torch.equal(layer(rows), torch.cat([layer(row) for row in rows.split(1)]))


@pytest.mark.parametrize("by", [multiply, multiply_widened])
def test_half_precision_rows_stay_half(by: object) -> None:
    weight, rows, bias = (part.bfloat16() for part in pair(64, 64))
    for given in (bias, None):
        y = Int8Product(weight, given, by, rows)(rows)
        assert y.dtype == Int8Logits(weight, given, by)(rows).dtype == torch.bfloat16
        expected = rows.double() @ weight.double().t() + (0.0 if given is None else bias.double())
        assert (y.double() - expected).norm() < 0.02 * expected.norm()


@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("by", [multiply, multiply_widened])
def test_the_largest_logits_have_both_digits(by: object, with_bias: bool) -> None:
    weight, rows, bias = pair(500, 100)
    given = bias if with_bias else None
    expected = rows.double() @ weight.double().t() + (bias if with_bias else 0.0)
    logits = Int8Logits(weight, given, by)
    best = expected.topk(8).indices
    ours = logits(rows)
    torch.testing.assert_close(
        ours.gather(1, best).double(), expected.gather(1, best), atol=2e-3, rtol=0
    )
    assert torch.equal(ours.topk(8).indices, best)
    if by is multiply:  # the other's product needs rows one by one, as the self-test finds
        assert torch.equal(ours, torch.cat([logits(row) for row in rows.split(1)]))


def errors(plan: str, weight: torch.Tensor, rows: torch.Tensor) -> tuple[float, float]:
    """Relative errors of a layer, and of one scale a row and nothing else."""
    layer = make_linear(weight, None, LinearPlan(plan, 1))
    step = weight.abs().amax(1, keepdim=True) / 127
    expected = rows.double() @ weight.double().t()
    plain = rows.double() @ ((weight / step).round() * step).double().t()
    layer(rows)
    parts = ((y.double() - expected).norm() / expected.norm() for y in (layer(rows), plain))
    return float(next(parts)), float(next(parts))


@pytest.mark.parametrize("kernel", ["int8", "int8-widened"])
def test_large_inputs_do_not_cost_precision(kernel: str) -> None:
    weight, rows, _ = pair(64, 96)
    rows[:, [5, 40, 77, 90]] *= 50.0
    ours, plain = errors(kernel, weight, rows)
    assert 0 < ours < (0.5 if kernel == "int8" else 0.1) * plain


@pytest.mark.parametrize("kernel", ["int8", "int8-widened"])
def test_large_columns_do_not_cost_the_others_precision(kernel: str) -> None:
    weight, rows, _ = pair(64, 96)
    columns = torch.arange(0, 96, 2)
    weight[:, columns] *= 30.0
    rows[:, columns] /= 30.0
    ours, plain = errors(kernel, weight, rows)
    assert 0 < ours < 0.3 * plain
