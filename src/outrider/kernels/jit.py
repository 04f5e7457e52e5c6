"""Kernels that numba compiles: everything of a layer on the CPU, each row by itself.

A row runs the same instructions whatever rows are beside it: products add up one input feature
after another in a chain of fused multiply-adds for each output, however many rows share the loads
of a weight; everything else is a function of one row. So a row has the same bits in any window.

All arrays are fp32 and contiguous. State of several sequences is reached by addresses: one row of
`spans` each, int64, in the order of `FIELDS`.
"""

import math
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from llvmlite.binding import get_host_cpu_features
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_NUMBA: Any = numba  # untyped: its own types reject half of what it takes

BLOCK = 32
"""Outputs of a product whose weights lie side by side."""
WIDE = bool(get_host_cpu_features().get("avx512f"))
LANES = 16 if WIDE else 8
"""Floats of a vector. A chain has the same bits whatever the vectors are."""
MOST = 8 if WIDE else 6
"""Rows that share the loads of a weight: their sums, two vectors each, fit the registers."""
PANEL = 512 if WIDE else 128
"""Inputs of a block whose weights stay in a near cache while all rows pass, and with vectors of 8
also how far ahead tiles fetch."""

FIELDS = (
    *("start", "rows", "pages", "page_count"),
    *("base", "wanted", "keys", "decays", "slots", "chunk", "columns", "column_count", "origin"),
)
"""Of a span: position and count of its rows; addresses and sizes in its `SequenceState`."""

ZERO, ONE = np.float32(0), np.float32(1)
LEAST = np.float32(-80)
LARGEST = np.float32(88)
LOG2E, LN2_HIGH, LN2_LOW = map(np.float32, (1.44269504, 0.693359375, -2.12194440e-4))
HALF = np.float32(0.5)
EXP = tuple(np.float32(1 / math.factorial(n)) for n in range(7))

CONTRACTED = {"contract", "nsz"}
REORDERED = {"contract", "nsz", "nnan", "reassoc"}
"""Only for sums whose length is a matter of shape or position."""

inner = _NUMBA.njit(fastmath=CONTRACTED, error_model="numpy")
reducing = _NUMBA.njit(fastmath=REORDERED, error_model="numpy")

Kernel = Any
SIGNATURES: dict[Kernel, str] = {}


def entry(signature: str, *, parts: bool = True) -> Callable[[Callable[..., None]], Kernel]:
    """An entry that Python calls: kept compiled on disk, and run without the interpreter's lock.

    Does the part from its first argument up to its second, of rows, heads or blocks, or where there
    are no `parts` takes no such arguments and does all.
    """

    def wrap(function: Callable[..., None]) -> Kernel:
        kernel: Kernel = _NUMBA.njit(
            fastmath=CONTRACTED,
            error_model="numpy",
            nogil=True,
            cache=bool(_NUMBA.config.CACHE_DIR),
        )(function)
        SIGNATURES[kernel] = f"void({'i8, i8, ' if parts else ''}{signature})"
        return kernel

    return wrap


def compile_module(name: str) -> None:
    """Compile the kernels of one module, each for its one signature; other arguments are errors
    from then on."""
    for kernel, signature in SIGNATURES.items():
        if kernel.py_func.__module__ == name and not kernel.signatures:
            kernel.compile(signature)
            kernel.disable_compile()


@intrinsic
def _pointer(_: Any, address: Any = 0) -> Any:
    def generate(_: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], ir.FloatType().as_pointer())

    return types.CPointer(types.float32)(types.int64), generate


@inner
def array(address, shape):
    return _NUMBA.carray(_pointer(address), shape, np.float32)


