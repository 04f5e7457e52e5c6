"""A block drafter's passes, compiled, each as one call.

Its layers are few and small, and what torch and Python do around a product takes as long as one.
Weights lie where `jit.linear` wants them; `weights` holds the addresses of each and of its bias.
"""

import numpy as np

from outrider.kernels.jit import (
    BLOCK,
    add_norm_rows,
    array,
    entry,
    gated,
    inner,
    linear,
    norm_rows,
)
from outrider.kernels.jit_attention import PAGE, attend_head, keep_head, turn


@inner
def _multiply(weights, x, y):
    blocks = -(-y.shape[1] // BLOCK)
    weight = array(weights[0], (blocks, x.shape[1], BLOCK))
    linear(0, blocks, weight, array(weights[1], (blocks, BLOCK)), x, y)


@inner
def _mix(projected, start, kept, seen, shape, sharpness, scale, eps, turns, out):
    """As `mix_attention` for rows from `start` on, of which r sees seen[0, r] .. seen[1, r].

    kept [2, pages, heads, PAGE, width]: keys, by column, and values. Of rows beyond those of `out`,
    only these are written.
    """
    keys = kept[0].reshape((kept.shape[1], kept.shape[2], kept.shape[4], PAGE))
    for head in range(shape[1]):
        keep_head(head, projected, start, shape, scale, eps, turns, keys, kept[1])
        attend_head(head, projected, shape, sharpness, keys, kept[1], seen[0], seen[1], out)


@entry(
    "f4[:, ::1], i8, i8, f4[:, :, :, :, :, ::1], i8[:, :, ::1], i8[:, :, ::1], UniTuple(i8, 4), "
    "f8, f4[:, :, ::1], f4[:, ::1], UniTuple(f8, 2), f4[:, :, ::1]",
    parts=False,
)
def run_block(x, wanted, start, kept, seen, weights, shape, sharpness, scales, norms, eps, turns):
    """Replace the first `wanted` rows of x [n, hidden], which lie at positions from `start` on, by
    the layers' normed outputs.

    kept, of all layers, and seen: as `_mix` has them. weights [layers, 4, 2]: of queries, keys and
    values, the attention's output, gates and ups, the network's output. shape: query and key-value
    heads, width, and inner size. sharpness: factor of all scores. scales [layers, heads, width]:
    of heads. norms [2 layers + 1, hidden]: of rows, two in a layer, and after the last. eps: of
    rows, of heads.
    """
    (heads, few, width, size), rows = shape, len(x)
    unit, more = np.empty_like(x), np.empty_like(x)
    projected = np.empty((rows, (heads + 2 * few) * width), np.float32)
    mixed = np.empty((rows, heads * width), np.float32)
    both, closed = np.empty((rows, 2 * size), np.float32), np.empty((rows, size), np.float32)
    norm_rows(0, rows, x, norms[0], eps[0], unit)
    for at in range(len(weights)):
        _multiply(weights[at, 0], unit, projected)
        if at == len(weights) - 1:
            x, unit, more, mixed = x[:wanted], unit[:wanted], more[:wanted], mixed[:wanted]
            both, closed = both[:wanted], closed[:wanted]
        heads_norm = scales[at], np.float32(eps[1])
        sharp = np.float32(sharpness)
        _mix(projected, start, kept[at], seen[at], shape, sharp, *heads_norm, turns, mixed)
        _multiply(weights[at, 1], mixed, more)
        add_norm_rows(0, len(x), x, more, norms[2 * at + 1], eps[0], x, unit)
        _multiply(weights[at, 2], unit, both)
        gated(0, len(both), both, closed)
        _multiply(weights[at, 3], closed, more)
        add_norm_rows(0, len(x), x, more, norms[2 * at + 2], eps[0], x, unit)
    x[:] = unit


@entry(
    "f4[:, ::1], i8, f4[:, :, :, :, :, ::1], i8[:, ::1], f4[::1], f4[:, ::1], UniTuple(f8, 2), "
    "f4[:, :, ::1]",
    parts=False,
)
def keep_features(features, start, kept, weights, norm, scale, eps, turns):
    """Turn features [n, width] of positions from `start` on into all layers' keys and values.

    weights [2, 2]: of features to hidden states, and of those to keys and values. norm [hidden]: of
    hidden states. scale [layers * heads, width]: of keys. eps: of rows, of heads.
    """
    rows, (layers, _, pages, heads, _, width) = len(features), kept.shape
    read = np.empty((rows, len(norm)), np.float32)
    both = np.empty((rows, 2 * layers * heads * width), np.float32)
    _multiply(weights[0], features, read)
    norm_rows(0, rows, read, norm, eps[0], read)
    _multiply(weights[1], read, both)
    new = both.reshape((rows, 2, layers, heads, width))
    for row in range(rows):
        at = start + row
        page, place = at // PAGE, at % PAGE
        for layer in range(layers):
            keys = kept[layer, 0].reshape((pages, heads, width, PAGE))
            for head in range(heads):
                key = new[row, 0, layer, head]
                by = scale[layer * heads + head]
                turn(key, by, np.float32(eps[1]), turns[0, at], turns[1, at])
                keys[page, head, :, place] = key
                kept[layer, 1, page, head, place] = new[row, 1, layer, head]
