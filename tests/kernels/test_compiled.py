"""Compiled kernels against plain arithmetic in double precision, and a row against itself."""

import logging
import math
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from outrider.kernels import loading
from outrider.kernels.compiled import CompiledKernels
from outrider.kernels.loading import load_kernels
from outrider.kernels.norm import rms_norm
from outrider.models import load
from outrider.models.load import LoadOptions, choose_kernels

SHAPES = ((32, 8), (40, 33), (7, 5), (776, 256))
"""Outputs and inputs of products; most do not fill their last block."""


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("biased", [False, True])
def test_a_product_is_right_and_each_row_has_its_bits_alone(shape, biased):
    torch.manual_seed(0)
    weight, rows = torch.randn(shape), torch.randn(37, shape[1])
    bias = torch.randn(shape[0]) if biased else None
    run = CompiledKernels().linear(weight, bias)
    alone = torch.cat([run(row) for row in rows.split(1)])
    wide = rows.double() @ weight.double().T + (bias.double() if biased else 0.0)
    assert (alone - wide).abs().max() < 1e-4
    for count in (2, 3, 4, 7, 8, 9, 15, 16, 31, 37):
        assert torch.equal(run(rows[:count]), alone[:count])
        assert torch.equal(run(rows[-count:]), alone[-count:])


def test_the_exponential_is_exact_to_the_last_bits_and_never_infinite():
    jit = load_kernels("jit")
    for x in np.linspace(-79, 87, 4001, dtype=np.float32):
        assert jit.exp(x) == pytest.approx(math.exp(x), rel=3e-7)
    assert jit.exp(np.float32(-1e9)) == pytest.approx(math.exp(-80), rel=1e-6)
    assert math.isfinite(jit.exp(np.float32(1e9)))


@pytest.mark.parametrize("width", [4, 40, 264, 704])
def test_norms_have_their_bits_alone(width):
    torch.manual_seed(0)
    rows, norm = torch.randn(64, width) * 4, rms_norm(torch.rand(width), 1e-6)
    kernels = CompiledKernels()
    for apply in (norm, lambda x: kernels.norm(x, norm)):
        alone = torch.cat([apply(row) for row in rows.split(1)])
        for count in (1, 2, 3, 5, 8, 13, 17, 33, 64):
            assert torch.equal(apply(rows[:count]), alone[:count])


def test_where_numba_is_missing_torch_does_it_and_says_so(monkeypatch, caplog):
    assert choose_kernels(LoadOptions()).name == "compiled"
    assert choose_kernels(LoadOptions(reference=True)).name == "torch"
    assert not caplog.messages
    monkeypatch.setattr(load, "has_numba", lambda: False)
    assert choose_kernels(LoadOptions()).name == "torch"
    assert "not exact" in caplog.messages[0]
    assert "numba" in caplog.messages[0]
    assert len(caplog.messages) == 1


def test_other_types_are_refused_instead_of_compiled_anew():
    with pytest.raises(TypeError, match="No matching definition"):
        CompiledKernels().gated(torch.zeros(1, 4, dtype=torch.float64))


def test_kernels_are_kept_on_disk_and_compiling_is_announced(tmp_path, caplog, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = loading.cache_folder()
    assert folder is not None
    assert folder.parent == tmp_path / ".cache" / "outrider"
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    assert loading.cache_folder() is None
    with caplog.at_level(logging.WARNING):
        loading.announce(None, "jit")
        loading.announce(folder, "jit")
    assert "no writable home" in caplog.messages[0]
    assert str(folder) in caplog.messages[1]
    (folder / "jit.linear-1.nbi").write_text("", encoding="utf-8")
    loading.announce(folder, "jit")
    assert len(caplog.messages) == 2


def test_importing_layers_loads_no_compiler():
    code = "import sys, outrider.models.load; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env=dict(os.environ)).returncode == 0
