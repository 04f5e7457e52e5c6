"""Attention of rows of several sequences at once, each over pages of its own.

The arithmetic of `outrider.kernels.attention`, operation by operation, over the pages of all
sequences one after another; only the products with keys and values are made for each sequence,
since its pages are its own storage. Largest scores are found again for each sequence, and partial sums are
added in its own tree, to which pages of zeros add nothing.

Shapes: as in `outrider.kernels.attention`, with S sequences of n rows each (the last one repeated
where a sequence has fewer), T pages in all and P of the longest.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.kernels.attention import PAGE, BiasTable, Heads, tree_sum
from outrider.kernels.rows import padded_rows

KeysAndValues = tuple[Tensor, Tensor]
"""Pages of one sequence: keys [P * H, D, PAGE], values [P * H, PAGE, D]."""


@dataclass(frozen=True, slots=True)
class PageGroup:
    """Rows of S sequences with scratch that layers share.

    pages: how many each sequence sees. queries: [S, H, M, D], zero in the padding; `target` is its
    part [S, n, H, G, D]. owner: whose each page is, int64 [T]. bias: [T, 1, M, PAGE]. repeated:
    pages of each sequence, filled up with its first one, [S P]; ordered: the first page of each,
    then the second .., filled up with the page T of zeros, [P S]. scores [T H, M, PAGE] and mixed
    [T H, M, D] with their parts by sequence; sums: [T + 1, H, M, D + 1], zero in the last page.
    """

    rows: int
    pages: list[int]
    queries: Tensor
    target: Tensor
    owner: Tensor
    bias: Tensor
    repeated: Tensor
    ordered: Tensor
    scores: Tensor
    scores_by: Sequence[Tensor]
    mixed: Tensor
    mixed_by: Sequence[Tensor]
    sums: Tensor


def pages_of(start: int, rows: int) -> int:
    """Pages that rows at positions start.. see."""
    return (start + rows - 1) // PAGE + 1


def make_pages(
    starts: Sequence[int], rows: Sequence[int], shape: Heads, table: BiasTable, like: Tensor
) -> PageGroup:
    """Sequences with `rows` rows each at positions `starts`; scratch has the dtype of `like`."""
    heads, width, count = shape.heads, shape.width, max(rows)
    pages = [pages_of(*at) for at in zip(starts, rows, strict=True)]
    padded, total, longest = padded_rows(count * shape.group, shape.tile), sum(pages), max(pages)
    queries = like.new_zeros(len(starts), heads, padded, width)
    used = queries.narrow(2, 0, count * shape.group)
    target = used.unflatten(2, (count, shape.group)).transpose(1, 2)
    first = [sum(pages[:place]) for place in range(len(pages))]
    repeated = [
        at + page if page < own else at
        for at, own in zip(first, pages, strict=True)
        for page in range(longest)
    ]
    ordered = [
        at + page if page < own else total
        for page in range(longest)
        for at, own in zip(first, pages, strict=True)
    ]
    owner = [place for place, own in enumerate(pages) for _ in range(own)]
    sizes = [own * heads for own in pages]
    scores = like.new_empty(total * heads, padded, PAGE)
    mixed = like.new_empty(total * heads, padded, width)

    def index(values: list[int]) -> Tensor:
        return torch.tensor(values, device=like.device)

    return PageGroup(
        count,
        pages,
        queries,
        target,
        index(owner),
        _bias(starts, pages, padded, table),
        index(repeated),
        index(ordered),
        scores,
        scores.split(sizes),
        mixed,
        mixed.split(sizes),
        torch.zeros(total + 1, heads, padded, width + 1, device=like.device),
    )


def _bias(starts: Sequence[int], pages: Sequence[int], padded: int, table: BiasTable) -> Tensor:
    """What `BiasTable.at` says of the last pages of each sequence, and 0 for those before them."""
    device, count = table.table.device, len(starts)
    first = torch.tensor([start % PAGE * table.group for start in starts], device=device)
    rows = (first.unsqueeze(1) + torch.arange(padded, device=device)).view(-1)
    masks = table.table.index_select(2, rows).view(2 * count, 1, padded, PAGE)
    every = torch.cat([masks, masks.new_zeros(1, 1, padded, PAGE)])
    which: list[int] = []
    for place, (start, own) in enumerate(zip(starts, pages, strict=True)):
        masked = own - start // PAGE
        which += [2 * count] * (own - masked) + [place, place + count][:masked]
    return every.index_select(0, torch.tensor(which, device=device))


def attend_pages(q: Tensor, sequences: Sequence[KeysAndValues], group: PageGroup) -> Tensor:
    """Attention of rows q [S n, H, G, D] (already scaled), each over the pages of its sequence.

    Returns [S n, H, G, D].
    """
    count, heads, padded, width = group.queries.shape
    group.target.copy_(q.view(group.target.shape))
    queries = group.queries.index_select(0, group.owner).flatten(0, 1)
    sizes = [own * heads for own in group.pages]
    parts = zip(queries.split(sizes), sequences, group.scores_by, strict=True)
    for query, (keys, _), out in parts:
        torch.bmm(query, keys, out=out)
    scores = group.scores.view(-1, heads, padded, PAGE).add_(group.bias).float()
    peaks = scores.amax(3).index_select(0, group.repeated).view(count, -1, heads, padded).amax(1)
    weights = scores.sub_(peaks.index_select(0, group.owner).unsqueeze(3)).exp_()
    given = weights.to(q.dtype).flatten(0, 1).split(sizes)
    for weight, (_, values), out in zip(given, sequences, group.mixed_by, strict=True):
        torch.bmm(weight, values, out=out)
    found = group.mixed.view(-1, heads, padded, width), weights.sum(-1, keepdim=True)
    torch.cat(found, -1, out=group.sums.narrow(0, 0, len(scores)))
    sums = group.sums.index_select(0, group.ordered).view(-1, count, heads, padded, width + 1)
    rows = group.rows * q.shape[2]
    mixed, total = tree_sum(sums).narrow(2, 0, rows).split([width, 1], 3)
    kept = torch.div(mixed, total).view(count, heads, group.rows, -1, width)
    return kept.transpose(1, 2).reshape(q.shape).to(q.dtype)
