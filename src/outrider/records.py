"""The values that pass between target, drafter, stage and engine.

Frozen records without behaviour beyond derived properties. Torch-free: where a record carries a
tensor it is typed `object` here and documented with its shape, so that configuration, the window
ledger and the command line can be imported without loading torch.

Words (see docs/architecture.md): a state's *length* is the number of tokens it has consumed; the
newest committed token is *pending*: emitted, consumed by nobody yet.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """Tokens proposed to follow a context, best guess first in time.

    `probs` is set only if the tokens were sampled: a float tensor [num_tokens, vocab] holding the
    distribution that each token was truly drawn from. `confidence` is an estimate per token that
    it is accepted given that its predecessors were. `rollback_ms` is the part of its time that went
    into taking what was rejected back in the drafter's own state.
    """

    tokens: tuple[int, ...]
    source: str
    probs: object | None = None
    confidence: tuple[float, ...] | None = None
    rollback_ms: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A few rows for the target to run at an absolute position, in one pass.

    `start` is authoritative: a state that is ahead settles there first. Positions below `floor`
    are final and may be forgotten. The target's token is wanted for the last `wanted` rows.
    The first window of an epoch holds the pending token and drafts (`opens_epoch`), later ones
    hold drafts only and start where the last one ended. Prefill windows have `wanted` 0 or 1.
    `draft_probs`, a tensor [len(tokens) - 1, vocab], accompanies sampled drafts (depth 1 only).
    `given` are prompt tokens known to follow the first wanted rows: nothing is picked there, they
    are answered as they are, with their log-probabilities.
    """

    session: int
    id: int
    epoch: int
    start: int
    floor: int
    tokens: tuple[int, ...]
    wanted: int
    opens_epoch: bool = True
    draft_probs: object | None = None
    given: tuple[int, ...] = ()

    @property
    def end(self) -> int:
        """Position after the last row."""
        return self.start + len(self.tokens)

    @property
    def drafts(self) -> tuple[int, ...]:
        """The drafts among its tokens, where it is no prompt."""
        return self.tokens[1:] if self.opens_epoch else self.tokens

    @property
    def is_prompt(self) -> bool:
        """True if its rows are final, and more than the one of a plain step."""
        return len(self.tokens) > 1 and self.floor >= self.end


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprob:
    """Natural-log probability of the token picked for a row, with the `top` alternatives."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerOutput:
    """The target's token after each wanted row, and its log-probability if asked for."""

    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The answer of a stage to one window; a skipped window (voided epoch) has no tokens.

    `tokens[i]` is the target's own token after the i-th wanted row, so a draft is accepted exactly
    when it equals the reply of the row before it, whichever verifier picked the token.
    `taps`: tensor [rows, sum of tapped widths] of the hidden states asked for, or None.
    `verify_ms` is what the whole pass took, which ran `pass_rows` rows of `pass_sessions` sessions
    (0: this window's alone) and `pass_prompts` rows of prompts.
    `fault`: this window failed, and the error is the session's own. Its state on the stage is lost;
    the session must be closed. Other sessions are not affected.
    """

    session: int
    id: int
    skipped: bool = False
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    taps: object | None = None
    verify_ms: float = 0.0
    pass_rows: int = 0
    pass_sessions: int = 0
    pass_prompts: int = 0
    rollback_ms: float = 0.0
    rollback: str | None = None
    fault: Exception | None = None


@dataclass(frozen=True, slots=True)
class Context:
    """The tokens that a drafter may read: committed tokens (pending one included) and the
    optimistic suffix.

    `committed` is the session's own growing list, not a copy: never kept, never changed by a
    drafter. `suffix` holds drafts issued or queued but not committed: read, never indexed.
    """

    committed: Sequence[int]
    suffix: Sequence[int] = ()

    def __len__(self) -> int:
        return len(self.committed) + len(self.suffix)

    @property
    def last(self) -> int:
        """The token that the next draft follows."""
        return self.suffix[-1] if self.suffix else self.committed[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """Tokens that became final, told to every drafter once and in order, whoever drafted them.

    `tokens[i]` stands at absolute position `position + i` of the context. The first commit of a
    session is the prompt with the target's first token: position 0, and `tokens` holds all of it.
    A drafter that asked for taps gets the prompt in several commits instead, one for each piece of
    the prefill, so that no more hidden states are held than one piece has.

    `features`, where taps were asked for, is a tensor [rows, taps x hidden] of exactly the rows
    that became final with this commit; its last row is the hidden state that produced the last
    token, and each row pairs with the token that follows it: row r belongs to position
    `position + len(tokens) - 1 - rows + r`. It is part of a pass's output: copy what is kept.
    """

    position: int
    tokens: tuple[int, ...]
    accepted: int = 0
    source: str | None = None
    features: object | None = None


@dataclass(frozen=True, slots=True)
class Needs:
    """Requirements of a drafter on the target: the layers to tap.

    Layer i's output (0-based) is tap i; -1 is the embedding's output, and the number of layers is
    the last layer's output after the final norm, which is what the head reads.
    """

    taps: tuple[int, ...] = field(default=())
