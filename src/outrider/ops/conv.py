"""Short causal depthwise convolution over columns, from elementwise operations only."""

from torch import Tensor


def causal_conv(columns: Tensor, weight: Tensor) -> Tensor:
    """columns [n + k - 1, channels], oldest first; weight [k, channels]. Returns [n, channels]."""
    taps = weight.shape[0]
    rows = columns.shape[0] - taps + 1
    out = columns[:rows] * weight[0]
    for tap in range(1, taps):
        out = out + columns[tap : tap + rows] * weight[tap]
    return out
