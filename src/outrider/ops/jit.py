"""Kernels that numba compiles: everything of a layer on the CPU, each row by itself.

A row runs the same instructions whatever rows are beside it: products add up one input feature
after another in a chain of fused multiply-adds for each output, however many rows share the loads
of a weight; everything else is a function of one row. So a row has the same bits in any window.

The delta rule is that of `outrider.ops.delta`. Since rows run in turn, a row solves for its own
correction d at once: `wanted` holds d instead of w, `decays` the decay summed up since the base,
and the inverse is not needed. Entries of the log at and behind a row are never read.

All arrays are fp32 and contiguous. State of several sequences is reached by addresses: one row of
`spans` each, int64, in the order of `FIELDS`.
"""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 16
"""Floats of a vector; a processor with narrower ones takes several, with the same bits."""
VECTORS = 2
BLOCK = LANES * VECTORS
"""Outputs of a product that are computed together, for up to eight rows."""

FIELDS = (
    *("start", "rows", "pages", "page_count"),
    *("base", "wanted", "keys", "decays", "slots", "chunk", "columns", "column_count", "origin"),
)
"""Of a span: position and count of its rows; addresses and sizes in its `SequenceState`."""

ZERO, ONE = np.float32(0), np.float32(1)
PAGE = 64
L2_EPS = np.float32(1e-6)
LEAST = np.float32(-80)
LARGEST = np.float32(88)
LOG2E, LN2_HIGH, LN2_LOW = map(np.float32, (1.44269504, 0.693359375, -2.12194440e-4))
HALF = np.float32(0.5)
EXP = tuple(np.float32(1 / math.factorial(n)) for n in range(7))

CONTRACTED = {"contract", "nsz"}
REORDERED = {"contract", "nsz", "reassoc"}
"""Only for sums whose length is a matter of shape or position."""

inner = numba.njit(fastmath=CONTRACTED, error_model="numpy")
reducing = numba.njit(fastmath=REORDERED, error_model="numpy")

Kernel = Any
SIGNATURES: dict[Kernel, str] = {}


def _entry(signature: str) -> Callable[[Callable[..., None]], Kernel]:
    """What Python calls: kept compiled on disk, and run without the interpreter's lock."""

    def wrap(function: Callable[..., None]) -> Kernel:
        options = {"fastmath": CONTRACTED, "error_model": "numpy", "nogil": True, "cache": True}
        kernel = numba.njit(**options)(function)
        SIGNATURES[kernel] = f"void({signature})"
        return kernel

    return wrap


def compile_all() -> None:
    """Compile every kernel for its one signature; other arguments are errors from then on."""
    for kernel, signature in SIGNATURES.items():
        if not kernel.signatures:
            kernel.compile(signature)
            kernel.disable_compile()


@intrinsic  # type: ignore[untyped-decorator]
def _pointer(_: Any, address: Any) -> Any:
    def generate(_: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], ir.FloatType().as_pointer())

    return types.CPointer(types.float32)(types.int64), generate


@inner
def _array(address, shape):  # type: ignore[no-untyped-def]
    return numba.carray(_pointer(address), shape, np.float32)


def _tile(rows: int) -> Any:
    """The product of `rows` rows with a block of weights [inner, BLOCK], in registers.

    Takes addresses of weights, inputs and outputs (which hold what is added), with the distance in
    floats of two rows of inputs and outputs, and the inner size.
    """

    @intrinsic  # type: ignore[untyped-decorator]
    def tile(_: Any, w: Any, x: Any, x_step: Any, y: Any, y_step: Any, inner: Any) -> Any:
        return types.void(*[types.int64] * 6), _tile_code(rows)

    return tile


