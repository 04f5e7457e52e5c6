"""Proof at load that this model, on this processor, gives a row the same bits in any window.

Runs the layers as a whole, the same tokens step by step and in windows, and compares bit for bit.
The first layers that contain every kind stand for all, since the others have the same shapes.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from outrider.kernels.pass_plan import Span
from outrider.models.decoder import Decoder

PROMPT_ROWS = 70
"""Past one page of keys and two chunks of the delta log."""
WINDOWS = (2, 3, 5, 8, 13, 17)


@torch.inference_mode()
def rows_are_invariant(decoder: Decoder) -> bool:
    """True if windows of several widths equal single steps bit for bit."""
    sample = _sample(decoder)
    windows = WINDOWS if sum(WINDOWS) < decoder.max_length else (1,)
    prompt = max(min(PROMPT_ROWS, decoder.max_length - sum(windows)), 1)
    rows = prompt + sum(windows)
    seed = torch.Generator().manual_seed(0)
    hidden = _hidden(sample, rows, seed)
    stepped = _run(sample, hidden, [prompt] + [1] * sum(windows))
    return torch.equal(stepped, _run(sample, hidden, [prompt, *windows]))


def _sample(decoder: Decoder) -> Decoder:
    """The shortest prefix of its layers that has every kind among them."""
    kinds = decoder.config.layer_kinds[decoder.first :][: len(decoder.layers)]
    count = 1 + max(kinds.index(kind) for kind in set(kinds))
    return replace(decoder, layers=decoder.layers[:count])


def _hidden(decoder: Decoder, rows: int, seed: torch.Generator) -> Tensor:
    """Embeddings of random tokens or, for layers that stand after others, random rows."""
    if decoder.embedding is None:
        return torch.randn(rows, decoder.config.hidden_size, generator=seed).to(
            decoder.device, decoder.dtype
        )
    tokens = torch.randint(0, decoder.config.vocab_size, (rows,), generator=seed)
    return decoder.embed(tokens.to(decoder.device))


def _run(decoder: Decoder, hidden: Tensor, widths: Sequence[int]) -> Tensor:
    """Pass `hidden` through in windows of `widths`; the last layer's outputs, all rows."""
    state = decoder.new_state("log", 0)
    outputs = [
        decoder.run(rows, [Span(state, len(rows), revocable=False)])[0]
        for rows in hidden.split(list(widths))
    ]
    return torch.cat(outputs)
