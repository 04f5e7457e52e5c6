"""Moving memory on the calling thread alone.

torch shares even a millisecond's copying among its threads, which then wait for more in a loop that
takes processors from the threads of `outrider.kernels.workers`.
"""

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

ALONE = 1 << 15
"""Elements from which torch's threads share an operation."""


def zeros(sizes: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    if device.type != "cpu":
        return torch.zeros(sizes, dtype=dtype, device=device)
    result = torch.empty(sizes, dtype=dtype)
    ctypes.memset(result.data_ptr(), 0, result.nbytes)
    return result


def copy(source: Tensor, target: Tensor) -> None:
    """target = source, of one shape and type."""
    if source.device.type != "cpu":
        target.copy_(source)
    elif source.numel() > 0:
        target.view(torch.uint8).numpy()[:] = source.view(torch.uint8).numpy()


def gather(table: Tensor, places: Tensor) -> Tensor:
    """Rows `places` [N] of table [.., width]."""
    at_once = max(1, (ALONE - 1) // table.shape[1])
    if table.device.type != "cpu" or len(places) <= at_once:
        return functional.embedding(places, table)
    result = table.new_empty(len(places), table.shape[1])
    for part, out in zip(places.split(at_once), result.split(at_once), strict=True):
        torch.index_select(table, 0, part, out=out)
    return result