def _tile_code(rows: int) -> Callable[..., Any]:
    real, long = ir.FloatType(), ir.IntType(64)
    vector = ir.VectorType(real, LANES)
    undefined = ir.Constant(vector, ir.Undefined)
    first = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
    shape = ir.FunctionType(vector, [vector] * 3)

    def generate(context: Any, b: Any, _: Any, args: Any) -> Any:
        w, x, x_step, y, y_step, inner = args
        fma = cgutils.get_or_insert_function(b.module, shape, f"llvm.fma.v{LANES}f32")
        weights = b.inttoptr(w, vector.as_pointer())
        inputs, outputs = (b.inttoptr(address, real.as_pointer()) for address in (x, y))
        sources = [b.gep(inputs, [b.mul(x_step, long(row))]) for row in range(rows)]
        places, sums = [], []
        for row in range(rows):
            for part in range(VECTORS):
                at = b.add(b.mul(y_step, long(row)), long(part * LANES))
                places.append(b.bitcast(b.gep(outputs, [at]), vector.as_pointer()))
                sums.append(cgutils.alloca_once_value(b, b.load(places[-1], align=4)))
        with cgutils.for_range(b, inner) as loop:
            at = b.mul(loop.index, long(VECTORS))
            near = [b.gep(weights, [b.add(at, long(part))]) for part in range(VECTORS)]
            loaded = [b.load(pointer, align=4) for pointer in near]
            for row, source in enumerate(sources):
                one = b.insert_element(undefined, b.load(b.gep(source, [loop.index])), long(0))
                every = b.shuffle_vector(one, undefined, first)
                for part, weight in enumerate(loaded):
                    total = sums[row * VECTORS + part]
                    b.store(b.call(fma, [weight, every, b.load(total)]), total)
        for place, total in zip(places, sums, strict=True):
            b.store(b.load(total), place, align=4)
        return context.get_dummy_value()

    return generate


_tile1, _tile2, _tile4, _tile8 = (_tile(rows) for rows in (1, 2, 4, 8))


@inner
def _multiply(w, x, x_step, y, y_step, rows, size):  # type: ignore[no-untyped-def]
    """One block for all rows; addresses, as `_tile`."""
    done = 0
    while done + 8 <= rows:
        _tile8(w, x + 4 * done * x_step, x_step, y + 4 * done * y_step, y_step, size)
        done += 8
    if done + 4 <= rows:
        _tile4(w, x + 4 * done * x_step, x_step, y + 4 * done * y_step, y_step, size)
        done += 4
    if done + 2 <= rows:
        _tile2(w, x + 4 * done * x_step, x_step, y + 4 * done * y_step, y_step, size)
        done += 2
    if done < rows:
        _tile1(w, x + 4 * done * x_step, x_step, y + 4 * done * y_step, y_step, size)


@_entry("f4[:, :, ::1], f4[:, ::1], f4[:, ::1], f4[:, ::1]")
def linear(weight, bias, x, y):  # type: ignore[no-untyped-def]
    """y [n, out] = x [n, in] W^T + bias for weight [blocks, in, BLOCK], bias [blocks, BLOCK]."""
    blocks, size = weight.shape[:2]
    rows, out = y.shape
    last = np.empty((rows, BLOCK), np.float32)
    for block in range(blocks):
        first = block * BLOCK
        whole = first + BLOCK <= out
        part = y[:, first:] if whole else last
        step = out if whole else BLOCK
        for row in range(rows):
            for at in range(BLOCK):
                part[row, at] = bias[block, at]
        address = y.ctypes.data + 4 * first if whole else last.ctypes.data
        start = weight.ctypes.data + 4 * block * size * BLOCK
        _multiply(start, x.ctypes.data, size, address, step, rows, size)
        if not whole:
            y[:, first:] = last[:, : out - first]


