"""How a block drafter's file is to be read: facts, each with where it was found. Torch-free.

A row read one off is accepted almost never, and the text is still right, so nobody would notice.
Therefore the layout comes from the file, and a request that contradicts it is refused.
"""

from dataclasses import dataclass
from typing import Generic, Literal, TypeVar, get_args

from outrider.errors import CheckpointError, ConfigError

T = TypeVar("T")
Lineage = Literal["dflash", "dspark"]
Markov = Literal["vanilla", "gated", "rnn"]


@dataclass(frozen=True, slots=True)
class Fact(Generic[T]):
    """A value and the tensor, key or convention that tells it."""

    value: T
    found: str

    def __str__(self) -> str:
        return f"{self.value} ({self.found})"


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockLayout:
    """Rows of a block and what they mean.

    A block is the newest token, the anchor, and masks after it. With `sample_from_anchor` row k
    predicts the (k + 1)-th token after the anchor, else row k the k-th and row 0 nothing. `taps`
    count as `records.Needs` does. `rank` is that of the Markov head, `log_snr` the least and
    the largest value of the conditioning.
    """

    lineage: Fact[Lineage]
    sample_from_anchor: Fact[bool]
    block_size: int
    mask_token: int
    taps: tuple[int, ...]
    markov: Markov | None = None
    rank: int = 0
    confidence: Literal["hidden", "hidden+markov"] | None = None
    log_snr: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if self.max_drafts < 1:
            raise CheckpointError(
                f"block_size = {self.block_size} leaves no row that predicts: it must be at least "
                f"{1 + self.first_row}."
            )

    @property
    def first_row(self) -> int:
        """The first row that predicts."""
        return 0 if self.sample_from_anchor.value else 1

    @property
    def max_drafts(self) -> int:
        """Tokens that a whole block drafts."""
        return self.block_size - self.first_row

    def describe(self) -> dict[str, object]:
        """For `outrider inspect` and the log."""
        return {
            "lineage": str(self.lineage),
            "sample_from_anchor": str(self.sample_from_anchor),
            "first_row": self.first_row,
            "block_size": self.block_size,
            "max_drafts": self.max_drafts,
            "mask_token": self.mask_token,
            "taps": list(self.taps),
            "markov_head": f"{self.markov}, rank {self.rank}" if self.markov else None,
            "confidence_head": self.confidence,
            "log_snr": list(self.log_snr) if self.log_snr else None,
        }


def check_method(method: str, layout: BlockLayout, origin: str) -> None:
    """Refuse a file whose lineage is not the method asked for, and say what reading it so means."""
    lineage = layout.lineage
    if method == lineage.value:
        return
    raise ConfigError(
        f"speculative.method = {method!r} does not fit {origin}, whose lineage is {lineage} with "
        f"sample_from_anchor = {layout.sample_from_anchor}: {_consequence(method, layout)}; use "
        f"speculative.method = {lineage.value!r}."
    )


def _consequence(method: str, layout: BlockLayout) -> str:
    """Consequence for a file that is read as `method` reads its own kind."""
    if method not in get_args(Lineage):
        return "it reads the target's hidden states and drafts nothing by itself"
    assumed = 0 if method == "dspark" else 1
    if layout.first_row < assumed:
        return "every draft would be read one row late, and almost none would be accepted"
    if layout.first_row > assumed:
        return "every draft would be read one row early, and almost none would be accepted"
    if layout.confidence:
        return "the rows would be right, only drafts would not end where confidence is low"
    return "the rows would be right, but there is no Markov head to correct them"
