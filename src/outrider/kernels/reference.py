"""The operations of a layer in plain torch, for any device and dtype; the compiled kernels' second
opinion.

The gated delta rule (Yang et al. 2024, arXiv 2412.06464) has per value head the recurrence
S <- exp(g) S + k d^T with the correction d = b (v - exp(g) S^T k) and the output S^T q. Unrolled
from a base B, with G the decay summed up since B:

    d_t = b_t (v_t - exp(G_t) B^T k_t) - sum_{j<t} b_t exp(G_t - G_j) (k_t . k_j) d_j
    o_t = exp(G_t) B^T q_t + sum_{j<=t} exp(G_t - G_j) (q_t . k_j) d_j

which is a unit lower triangular system in d. The log holds keys, sums of decays and corrections of
each row; the base moves at multiples of the chunk length only, so taking rows back is forgetting
their entries of the log.

Shapes: n rows, K key heads, V value heads, A key width, D value width, C chunk length.
"""

from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from outrider.kernels.norm import RmsNorm
from outrider.kernels.operations import AttentionMix, DeltaMix, Kernels, Linear, Mixer, TorchLinear
from outrider.kernels.pass_plan import PassPlan, PlacedSpan
from outrider.kernels.rotary import rotate
from outrider.state.delta_log import ChunkLog, segments

L2_EPS = 1e-6


class ReferenceKernels(Kernels):
    """Operations that torch chooses the arithmetic of: a row's bits may depend on its neighbours.
    Recurrent layers compute in fp32."""

    name = "torch"
    exact = False

    def linear(self, weight: Tensor, bias: Tensor | None = None) -> Linear:
        return TorchLinear(weight, bias)

    def norm(self, x: Tensor, norm: RmsNorm) -> Tensor:
        return norm(x)

    def add_norm(self, x: Tensor, y: Tensor, norm: RmsNorm) -> tuple[Tensor, Tensor]:
        total = x + y
        return total, norm(total)

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y

    def gated(self, both: Tensor) -> Tensor:
        gate, up = both.chunk(2, -1)
        return functional.silu(gate) * up

    def attention(self, mix: AttentionMix) -> Mixer:
        return partial(_mix_attention, mix)

    def delta(self, mix: DeltaMix) -> Mixer:
        return partial(_mix_delta, mix)


def _mix_attention(mix: AttentionMix, projected: Tensor, plan: PassPlan) -> Tensor:
    heads, kept, width = mix.heads, mix.kv_heads, mix.width
    sizes = [(heads + kept) * width, kept * width, heads * width * mix.gated]
    turned, value, gate = projected.split(sizes, 1)
    turned = turned.unflatten(1, (-1, width))
    turned = turned if mix.head_norm is None else mix.head_norm(turned)
    query, key = rotate(turned, *plan.rope_rows()).split([heads, kept], 1)
    inputs = map(plan.split, (query, key, value.unflatten(1, (kept, width))))
    each = zip(plan.spans, *inputs, strict=True)
    mixed = torch.cat([_attend(span, mix, *rows) for span, *rows in each])
    return mixed * gate.sigmoid() if mix.gated else mixed


def _mix_delta(mix: DeltaMix, projected: Tensor, plan: PassPlan) -> Tensor:
    size = mix.heads * mix.width
    sizes = [mix.conv.shape[1], size, mix.heads, mix.heads]
    mixed, gate, strength, decay = projected.float().split(sizes, 1)
    decay = functional.softplus(decay) * mix.rate
    inputs = map(plan.split, (mixed, strength.sigmoid(), decay))
    each = zip(plan.spans, *inputs, strict=True)
    outputs = torch.cat([_recur(span, mix, *rows) for span, *rows in each])
    gate = functional.silu(gate.unflatten(1, (mix.heads, mix.width)))
    return (mix.norm(outputs) * gate).flatten(1).to(projected.dtype)


def _attend(
    span: PlacedSpan, mix: AttentionMix, query: Tensor, key: Tensor, value: Tensor
) -> Tensor:
    """Attention [n, heads * width] of one span's rows, whose keys and values are kept first."""
    store = span.state.attention
    assert store is not None
    store.write(mix.index, span.start, key, value)
    end = span.start + span.rows
    keys, values = store.read(mix.index, end)
    rows = torch.arange(span.start, end, device=query.device).unsqueeze(1)
    at = torch.arange(end, device=query.device)
    seen = at <= rows
    if mix.window is not None:
        seen &= at > rows - mix.window
    found = functional.scaled_dot_product_attention(
        query.transpose(0, 1)[None],
        keys[None],
        values[None],
        attn_mask=seen,
        scale=mix.scale,
        enable_gqa=True,
    )
    return found[0].transpose(0, 1).flatten(1)


