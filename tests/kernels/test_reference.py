"""Torch's operations against naive float64 oracles, and the compiled kernels against both."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from outrider.kernels.compiled import CompiledKernels
from outrider.kernels.norm import rms_norm
from outrider.kernels.operations import AttentionMix, DeltaMix, Kernels
from outrider.kernels.pass_plan import PassPlan, Span, plan_pass
from outrider.kernels.reference import ReferenceKernels
from outrider.kernels.rotary import rope_table
from outrider.state.sequence import SequenceState
from outrider.state.spec import AttentionSpec, DeltaSpec, Policy, StateSpec

KINDS = (CompiledKernels, ReferenceKernels)
HEADS, KEPT, WIDTH, LENGTH = 6, 2, 16, 700
KEY_HEADS, VALUE_HEADS, KEY_WIDTH, VALUE_WIDTH, TAPS = 2, 6, 16, 8, 4
KEY_SIZE = KEY_HEADS * KEY_WIDTH
CHANNELS = 2 * KEY_SIZE + VALUE_HEADS * VALUE_WIDTH
LAYER = 1
"""Of two in the states: the first layer's memory must stay as it is."""

MIX = AttentionMix(index=LAYER, heads=HEADS, kv_heads=KEPT, width=WIDTH, scale=0.3)


