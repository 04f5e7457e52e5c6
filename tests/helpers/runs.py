"""Running a decoder over token lists in tests."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from outrider.kernels.pass_plan import Span
from outrider.models.decoder import Decoder
from outrider.models.load import LoadOptions, load_decoder
from outrider.state.sequence import SequenceState
from outrider.state.spec import PAGE
from tests.helpers.checkpoints import VOCAB, save_model


def make_decoder(name: str, folder: Path, seed: int = 0) -> Decoder:
    """A tiny random checkpoint of architecture `name`, loaded."""
    save_model(name, folder, seed)
    return load_decoder(folder, LoadOptions())


def random_tokens(count: int, seed: int = 1) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, VOCAB, (count,), generator=generator).tolist()


def run(
    decoder: Decoder, state: SequenceState, tokens: Sequence[int], *, revocable: bool = True
) -> Tensor:
    """One pass over `tokens`; returns logits of every row."""
    hidden = decoder.embed(torch.tensor(tokens))
    hidden, _ = decoder.run(hidden, [Span(state, len(tokens), revocable=revocable)])
    return decoder.logits(hidden)


def step(decoder: Decoder, state: SequenceState, tokens: Iterable[int]) -> Tensor:
    """One pass per token, each final: plain decoding."""
    return torch.cat([run(decoder, state, [token], revocable=False) for token in tokens])


def same_state(one: SequenceState, other: SequenceState) -> bool:
    """Whether two states hold the same bits in everything that later rows can read."""
    if one.length != other.length:
        return False
    length = one.length
    equal = True
    if one.attention and other.attention:
        equal &= same_pages(one.attention.pages, other.attention.pages, length)
    if one.delta and other.delta and length:
        equal &= all(torch.equal(a, b) for a, b in zip(live(one), live(other), strict=True))
    return equal


def same_pages(one: Tensor, other: Tensor, length: int) -> bool:
    """Whether pages hold the same first positions; keys lie by column."""
    whole, rest = divmod(length, PAGE)
    pairs = one[:, :, :whole], other[:, :, :whole]
    if not torch.equal(*pairs) or not rest:
        return torch.equal(*pairs)
    keys, values = zip(*(pages[:, :, whole].unbind(1) for pages in (one, other)), strict=True)
    columns = [part.reshape(*part.shape[:2], -1, PAGE)[..., :rest] for part in keys]
    return torch.equal(*columns) and torch.equal(*(part[:, :, :rest] for part in values))


def live(state: SequenceState) -> list[Tensor]:
    """The base, log rows and columns that the next row reads."""
    delta, length = state.delta, state.length
    assert delta is not None
    chunk, rows = divmod(length - 1, delta.chunk)
    rows += 1
    place = length - delta.columns.origin
    logs = [delta.log(layer, chunk) for layer in range(delta.spec.layers)]
    return [
        torch.stack([log.base for log in logs]),
        torch.stack([log.keys[:, :, :rows] for log in logs]),
        torch.stack([log.corrections[:, :rows] for log in logs]),
        torch.stack([log.decays[:, :rows] for log in logs]),
        delta.columns.storage[:, place - (delta.spec.taps - 1) : place],
    ]
