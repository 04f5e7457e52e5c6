"""Times of a model's parts, of which passes of any stage of it are made up."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from outrider.costs.timing import Pass, passes, per_rows, timed_window, windows_of
from outrider.models.decoder import Decoder, Layer
from outrider.stage.base import Frame
from outrider.stage.local import LocalStage
from outrider.stage.wire import decode, encode

MEASURED = (1, 2, 4, 8, 16)
SECONDS = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTimes:
    """Milliseconds of 1, 2, ... rows: a layer of each kind; `bare`, what any stage's pass takes
    besides its layers; `head`, what the last stage takes more; `wire`, handing rows on."""

    kinds: Sequence[str]
    layer: Mapping[str, Sequence[float]]
    bare: Sequence[float]
    head: Sequence[float]
    wire: Sequence[float]
    row_bytes: int

    def stages(self, sizes: Sequence[int], *, wired: bool) -> list[list[float]]:
        """Passes of 1, 2, ... rows through stages of `sizes` layers."""
        found, first = [], 0
        for number, size in enumerate(sizes):
            parts = [self.layer[kind] for kind in self.kinds[first : first + size]]
            parts += [self.bare, self.wire] if wired else [self.bare]
            parts += [self.head] if number == len(sizes) - 1 else []
            found.append([sum(values) for values in zip(*parts, strict=True)])
            first += size
        return found


@torch.inference_mode()
def measure_layers(decoder: Decoder) -> LayerTimes:
    """Time the parts of a whole model's pass, each kind of layer by its own passes."""
    kinds = decoder.config.layer_kinds

    def timed(layers: Sequence[Layer]) -> list[float]:
        part = replace(decoder, layers=tuple(layers))
        return _measure(passes(part, whole=decoder))

    none = timed(())
    layer: dict[str, list[float]] = {}
    for kind in dict.fromkeys(kinds):
        own = [one for one, name in zip(decoder.layers, kinds, strict=True) if name == kind]
        layer[kind] = [_rest(a, b) / len(own) for a, b in zip(timed(own), none, strict=True)]
    headless = _measure(passes(replace(decoder, layers=()), whole=decoder, head=False))
    with windows_of(LocalStage(decoder, "log", 0), final=True) as run:
        whole, part = timed(decoder.layers), _measure(run)
    beside = [_rest(a, b) for a, b in zip(part, whole, strict=True)]
    return LayerTimes(
        kinds=kinds,
        layer=layer,
        bare=[a + b for a, b in zip(headless, beside, strict=True)],
        head=[_rest(a, b) for a, b in zip(none, headless, strict=True)],
        wire=_measure(partial(_hand_on, decoder)),
        row_bytes=decoder.config.hidden_size * decoder.dtype.itemsize,
    )


def _rest(more: float, less: float) -> float:
    return max(more - less, 0.0)


def _measure(run: Pass) -> list[float]:
    return per_rows(run, MEASURED, SECONDS / 4, time.perf_counter)


def _hand_on(decoder: Decoder, rows: int) -> None:
    """Turn a frame of hidden states into a message and back."""
    hidden = torch.zeros(rows, decoder.config.hidden_size, dtype=decoder.dtype)
    _, header, *payload = encode(Frame.of(timed_window(0, rows, final=True), hidden=hidden), 0.0)
    decode(header, b"".join(payload))
