"""Drafting with a second, smaller model, one token per pass.

After speculative decoding (Leviathan et al. 2023, arXiv 2211.17192; Chen et al. 2023, arXiv
2302.01318). Rounds in which another drafter worked are caught up on at the next proposal, in one
pass over the missing tokens and the last one.
"""

import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from outrider.draft.base import Drafter, DrafterSnapshot, LengthWarning
from outrider.draft.model.sync import DraftSync, between, restorable
from outrider.draft.token_choice import Chooser, DraftToken, as_draft
from outrider.errors import ConfigError
from outrider.formats.tokenizer import Tokenizer
from outrider.kernels.pass_plan import Span
from outrider.models.base import Model
from outrider.records import Commit, Context, Draft
from outrider.state.sequence import Checkpoint
from outrider.state.spec import Policy, Rollback

LOG = logging.getLogger(__name__)
MIN_CONTEXT = 2
"""Tokens that a draft model must at least take in: a prompt's and the target's first answer."""
PASS_ROWS = 256
"""Rows of a catch-up pass at most; passes end on this absolute grid."""
MIN_CHANCE = 0.001
"""Chance that a draft is reached, all before it being right, from which on it is made."""
AHEAD_STEP = 2
"""Drafts at a time. More at a time brought 1 to 4 % fewer tokens for each round trip on code."""
PRIOR_HITS, PRIOR_MISSES = 4, 1
"""Acceptance assumed of a model before anything was seen."""


@dataclass(frozen=True, slots=True)
class DraftModel:
    """A draft model, shared by all sessions of a target.

    A target may know more tokens than its draft model, as a fine-tune that thinks does. They are
    never proposed. Where one occurs in a text, the draft model reads another token in its place, so
    that positions agree and drafting goes on; what was consumed is still recorded by the target's
    ids. Drafts right after such a token may be worse; what is committed never changes.

    shared: how many ids, from 0 on, mean the same to both. instead: the id that the model reads in
    place of one that it lacks. warning: given where a text has outgrown the model's context.
    """

    decoder: Model
    shared: int
    instead: int = 0
    warning: LengthWarning = field(default_factory=lambda: LengthWarning("the draft model"))

    def rows_of(self, tokens: Sequence[int]) -> list[int]:
        """The rows of the model's embedding for the target's ids."""
        rows = self.decoder.vocab_size
        return [token if token < rows else self.instead for token in tokens]


def make_draft_model(
    name: str, decoder: Model, own: Tokenizer, target: Tokenizer, target_rows: int
) -> DraftModel:
    """The draft model `name`, whose tokenizer is its `own`, for a target with so many logits.

    Says once which of the target's tokens it lacks. ConfigError where the vocabularies contradict
    each other, or where it could never draft.
    """
    if decoder.max_length < MIN_CONTEXT:
        raise ConfigError(
            f"speculative.draft_model = {name!r} has a context of {decoder.max_length} token, so "
            "it could never draft: use a draft model with a longer one."
        )
    ids, known = target.vocabulary(), own.vocabulary()
    size = decoder.vocab_size
    # A text rarely goes on from an end token by the words before it.
    instead = min((token for token in own.end_tokens if token < size), default=0)
    shared = min(shared_vocabulary(ids, known), size, target_rows)
    if missing := missing_tokens(ids, size):
        LOG.warning(
            "speculative.draft_model = %r lacks %d of the target's tokens, %r first: it never "
            "drafts them, and reads %r where one stands in a text.",
            *(name, len(missing), ids[missing[0]], known.get(instead)),
        )
    warning = LengthWarning(f"speculative.draft_model = {name!r}")
    return DraftModel(decoder, shared, instead, warning)


def missing_tokens(target: Mapping[int, str], rows: int) -> list[int]:
    """Ids of the target's tokens beyond `rows` rows, in order; padding rows are no tokens."""
    return sorted(token for token in target if token >= rows)


