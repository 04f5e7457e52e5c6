"""int8 products against float64 references, and their rows alone and among others."""

import pytest
import torch

from outrider.ops.int8 import Int8Fallback, Int8Logits, Int8Product, can_multiply, quantise
from outrider.ops.linear import LinearPlan, candidates, make_linear
from outrider.ops.selftest import Kernels

SHAPES = ((64, 64), (80, 48), (5, 40), (33, 100), (96, 1), (1, 33))


def pair(out: int, inner: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    seed = torch.Generator().manual_seed(out * inner)
    weight, rows = torch.randn(out, inner, generator=seed), torch.randn(9, inner, generator=seed)
    return weight, rows, torch.randn(out, generator=seed)


def reference(weight: torch.Tensor, rows: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    matrix = quantise(weight)
    return rows.double() @ (matrix.codes.double() * matrix.scale.double()[:, None]).t() + bias


@pytest.mark.parametrize(("out", "inner"), SHAPES)
def test_codes_are_within_half_a_step(out: int, inner: int) -> None:
    weight, _, _ = pair(out, inner)
    matrix = quantise(weight)
    wide = matrix.rows(torch.arange(out), torch.float32)
    steps = weight.abs().amax(1, keepdim=True) / 127
    # The scale is rounded to 8 bits, so the largest of a row may fall 0.4 % short.
    assert ((wide - weight).abs() <= 0.505 * steps + 0.004 * weight.abs()).all()


def test_a_row_of_zeros_stays_zero() -> None:
    weight = torch.zeros(3, 32)
    assert torch.equal(quantise(weight).rows(torch.arange(3), torch.float32), weight)


@pytest.mark.parametrize(("out", "inner"), SHAPES)
@pytest.mark.parametrize("with_bias", [True, False])
def test_products_equal_the_reference(out: int, inner: int, with_bias: bool) -> None:
    weight, rows, bias = pair(out, inner)
    given = bias if with_bias else None
    expected = reference(weight, rows, bias if with_bias else torch.zeros(out))
    exact = Int8Fallback(weight, given)(rows)
    torch.testing.assert_close(exact.double(), expected, atol=1e-4, rtol=1e-5)
    fast = Int8Product(weight, given)(rows)
    assert fast.dtype == torch.float32
    product = reference(weight, rows.bfloat16().float(), torch.zeros(out))
    half = product + bias if with_bias else product
    assert ((fast.double() - half).abs() <= 2**-8 * product.abs() + 1e-4).all()


@pytest.mark.parametrize(("out", "inner"), SHAPES)
def test_the_self_test_finds_a_plan_that_keeps_bits(out: int, inner: int) -> None:
    weight, rows, bias = pair(out, inner)
    kernels = Kernels(exact=True, quantize="int8")
    layer = kernels.make_linear(weight, bias)
    alone = torch.cat([layer(row) for row in rows.split(1)])
    for count in range(1, len(rows) + 1):
        assert torch.equal(layer(rows[:count]), alone[:count])
    assert "int8" in kernels.report()[f"linear {out}x{inner} float32"]


def test_a_device_without_the_kernel_widens() -> None:
    weight = torch.empty(8, 8, device="meta")
    assert not can_multiply(weight)
    assert candidates(weight, exact=False, quantize="int8") == [LinearPlan("int8-widened-mixed", 1)]


def test_half_precision_rows_stay_half() -> None:
    weight, rows, bias = pair(64, 64)
    for make in (Int8Product, Int8Fallback):
        assert make(weight.bfloat16(), bias.bfloat16())(rows.bfloat16()).dtype == torch.bfloat16


@pytest.mark.parametrize("with_bias", [True, False])
def test_the_largest_logits_are_summed_in_fp32(with_bias: bool) -> None:
    weight, rows, bias = pair(500, 100)
    given = bias if with_bias else None
    expected = reference(weight, rows, bias if with_bias else torch.zeros(500))
    ours = Int8Logits(weight, given)(rows)
    best = expected.topk(8).indices
    torch.testing.assert_close(
        ours.gather(1, best).double(), expected.gather(1, best), atol=1e-4, rtol=1e-5
    )
    assert torch.equal(ours.topk(8).indices, best)
    alone = torch.cat([Int8Logits(weight, given)(row) for row in rows.split(1)])
    assert torch.equal(ours, alone)
    few = Int8Logits(weight[:5], None)(rows)
    small = reference(weight[:5], rows, torch.zeros(5))
    torch.testing.assert_close(few.double(), small, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("kernel", ["int8-mixed", "int8-widened-mixed"])
@pytest.mark.parametrize("with_bias", [True, False])
def test_the_largest_inputs_stay_whole(kernel: str, with_bias: bool) -> None:
    weight, rows, bias = pair(64, 96)
    rows[:, [5, 40, 77, 90]] *= 50.0
    layer = make_linear(weight, bias if with_bias else None, LinearPlan(kernel, 1))
    expected = rows.double() @ weight.double().t() + (bias if with_bias else 0.0)
    rounded = Int8Product(weight, bias if with_bias else None)(rows)
    ours = (layer(rows).double() - expected).norm()
    assert 0 < ours < 0.1 * (rounded.double() - expected).norm()
