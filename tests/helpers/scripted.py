"""Drafters that follow a script, and a stage behind a slow link."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import cycle

import torch

from outrider.draft.base import Drafter
from outrider.records import Commit, Context, Draft, Needs, Reply, Window
from outrider.sampling.params import SamplingParams
from outrider.stage.base import Stage

Script = Sequence[tuple[int, int]]
"""Per round: how many tokens to draft, and how many of the first ones are right; 0 is silence."""

ALWAYS_RIGHT: Script = ((16, 16),)
ALWAYS_WRONG: Script = ((4, 0),)
PARTLY_RIGHT: Script = ((7, 3), (7, 6), (4, 1), (16, 15), (1, 1), (5, 0), (16, 9), (3, 2))
SILENT_IN_SOME: Script = ((0, 0), (5, 2), (0, 0), (0, 0), (6, 6), (0, 0), (7, 0))
SCRIPTS: dict[str, Script] = {
    "right": ALWAYS_RIGHT,
    "wrong": ALWAYS_WRONG,
    "partly": PARTLY_RIGHT,
    "silent": SILENT_IN_SOME,
}


@dataclass
class ScriptedDrafter(Drafter):
    """Knows the `truth` (prompt and output) and errs as its script says. Records what it saw."""

    truth: Sequence[int]
    script: Script
    vocab: int
    asked: list[tuple[int, int]] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    closed: int = 0
    name: str = "scripted"
    needs: Needs = field(default_factory=Needs)

    def __post_init__(self) -> None:
        self._rounds = cycle(self.script)

    def propose(self, context: Context, budget: int) -> Draft | None:
        self.asked.append((len(context), budget))
        size, right = next(self._rounds)
        known = self.truth[len(context) : len(context) + min(size, budget)]
        wrong = [(token + 1) % self.vocab for token in known]
        tokens = (*known[:right], *wrong[right:])
        return Draft(tokens=tokens, source=self.name) if tokens else None

    def observe(self, commit: Commit) -> None:
        self.commits.append(commit)

    def close(self) -> None:
        self.closed += 1


@dataclass
class SampledDrafter(Drafter):
    """Draws `size` drafts from fixed distributions [positions, vocab] and hands those over."""

    probs: torch.Tensor
    size: int
    draw: Callable[[torch.Tensor], int]
    name: str = "sampled"
    needs: Needs = field(default_factory=Needs)

    def propose(self, context: Context, budget: int) -> Draft | None:
        rows = self.probs[len(context) : len(context) + min(self.size, budget)]
        tokens = tuple(self.draw(row) for row in rows)
        return Draft(tokens=tokens, source=self.name, probs=rows) if tokens else None


class LateStage:
    """Runs all it was sent and answers one window of each session per poll, so that states truly
    run ahead.

    Voids are lost, as they may be: they are an optimisation.
    """

    def __init__(self, inner: Stage) -> None:
        self.inner = inner
        self.held: list[Reply] = []
        self.most_ahead = 0

    @property
    def vocab_size(self) -> int:
        return self.inner.vocab_size

    @property
    def max_length(self) -> int:
        return self.inner.max_length

    @property
    def exact(self) -> bool:
        return self.inner.exact

    @property
    def num_sessions(self) -> int:
        return self.inner.num_sessions

    def open(
        self, session: int, sampling: SamplingParams, prompt_len: int, taps: Sequence[int] = ()
    ) -> None:
        self.inner.open(session, sampling, prompt_len, taps)

    def submit(self, window: Window) -> None:
        self.inner.submit(window)

    def void(self, session: int, epoch: int) -> None:
        pass

    def run_ready(self):
        return False

    def run_batch(self) -> list[Reply]:
        while replies := self.inner.run_batch():
            self.held += replies
        self.most_ahead = max(self.most_ahead, len(self.held))
        oldest: dict[int, Reply] = {}
        for reply in self.held:
            oldest.setdefault(reply.session, reply)
        self.held = [reply for reply in self.held if oldest[reply.session] is not reply]
        return list(oldest.values())

    def close(self, session: int) -> None:
        self.inner.close(session)
        self.held = [reply for reply in self.held if reply.session != session]

    def check(self) -> None:
        self.inner.check()

    def shutdown(self) -> None:
        self.inner.shutdown()