def shared_vocabulary(target: Mapping[int, str], draft: Mapping[int, str]) -> int:
    """Return how many ids, from 0 on, mean the same to both; only these may be proposed.

    The mappings hold the string of every id that a tokenizer knows. Over the ids that both reach,
    each must be the same string in both, or unknown to both: sizes prove nothing. Ids beyond are
    rows that one model has more of, padding mostly. Raises ConfigError for the first difference.
    """
    shared = 1 + min(max(target, default=-1), max(draft, default=-1))
    if shared == 0:
        raise ConfigError(
            "speculative.draft_model has no token in common with the target: one of the "
            "tokenizers is empty; use a draft model of the target's family."
        )
    for token_id in range(shared):
        mine, theirs = target.get(token_id), draft.get(token_id)
        if mine != theirs:
            raise ConfigError(
                f"speculative.draft_model has another vocabulary than the target: id {token_id} "
                f"is {_shown(mine)} to the target and {_shown(theirs)} to the draft model; use a "
                f"draft model of the target's family."
            )
    return shared


def _shown(token: str | None) -> str:
    return "no token" if token is None else repr(token)


class DraftRunner:
    """Runs a draft model over a context and then token by token, taking back what was rejected.

    Committed tokens are consumed for good. What comes after them can be taken back by settling,
    or, where the capacity is too small for it, from a checkpoint at the last committed token.
    """

    def __init__(self, model: DraftModel, policy: Policy, capacity: int) -> None:
        self._model, self._decoder = model, model.decoder
        self._state = model.decoder.new_state(policy, capacity)
        self._sync = DraftSync()
        self._saved: Checkpoint | None = None
        self._newest: Tensor | None = None
        self._revocable = True
        self._rollback_ms = 0.0

    def follow(self, context: Context, steps: int) -> Tensor:
        """Consume `context` and nothing else; return the logits [1, rows] of its last token.

        Up to `steps` calls of `step` may follow. All but the last token are what the plan of
        `DraftSync` catches up on; the last one runs in the same pass.
        """
        self._recover()
        end = len(context) + steps
        if self._newest is None or not self._sync.holds(context):
            known = min(self._sync.length, len(context) - 1)
            self._go_back(context)
            start, began = self._sync.length, time.perf_counter()
            self._consume(context, end)
            if start < known:  # rows that had run before, and were taken back with rejected ones
                share = (known - start) / (len(context) - start)
                self._rollback_ms += share * (time.perf_counter() - began) * 1e3
        else:
            self._secure(context, end)
        assert self._newest is not None
        return self._newest

    def spent_on_rollback(self) -> float:
        """Milliseconds since the last call that went into taking rows back: checkpoints, settling,
        and rows that ran again."""
        spent, self._rollback_ms = self._rollback_ms, 0.0
        return spent

    def step(self, token: int) -> Tensor:
        """Consume one drafted token; return its logits [1, rows]."""
        return self._logits(self._run([token], self._revocable))

    def observe(self, commit: Commit) -> None:
        """Advance the floor over consumed tokens that became final."""
        self._sync.observe(commit)
        self._raise_floor()

    def snapshot(self) -> DrafterSnapshot | None:
        """The committed tokens that were consumed and a copy of their state."""
        self._recover()
        # Tokens below the floor were committed, too, whether or not their commit was observed.
        newest = max(self._sync.final, self._state.floor)
        length = restorable(newest, self._lowest, self._saved_length)
        if not length:
            return None
        self._trim(length)
        state = self._state.copy()
        return DrafterSnapshot((self._sync.consumed, state), state.nbytes())

    def restore(self, snapshot: DrafterSnapshot) -> None:
        """Stand where another runner of the same model stood."""
        assert isinstance(snapshot.value, tuple)
        tokens, state = snapshot.value
        self._state = state.copy()
        self._sync.record(tokens)

    def _go_back(self, context: Context) -> None:
        """Take back consumed tokens that are not the context's."""
        length = self._sync.plan(context, lowest=self._lowest, saved=self._saved_length)
        if length == 0:
            self._reset()
        elif length < self._sync.length:
            self._trim(length)
        self._raise_floor()

    def _consume(self, context: Context, end: int) -> None:
        """Consume the rest of the context; rows up to `end` will be wanted back."""
        start, stop = self._sync.length, len(context)
        final = min(len(context.committed), stop)
        if start < final < stop and self._can_settle(end):
            final = start  # One pass for committed and optimistic rows: all can be taken back.
        hidden = self._run_between(context, start, final, revocable=False)
        self._secure(context, end)
        start = max(start, final)
        rest = self._run_between(context, start, stop, revocable=self._revocable)
        newest = hidden if rest is None else rest
        assert newest is not None, "the last token of the context was still to be consumed"
        self._logits(newest)

    def _secure(self, context: Context, end: int) -> None:
        """Make sure of a way back from `end` to the rows consumed now, all of the context."""
        self._revocable = self._can_settle(end)
        if self._revocable:
            return
        if self._saved is None or self._state.length <= len(context.committed):
            began = time.perf_counter()
            self._saved = self._state.checkpoint()
            self._rollback_ms += (time.perf_counter() - began) * 1e3

    def _can_settle(self, end: int) -> bool:
        """True if the state can give up rows from the floor to `end` without a checkpoint."""
        rows = end - self._state.floor
        return rows <= 0 or self._state.rollback(rows) is not Rollback.CHECKPOINT

    def _run_between(
        self, context: Context, start: int, stop: int, *, revocable: bool
    ) -> Tensor | None:
        """Run context tokens `start` .. `stop - 1`; return the last row, hidden [1, width]."""
        hidden = None
        while start < stop:
            end = min(stop, start - start % PASS_ROWS + PASS_ROWS)
            hidden = self._run(between(context, start, end), revocable)
            start = end
        return hidden

    def _run(self, tokens: Sequence[int], revocable: bool) -> Tensor:
        """One pass over tokens of the target; return the last row, hidden [1, width]."""
        self._newest = None
        ids = torch.tensor(self._model.rows_of(tokens), device=self._decoder.device)
        span = Span(self._state, len(tokens), revocable=revocable, wanted=1)
        hidden, _ = self._decoder.run(self._decoder.embed(ids), [span])
        self._sync.record(tokens)
        return hidden[-1:]

    def _logits(self, hidden: Tensor) -> Tensor:
        # A copy: the model's next pass, of any session, may overwrite its output.
        self._newest = self._decoder.logits(hidden).clone()
        return self._newest

    @property
    def _lowest(self) -> int:
        """The least length that settling can go back to."""
        return max(self._state.restorable, self._state.floor)

    @property
    def _saved_length(self) -> int | None:
        return self._saved.length if self._saved else None

    def _recover(self) -> None:
        """Drop the rows of a pass that failed on the way, or all rows if it cannot be undone."""
        if self._state.length == self._sync.length:
            return
        self._newest = None
        if self._sync.length >= self._lowest:
            self._state.settle(self._sync.length)
        else:
            self._reset()

    def _reset(self) -> None:
        self._sync.record_reset()
        self._newest = self._saved = None
        self._state.reset()

    def _trim(self, length: int) -> None:
        """Settle at `length`, or restore the checkpoint of that length."""
        self._newest, began = None, time.perf_counter()
        if length >= self._lowest:
            self._state.settle(length)
        else:
            assert self._saved is not None
            self._state.restore(self._saved)
        self._rollback_ms += (time.perf_counter() - began) * 1e3
        self._sync.record_trim(length)
        if self._saved and self._saved.length > length:
            self._saved = None

    def _raise_floor(self) -> None:
        if self._state.length == self._sync.length:
            self._state.raise_floor(self._sync.final)


