"""The network of a block drafter: rows of a block over the target's features and each other.

DFlash (arXiv 2602.06036). Context rows have no queries of their own: every layer turns the same
projected features into keys and values, once, when they come. Block rows write theirs after the
context, where the next block overwrites them. A pass runs by torch's operations, or as one call of
a compiled kernel.
"""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from outrider.draft.block.block_config import View
from outrider.kernels.compiled import Product
from outrider.kernels.loading import load_kernels
from outrider.kernels.norm import RmsNorm
from outrider.kernels.operations import Linear
from outrider.kernels.rotary import rotate
from outrider.models.attention import AttentionLayer
from outrider.models.decoder import DecoderLayer
from outrider.state.spec import PAGE, AttentionSpec, StateSpec

ONE_THREADS = 1 << 19
"""Weights of the largest product that threads would not share; a pass in one call has one."""
Array = Any
"""A numpy array, as compiled kernels take them."""
Visible = tuple[list[int], list[int]]
"""The first and the last position that each row of a block sees; neither ever falls."""


class BlockContext:
    """Keys and values [layers, 2, pages, heads, room, width] of one sequence's context rows.

    The first `length` positions are true features of the target, and final: nothing that a block
    wrote is ever counted. It grows by doubling, compiled layers' in pages of PAGE positions, with
    keys by column, torch's as a single page.
    """

    def __init__(self, trunk: "Trunk") -> None:
        shape = trunk.mixer(0).config
        self._axis, pages, room = (2, 0, PAGE) if trunk.compiled else (4, 1, 0)
        sizes = len(trunk.layers), 2, pages, shape.kv_heads, room, shape.width
        self.storage = torch.empty(sizes, dtype=trunk.dtype, device=trunk.cos_sin.device)
        self.length = 0

    def copy(self) -> "BlockContext":
        """An independent one with the same rows."""
        twin = copy(self)
        twin.storage = self.storage.clone()
        return twin

    def reserve(self, length: int) -> None:
        """Make room for `length` positions; what is masked must be finite there."""
        sizes, unit = list(self.storage.shape), PAGE if self._axis == 4 else 1
        held = sizes[self._axis]
        needed = -(-length // PAGE) * unit
        if needed > held:
            sizes[self._axis] = max(needed, 2 * held) - held
            self.storage = torch.cat([self.storage, self.storage.new_zeros(sizes)], self._axis)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledTrunk:
    """Passes of a trunk by `jit_block`, with its weights as the kernels take them.

    products: keeps alive what addresses lead to. layers int64 [layers, 4, 2]: addresses of weight
    and bias of queries, keys and values, of the attention's output, of gates and ups, and of the
    network's output. context int64 [2, 2]: those of `read` and `keep`. shape: query and key-value
    heads, width, inner size. sharpness: factor of scores. head_scales [layers, heads, width],
    key_scales [layers * heads, width], row_scales [2 layers + 1, hidden], before each part of a
    layer and after the last, and `keep_scale` [hidden]: of norms. eps: of rows, of heads. cos_sin:
    as the trunk has it.
    """

    products: tuple[Product, ...]
    layers: Array
    context: Array
    shape: tuple[int, int, int, int]
    sharpness: float
    head_scales: Array
    key_scales: Array
    row_scales: Array
    keep_scale: Array
    eps: tuple[float, float]
    cos_sin: Array

    def run(self, x: Tensor, wanted: int, start: int, kept: Tensor, seen: Tensor) -> Tensor:
        """Normed outputs of the first `wanted` rows x [n, hidden] after `start` context rows.

        They replace the rows. seen [layers, 2, n]: first and last position that each row sees.
        """
        load_kernels("jit_block").run_block(
            x.numpy(),
            wanted,
            start,
            kept.numpy(),
            seen.numpy(),
            self.layers,
            self.shape,
            self.sharpness,
            self.head_scales,
            self.row_scales,
            self.eps,
            self.cos_sin,
        )
        return x.narrow(0, 0, wanted)

    def keep(self, features: Tensor, start: int, kept: Tensor) -> None:
        """Write keys and values of features [n, width] at positions from `start` on."""
        load_kernels("jit_block").keep_features(
            features.contiguous().numpy(),
            start,
            kept.numpy(),
            self.context,
            self.keep_scale,
            self.key_scales,
            self.eps,
            self.cos_sin,
        )


def compiled_trunk(
    layers: Sequence[DecoderLayer],
    consumers: Sequence[Linear],
    norms: tuple[RmsNorm, RmsNorm, RmsNorm],
    cos_sin: Tensor,
) -> CompiledTrunk | None:
    """The compiled form of a trunk, None where kernels or any product are torch's.

    consumers: its `read` and `keep`. norms: its `key_norm`, `keep_norm` and `norm`.
    """
    mixers = [layer.mixer for layer in layers if isinstance(layer.mixer, AttentionLayer)]
    mlps = [layer.mlp for layer in layers]
    linears = list(consumers)
    for mixer, mlp in zip(mixers, mlps, strict=True):
        linears += [mixer.project, mixer.out, mlp.gate_up, mlp.down]
    products = [one for one in linears if isinstance(one, Product)]
    if len(products) < len(linears):
        return None
    if torch.get_num_threads() > 1 and max(one.weight.size for one in products) > ONE_THREADS:
        return None
    places = [[one.weight.ctypes.data, one.bias.ctypes.data] for one in products]
    addresses = torch.tensor(places).numpy()
    mix, (key_norm, keep_norm, norm) = mixers[0].mix, norms
    none = torch.empty(0, mix.width)
    heads = [mixer.mix.head_norm for mixer in mixers]
    rows = [*(one for layer in layers for one in (layer.norm, layer.mlp_norm)), norm]
    return CompiledTrunk(
        products=tuple(products),
        layers=addresses[2:].reshape(-1, 4, 2),
        context=addresses[:2],
        shape=(mix.heads, mix.kv_heads, mix.width, mlps[0].down.in_features),
        sharpness=mix.scale,
        head_scales=torch.stack([one.scale if one else none for one in heads]).numpy(),
        key_scales=key_norm.scale.numpy(),
        row_scales=torch.stack([one.scale for one in rows]).numpy(),
        keep_scale=keep_norm.scale.numpy(),
        eps=(norm.eps, key_norm.eps),
        cos_sin=cos_sin.numpy(),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Trunk:
    """Weights of a block drafter's layers.

    read: tapped features to hidden size. keep: these, after `keep_norm`, to keys and values of all
    layers at once, heads of all layers' keys first; `key_norm` [layers * heads, width]. cos_sin:
    cos and signed sin [2, max_length, width]. norm: after the last layer. compiled: the same in
    one call for a pass, where there is that.
    """

    layers: tuple[DecoderLayer, ...]
    views: tuple[View, ...]
    read: Linear
    keep: Linear
    key_norm: RmsNorm
    keep_norm: RmsNorm
    norm: RmsNorm
    cos_sin: Tensor
    dtype: torch.dtype
    compiled: CompiledTrunk | None

    @property
    def max_length(self) -> int:
        return self.cos_sin.shape[1]

    @property
    def state_spec(self) -> StateSpec:
        """State of the context of one sequence."""
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
        if self.compiled:
            self.compiled.keep(features, start, context.storage)
        else:
            self._keep_rows(features, start, context.storage)
        context.length += rows

    def run(self, x: Tensor, context: BlockContext, wanted: int) -> Tensor:
        """Rows of a block, embedded [n, hidden], after the context; normed outputs of the first
        `wanted` ones. Takes the rows themselves for scratch.
        """
        start, rows = context.length, len(x)
        context.reserve(start + rows)
        seen = {view: _visible(view, start, rows) for view in set(self.views)}
        if self.compiled:
            each = torch.tensor([seen[view] for view in self.views])
            return self.compiled.run(x, wanted, start, context.storage, each)
        for index, (layer, view) in enumerate(zip(self.layers, self.views, strict=True)):
            projected = self.mixer(index).project(layer.norm(x))
            kept = context.storage[index]
            x = x + self._attend(self.mixer(index), projected, kept, start, seen[view])
            x = x + layer.mlp(layer.mlp_norm(x))
        return self.norm(x.narrow(0, 0, wanted))

    def _keep_rows(self, features: Tensor, start: int, storage: Tensor) -> None:
        kept = self.keep(self.keep_norm(self.read(features)))
        rows, (layers, _, _, heads, _, width) = len(kept), storage.shape
        new = kept.view(rows, 2, layers, heads, width)
        keys = kept.view(rows, 2, -1, width)[:, 0]
        keys.copy_(rotate(self.key_norm(keys), *self._cos_sin_at(start, rows)))
        storage[:, :, 0].narrow(3, start, rows).copy_(new.permute(2, 1, 3, 0, 4))

    def _cos_sin_at(self, start: int, rows: int) -> tuple[Tensor, Tensor]:
        """cos and signed sin [n, 1, width] of positions from `start` on."""
        cos, sin = self.cos_sin.narrow(1, start, rows).unsqueeze(2).unbind(0)
        return cos, sin

    def _attend(
        self, mixer: AttentionLayer, projected: Tensor, kept: Tensor, start: int, seen: Visible
    ) -> Tensor:
        """Attention of block rows over what they see; their keys and values are kept on the way."""
        mix, rows = mixer.mix, len(projected)
        sizes = [mix.heads + mix.kv_heads, mix.kv_heads]
        turned, value = projected.view(rows, -1, mix.width).split(sizes, 1)
        turned = turned if mix.head_norm is None else mix.head_norm(turned)
        turned = rotate(turned, *self._cos_sin_at(start, rows))
        query, key = turned.split([mix.heads, mix.kv_heads], 1)
        kept[:, 0].narrow(2, start, rows).copy_(torch.stack([key, value]).transpose(1, 2))
        low = seen[0][0]
        keys, values = kept.narrow(3, low, start + rows - low).unbind(0)
        query = query.transpose(0, 1).unsqueeze(0)
        mask = _mask(seen, low, start + rows, kept.device)
        out = functional.scaled_dot_product_attention(
            query, keys, values, attn_mask=mask, scale=mix.scale, enable_gqa=True
        )
        return mixer.out(out[0].transpose(0, 1).flatten(1))


def _visible(view: View, start: int, rows: int) -> Visible:
    """Positions that rows of a block from `start` on see, of the context and each other."""
    end, window = start + rows - 1, view.window
    firsts, lasts = [], []
    for at in range(start, start + rows):
        last = at if view.causal else end
        first = 0
        if window is not None and view.from_anchor:
            first = start - window
        elif window is not None:
            first, last = at - window + 1, min(last, at + window - 1)
        firsts.append(max(0, first))
        lasts.append(last)
    return firsts, lasts


def _mask(seen: Visible, low: int, end: int, device: torch.device) -> Tensor | None:
    """Bool [rows, positions from `low` to `end`], None where every row sees everything."""
    firsts, lasts = seen
    if firsts[-1] == low and lasts[0] == end - 1:
        return None
    first, last = torch.tensor(seen, device=device).unsqueeze(-1)
    at = torch.arange(low, end, device=device)
    mask: Tensor = (first <= at) & (at <= last)
    return mask
