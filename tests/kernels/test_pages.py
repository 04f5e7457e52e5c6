"""Weights in large pages: arrays of their own that live as long as somebody has them."""

import gc
import mmap
import weakref

import numpy as np
import pytest

from outrider.kernels import pages
from outrider.kernels.pages import Pages


@pytest.fixture
def opened(monkeypatch):
    """The pieces of memory that were asked for, while they live."""
    pieces, ask = weakref.WeakSet(), mmap.mmap

    def remember(*given, **named):
        piece = ask(*given, **named)
        pieces.add(piece)
        return piece

    monkeypatch.setattr(mmap, "mmap", remember)
    return pieces


def test_arrays_lie_apart_and_share_pieces_that_end_with_them(opened):
    kept, shapes = Pages(), [(3, 5), (7,), (2, 4, 4)]
    arrays = [kept.empty(shape) for shape in shapes]
    for number, array in enumerate(arrays):
        assert array.dtype == np.float32
        assert array.flags.c_contiguous
        assert array.flags.writeable
        assert array.ctypes.data % pages.LINE == 0
        array[...] = number
    assert [array.shape for array in arrays] == shapes
    assert all((array == number).all() for number, array in enumerate(arrays))
    assert len(opened) == 1
    del array, arrays[1:]
    gc.collect()
    assert len(opened) == 1
    del arrays
    gc.collect()
    assert not opened
    assert kept.empty((2,)).shape == (2,)


def test_what_does_not_fit_begins_another_piece(opened, monkeypatch):
    monkeypatch.setattr(pages, "PIECE", 4096)
    kept = Pages()
    arrays = [kept.empty((count,)) for count in (512, 512, 1, 5000)]
    assert len(opened) == 3
    assert [len(array) for array in arrays] == [512, 512, 1, 5000]


def test_systems_without_such_pages_give_usual_ones(opened, monkeypatch):
    monkeypatch.delattr(mmap, "MADV_HUGEPAGE")
    assert Pages().empty((2, 3)).shape == (2, 3)
    assert not opened
