"""The network of a block drafter: rows of a block over the target's features and each other.

DFlash (arXiv 2602.06036). Context rows have no queries of their own: every layer turns the same
projected features into keys and values, once, when they come. Block rows write theirs behind the
context, where the next block overwrites them.
"""

from copy import copy
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from outrider.draft.block.formats import View
from outrider.models.attention import AttentionLayer
from outrider.models.decoder import DecoderLayer
from outrider.ops.linear import Linear
from outrider.ops.norm import RmsNorm, unit_rows
from outrider.ops.rope import rotate
from outrider.state.spec import PAGE, AttentionSpec, StateSpec


class BlockContext:
    """Keys and values [layers, 2, heads, room, width] of one sequence's context rows.

    The first `length` positions are true features of the target, and final: nothing that a block
    wrote is ever counted. Room grows by doubling, in pages.
    """

    def __init__(self, trunk: "Trunk") -> None:
        mixer = trunk.mixer(0)
        sizes = len(trunk.layers), 2, mixer.config.kv_heads, 0, mixer.config.width
        self.storage = torch.empty(sizes, dtype=trunk.dtype, device=trunk.cos.device)
        self.length = 0

    def copy(self) -> "BlockContext":
        """An independent one with the same rows."""
        twin = copy(self)
        twin.storage = self.storage.clone()
        return twin

    def reserve(self, length: int) -> None:
        """Make room for `length` positions."""
        sizes = list(self.storage.shape)
        if length > sizes[3]:
            sizes[3] = max(-(-length // PAGE) * PAGE, 2 * sizes[3]) - sizes[3]
            self.storage = torch.cat([self.storage, self.storage.new_empty(sizes)], 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trunk:
    """Weights of a block drafter's layers.

    read: tapped features to hidden size, then `feature_norm`. keep: to keys and values of all
    layers at once, heads of all layers' keys first; `key_norm` [layers * heads, width]. cos, sin:
    [max_length, width]. norm: behind the last layer.
    """

    layers: tuple[DecoderLayer, ...]
    views: tuple[View, ...]
    read: Linear
    feature_norm: RmsNorm
    keep: Linear
    key_norm: RmsNorm
    norm: RmsNorm
    cos: Tensor
    sin: Tensor
    dtype: torch.dtype

    @property
    def max_length(self) -> int:
        return len(self.cos)

    @property
    def state_spec(self) -> StateSpec:
        """What the context of one sequence holds."""
        shape = self.mixer(0).config
        attention = AttentionSpec(
            layers=len(self.layers),
            heads=shape.kv_heads,
            width=shape.width,
            element_bytes=self.dtype.itemsize,
        )
        return StateSpec(attention=attention, delta=None, policy="log", capacity=0)

    def mixer(self, layer: int) -> AttentionLayer:
        mixer = self.layers[layer].mixer
        assert isinstance(mixer, AttentionLayer)
        return mixer

    def consume(self, features: Tensor, context: BlockContext) -> None:
        """Append features [n, taps * hidden], those of the next n positions, to the context."""
        start, rows = context.length, len(features)
        context.reserve(start + rows)
        kept = self.keep(self.feature_norm(self.read(features)))
        keys, values = kept.view(rows, 2, -1, context.storage.shape[-1]).unbind(1)
        rotate(self.key_norm(keys), *self._turns(start, rows), out=keys)
        place = context.storage.narrow(3, start, rows)
        layers, heads = place.shape[0], place.shape[2]
        for part, new in enumerate((keys, values)):
            place[:, part].copy_(new.view(rows, layers, heads, -1).permute(1, 2, 0, 3))
        context.length += rows

    def run(self, x: Tensor, context: BlockContext) -> Tensor:
        """Rows of a block, embedded [n, hidden], behind the context; normed outputs [n, hidden]."""
        start, rows = context.length, len(x)
        context.reserve(start + rows)
        turns = self._turns(start, rows)
        seen = {view: _visible(view, start, rows, x.device) for view in set(self.views)}
        for index, (layer, view) in enumerate(zip(self.layers, self.views, strict=True)):
            projected = self.mixer(index).project(unit_rows(x, layer.eps))
            low, mask = seen[view]
            kept = context.storage[index]
            x = x + self._attend(self.mixer(index), projected, turns, kept, (low, start), mask)
            x = x + layer.mlp(unit_rows(x, layer.eps))
        return self.norm(x)

    def _turns(self, start: int, rows: int) -> tuple[Tensor, Tensor]:
        """cos and signed sin [n, 1, width] of positions from `start` on."""
        cos, sin = (table.narrow(0, start, rows).unsqueeze(1) for table in (self.cos, self.sin))
        return cos, sin

    def _attend(
        self,
        mixer: AttentionLayer,
        projected: Tensor,
        turns: tuple[Tensor, Tensor],
        kept: Tensor,
        seen: tuple[int, int],
        mask: Tensor | None,
    ) -> Tensor:
        """Attention of block rows over positions `seen[0]` .. and themselves at `seen[1]` .."""
        config, rows, (low, start) = mixer.config, len(projected), seen
        place = projected.narrow(1, 0, mixer.queries + mixer.keys).view(rows, -1, config.width)
        rotate(place if mixer.head_norm is None else mixer.head_norm(place), *turns, out=place)
        new = projected.narrow(1, mixer.queries, 2 * mixer.keys)
        new = new.view(rows, 2, config.kv_heads, config.width).permute(1, 2, 0, 3)
        kept.narrow(2, start, rows).copy_(new)
        keys, values = kept.narrow(2, low, start + rows - low).unsqueeze(1).unbind(0)
        query = place.narrow(1, 0, config.heads).transpose(0, 1).unsqueeze(0)
        out = functional.scaled_dot_product_attention(
            query, keys, values, attn_mask=mask, scale=1.0, enable_gqa=True
        )
        return mixer.out(out[0].transpose(0, 1).flatten(1))


def _visible(view: View, start: int, rows: int, device: torch.device) -> tuple[int, Tensor | None]:
    """The first position that a block from `start` on sees, and which row sees what behind it.

    The mask is bool [rows, positions], None where every row sees everything.
    """
    low, window = 0, view.window
    if window is not None:
        low = max(0, start - window + (0 if view.from_anchor else 1))
    if not view.causal and (window is None or view.from_anchor):
        return low, None
    at = torch.arange(start, start + rows, device=device)[:, None]
    keys = torch.arange(low, start + rows, device=device)
    seen = torch.ones(rows, len(keys), dtype=torch.bool, device=device)
    if view.causal:
        seen &= keys <= at
    if window is not None and not view.from_anchor:
        seen &= (at - keys).abs() < window
    return low, seen