@inner
def _exp(x):  # type: ignore[no-untyped-def]
    """exp(x) to 1 ulp or so, from LEAST (below it: 1.8e-35) to LARGEST (above it: 1.7e38)."""
    x = min(max(x, LEAST), LARGEST)
    turns = np.floor(x * LOG2E + HALF)
    x = x - turns * LN2_HIGH - turns * LN2_LOW
    y = EXP[6]
    y = y * x + EXP[5]
    y = y * x + EXP[4]
    y = y * x + EXP[3]
    y = y * x + EXP[2]
    y = y * x + EXP[1]
    y = y * x + EXP[0]
    return y * np.int32((np.int32(turns) + np.int32(127)) << np.int32(23)).view(np.float32)


@reducing
def _dot(x, y):  # type: ignore[no-untyped-def]
    total = ZERO
    for at in range(len(x)):
        total += x[at] * y[at]
    return total


@inner
def _unit(x, eps, out):  # type: ignore[no-untyped-def]
    """out = x over its length."""
    share = ONE / np.sqrt(_dot(x, x) + eps)
    for at in range(len(x)):
        out[at] = x[at] * share


@_entry("f4[:, ::1], f8, f4[:, ::1]")
def unit_rows(x, eps, out):  # type: ignore[no-untyped-def]
    """out = rows of x [n, width] over their lengths."""
    small = np.float32(eps)
    for row in range(len(x)):
        _unit(x[row], small, out[row])


@_entry("f4[:, ::1], f4[:, ::1], f8, f4[:, ::1], f4[:, ::1]")
def add_unit_rows(x, y, eps, total, out):  # type: ignore[no-untyped-def]
    """total = x + y [n, width]; out = its rows over their lengths."""
    small = np.float32(eps)
    for row in range(len(x)):
        for at in range(x.shape[1]):
            total[row, at] = x[row, at] + y[row, at]
        _unit(total[row], small, out[row])


@_entry("f4[:, ::1], f4[:, ::1]")
def gated(both, out):  # type: ignore[no-untyped-def]
    """silu(gate) * up for both [n, 2 width], negated gates before negated ups; out [n, width]."""
    width = out.shape[1]
    for row in range(len(out)):
        gate, up, place = both[row, :width], both[row, width:], out[row]
        for at in range(width):
            place[at] = gate[at] * up[at] / (ONE + _exp(gate[at]))


@inner
def _convolve(mixed, columns, origin, start, weight):  # type: ignore[no-untyped-def]
    """The convolution's inputs mixed [n, channels] to its activated outputs, in place; keeps the
    newest of the inputs in columns, as `outrider.state.columns` says."""
    rows, channels = mixed.shape
    taps, size = len(weight), len(columns)
    history, place = taps - 1, start - origin
    joined = np.empty((history + rows, channels), np.float32)
    before = place - history if place >= history else 0
    joined[:history] = columns[before : before + history]
    joined[history:] = mixed
    if place >= history:
        columns[place : place + rows] = mixed
    else:
        columns[:] = joined[len(joined) - size :]
    for row in range(rows):
        out = mixed[row]
        out[:] = joined[row] * weight[0]
        for tap in range(1, taps):
            near, by = joined[row + tap], weight[tap]
            for at in range(channels):
                out[at] += near[at] * by[at]
        for at in range(channels):
            out[at] = out[at] / (ONE + _exp(out[at]))


@inner
def _fold(old, corrections, keys, decays, new):  # type: ignore[no-untyped-def]
    """new [K, A, r D] = the base behind a full chunk that began with old."""
    heads, chunk, width = corrections.shape
    group = heads // len(keys)
    for head in range(heads):
        key, first = head // group, head % group * width
        end = decays[head, chunk - 1]
        share = _exp(end)
        for at in range(keys.shape[1]):
            place, past = new[key, at, first : first + width], old[key, at, first : first + width]
            for i in range(width):
                place[i] = past[i] * share
            for row in range(chunk):
                by, correction = keys[key, at, row] * _exp(end - decays[head, row]), corrections[head, row]
                for i in range(width):
                    place[i] += by * correction[i]


