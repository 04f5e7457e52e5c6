"""Yield of windows in flight over links: expected tokens, time and speed. Pure.

A draft is right with probability a if those before it were. An epoch of windows of w rows ends in
window m, counted from 0, with probability q^m (1 - q), q = a^w, and brings L + 1 tokens on average,
L = a / (1 - a). Its first answer comes after R0, the links there and back and one pass of every
stage. Further answers follow at the pace s of the slowest part, as long as windows are in flight:
a window needs the answer of the one `depth` before it, so they come in groups of `depth`, one group
every max(R0, depth x s). A mismatch starts the next epoch at once.

The law of a pipeline that never runs dry: (L + 1) tokens per (round trip + fill + L x row time),
where fill is the first window's passes and row time the pace divided by w. Answers come by whole
windows, the first with up to w rows, so that short epochs can do a little better.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """Milliseconds that a window meets on its way.

    `stages[i][n - 1]` is a pass of n rows through stage i. `round_trip_ms` are all links together;
    `row_ms` is what one row occupies a link for. `draft_ms` is drafting one token, `window_ms` what
    the coordinator spends on a window beside. `parallel`: the parts work at the same time, each
    `crowding` times as long as alone where they share a processor; there an epoch's first window
    waits `void_ms` for each void one before it, too.
    """

    stages: Sequence[Sequence[float]]
    round_trip_ms: float = 0.0
    row_ms: float = 0.0
    draft_ms: float = 0.0
    window_ms: float = 0.0
    parallel: bool = True
    crowding: float = 1.0
    void_ms: float = 0.0

    @property
    def widest(self) -> int:
        """Rows of the widest pass that is known."""
        return min(len(stage) for stage in self.stages)

    def parts_ms(self, width: int) -> list[float]:
        """Time of a window of `width` rows in each part: coordinator, stages, one link."""
        stages = [stage[width - 1] for stage in self.stages]
        return [self.draft_ms * width + self.window_ms, *stages, self.row_ms * width]

    def fill_ms(self, width: int) -> float:
        """Time of a window in all parts together."""
        links = len(self.stages) - 1
        return sum(self.parts_ms(width)) + self.row_ms * width * (links - 1 if links else 0)

    def pace_ms(self, width: int) -> float:
        """Time between two windows where many are in flight."""
        parts = self.parts_ms(width)
        return max(parts) * self.crowding if self.parallel else sum(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """Costs of a `Pipeline` beyond the passes of its stages, as far as decoding shows them."""

    window_ms: float = 0.0
    draft_ms: float = 0.0
    crowding: float = 1.0
    void_ms: float = 0.0


def overhead_of(
    stages: Sequence[Sequence[float]],
    width: int,
    depth: int,
    windows: int,
    *,
    plain_ms: float,
    one_ms: float,
    full_ms: float,
    void_ms: float,
) -> Overhead:
    """Solve the model for what is not in `stages`, from the time of each window that was judged.

    plain_ms: a plain step. one_ms: a window of `width` right drafts, one at a time. full_ms: the
    same with `depth` in flight. void_ms: the same where no draft is right. The last two are means
    of `windows` windows. No link lies between the stages.
    """
    # plain = sum of passes of one row + window_ms.
    window = max(plain_ms - sum(stage[0] for stage in stages), 0.0)
    # one = sum of passes of `width` rows + window_ms + width x draft_ms.
    alone = max(one_ms - sum(stage[width - 1] for stage in stages), 0.0)
    draft = max(alone - window, 0.0) / width
    # Of n windows in a row the first has none before it: n x full = one + (n - 1) x pace, and the
    # pace is that of the slowest part, `crowding` times as long as alone.
    pace = (full_ms * windows - one_ms) / (windows - 1)
    slowest = max(window + draft * width, *(stage[width - 1] for stage in stages))
    # Where nothing is right each judged window is an epoch: n x void = one + (n - 1) x epoch, with
    # epoch = one + pace / 2 + (depth - 1) x void_ms, as in `_stale` without a round trip.
    epoch = (void_ms * windows - one_ms) / (windows - 1)
    return Overhead(
        window_ms=window,
        draft_ms=draft,
        crowding=max(pace / slowest, 1.0),
        void_ms=max((epoch - one_ms - pace / 2) / (depth - 1), 0.0),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Rows of a window and windows in flight, with the tokens/s that they are expected to bring."""

    width: int
    depth: int
    speed: float


def epoch_ms(pipeline: Pipeline, acceptance: float, width: int, depth: int) -> float:
    """Expected time of an epoch, from its first window to the answer that ends it."""
    first = pipeline.round_trip_ms + pipeline.fill_ms(width)
    pace = pipeline.pace_ms(width)
    on = acceptance**width
    windows = on / (1.0 - on)
    groups = on**depth / (1.0 - on**depth)
    in_group = windows - depth * groups
    return (
        first + in_group * pace + groups * max(first, depth * pace) + _stale(pipeline, width, depth)
    )


def _stale(pipeline: Pipeline, width: int, depth: int) -> float:
    """Wait of an epoch's first window for passes of void ones, where such are still about.

    It has half a pass of the slowest part before it. Parts that take turns lose more, until they
    hear of it: a third of that time.
    """
    pace, way = pipeline.pace_ms(width), pipeline.round_trip_ms / 2
    if pipeline.parallel:
        void = depth - 1 - pipeline.round_trip_ms / pace
        return pace / 2 + void * pipeline.void_ms if void > 0 else 0.0
    return min(max((depth - 1) * pace - way, 0.0), way) / 3


def speed(pipeline: Pipeline, acceptance: float, width: int, depth: int) -> float:
    """Expected tokens a second; `acceptance` below 1 is conditional on the drafts before."""
    tokens = 1.0 / (1.0 - acceptance)
    return tokens * 1e3 / epoch_ms(pipeline, acceptance, width, depth)


def law(pipeline: Pipeline, acceptance: float, width: int) -> float:
    """Tokens a second at any depth that keeps the pipeline full."""
    drafts = acceptance / (1.0 - acceptance)
    row = pipeline.pace_ms(width) / width
    first = pipeline.round_trip_ms + pipeline.fill_ms(width)
    return (drafts + 1.0) * 1e3 / (first + drafts * row)


def plain(pipeline: Pipeline) -> float:
    """Tokens a second of plain decoding over the same links."""
    undrafted = replace(pipeline, draft_ms=0.0)
    return 1e3 / (undrafted.round_trip_ms + undrafted.fill_ms(1))


def best(
    pipeline: Pipeline,
    acceptance: float,
    widths: Sequence[int],
    depths: Sequence[int],
    *,
    margin: float = 0.01,
) -> Shape:
    """The shape with the fewest windows in flight, then the narrowest, that comes within `margin`
    of the fastest."""
    shapes = [
        Shape(width=width, depth=depth, speed=speed(pipeline, acceptance, width, depth))
        for width in widths
        if width <= pipeline.widest
        for depth in depths
    ]
    fastest = max(shape.speed for shape in shapes)
    near = [shape for shape in shapes if shape.speed >= fastest * (1.0 - margin)]
    return min(near, key=lambda shape: (shape.depth, shape.width))


def steps(most: int) -> list[int]:
    """1, 2, 3, 4, 6, 8, 12, 16, ... and `most`: sizes worth comparing."""
    powers = [2**power for power in range(most.bit_length())]
    between = [power * 3 // 2 for power in powers if power > 1]
    return sorted({most, *(size for size in powers + between if size <= most)})
