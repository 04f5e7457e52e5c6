"""The second drafter of a chain is asked only where the first has nothing."""

import pytest

from outrider.draft.base import ChainDrafter, Drafter
from outrider.errors import ConfigError
from outrider.records import Commit, Context, Draft, Needs


class Scripted(Drafter):
    """Proposes what the script says, by context length; records what it was told."""

    def __init__(self, name: str, script: dict[int, tuple[int, ...]], taps: tuple[int, ...] = ()):
        self.name, self.script, self.needs = name, script, Needs(taps)
        self.asked: list[tuple[int, int]] = []
        self.commits: list[Commit] = []
        self.closed = False

    def propose(self, context: Context, budget: int) -> Draft | None:
        self.asked.append((len(context), budget))
        tokens = self.script.get(len(context))
        return Draft(tokens=tokens[:budget], source=self.name) if tokens else None

    def observe(self, commit: Commit) -> None:
        self.commits.append(commit)

    def close(self) -> None:
        self.closed = True


def test_a_miss_is_answered_by_the_second_and_each_keeps_its_source():
    first = Scripted("suffix", {2: (5, 6)})
    second = Scripted("draft", {2: (9,), 3: (7,)})
    chain = ChainDrafter(first, second)
    hit, miss = chain.propose(Context([1, 2]), 4), chain.propose(Context([1, 2, 3]), 4)
    assert hit == Draft(tokens=(5, 6), source="suffix")
    assert miss == Draft(tokens=(7,), source="draft")
    assert first.asked == [(2, 4), (3, 4)]
    assert second.asked == [(3, 4)]
    assert chain.propose(Context([1]), 4) is None
    assert chain.name == "suffix+draft"


def test_both_observe_every_commit_and_both_are_closed():
    first, second = Scripted("suffix", {}), Scripted("draft", {})
    chain = ChainDrafter(first, second)
    commits = [Commit(position=0, tokens=(1, 2)), Commit(position=2, tokens=(3,), source="suffix")]
    for commit in commits:
        chain.observe(commit)
    chain.close()
    assert first.commits == second.commits == commits
    assert first.closed
    assert second.closed


def test_each_drafter_has_its_own_limit_within_the_budget():
    first, second = Scripted("suffix", {}), Scripted("draft", {2: (1, 2, 3, 4)})
    limits = {"suffix": 99, "draft": 2}
    chain = ChainDrafter(first, second, limit=lambda name, budget: limits[name])
    draft = chain.propose(Context([1, 2]), 3)
    assert draft == Draft(tokens=(1, 2), source="draft")
    assert first.asked == [(2, 3)]
    limits["draft"] = 0
    assert chain.propose(Context([1, 2]), 3) is None
    assert second.asked == [(2, 2)]


def test_drafters_that_need_taps_cannot_be_chained():
    with pytest.raises(ConfigError, match=r"suffix\+mtp: mtp needs hidden states"):
        ChainDrafter(Scripted("suffix", {}), Scripted("mtp", {}, taps=(3,)))


def test_a_draft_of_which_nothing_is_kept_is_a_miss():
    first = Scripted("suffix", {2: (5, 6), 3: (5, 6)})
    second = Scripted("draft", {2: (9,)})

    def keep(draft: Draft) -> Draft | None:
        return None if draft.source == "suffix" else draft

    chain = ChainDrafter(first, second, keep=keep)
    assert chain.propose(Context([1, 2]), 4) == Draft(tokens=(9,), source="draft")
    assert chain.propose(Context([1, 2, 3]), 4) is None


def test_a_chain_of_one_is_its_drafter():
    only = Scripted("mtp", {2: (5, 6)}, taps=(3,))
    chain = ChainDrafter(only, keep=lambda draft: Draft(tokens=draft.tokens[:1], source="mtp"))
    assert (chain.name, chain.needs) == ("mtp", Needs((3,)))
    assert chain.propose(Context([1, 2]), 4) == Draft(tokens=(5,), source="mtp")
