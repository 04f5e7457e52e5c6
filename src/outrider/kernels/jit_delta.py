"""The gated delta rule and its convolution, compiled, row by row.

The rule, and what the log holds, are those of `outrider.kernels.reference`; rows run in turn, and
each solves for its own correction at once. Entries of the log at and after a row are never read.
"""

import numpy as np

from outrider.kernels.jit import ONE, ZERO, array, entry, exp, inner, normalise, unit

L2_EPS = np.float32(1e-6)


@inner
def _convolve(mixed, columns, origin, start, weight, first, last):
    """The convolution's inputs in channels first .. last of mixed [n, channels] to its activated
    outputs, in place; keeps the newest inputs in columns, as `outrider.state.delta_log` says."""
    rows, history, size = len(mixed), len(weight) - 1, len(columns)
    place = start - origin
    joined = np.empty((history + rows, last - first), np.float32)
    before = place - history if place >= history else 0
    joined[:history] = columns[before : before + history, first:last]
    joined[history:] = mixed[:, first:last]
    if place >= history:
        columns[place : place + rows, first:last] = joined[history:]
    else:
        columns[:, first:last] = joined[len(joined) - size :]
    for row in range(rows):
        out = mixed[row, first:last]
        near, by = joined[row], weight[0, first:last]
        for at in range(len(out)):
            out[at] = near[at] * by[at]
        for tap in range(1, history + 1):
            near, by = joined[row + tap], weight[tap, first:last]
            for at in range(len(out)):
                out[at] += near[at] * by[at]
        for at in range(len(out)):
            out[at] = out[at] / (ONE + exp(-out[at]))


@inner
def _fold(old, corrections, keys, decays, new, first_key, last_key):
    """new [K, A, r D] = the base after a full chunk that began with old, of some key heads."""
    heads, chunk, width = corrections.shape
    group, lags = heads // len(keys), np.empty(chunk, np.float32)
    for head in range(first_key * group, last_key * group):
        key, first = head // group, head % group * width
        end = decays[head, chunk - 1]
        share = exp(end)
        for row in range(chunk):
            lags[row] = exp(end - decays[head, row])
        for at in range(keys.shape[1]):
            place, past = new[key, at, first : first + width], old[key, at, first : first + width]
            for i in range(width):
                place[i] = past[i] * share
            for row in range(chunk):
                by, correction = keys[key, at, row] * lags[row], corrections[head, row]
                for i in range(width):
                    place[i] += by * correction[i]


@inner
def _recall(base, key, query, recalled, answer):
    """recalled = base^T key, answer = base^T query for base [A, width]."""
    recalled[:] = ZERO
    answer[:] = ZERO
    for at in range(len(base)):
        one, k, q = base[at], key[at], query[at]
        for i in range(len(one)):
            recalled[i] += one[i] * k
            answer[i] += one[i] * q


@inner
def _correct(at, strength, weights, corrections, value, out):
    """Solve for row `at` of corrections [C, D] and add what outputs have of all of them.

    weights [2, C]: of earlier corrections in this one, and of all in out [D]. value [D] is w.
    """
    own = corrections[at]
    own[:] = value
    for row in range(at):
        earlier, less, more = corrections[row], strength * weights[0, row], weights[1, row]
        for i in range(len(own)):
            own[i] -= less * earlier[i]
            out[i] += more * earlier[i]
    more = weights[1, at]
    for i in range(len(own)):
        out[i] += more * own[i]