class RunAhead:
    """Limits how far a draft model goes where several windows are in flight.

    It stops where its drafts will hardly be reached. After each step it lets those before it in a
    chain look again: what it drafted may begin something that they know. For that it counts how
    often the model was right, and knows the model's drafts that are in flight.
    """

    def __init__(self) -> None:
        self._hits, self._misses = PRIOR_HITS, PRIOR_MISSES
        self._flying: dict[int, int] = {}

    def room(self, context: Context) -> int:
        """Drafts worth making now. Those of the model's own in the optimistic suffix must all be
        right first; others are taken for certain."""
        start, suffix = len(context.committed), context.suffix
        self._flying = {
            position: token
            for position, token in self._flying.items()
            if start <= position < len(context) and suffix[position - start] == token
        }
        rate = self._hits / (self._hits + self._misses)
        far = int(math.log(MIN_CHANCE) / math.log(rate))
        return max(min(far - len(self._flying), AHEAD_STEP), 0)

    def propose(self, position: int, tokens: tuple[int, ...]) -> None:
        """The model drafts `tokens` from `position` on."""
        self._flying.update(enumerate(tokens, position))

    def observe(self, commit: Commit) -> None:
        """Judge drafts of committed places; a token of the target's own ends all others."""
        for position, token in enumerate(commit.tokens, commit.position):
            draft = self._flying.pop(position, None)
            self._hits += draft == token
            self._misses += draft not in (None, token)
        if commit.accepted < len(commit.tokens):
            self._flying.clear()


