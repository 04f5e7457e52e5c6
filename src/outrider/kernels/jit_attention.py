"""Attention over pages, compiled, with the arithmetic of each row by itself."""

import numpy as np

from outrider.kernels.jit import ZERO, add_product, array, close, entry, exp, inner, reducing, unit

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
def _prepare(given, at, head, shape, scale, eps, turns, keys, values):
    """Turn key-value head `head` of a row and its queries in place; keep key and value at `at`."""
    heads, kept, width = shape[:3]
    group = heads // kept
    for number in range(group + 1):
        turned = head * group + number if number < group else heads + head
        by = scale[turned] if len(scale) else scale[0:0].reshape(-1)
        part = given[turned * width : turned * width + width]
        turn(part, by, eps, turns[0, at], turns[1, at])
    key = (heads + head) * width
    value = key + kept * width
    keys[at // PAGE, head, :, at % PAGE] = given[key : key + width]
    values[at // PAGE, head, at % PAGE] = given[value : value + width]


@inner
def keep_head(head, projected, start, shape, scale, eps, turns, keys, values):
    """Turn queries and keys of one key-value head of a projection from position `start` on, and
    keep keys and values."""
    for row in range(len(projected)):
        _prepare(projected[row], start + row, head, shape, scale, eps, turns, keys, values)


@inner
def attend_head(head, projected, shape, sharpness, keys, values, first, last, out):
    """Attention of one key-value head, as `keep_head` left it, for its columns of out
    [n, heads width]. sharpness: factor of all scores."""
    heads, kept, width = shape[:3]
    rows, group = len(out), heads // kept
    low, high = head * group * width, (head + 1) * group * width
    queries = np.empty((rows, group, width), np.float32)
    results = np.empty((rows, group, width), np.float32)
    for row in range(rows):
        given = projected[row, low:high].reshape((group, width))
        for one in range(group):
            for at in range(width):
                queries[row, one, at] = given[one, at] * sharpness
    _attend(queries, keys, values, head, first, last, results)
    for row in range(rows):
        out[row, low:high] = results[row].reshape(-1)


@inner
def _pages(span, layer, kept, width):
    """Keys [pages, kept, width, PAGE] and values [pages, kept, PAGE, width] of a span's layer."""
    half = 4 * span[3] * kept * PAGE * width
    keys = array(span[2] + 2 * layer * half, (span[3], kept, width, PAGE))
    return keys, array(span[2] + (2 * layer + 1) * half, (span[3], kept, PAGE, width))


@entry("f4[:, ::1], i8[:, ::1], i8, UniTuple(i8, 5), f4[:, ::1], f8, f4[:, :, ::1]")
def keep_attention(begin, end, projected, spans, layer, shape, scale, eps, turns):
    """Prepare what attention reads, from the projection [N, ..] of its layer: queries and keys
    turned where they are, keys and values kept.

    Key-value heads from `begin` to `end`. shape: query heads, key-value heads, width; whether gates
    follow; sliding window, or 0. scale [heads, width] or empty. turns: cos and sin [2, max_length,
    width]. Keys lie in their pages by column, [width, PAGE], so that a page's scores are one
    product.
    """
    done = 0
    for span in spans:
        keys, values = _pages(span, layer, shape[1], shape[2])
        given = projected[done : done + span[1]]
        for head in range(begin, end):
            rest = np.float32(eps), turns, keys, values
            keep_head(head, given, span[0], shape, scale, *rest)
        done += span[1]


@entry("f4[:, ::1], i8[:, ::1], i8, UniTuple(i8, 5), f8, f4[:, ::1]")
def mix_attention(begin, end, projected, spans, layer, shape, sharpness, out):
    """From what `keep_attention` left to the input of the last product, out [N, heads width].

    sharpness: factor of all scores.

    Of all pairs of up to `TOGETHER` rows and a key-value head those from `begin` to `end`, in an
    order in which equal numbers of them are about equal work: first, last, second, last but one.
    """
    heads, kept, width, gated, window = shape
    sharpness = np.float32(sharpness)
    done, group, gates, unit, units = 0, heads // kept, (heads + 2 * kept) * width, 0, 0
    for span in spans:
        units += -(-span[1] // TOGETHER) * kept
    for span in spans:
        keys, values = _pages(span, layer, kept, width)
        for near in range(0, span[1], TOGETHER):
            start, rows = span[0] + near, min(TOGETHER, span[1] - near)
            first, last = np.zeros(rows, np.int64), np.empty(rows, np.int64)
            for row in range(rows):
                last[row] = start + row
                first[row] = max(0, last[row] - window + 1) if window > 0 else 0
            given, found = projected[done : done + rows], out[done : done + rows]
            for head in range(kept):
                turn_of = 2 * unit if 2 * unit < units else 2 * (units - unit) - 1
                unit += 1
                if turn_of < begin or turn_of >= end:
                    continue
                attend_head(head, given, shape, sharpness, keys, values, first, last, found)
                low, high = head * group * width, (head + 1) * group * width
                for row in range(rows if gated else 0):
                    close(found[row, low:high], given[row, gates + low : gates + high])
            done += rows