@inner
def _delta_row(at, mixed, gates, base, log, keys, decays, rate, out, first_key, last_key):
    """Some key heads of a row at offset `at` of its chunk. mixed: keys, queries, values; gates [2,
    V]: strengths and decays before their activation; log [V, C, D]: corrections; out [V, D]."""
    key_heads, width, wide = base.shape
    heads, chunk, size = log.shape
    group = heads // key_heads
    recalled, answer = np.empty(wide, np.float32), np.empty(wide, np.float32)
    similar = np.empty((2, chunk), np.float32)
    weights = np.empty((2, chunk), np.float32)
    value = np.empty(size, np.float32)
    for key_head in range(first_key, last_key):
        first = key_head * width
        key = mixed[first : first + width]
        query = mixed[key_heads * width + first : key_heads * width + first + width]
        unit(key, L2_EPS, key)
        unit(query, L2_EPS, query)
        keys[key_head, :, at] = key
        _recall(base[key_head], key, query, recalled, answer)
        _recall(keys[key_head], key, query, similar[0], similar[1])
        for own in range(group):
            head, part = key_head * group + own, slice(own * size, own * size + size)
            decay = rate[head] * np.log1p(exp(gates[1, head]))
            total = decay + decays[head, at - 1] if at > 0 else decay
            decays[head, at] = total
            strength, faded = ONE / (ONE + exp(-gates[0, head])), exp(total)
            for row in range(chunk):
                lag = exp(total - decays[head, row])
                weights[0, row] = lag * similar[0, row]
                weights[1, row] = lag * similar[1, row]
            given = mixed[2 * key_heads * width + head * size :]
            before, result, found = recalled[part], out[head], answer[part]
            for i in range(size):
                value[i] = strength * (given[i] - faded * before[i])
                result[i] = faded * found[i]
            _correct(at, strength, weights, log[head], value, result)


@inner
def _span_states(span, layer, key_heads, heads, key_width, width):
    """base, corrections, keys and decays of all slots of one layer."""
    slots, chunk = span[8], span[9]
    base = slots * heads * key_width * width
    log, keys = slots * heads * chunk * width, slots * key_heads * key_width * chunk
    return (
        array(
            span[4] + 4 * layer * base, (slots, key_heads, key_width, heads // key_heads * width)
        ),
        array(span[5] + 4 * layer * log, (slots, heads, chunk, width)),
        array(span[6] + 4 * layer * keys, (slots, key_heads, key_width, chunk)),
        array(span[7] + 4 * layer * slots * heads * chunk, (slots, heads, chunk)),
    )


@entry("f4[:, ::1], i8[:, ::1], i8, UniTuple(i8, 4), f4[:, ::1], f4[::1], f4[::1], f8, f4[:, ::1]")
def mix_delta(begin, end, projected, spans, layer, shape, conv, rate, norm, eps, out):
    """From the projection [N, ..] of a delta layer to the input of its last product [N, V D].

    Key heads from `begin` to `end`. shape: K, V, A, D. norm [D]: scale of the outputs' norm. The
    columns of projected are as in `outrider.models.delta_net`.
    """
    key_heads, heads, key_width, width = shape
    channels, size, done = conv.shape[1], heads * width, 0
    values, group = 2 * key_heads * key_width, heads // key_heads
    for span in spans:
        start, rows, slots, chunk = span[0], span[1], span[8], span[9]
        base, log, keys, decays = _span_states(span, layer, key_heads, heads, key_width, width)
        columns = array(span[10] + 4 * layer * span[11] * channels, (span[11], channels))
        mixed = np.empty((rows, channels), np.float32)
        for first, wide in (0, key_width), (values // 2, key_width), (values, group * width):
            low, high = first + begin * wide, first + end * wide
            mixed[:, low:high] = projected[done : done + rows, low:high]
            _convolve(mixed, columns, span[12], start, conv, low, high)
        for row in range(rows):
            number, at = divmod(start + row, chunk)
            slot, past = number % slots, (number - 1) % slots
            if at == 0 and number > 0:
                old = base[past], log[past], keys[past], decays[past]
                _fold(*old, base[slot], begin, end)
            given, found = projected[done + row], out[done + row].reshape((heads, width))
            gates = given[channels + size : channels + size + 2 * heads].reshape((2, heads))
            state = base[slot], log[slot], keys[slot], decays[slot]
            _delta_row(at, mixed[row], gates, *state, rate, found, begin, end)
            for head in range(begin * group, end * group):
                result, gate = found[head], given[channels + head * width :]
                normalise(result, norm, np.float32(eps), result)
                for i in range(width):
                    result[i] *= gate[i] / (ONE + exp(-gate[i]))
        done += rows
