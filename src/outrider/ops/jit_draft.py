"""Greedy tokens of a block's rows, each in the light of the one before it, compiled."""

import numpy as np

from outrider.ops.jit import BLOCK, ONE, ZERO, dot, entry, exp, inner, multiply, reducing

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
    "f4[:, ::1], f4[:, ::1], UniTuple(f4[::1], 2), f8, f4[:, ::1], f4[:, :, ::1], i8[::1], i8, f8, "
    "i8[::1], f4[::1]",
    parts=False,
)
def choose_rows(logits, hidden, sure, offset, code, weight, ids, token, least, tokens, chances):
    """Greedy tokens of a block's rows, each corrected by the one before, until one is unlikely.

    logits [n, vocab] are corrected in place, by weight [blocks, rank, BLOCK] of code [vocab, rank],
    or not where `weight` is empty. ids: target ids of the vocabulary, empty where they are the
    same. A row is unlikely below `least`, by the confidence head `sure`, `offset` (see
    `ConfidenceHead`) over hidden [n, H], or where that is empty by the largest probability. Writes
    tokens and chances [n]; the row that ends it all has the token -1, and the chance NaN if it
    holds something that is no number.
    """
    by_hidden, by_token = sure
    for at in range(len(tokens)):
        row = logits[at]
        if len(weight):
            _add_bias(code[token : token + 1], weight, logits[at : at + 1])
        tokens[at], chances[at] = -1, np.nan
        if not _is_finite(row):
            return
        largest, best = _largest(row), 0
        while row[best] != largest:
            best += 1
        if len(by_hidden):
            total = dot(hidden[at], by_hidden) + np.float32(offset)
            total += by_token[token] if len(by_token) else ZERO
            chances[at] = ONE / (ONE + exp(-total))
        else:
            chances[at] = _top_probability(row, largest)
        if chances[at] < least:
            return
        token = ids[best] if len(ids) else best
        tokens[at] = token
