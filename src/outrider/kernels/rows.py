"""Row treatments that make a kernel give a row the same bits alone and among others.

Matrix kernels choose their inner loops by the number of rows. Padding the row count to a multiple
keeps them in one family of loops. Which treatment is enough on this processor is measured, not
assumed: `outrider.kernels.selftest`.
"""

import torch
from torch import Tensor

EVERY_ROW_COUNT = 16


def padded_rows(num_rows: int, multiple: int) -> int:
    """The smallest multiple of `multiple` that holds `num_rows`."""
    return -(-num_rows // multiple) * multiple


def stocked_rows(num_rows: int) -> int:
    """The next row count that products are run with: all up to 16, then four in each octave.

    oneDNN builds a kernel for each row count of each shape, 0.3 MiB or more, and keeps a thousand.
    """
    if num_rows <= EVERY_ROW_COUNT:
        return num_rows
    return padded_rows(num_rows, 1 << (num_rows - 1).bit_length() - 3)


def pad_rows(x: Tensor, rows: int) -> Tensor:
    """Append zero rows to x [..., n, width] until it has `rows` rows."""
    missing = rows - x.shape[-2]
    return torch.nn.functional.pad(x, (0, 0, 0, missing)) if missing else x
