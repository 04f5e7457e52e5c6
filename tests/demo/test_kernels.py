"""The recipe's kernels give the numbers of transformers' references."""

import pytest
import torch
from torch.optim import _muon
from transformers.models.qwen3_5 import modeling_qwen3_5 as reference

from recipes.demo import fast_kernels

MUON = _muon._zeropower_via_newtonschulz


def inputs(length):
    torch.manual_seed(length)
    return (
        torch.randn(2, length, 2, 16),
        torch.randn(2, length, 2, 16),
        torch.randn(2, length, 4, 24),
        -torch.rand(2, length, 4),
        torch.rand(2, length, 4),
    )


def run(rule, arguments, state):
    """Outputs and gradients."""
    leaves = [x.clone().requires_grad_() for x in arguments]
    out, last = rule(
        *leaves, initial_state=state, output_final_state=True, use_qk_l2norm_in_kernel=True
    )
    (out.sin().sum() + last.cos().sum()).backward()
    return [out, last, *(leaf.grad for leaf in leaves)]


@pytest.mark.parametrize("length", [5, 64, 150])
@pytest.mark.parametrize("resumed", [False, True])
def test_chunk_rule_equals_the_reference(length, resumed):
    state = torch.randn(2, 4, 16, 24) if resumed else None
    pair = [
        run(rule, inputs(length), state)
        for rule in (reference.torch_chunk_gated_delta_rule, fast_kernels.chunk_gated_delta_rule)
    ]
    for wanted, got in zip(*pair, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


def test_recurrent_rule_equals_the_reference():
    state = torch.randn(2, 4, 16, 24)
    pair = [
        run(rule, inputs(1), state)
        for rule in (
            reference.torch_recurrent_gated_delta_rule,
            fast_kernels.recurrent_gated_delta_rule,
        )
    ]
    for wanted, got in zip(*pair, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(48, 16), (16, 48), (32, 32)])
def test_muons_iteration_is_torchs_but_for_rounding(shape):
    torch.manual_seed(0)
    grad, factors = torch.randn(shape), (3.4445, -4.775, 2.0315)
    wanted = MUON(grad, factors, 5, 1e-7)
    got = fast_kernels.orthogonal(grad, factors, 5, 1e-7)
    assert wanted.dtype == torch.bfloat16
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, wanted.float(), rtol=0.0, atol=0.05)
