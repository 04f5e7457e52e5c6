"""Byte formulas against the storage of real tensors, at one layer of Qwen3.5-27B's shape."""

import pytest
import torch

from outrider.kernels.loading import load_kernels
from outrider.state import spec as spec_module
from outrider.state.sequence import SequenceState
from outrider.state.spec import POLICIES, AttentionSpec, DeltaSpec, Policy, StateSpec

LAYER_27B = DeltaSpec(
    layers=1,
    key_heads=16,
    value_heads=48,
    key_width=128,
    value_width=128,
    channels=10240,
    taps=4,
)
ATTENTION = AttentionSpec(layers=2, heads=2, width=16)


def storage(state: SequenceState) -> int:
    """Bytes that torch allocated, views not counted twice."""
    tensors = list(state.delta.tensors()) if state.delta else []
    tensors += [state.attention.pages] if state.attention else []
    return sum(tensor.untyped_storage().nbytes() for tensor in tensors)


@pytest.mark.parametrize("capacity", [4, 8, 64])
@pytest.mark.parametrize("policy", POLICIES)
def test_recurrent_formula_is_exact(policy: Policy, capacity: int) -> None:
    spec = StateSpec(attention=None, delta=LAYER_27B, policy=policy, capacity=capacity)
    state = SequenceState(spec)
    assert spec.recurrent_bytes() == storage(state) == state.nbytes()


def test_log_is_far_smaller_than_snapshots() -> None:
    def held(policy: Policy, capacity: int) -> int:
        spec = StateSpec(attention=None, delta=LAYER_27B, policy=policy, capacity=capacity)
        return storage(SequenceState(spec))

    assert 3 * held("log", 8) <= held("snapshots", 8)
    assert 10 * held("log", 64) <= held("snapshots", 64)


@pytest.mark.parametrize("length", [1, 64, 65, 200])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_formula_is_exact_for_a_first_pass(length: int, dtype: torch.dtype) -> None:
    shape = AttentionSpec(layers=2, heads=2, width=16, element_bytes=dtype.itemsize)
    spec = StateSpec(attention=shape, delta=None)
    state = SequenceState(spec, dtype=dtype)
    state.advance(length, revocable=False)
    assert spec.bytes(length) == storage(state) == state.nbytes()


def test_a_dense_model_has_no_recurrent_state() -> None:
    spec = StateSpec(attention=ATTENTION, delta=None, policy="snapshots", capacity=64)
    assert SequenceState(spec).delta is None
    assert spec.recurrent_bytes() == 0


def test_both_layers_mean_the_same_page() -> None:
    assert spec_module.PAGE == load_kernels("jit_attention").PAGE