@inner
def _recall(base, key, query, recalled, answer):  # type: ignore[no-untyped-def]
    """recalled = base^T key, answer = base^T query for base [A, width]."""
    recalled[:] = ZERO
    answer[:] = ZERO
    for at in range(len(base)):
        one, k, q = base[at], key[at], query[at]
        for i in range(len(one)):
            recalled[i] += one[i] * k
            answer[i] += one[i] * q


@inner
def _correct(at, strength, weights, corrections, value, out):  # type: ignore[no-untyped-def]
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
def _delta_row(at, mixed, gates, base, wanted, keys, decays, rate, out):  # type: ignore[no-untyped-def]
    """One row at offset `at` of its chunk. mixed: keys, queries, values; gates [2, V]: negated
    strengths and decays before their activation; out [V, D]."""
    key_heads, width, wide = base.shape
    heads, chunk, size = wanted.shape
    group = heads // key_heads
    recalled, answer = np.empty(wide, np.float32), np.empty(wide, np.float32)
    similar = np.empty((2, chunk), np.float32)
    weights = np.empty((2, chunk), np.float32)
    value = np.empty(size, np.float32)
    for key_head in range(key_heads):
        first = key_head * width
        key = mixed[first : first + width]
        query = mixed[key_heads * width + first : key_heads * width + first + width]
        _unit(key, L2_EPS, key)
        _unit(query, L2_EPS, query)
        keys[key_head, :, at] = key
        _recall(base[key_head], key, query, recalled, answer)
        _recall(keys[key_head], key, query, similar[0], similar[1])
        for own in range(group):
            head, part = key_head * group + own, slice(own * size, own * size + size)
            decay = rate[head] * np.log1p(_exp(gates[1, head]))
            total = decay + decays[head, at - 1] if at > 0 else decay
            decays[head, at] = total
            strength, faded = ONE / (ONE + _exp(gates[0, head])), _exp(total)
            for row in range(chunk):
                lag = _exp(total - decays[head, row])
                weights[0, row] = lag * similar[0, row]
                weights[1, row] = lag * similar[1, row]
            given = mixed[2 * key_heads * width + head * size :]
            before, result, found = recalled[part], out[head], answer[part]
            for i in range(size):
                value[i] = strength * (given[i] - faded * before[i])
                result[i] = faded * found[i]
            _correct(at, strength, weights, wanted[head], value, result)


