"""Attention over pages, compiled, with the arithmetic of each row by itself."""

import numpy as np

from outrider.ops.jit import ZERO, add_product, array, close, entry, exp, inner, reducing, unit

PAGE = 64
TOGETHER = 16
"""Rows of a sequence that attend together."""


@inner
def turn(x, scale, eps, cos, sin):
    """Norm (unless scale is empty) and rotary embedding of one head x [width], in place."""
    half = len(x) // 2
    if len(scale):
        unit(x, eps, x)
        for at in range(len(x)):
            x[at] *= scale[at]
    for at in range(half):
        first, second = x[at], x[at + half]
        x[at] = first * cos[at] + second * sin[at]
        x[at + half] = second * cos[at + half] + first * sin[at + half]


@reducing
def _soften(scores):
    """Replace scores by exp(score - largest); returns their sum."""
    largest, total = scores[0], ZERO
    for at in range(len(scores)):
        largest = max(largest, scores[at])
    for at in range(len(scores)):
        scores[at] = exp(scores[at] - largest)
    for at in range(len(scores)):
        total += scores[at]
    return total


@inner
def _attend(queries, keys, values, head, first, last, out):
    """out [n, G, width] = attention of queries [n, G, width] of key-value head `head`.

    keys [pages, heads, width, PAGE], values [pages, heads, PAGE, width]; row r sees positions
    first[r] .. last[r], neither of which falls. Weights of others are zero, which changes no sum.
    """
    rows, group, width = queries.shape
    low, high = first[0] // PAGE, last[-1] // PAGE + 1
    scores = np.zeros((rows * group, (high - low) * PAGE), np.float32)
    wanted, found = queries.reshape((-1, width)), out.reshape((-1, width))
    found[:] = ZERO
    for page in range(low, high):
        at = (page - low) * PAGE
        add_product(wanted, keys[page, head], scores[:, at : at + PAGE])
    totals = np.empty(rows * group, np.float32)
    for row in range(rows * group):
        begin, end = first[row // group] - low * PAGE, last[row // group] + 1 - low * PAGE
        totals[row] = _soften(scores[row, begin:end])
        scores[row, :begin] = ZERO
        scores[row, end:] = ZERO
    for page in range(low, high):
        at = (page - low) * PAGE
        add_product(scores[:, at : at + PAGE], values[page, head], found)
    for row in range(rows * group):
        for i in range(width):
            found[row, i] /= totals[row]


@inner
def attend_heads(projected, shape, keys, values, first, last, out):
    """`_attend` with the queries in rows of `projected`, for every head; out [n, heads width]."""
    heads, kept, width = shape[:3]
    rows, wide = len(out), heads // kept * width
    queries = np.empty((rows, heads // kept, width), np.float32)
    results = np.empty((rows, heads // kept, width), np.float32)
    for head in range(kept):
        near, far = head * wide, (head + 1) * wide
        for row in range(rows):
            queries[row] = projected[row, near:far].reshape(queries.shape[1:])
        _attend(queries, keys, values, head, first, last, results)
        for row in range(rows):
            out[row, near:far] = results[row].reshape(-1)


@inner
def prepare(given, at, shape, scale, eps, turns, keys, values):
    """Turn queries and keys of one row in place, and keep key and value at position `at`."""
    heads, kept, width = shape[:3]
    for head in range(heads + kept):
        by = scale[head] if len(scale) else scale[0:0].reshape(-1)
        part = given[head * width : head * width + width]
        turn(part, by, eps, turns[0, at], turns[1, at])
    for head in range(kept):
        key = (heads + head) * width
        value = key + kept * width
        keys[at // PAGE, head, :, at % PAGE] = given[key : key + width]
        values[at // PAGE, head, at % PAGE] = given[value : value + width]


@entry("f4[:, ::1], i8[:, ::1], i8, UniTuple(i8, 5), f4[:, ::1], f8, f4[:, :, ::1], f4[:, ::1]")
def mix_attention(projected, spans, layer, shape, scale, eps, turns, out):
    """From the projection [N, ..] of an attention layer to the input of its last product.

    shape: query heads, key-value heads, width; whether gates follow; sliding window, or 0.
    scale [heads, width] or empty. turns: cos and sin [2, max_length, width]. out [N, heads width].
    Keys lie in their pages by column, [width, PAGE], so that a page's scores are one product.
    """
    heads, kept, width, gated, window = shape
    done = 0
    for span in spans:
        half = 4 * span[3] * kept * PAGE * width
        keys = array(span[2] + 2 * layer * half, (span[3], kept, width, PAGE))
        values = array(span[2] + (2 * layer + 1) * half, (span[3], kept, PAGE, width))
        for begin in range(0, span[1], TOGETHER):
            start, rows = span[0] + begin, min(TOGETHER, span[1] - begin)
            first, last = np.zeros(rows, np.int64), np.empty(rows, np.int64)
            for row in range(rows):
                at = start + row
                prepare(
                    projected[done + row], at, shape, scale, np.float32(eps), turns, keys, values
                )
                first[row] = max(0, at - window + 1) if window > 0 else 0
                last[row] = at
            part = slice(done, done + rows)
            attend_heads(projected[part], shape, keys, values, first, last, out[part])
            if gated:
                for row in range(rows):
                    close(out[done + row], projected[done + row, (heads + 2 * kept) * width :])
            done += rows