def rope() -> Tensor:
    return rope_table(1.0 / 100 ** (torch.arange(WIDTH // 4) / (WIDTH // 4)), LENGTH, 1.2, WIDTH)


def attention_state() -> SequenceState:
    shape = AttentionSpec(layers=2, heads=KEPT, width=WIDTH)
    return SequenceState(StateSpec(attention=shape, delta=None))


def delta_state(policy: Policy = "log", capacity: int = 40) -> SequenceState:
    shape = DeltaSpec(
        layers=2,
        key_heads=KEY_HEADS,
        value_heads=VALUE_HEADS,
        key_width=KEY_WIDTH,
        value_width=VALUE_WIDTH,
        channels=CHANNELS,
        taps=TAPS,
    )
    return SequenceState(StateSpec(attention=None, delta=shape, policy=policy, capacity=capacity))


def plan(spans: Sequence[tuple[SequenceState, int]], table: Tensor | None = None) -> PassPlan:
    given = [Span(state, rows, revocable=False) for state, rows in spans]
    return plan_pass(given, rope() if table is None else table)


def turned(heads: Tensor, table: Tensor) -> Tensor:
    """Heads [n, H, D] rotated one pair of columns after another, in float64."""
    cos, sin = table.double()
    out, half = heads.clone(), WIDTH // 2
    for row in range(len(heads)):
        for at in range(half):
            first, second = heads[row, :, at], heads[row, :, at + half]
            out[row, :, at] = first * cos[row, at] + second * sin[row, at]
            out[row, :, at + half] = second * cos[row, at] - first * sin[row, at]
    return out


def attention(projected: Tensor, mix: AttentionMix) -> Tensor:
    """All rows of one sequence from position 0 on, by explicit loops in float64."""
    sizes = [HEADS * WIDTH, KEPT * WIDTH, KEPT * WIDTH]
    wide = projected.double()
    query, key, value = (
        part.view(len(wide), -1, WIDTH) for part in wide[:, : sum(sizes)].split(sizes, 1)
    )
    if mix.head_norm is not None:
        both = torch.cat([query, key], 1)
        length = (both.square().sum(-1, keepdim=True) + mix.head_norm.eps).sqrt()
        both = both / length * mix.head_norm.scale.double()
        query, key = both.split([HEADS, KEPT], 1)
    query, key = turned(query, rope()), turned(key, rope())
    out = torch.empty(len(wide), HEADS, WIDTH, dtype=torch.float64)
    for row in range(len(wide)):
        low = max(0, row - mix.window + 1) if mix.window else 0
        for head in range(HEADS):
            near = slice(low, row + 1), head // (HEADS // KEPT)
            weights = (key[near] @ query[row, head] * mix.scale).softmax(0)
            out[row, head] = weights @ value[near]
    out = out.flatten(1)
    return out * wide[:, sum(sizes) :].sigmoid() if mix.gated else out


def attention_inputs(rows: int, mix: AttentionMix) -> Tensor:
    seed = torch.Generator().manual_seed(rows)
    width = (HEADS + 2 * KEPT + HEADS * mix.gated) * WIDTH
    return torch.randn(rows, width, generator=seed)


HEAD_NORM = rms_norm(torch.linspace(0.5, 2, (HEADS + KEPT) * WIDTH).view(-1, WIDTH), 1e-3)
MIXES = {
    "plain": MIX,
    "gated": replace(MIX, gated=True, head_norm=HEAD_NORM),
    "window": replace(MIX, window=24),
    "wide-window": replace(MIX, window=100),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", MIXES)
@pytest.mark.parametrize("widths", [[1] * 5, [70, 1, 9], [64, 64, 3], [130, 17, 2]])
def test_attention_equals_the_oracle(kind: type[Kernels], name: str, widths: list[int]) -> None:
    mix, kernels, state = MIXES[name], kind(), attention_state()
    projected = attention_inputs(sum(widths), mix)
    found = torch.cat(
        [
            kernels.attention(mix)(rows.clone(), plan([(state, len(rows))]))
            for rows in projected.split(widths)
        ]
    )
    torch.testing.assert_close(found.double(), attention(projected, mix), atol=2e-5, rtol=1e-4)
    assert state.attention is not None
    assert not state.attention.pages[0].any(), "the other layer's memory was written"


def test_both_kinds_leave_the_same_keys_and_values() -> None:
    """So a state that one has written can be read by the other."""
    mix, pages = MIXES["gated"], []
    for kind in KINDS:
        state = attention_state()
        for rows in attention_inputs(100, mix).split([70, 30]):
            kind().attention(mix)(rows.clone(), plan([(state, len(rows))]))
        assert state.attention is not None
        pages.append(state.attention.pages)
    torch.testing.assert_close(*pages, atol=1e-5, rtol=1e-4)


def delta_mix() -> DeltaMix:
    seed = torch.Generator().manual_seed(5)
    return DeltaMix(
        index=LAYER,
        key_heads=KEY_HEADS,
        heads=VALUE_HEADS,
        key_width=KEY_WIDTH,
        width=VALUE_WIDTH,
        conv=torch.randn(TAPS, CHANNELS, generator=seed),
        rate=-torch.rand(VALUE_HEADS, generator=seed),
        norm=rms_norm(torch.linspace(0.5, 2, VALUE_WIDTH), 1e-3),
    )


def delta_inputs(rows: int) -> Tensor:
    seed = torch.Generator().manual_seed(rows)
    size = CHANNELS + VALUE_HEADS * VALUE_WIDTH + 2 * VALUE_HEADS
    return torch.randn(rows, size, generator=seed)


def recurrence(projected: Tensor, mix: DeltaMix) -> Tensor:
    """S <- exp(g) S + k d^T, d = b (v - S^T k), out = S^T q; row by row, in float64."""
    wide, group = projected.double(), VALUE_HEADS // KEY_HEADS
    size = VALUE_HEADS * VALUE_WIDTH
    sizes = [CHANNELS, size, VALUE_HEADS, VALUE_HEADS]
    inputs, gate, strength, decay = wide.split(sizes, 1)
    columns = torch.cat([torch.zeros(TAPS - 1, CHANNELS, dtype=torch.float64), inputs])
    state = torch.zeros(VALUE_HEADS, KEY_WIDTH, VALUE_WIDTH, dtype=torch.float64)
    outputs = []
    for row in range(len(wide)):
        mixed = (columns[row : row + TAPS] * mix.conv.double()).sum(0)
        mixed = mixed * mixed.sigmoid()
        key, query = (
            part.view(KEY_HEADS, KEY_WIDTH) / (part.view(KEY_HEADS, -1).norm(dim=1)[:, None])
            for part in mixed[: 2 * KEY_SIZE].split(KEY_SIZE)
        )
        value = mixed[2 * KEY_SIZE :].view(VALUE_HEADS, VALUE_WIDTH)
        for head in range(VALUE_HEADS):
            k, q = key[head // group], query[head // group]
            faded = (mix.rate[head].double() * decay[row, head].exp().log1p()).exp()
            state[head] *= faded
            correction = strength[row, head].sigmoid() * (value[head] - k @ state[head])
            state[head] += torch.outer(k, correction)
            out = q @ state[head]
            out = out / (out.square().sum() + mix.norm.eps).sqrt() * mix.norm.scale.double()
            near = slice(head * VALUE_WIDTH, (head + 1) * VALUE_WIDTH)
            outputs.append(out * gate[row, near] * gate[row, near].sigmoid())
    return torch.stack(outputs).view(len(wide), size)


CUTS = {
    "steps": [1] * 40,
    "chunks": [32, 32, 9],
    "ragged": [3, 5, 24, 8, 2, 6, 16, 1],
    "long": [100, 7, 1, 64],
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("policy", ["log", "snapshots"])
@pytest.mark.parametrize("name", CUTS)
def test_the_delta_rule_equals_the_recurrence(
    kind: type[Kernels], policy: Policy, name: str
) -> None:
    mix, kernels, state = delta_mix(), kind(), delta_state(policy, 130)
    projected = delta_inputs(sum(CUTS[name]))
    found = torch.cat(
        [
            kernels.delta(mix)(rows.clone(), plan([(state, len(rows))]))
            for rows in projected.split(CUTS[name])
        ]
    )
    torch.testing.assert_close(found.double(), recurrence(projected, mix), atol=2e-4, rtol=1e-3)
    assert state.delta is not None
    assert not any(tensor[0].any() for tensor in state.delta.tensors())


@pytest.mark.parametrize("kind", KINDS)
def test_rows_taken_back_leave_nothing(kind: type[Kernels]) -> None:
    """After a rejected suffix with huge decays, rows go on as if it had never been."""
    mix, kernels, projected = delta_mix(), kind(), delta_inputs(60)
    state, plain = delta_state(), delta_state()
    wrong = delta_inputs(20) * 30
    first = projected[:35]
    for one in (state, plain):
        kernels.delta(mix)(first.clone(), plan([(one, len(first))]))
    spans = [Span(state, len(wrong))]
    kernels.delta(mix)(wrong, plan_pass(spans, rope()))
    state.settle(len(first))
    rest = projected[len(first) :]
    found, wanted = (
        kernels.delta(mix)(rest.clone(), plan([(one, len(rest))])) for one in (state, plain)
    )
    assert torch.equal(found, wanted)


@pytest.mark.parametrize("kind", KINDS)
def test_sequences_share_a_pass(kind: type[Kernels]) -> None:
    kernels, attend, recur = kind(), MIXES["gated"], delta_mix()
    for new, mixing, given in (
        (attention_state, kernels.attention(attend), 0),
        (delta_state, kernels.delta(recur), 1),
    ):
        rows = delta_inputs(50) if given else attention_inputs(50, attend)
        parts = rows.split([20, 30])
        apart = [mixing(part.clone(), plan([(new(), len(part))])) for part in parts]
        together = mixing(rows.clone(), plan([(new(), len(part)) for part in parts]))
        torch.testing.assert_close(together, torch.cat(apart), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_norms_gates_and_products(kind: type[Kernels]) -> None:
    kernels = kind()
    torch.manual_seed(0)
    x, y, weight = torch.randn(5, 24), torch.randn(5, 24), torch.rand(24)
    norm = rms_norm(weight, 1e-2)
    total, normed = kernels.add_norm(x, y, norm)
    assert torch.equal(total, x + y)
    wanted = torch.nn.functional.rms_norm(total.double(), (24,), weight.double(), 1e-2)
    torch.testing.assert_close(normed.double(), wanted, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(kernels.norm(total, norm).double(), wanted, rtol=1e-5, atol=1e-6)
    gate, up = x.double().chunk(2, 1)
    torch.testing.assert_close(
        kernels.gated(x).double(), gate * gate.sigmoid() * up, rtol=1e-5, atol=1e-6
    )
    matrix, bias = torch.randn(7, 24), torch.randn(7)
    layer = kernels.linear(matrix, bias)
    assert (layer.in_features, layer.out_features) == (24, 7)
    wanted = x.double() @ matrix.double().T + bias.double()
    torch.testing.assert_close(layer(x).double(), wanted, rtol=1e-5, atol=1e-5)
    assert torch.equal(kernels.add(x.clone(), y), x + y)