class DraftModelDrafter(Drafter):
    """Drafts for one session with a whole model and a state of its own."""

    name = "draft"

    def __init__(
        self,
        model: DraftModel,
        chooser: Chooser,
        policy: Policy = "log",
        capacity: int = 64,
        ahead: RunAhead | None = None,
    ) -> None:
        """`chooser` picks tokens from the draft's logits and knows what the target shares.

        `policy` and `capacity` say how the state takes rows back; the capacity should cover suffix
        and draft length, and what exceeds it is still right, by a checkpoint and a pass over the
        kept rows. `ahead` says how far to go where several windows are in flight.
        """
        self._model, self._chooser, self._ahead = model, chooser, ahead
        self._runner: DraftRunner | None = DraftRunner(model, policy, capacity)

    @torch.inference_mode()
    def propose(self, context: Context, budget: int) -> Draft | None:
        """Return up to `budget` tokens; None if the first is too unlikely, or beyond the length.

        Takes a pass per token, the first one over everything not yet consumed.
        """
        assert self._runner is not None, "a closed drafter was used"
        length = self._model.decoder.max_length
        room = length - len(context) + 1
        if room < 1:
            self._model.warning.warn(length)
        count = min(budget, room)
        if self._ahead:
            count = min(count, self._ahead.room(context))
        draft = self._propose(self._runner, context, count) if count > 0 else None
        if self._ahead and draft:
            self._ahead.propose(len(context), draft.tokens)
        return draft

    def observe(self, commit: Commit) -> None:
        """Learn what became final; nothing runs."""
        if self._ahead:
            self._ahead.observe(commit)
        if self._runner is not None:
            self._runner.observe(commit)

    def snapshot(self) -> DrafterSnapshot | None:
        """The state of the committed tokens, as far as it can go back to them."""
        return self._runner.snapshot() if self._runner else None

    def restore(self, snapshot: DrafterSnapshot) -> None:
        """Go on from there; what the new session's tokens do not share is dropped when asked."""
        if self._runner:
            self._runner.restore(snapshot)

    def close(self) -> None:
        """Free the state."""
        self._runner = None

    def _propose(self, runner: DraftRunner, context: Context, count: int) -> Draft | None:
        logits = runner.follow(context, steps=count - 1)
        choices: list[DraftToken] = []
        while (choice := self._chooser.choose(logits, len(context) + len(choices))) is not None:
            choices.append(choice)
            if len(choices) == count:
                break
            logits = runner.step(choice.token)
        return as_draft(choices, self.name, runner.spent_on_rollback())
