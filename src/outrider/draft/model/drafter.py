"""The draft model drafter: a smaller model says what comes next, one token per pass.

After speculative decoding (Leviathan et al. 2023, arXiv 2211.17192; Chen et al. 2023, arXiv
2302.01318). Rounds in which another drafter worked are caught up on at the next proposal, in one
pass over the missing tokens and the last one.
"""

import torch

from outrider.draft.base import Kept
from outrider.draft.choice import Choice, Chooser, as_draft
from outrider.draft.model.ahead import Ahead
from outrider.draft.model.runner import DraftRunner, DraftStateSettings
from outrider.draft.model.vocab import Rows
from outrider.draft.reach import Reach
from outrider.models.base import Model
from outrider.records import Commit, Context, Draft, Needs


class DraftModelDrafter:
    """Drafts for one session with a whole model and a state of its own."""

    name = "draft"
    needs = Needs()

    def __init__(
        self,
        decoder: Model,
        chooser: Chooser,
        settings: DraftStateSettings | None = None,
        ahead: Ahead | None = None,
        rows: Rows | None = None,
        reach: Reach | None = None,
    ) -> None:
        """`chooser` picks tokens from the draft's logits and knows what the target shares; `ahead`
        says how far to go where several windows are in flight. `rows` are those of the model's
        embedding; `reach` is told, where given, when a text has outgrown the model."""
        self._chooser, self._ahead, self._reach = chooser, ahead, reach
        self._runner: DraftRunner | None = DraftRunner(
            decoder, settings or DraftStateSettings(), rows
        )

    @torch.inference_mode()
    def propose(self, context: Context, budget: int) -> Draft | None:
        """Return up to `budget` tokens; None if unsure at once, or beyond the model's length.

        Takes a pass per token, the first one over everything not yet consumed.
        """
        assert self._runner is not None, "a closed drafter was used"
        room = self._runner.max_length - len(context) + 1
        if room < 1 and self._reach:
            self._reach.ended(self._runner.max_length)
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

    def keep(self) -> Kept | None:
        """The state of the committed tokens, as far as it can go back to them."""
        return self._runner.keep() if self._runner else None

    def resume(self, kept: Kept) -> None:
        """Go on from there; what the new session's tokens do not share is dropped when asked."""
        if self._runner:
            self._runner.resume(kept)

    def close(self) -> None:
        """Free the state."""
        self._runner = None

    def _propose(self, runner: DraftRunner, context: Context, count: int) -> Draft | None:
        logits = runner.follow(context, steps=count - 1)
        choices: list[Choice] = []
        while (choice := self._chooser.choose(logits, len(context) + len(choices))) is not None:
            choices.append(choice)
            if len(choices) == count:
                break
            logits = runner.step(choice.token)
        return as_draft(choices, self.name, runner.spent_on_rollback())
