"""Faster CPU forms of the reference kernels, mathematically equal to transformers' own.

The reference is written for clarity: it writes each chunk into a slice of one tensor, so that its
backward pass zero-fills a full-size tensor per chunk, and it solves the same triangular system
twice. Training here is CPU time, so the recipe swaps these forms in through the module attributes,
and `tests/demo` checks that both give the same numbers.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch.optim import _muon
from transformers.models.qwen3_5 import modeling_qwen3_5


def has_half() -> bool:
    """True if the processor multiplies in bf16; where it does not, such products take ten times
    as long as in fp32."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def half_precision() -> torch.autocast:
    """Matrix products in bf16 where that pays."""
    return torch.autocast("cpu", torch.bfloat16, enabled=has_half())


def orthogonal(
    grad: torch.Tensor, factors: tuple[float, float, float], steps: int, eps: float
) -> torch.Tensor:
    """Muon's iteration in fp32: torch's rounds to bf16 first. grad and result [out, in]."""
    x = grad.T if grad.shape[0] > grad.shape[1] else grad
    x = x / x.norm().clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.T
        x = factors[0] * x + (factors[1] * gram + factors[2] * gram @ gram) @ x
    return x.T if grad.shape[0] > grad.shape[1] else x


def _heads_first(x: torch.Tensor) -> torch.Tensor:
    """[B, T, H, ...] -> contiguous fp32 [B, H, T, ...]."""
    return x.transpose(1, 2).to(torch.float32, memory_format=torch.contiguous_format)


def _l2norm(x: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + eps)


def _chunked(x: torch.Tensor, size: int) -> torch.Tensor:
    """[B, H, T, ...] -> [B, H, T / size, size, ...], T already padded."""
    return x.reshape(*x.shape[:2], -1, size, *x.shape[3:])


def chunk_gated_delta_rule(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    chunk_size: int = 64,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    **_: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Drop-in for `torch_chunk_gated_delta_rule`: q, k [B,T,Hk,dk], v [B,T,Hv,dv], g [B,T,Hv].

    One triangular solve for both right-hand sides, and the chunk loop over `unbind` views that are
    stacked once, so that the backward pass is linear in the number of chunks.
    """
    dtype, length = query.dtype, key.shape[1]
    query, key, value, beta, g = (_heads_first(x) for x in (query, key, value, beta, g))
    if use_qk_l2norm_in_kernel:
        query, key = _l2norm(query), _l2norm(key)
    query = query * query.shape[-1] ** -0.5
    groups = value.shape[1] // key.shape[1]
    query, key = (x.repeat_interleave(groups, dim=1) for x in (query, key))
    pad = -length % chunk_size
    if pad:
        query, key, value = (F.pad(x, (0, 0, 0, pad)) for x in (query, key, value))
        beta, g = (F.pad(x, (0, pad)) for x in (beta, g))
    k_beta, v_beta = key * beta.unsqueeze(-1), value * beta.unsqueeze(-1)
    query, key, k_beta, v_beta, g = (
        _chunked(x, chunk_size) for x in (query, key, k_beta, v_beta, g)
    )

    cum = g.cumsum(-1)
    grow = cum.exp().unsqueeze(-1)
    upper = torch.ones(chunk_size, chunk_size, dtype=torch.bool, device=cum.device).triu(1)
    decay = (cum.unsqueeze(-1) - cum.unsqueeze(-2)).masked_fill(upper, float("-inf")).exp()
    key_t = key.transpose(-1, -2)
    system, inside = (k_beta @ key_t) * decay, (query @ key_t) * decay
    right = torch.cat([v_beta, k_beta * grow], dim=-1)
    solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    new_values, k_cumdecay = solved.split([value.shape[-1], key.shape[-1]], dim=-1)
    key_out = (key * (cum[..., -1:] - cum).exp().unsqueeze(-1)).transpose(-1, -2)
    decay_out = cum[..., -1].exp()[..., None, None]

    batch, heads = query.shape[:2]
    state = (
        query.new_zeros(batch, heads, key.shape[-1], value.shape[-1])
        if initial_state is None
        else initial_state.float()
    )
    rows = []
    parts = (
        x.unbind(2) for x in (query * grow, inside, new_values, k_cumdecay, key_out, decay_out)
    )
    for q_i, inside_i, v_i, k_i, key_i, decay_i in zip(*parts, strict=True):
        delta = v_i - k_i @ state
        rows.append(q_i @ state + inside_i @ delta)
        state = state * decay_i + key_i @ delta
    out = torch.cat(rows, dim=2)[:, :, :length].transpose(1, 2)
    out = out.to(dtype, memory_format=torch.contiguous_format)
    return out, (state if output_final_state else None)


def recurrent_gated_delta_rule(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    **_: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Drop-in for `torch_recurrent_gated_delta_rule` on one token with a state: T = 1."""
    assert initial_state is not None
    assert query.shape[1] == 1
    dtype, groups = query.dtype, value.shape[2] // key.shape[2]
    query, key = (x[:, 0].float().repeat_interleave(groups, dim=1) for x in (query, key))
    if use_qk_l2norm_in_kernel:
        query, key = _l2norm(query), _l2norm(key)
    state = initial_state.float() * g[:, 0].float().exp()[..., None, None]
    known = (key.unsqueeze(-2) @ state).squeeze(-2)
    delta = (value[:, 0].float() - known) * beta[:, 0].float().unsqueeze(-1)
    state = torch.addcmul(state, key.unsqueeze(-1), delta.unsqueeze(-2))
    out = ((query * query.shape[-1] ** -0.5).unsqueeze(-2) @ state).squeeze(-2)
    return out.unsqueeze(1).to(dtype), (state if output_final_state else None)


def install() -> None:
    """Put the faster kernels in place of the module's references (for the recipe only)."""
    modeling_qwen3_5.torch_chunk_gated_delta_rule = chunk_gated_delta_rule
    modeling_qwen3_5.torch_recurrent_gated_delta_rule = recurrent_gated_delta_rule
    if not has_half():
        _muon._zeropower_via_newtonschulz = orthogonal