def _recur(
    span: PlacedSpan, mix: DeltaMix, mixed: Tensor, strength: Tensor, decay: Tensor
) -> Tensor:
    """Convolution and delta rule of one span: outputs [n, V, D]."""
    store = span.state.delta
    assert store is not None
    columns = store.columns.extend(mix.index, span.start, mixed)
    mixed = functional.silu(causal_conv(columns, mix.conv))
    size = mix.key_heads * mix.key_width
    key, query, value = mixed.split([size, size, mix.heads * mix.width], 1)
    pairs = [unit_heads(part.unflatten(1, (mix.key_heads, -1))) for part in (key, query)]
    inputs = *pairs, value.unflatten(1, (mix.heads, -1)), strength, decay
    outputs, done = [], 0
    for chunk, first, count in segments(span.start, span.rows, store.chunk):
        log = store.log(mix.index, chunk)
        if first == 0 and chunk > 0:
            log.base.copy_(fold(store.log(mix.index, chunk - 1)))
        outputs.append(run_rows(log, first, *(part[done : done + count] for part in inputs)))
        done += count
    return torch.cat(outputs)


def causal_conv(columns: Tensor, weight: Tensor) -> Tensor:
    """Depthwise convolution of columns [n + taps - 1, channels], oldest first, by weight [taps,
    channels]; [n, channels]."""
    return (columns.unfold(0, len(weight), 1) * weight.t()).sum(-1)


def unit_heads(x: Tensor) -> Tensor:
    """x over its length along the last axis."""
    return x * (x.square().sum(-1, keepdim=True) + L2_EPS).rsqrt()


def run_rows(
    log: ChunkLog,
    first: int,
    key: Tensor,
    query: Tensor,
    value: Tensor,
    strength: Tensor,
    decay: Tensor,
) -> Tensor:
    """Run n rows from offset `first` of a chunk on, and write their entries of its log.

    key, query: unit rows [n, K, A]. value [n, V, D]. strength, decay (of the log) [n, V]. Returns
    [n, V, D].
    """
    end, group = first + len(key), value.shape[1] // key.shape[1]
    before = log.decays[:, first - 1 : first] if first else 0.0
    log.keys[:, :, first:end] = key.permute(1, 2, 0)
    log.decays[:, first:end] = before + decay.t().cumsum(1)
    base = log.base.unflatten(2, (group, -1)).transpose(1, 2).flatten(0, 1)  # [V, A, D]
    keys = log.keys[:, :, :end].repeat_interleave(group, 0)
    asked = [part.transpose(0, 1).repeat_interleave(group, 0) for part in (key, query)]
    total, own = log.decays[:, :end].unsqueeze(1), log.decays[:, first:end].unsqueeze(2)
    lag = (own - total).clamp_(max=0.0).exp_()
    similar, answering = (lag * (part @ keys) for part in asked)
    recalled, answers = (torch.mul(own.exp(), part @ base) for part in asked)
    share = strength.t().unsqueeze(2)
    weights = (share * similar).tril_(first - 1)
    wanted = share * (value.transpose(0, 1) - recalled)
    wanted = wanted - weights[:, :, :first] @ log.corrections[:, :first]
    log.corrections[:, first:end] = torch.linalg.solve_triangular(
        weights[:, :, first:], wanted, upper=False, unitriangular=True
    )
    answers += answering.tril_(first) @ log.corrections[:, :end]
    return answers.transpose(0, 1)


def fold(log: ChunkLog) -> Tensor:
    """The base [K, A, V / K D] after a full chunk."""
    heads, _, width = log.corrections.shape
    group = heads // len(log.base)
    end = log.decays[:, -1:]
    weighted = log.corrections * (end - log.decays).exp().unsqueeze(2)
    added = log.keys.repeat_interleave(group, 0) @ weighted  # [V, A, D]
    added = added.unflatten(0, (-1, group)).transpose(1, 2).flatten(2)
    share = end.exp().view(len(log.base), 1, group, 1)
    folded: Tensor = added + (log.base.unflatten(2, (group, width)) * share).flatten(2)
    return folded