def _tile_of(
    _: Any, rows: Any, w: Any, w_step: Any, x: Any, x_step: Any, y: Any, y_step: Any, n: Any
) -> Any:
    """The product of up to MOST `rows` with a block of weights [n, BLOCK], in registers.

    Two vectors of its columns at a time, or all columns for one row or two, which read memory line
    after line. Takes addresses of weights, inputs and outputs (which hold what is added), each with
    the distance of its rows in floats.
    """
    long = ir.IntType(64)

    def generate(context: Any, b: Any, _: Any, args: Any) -> Any:
        after = b.append_basic_block()
        choice = b.switch(args[0], after)
        for count in range(1, MOST + 1):
            wide = LANES * 2 if count > 2 else BLOCK
            choice.add_case(long(count), b.append_basic_block())
            b.position_at_end(choice.cases[-1][1])
            for begin in range(0, BLOCK, wide):
                _tile_code(b, count, args[1:], range(begin, begin + wide, LANES))
            b.branch(after)
        b.position_at_end(after)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 8), generate


_tile: Any = intrinsic(_tile_of)


def _tile_code(b: Any, rows: int, args: Any, columns: range) -> None:
    real, long = ir.FloatType(), ir.IntType(64)
    vector = ir.VectorType(real, LANES)
    undefined = ir.Constant(vector, ir.Undefined)
    first = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
    shape = ir.FunctionType(vector, [vector] * 3)
    w, w_step, x, x_step, y, y_step, inner = args
    fma = cgutils.get_or_insert_function(b.module, shape, f"llvm.fma.v{LANES}f32")
    weights, inputs, outputs = (b.inttoptr(at, real.as_pointer()) for at in (w, x, y))
    sources = [b.gep(inputs, [b.mul(x_step, long(row))]) for row in range(rows)]
    places, sums = [], []
    for row in range(rows):
        for column in columns:
            at = b.add(b.mul(y_step, long(row)), long(column))
            places.append(b.bitcast(b.gep(outputs, [at]), vector.as_pointer()))
            sums.append(cgutils.alloca_once_value(b, b.load(places[-1], align=4)))
    with cgutils.for_range(b, inner) as loop:
        at = b.mul(loop.index, w_step)
        near = [b.gep(weights, [b.add(at, long(column))]) for column in columns]
        loaded = [b.load(b.bitcast(one, vector.as_pointer()), align=4) for one in near]
        if rows > 2 and not WIDE:
            _fetch(b, b.gep(near[0], [b.mul(w_step, long(PANEL))]))
        for row, source in enumerate(sources):
            one = b.insert_element(undefined, b.load(b.gep(source, [loop.index])), long(0))
            every = b.shuffle_vector(one, undefined, first)
            for number, weight in enumerate(loaded):
                total = sums[row * len(columns) + number]
                b.store(b.call(fma, [weight, every, b.load(total)]), total)
    for place, total in zip(places, sums, strict=True):
        b.store(b.load(total), place, align=4)


def _fetch(b: Any, place: Any) -> None:
    """Have the second cache fetch a line of the next panel: a tile that multiplies reads little."""
    byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
    shape = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
    prefetch = cgutils.get_or_insert_function(b.module, shape, "llvm.prefetch.p0")
    read, second_cache, data = 0, 2, 1
    b.call(prefetch, [b.bitcast(place, byte), number(read), number(second_cache), number(data)])


@inner
def multiply(w, w_step, x, x_step, y, y_step, rows, size):
    """One block for all rows; arguments as of `_tile_of`.

    Few rows come first: their tiles read weights line after line, as memory likes it.
    """
    for begin in range(0, size, PANEL):
        part = min(PANEL, size - begin)
        near, at, out, left = w + 4 * begin * w_step, x + 4 * begin, y, rows
        while left:
            some = left % MOST or MOST
            _tile(some, near, w_step, at, x_step, out, y_step, part)
            at, out, left = at + 4 * some * x_step, out + 4 * some * y_step, left - some


