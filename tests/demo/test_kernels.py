"""The recipe's kernels give the numbers of transformers' references."""

import pytest
import torch
from transformers.models.qwen3_5 import modeling_qwen3_5 as reference

from recipes.demo import fast_kernels


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
