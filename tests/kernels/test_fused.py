"""Compiled kernels against plain arithmetic in double precision, and a row against itself."""

import logging
import math
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from outrider.kernels import fused, linear
from outrider.kernels.fused import load_fused
from outrider.kernels.selftest import Kernels

SHAPES = ((32, 8), (40, 33), (7, 5), (776, 256))
"""Outputs and inputs of products; most do not fill their last block."""


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("biased", [False, True])
def test_a_product_is_right_and_each_row_has_its_bits_alone(shape, biased):
    torch.manual_seed(0)
    weight, rows = torch.randn(shape), torch.randn(37, shape[1])
    bias = torch.randn(shape[0]) if biased else None
    run = load_fused().linear(weight, bias)
    alone = torch.cat([run(row) for row in rows.split(1)])
    wide = rows.double() @ weight.double().T + (bias.double() if biased else 0.0)
    assert (alone - wide).abs().max() < 1e-4
    for count in (2, 3, 4, 7, 8, 9, 15, 16, 31, 37):
        assert torch.equal(run(rows[:count]), alone[:count])
        assert torch.equal(run(rows[-count:]), alone[-count:])


def test_the_exponential_is_exact_to_the_last_bits_and_never_infinite():
    jit = load_fused().jit
    for x in np.linspace(-79, 87, 4001, dtype=np.float32):
        assert jit.exp(x) == pytest.approx(math.exp(x), rel=3e-7)
    assert jit.exp(np.float32(-1e9)) == pytest.approx(math.exp(-80), rel=1e-6)
    assert math.isfinite(jit.exp(np.float32(1e9)))


def test_rows_norms_and_gates():
    torch.manual_seed(0)
    x, y, kernels = torch.randn(5, 24), torch.randn(5, 24), load_fused()
    total, unit = kernels.add_unit(x, y, 0.5)
    assert torch.equal(total, x + y)
    wanted = total.double() / (total.double().square().sum(1, keepdim=True) + 0.5).sqrt()
    torch.testing.assert_close(unit, wanted.float(), rtol=1e-5, atol=1e-6)
    assert torch.equal(kernels.unit(total, 0.5), unit)
    gate, up = x.chunk(2, 1)
    wanted = torch.nn.functional.silu(gate) * up
    torch.testing.assert_close(kernels.gated(-x), wanted, rtol=1e-5, atol=1e-6)


def test_where_numba_is_missing_torch_does_it_and_the_report_says_so(monkeypatch):
    kernels = Kernels(exact=True)
    assert kernels.fuse(torch.zeros(1))
    assert kernels.report() == {"layers": "compiled"}
    assert Kernels(exact=True).fuse(torch.zeros(1, dtype=torch.bfloat16)) is None
    monkeypatch.setattr(fused, "find_spec", lambda name: None)
    without = Kernels(exact=True)
    assert without.fuse(torch.zeros(1)) is None
    assert "pip install numba" in without.report()["layers"]
    assert without.make_linear(torch.randn(8, 8)).plan.kernel != linear.FUSED


def test_other_types_are_refused_instead_of_compiled_anew():
    with pytest.raises(TypeError, match="No matching definition"):
        load_fused().gated(torch.zeros(1, 4, dtype=torch.float64))


def test_kernels_are_kept_on_disk_and_compiling_is_announced(tmp_path, caplog, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = fused._cache_folder()
    assert folder is not None
    assert folder.parent == tmp_path / ".cache" / "outrider"
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    assert fused._cache_folder() is None
    with caplog.at_level(logging.WARNING):
        fused.announce(None, "jit")
        fused.announce(folder, "jit")
    assert "no writable home" in caplog.messages[0]
    assert str(folder) in caplog.messages[1]
    (folder / "jit.linear-1.nbi").write_text("", encoding="utf-8")
    fused.announce(folder, "jit")
    assert len(caplog.messages) == 2


def test_importing_layers_loads_no_compiler():
    code = "import sys, outrider.models.load; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env=dict(os.environ)).returncode == 0