@entry("f4[:, :, ::1], f4[:, ::1], f4[:, ::1], f4[:, ::1]")
def linear(begin, end, weight, bias, x, y):
    """y [n, out] = x [n, in] W^T + bias for weight [blocks, in, BLOCK], bias [blocks, BLOCK]; the
    outputs of blocks from `begin` to `end`."""
    size = weight.shape[1]
    rows, out = y.shape
    rest = np.empty((rows, BLOCK), np.float32)
    for block in range(begin, end):
        first = block * BLOCK
        whole = first + BLOCK <= out
        part = y[:, first:] if whole else rest
        step = out if whole else BLOCK
        for row in range(rows):
            for at in range(BLOCK):
                part[row, at] = bias[block, at]
        address = y.ctypes.data + 4 * first if whole else rest.ctypes.data
        start = weight.ctypes.data + 4 * block * size * BLOCK
        multiply(start, BLOCK, x.ctypes.data, size, address, step, rows, size)
        if not whole:
            y[:, first:] = rest[:, : out - first]


@inner
def exp(x):
    """The exponential to 1 ulp or so, from LEAST (below: 1.8e-35) to LARGEST (above: 1.7e38)."""
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
def dot(x, y):
    total = ZERO
    for at in range(len(x)):
        total += x[at] * y[at]
    return total


@inner
def unit(x, eps, out):
    """out = x over its length."""
    share = ONE / np.sqrt(dot(x, x) + eps)
    for at in range(len(x)):
        out[at] = x[at] * share


@inner
def normalise(x, scale, eps, out):
    """out = x over its length, times scale: an RMS norm as `outrider.kernels.norm` has it."""
    share = ONE / np.sqrt(dot(x, x) + eps)
    for at in range(len(x)):
        out[at] = x[at] * share * scale[at]


@entry("f4[:, ::1], f4[::1], f8, f4[:, ::1]")
def norm_rows(begin, end, x, scale, eps, out):
    """out = the RMS norm of rows of x [n, width]; scale [width]."""
    small = np.float32(eps)
    for row in range(begin, end):
        normalise(x[row], scale, small, out[row])


@entry("f4[:, ::1], f4[:, ::1], f4[::1], f8, f4[:, ::1], f4[:, ::1]")
def add_norm_rows(begin, end, x, y, scale, eps, total, out):
    """total = x + y [n, width]; out = the RMS norm of its rows."""
    small = np.float32(eps)
    for row in range(begin, end):
        for at in range(x.shape[1]):
            total[row, at] = x[row, at] + y[row, at]
        normalise(total[row], scale, small, out[row])


@entry("f4[:, ::1], f4[:, ::1]")
def add_rows(begin, end, x, y):
    """x += y for both [n, width]."""
    for row in range(begin, end):
        for at in range(x.shape[1]):
            x[row, at] += y[row, at]


@entry("f4[:, ::1], f4[:, ::1]")
def gated(begin, end, both, out):
    """silu(gate) * up for both [n, 2 width], gates before ups; out [n, width]."""
    width = out.shape[1]
    for row in range(begin, end):
        gate, up, place = both[row, :width], both[row, width:], out[row]
        for at in range(width):
            place[at] = gate[at] * up[at] / (ONE + exp(-gate[at]))


@inner
def close(x, gates):
    """x times sigmoid(gates), in place."""
    for at in range(len(x)):
        x[at] /= ONE + exp(-gates[at])


@inner
def add_product(x, w, y):
    """y [n, out] += x [n, size] w, for w [size, out]; the rows of all are contiguous."""
    whole = w.shape[1] // BLOCK * BLOCK
    steps = w.strides[0] // 4, x.strides[0] // 4, y.strides[0] // 4
    for at in range(0, whole, BLOCK):
        near, out = w.ctypes.data + 4 * at, y.ctypes.data + 4 * at
        multiply(near, steps[0], x.ctypes.data, steps[1], out, steps[2], len(x), len(w))
    for row in range(len(x)):
        for at in range(whole, w.shape[1]):
            for i in range(len(w)):
                y[row, at] += x[row, i] * w[i, at]