@inner
def _span_states(span, layer, key_heads, heads, key_width, width):  # type: ignore[no-untyped-def]
    """base, wanted, keys and decays of all slots of one layer."""
    slots, chunk = span[8], span[9]
    base = slots * heads * key_width * width
    wanted, keys = slots * heads * chunk * width, slots * key_heads * key_width * chunk
    return (
        _array(span[4] + 4 * layer * base, (slots, key_heads, key_width, heads // key_heads * width)),
        _array(span[5] + 4 * layer * wanted, (slots, heads, chunk, width)),
        _array(span[6] + 4 * layer * keys, (slots, key_heads, key_width, chunk)),
        _array(span[7] + 4 * layer * slots * heads * chunk, (slots, heads, chunk)),
    )


@_entry("f4[:, ::1], i8[:, ::1], i8, UniTuple(i8, 4), f4[:, ::1], f4[::1], f8, f4[:, ::1]")
def mix_delta(projected, spans, layer, shape, conv, rate, eps, out):  # type: ignore[no-untyped-def]
    """From the projection [N, ..] of a delta layer to the input of its last product [N, V D].

    shape: K, V, A, D. The columns of projected are as in `outrider.models.delta_net`.
    """
    key_heads, heads, key_width, width = shape
    channels, size, done = conv.shape[1], heads * width, 0
    for span in spans:
        start, rows, slots, chunk = span[0], span[1], span[8], span[9]
        base, wanted, keys, decays = _span_states(span, layer, key_heads, heads, key_width, width)
        columns = span[10] + 4 * layer * span[11] * channels
        mixed = projected[done : done + rows, :channels].copy()
        _convolve(mixed, _array(columns, (span[11], channels)), span[12], start, conv)
        for row in range(rows):
            number, at = divmod(start + row, chunk)
            slot, past = number % slots, (number - 1) % slots
            if at == 0 and number > 0:
                _fold(base[past], wanted[past], keys[past], decays[past], base[slot])
            given, found = projected[done + row], out[done + row].reshape((heads, width))
            gates = given[channels + size : channels + size + 2 * heads].reshape((2, heads))
            state = base[slot], wanted[slot], keys[slot], decays[slot]
            _delta_row(at, mixed[row], gates, *state, rate, found)
            for head in range(heads):
                result, gate = found[head], given[channels + head * width :]
                _unit(result, np.float32(eps), result)
                for i in range(width):
                    result[i] *= gate[i] / (ONE + _exp(gate[i]))
        done += rows


@inner
def _turn(x, scale, eps, cos, sin):  # type: ignore[no-untyped-def]
    """Norm (unless scale is empty) and rotary embedding of one head x [width], in place."""
    half = len(x) // 2
    if len(scale):
        _unit(x, eps, x)
        for at in range(len(x)):
            x[at] *= scale[at]
    for at in range(half):
        first, second = x[at], x[at + half]
        x[at] = first * cos[at] + second * sin[at]
        x[at + half] = second * cos[at + half] + first * sin[at + half]


@inner
def _attend(query, keys, values, first, last, head, out):  # type: ignore[no-untyped-def]
    """out [width] = attention of one query over positions first .. last of pages."""
    scores = np.empty(last + 1 - first, np.float32)
    largest = np.float32(-np.inf)
    for at in range(first, last + 1):
        score = _dot(query, keys[at // PAGE, head, at % PAGE])
        scores[at - first] = score
        largest = max(largest, score)
    total = ZERO
    out[:] = ZERO
    for at in range(len(scores)):
        scores[at] = _exp(scores[at] - largest)
    for at in range(len(scores)):
        weight = scores[at]
        value = values[(first + at) // PAGE, head, (first + at) % PAGE]
        total += weight
        for i in range(len(out)):
            out[i] += weight * value[i]
    for i in range(len(out)):
        out[i] /= total


@_entry("f4[:, ::1], i8[:, ::1], i8, UniTuple(i8, 4), i8, f4[:, ::1], f8, f4[:, :, ::1], f4[:, ::1]")
def mix_attention(projected, spans, layer, shape, window, scale, eps, turns, out):  # type: ignore[no-untyped-def]
    """From the projection [N, ..] of an attention layer to the input of its last product.

    shape: query heads, key-value heads, width; gated: whether gates follow. window: 0 where all is
    seen. scale [heads, width] or empty. turns: cos and sin [2, max_length, width]. out [N, heads
    width].
    """
    heads, kept, width, gated = shape
    done, group = 0, heads // kept
    for span in spans:
        sizes = (2, span[3], kept, PAGE, width)
        pages = _array(span[2] + 4 * layer * 2 * span[3] * kept * PAGE * width, sizes)
        for row in range(span[1]):
            at, given = span[0] + row, projected[done + row]
            for head in range(heads + kept):
                by = scale[head] if len(scale) else scale[0:0].reshape(-1)
                part = given[head * width : head * width + width]
                _turn(part, by, np.float32(eps), turns[0, at], turns[1, at])
            for head in range(kept):
                for which in range(2):
                    part = (heads + which * kept + head) * width
                    pages[which, at // PAGE, head, at % PAGE] = given[part : part + width]
            first = max(0, at - window + 1) if window > 0 else 0
            for head in range(heads):
                part = slice(head * width, head * width + width)
                result = out[done + row, part]
                _attend(given[part], pages[0], pages[1], first, at, head // group, result)
                if gated:
                    gates = given[(heads + 2 * kept + head) * width :]
                    for i in range(width):
                        result[i] /= ONE + _exp(gates[i])
        done += span[1]
