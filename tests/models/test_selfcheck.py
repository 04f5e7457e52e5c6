"""The proof at load holds for exact kernels and fails for others."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from outrider.models.decoder import Mlp
from outrider.models.selfcheck import rows_are_invariant
from tests.helpers.runs import make_decoder


@pytest.mark.parametrize("name", ["qwen3_5", "qwen3"])
def test_exact_kernels_pass(name: str, tmp_path: Path) -> None:
    assert rows_are_invariant(make_decoder(name, tmp_path))


class RowCountDependent(Mlp):
    """Rounds differently beside other rows, as many kernels do."""

    def __call__(self, x: Tensor) -> Tensor:
        out = super().__call__(x)
        return out if len(x) == 1 else out * torch.tensor(1.0 + 2.0**-22)


def test_a_kernel_that_depends_on_the_row_count_is_found(tmp_path: Path) -> None:
    decoder = make_decoder("qwen3_5", tmp_path)
    layer = decoder.layers[0]
    broken = replace(
        layer, mlp=RowCountDependent(layer.mlp.gate_up, layer.mlp.down, layer.mlp.kernels)
    )
    assert not rows_are_invariant(replace(decoder, layers=(broken, *decoder.layers[1:])))
