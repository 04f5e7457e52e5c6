"""Greedy tokens of a block's rows, each in the light of the one before it, compiled."""

import numpy as np

from outrider.kernels.jit import BLOCK, ONE, ZERO, dot, entry, exp, inner, multiply, reducing

INFINITY = np.int32(0x7F800000)
"""The bits of an exponent that belongs to no number."""


@inner
def _add_bias(code, weight, row):
    """row [1, vocab] += weight code, for weight [blocks, rank, BLOCK], code [1, rank]."""
    rank, vocab = code.shape[1], row.shape[1]
    last = np.empty((1, BLOCK), np.float32)
    for block in range(len(weight)):
        first, near = block * BLOCK, weight.ctypes.data + 4 * block * rank * BLOCK
        whole = first + BLOCK <= vocab
        if not whole:
            last[:, : vocab - first] = row[:, first:]
        out = row.ctypes.data + 4 * first if whole else last.ctypes.data
        multiply(near, BLOCK, code.ctypes.data, rank, out, BLOCK, 1, rank)
        if not whole:
            row[:, first:] = last[:, : vocab - first]


@inner
def _sigmoid(x):
    return ONE / (ONE + exp(-x))


@inner
def _tanh(x):
    return np.float32(2) * _sigmoid(np.float32(2) * x) - ONE


@inner
def _mix(code, hidden, state, mix, bias, out):
    """out [1, rank]: a code [rank] in the light of its row's hidden state, by a head of the gated
    kind, or of the rnn kind, whose `state` [rank] goes on; mix [blocks, in, BLOCK], bias [blocks,
    BLOCK]."""
    rank = len(code)
    kept = mix.shape[1] - rank - len(hidden)
    joined, sums = np.empty((1, mix.shape[1]), np.float32), np.empty((1, bias.size), np.float32)
    if kept:
        joined[0, :kept], joined[0, kept : kept + rank] = state, code
        joined[0, kept + rank :] = hidden
    else:
        joined[0, : len(hidden)], joined[0, len(hidden) :] = hidden, code
    sums[0] = bias.reshape(-1)
    _add_bias(joined, mix, sums)
    for at in range(rank):
        gate = _sigmoid(sums[0, at])
        if kept:
            state[at] = gate * state[at] + (ONE - gate) * _tanh(sums[0, rank + at])
            out[0, at] = _tanh(sums[0, 2 * rank + at])
        else:
            out[0, at] = gate * code[at]


@inner
def _is_finite(row):
    bits, most = row.view(np.int32), np.int32(0)
    for at in range(len(bits)):
        most = max(most, bits[at] & INFINITY)
    return most != INFINITY


@reducing
def _largest(row):
    largest = row[0]
    for at in range(len(row)):
        largest = max(largest, row[at])
    return largest


@reducing
def _top_probability(row, largest):
    total = ZERO
    for at in range(len(row)):
        total += exp(row[at] - largest)
    return ONE / total


@entry(
    "f4[:, ::1], f4[:, ::1], UniTuple(f4[::1], 2), f8, f4[:, ::1], f4[:, :, ::1], f4[:, :, ::1], "
    "f4[:, ::1], i8[::1], i8, f8, i8[::1], f4[::1]",
    parts=False,
)
def choose_rows(
    logits, hidden, sure, offset, code, weight, mix, bias, ids, token, least, tokens, chances
):
    """Greedy tokens of a block's rows, each corrected by the one before, until one is unlikely.

    logits [n, vocab] are corrected in place, by weight [blocks, rank, BLOCK] of code [vocab, rank],
    or not where `weight` is empty; codes go through `mix` (see `_mix`) where that is not. hidden
    [n or n + 1, H]: a row before those that predict only moves the state. ids: target ids of the
    vocabulary, empty where they are the same. A row is unlikely below `least`, by the confidence
    head `sure`, `offset` (see `ConfidenceHead`) over `hidden`, or where that is empty by the
    largest probability. Writes tokens and chances [n]; the row that ends it all has the token -1,
    and the chance NaN if it holds something that is no number.
    """
    by_hidden, by_token = sure
    unread, rank = len(hidden) - len(tokens), code.shape[1]
    state, mixed = np.zeros(rank, np.float32), np.empty((1, rank), np.float32)
    for at in range(-unread if len(mix) else 0, len(tokens)):
        if len(mix):
            _mix(code[token], hidden[unread + at], state, mix, bias, mixed)
            if at < 0:
                continue
        row = logits[at]
        if len(weight):
            near = mixed if len(mix) else code[token : token + 1]
            _add_bias(near, weight, logits[at : at + 1])
        tokens[at], chances[at] = -1, np.nan
        if not _is_finite(row):
            return
        largest, best = _largest(row), 0
        while row[best] != largest:
            best += 1
        if len(by_hidden):
            total = dot(hidden[unread + at], by_hidden) + np.float32(offset)
            total += by_token[token] if len(by_token) else ZERO
            chances[at] = _sigmoid(total)
        else:
            chances[at] = _top_probability(row, largest)
        if chances[at] < least:
            return
        token = ids[best] if len(ids) else best
        tokens[at] = token
