"""Short causal depthwise convolution over columns, from elementwise products and a short sum."""

from torch import Tensor


def causal_conv(columns: Tensor, weight: Tensor) -> Tensor:
    """columns [n + k - 1, channels] contiguous, oldest first; weight [k, channels].

    Returns [n, channels].
    """
    taps, channels = weight.shape
    rows = columns.shape[0] - taps + 1
    windows = columns.as_strided((rows, taps, channels), (channels, channels, 1))
    return (windows * weight).sum(1)
