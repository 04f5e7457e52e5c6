"""How wide windows are, how many are in flight, and how many rows a state can take back."""

from dataclasses import replace

from outrider.config.settings import RunConfig, SpeculativeConfig
from outrider.draft.block.block_drafter import BlockModel
from outrider.engine.facade import WindowLimits

SERIAL_ROWS = 16
"""Rows of a window that the controller may use up when windows run one at a time."""
PIPELINED_ROWS = 8


def window_limits(speculative: SpeculativeConfig) -> WindowLimits:
    """Rows per window, windows in flight, run-ahead; what "auto" leaves open is filled in."""
    window, drafts = speculative.verify_window, speculative.max_draft_tokens
    serial = window.depth == 1 and window.runahead_tokens is None
    width = window.max_tokens
    if width is None and serial:
        width = SERIAL_ROWS if drafts == "auto" else drafts + 1
    return WindowLimits(
        width=PIPELINED_ROWS if width is None else width,
        depth=window.depth,
        runahead=window.runahead_tokens,
    )


def fit(windows: WindowLimits, speculative: SpeculativeConfig, draft: object) -> WindowLimits:
    """Windows no wider than what drafts can fill, where the width was left open."""
    opened = speculative.verify_window.max_tokens is None and windows.serial
    if not isinstance(draft, BlockModel) or not opened:
        return windows
    return replace(windows, width=min(windows.width, draft.config.max_drafts + 1))


def capacity_for(config: RunConfig, windows: WindowLimits) -> int:
    """Rows that may be taken back: all that may be in flight, unless the user set it."""
    if config.state.capacity is not None:
        return config.state.capacity
    if windows.runahead:
        return windows.runahead + 1
    # While a window is in flight, the last row of the one before it may be pending.
    return windows.width * windows.depth + (windows.depth > 1)
