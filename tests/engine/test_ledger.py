"""The ledger of windows by enumeration: every pattern of agreement, against a naive target.

The target is a function of the whole prefix, so a wrong row or position anywhere shows. Drafts
agree or not by the bits of a pattern; another pattern says when to answer and when to issue.
"""

from collections import deque
from dataclasses import dataclass, field
from itertools import product

import pytest

from outrider.engine.ledger import MAX_IN_FLIGHT, Ledger, Outcome
from outrider.errors import StageError
from outrider.records import Window

PROMPT = (5, 3)
WANTED = 5


def target(prefix: tuple[int, ...]) -> int:
    """The next token; a different one for every prefix, in effect."""
    return hash((17, *prefix)) % 1_000_003


def naive(count: int) -> tuple[int, ...]:
    tokens = PROMPT
    for _ in range(count):
        tokens = (*tokens, target(tokens))
    return tokens


TRUTH = naive(40)


@dataclass
class Run:
    """A ledger, what a stage was sent, and what was committed. `consumed` is the stage's state."""

    ledger: Ledger
    agree: deque[bool]
    tokens: tuple[int, ...]
    consumed: tuple[int, ...] = ()
    owed: deque[tuple[Window, tuple[int, ...]]] = field(default_factory=deque)
    voided: set[int] = field(default_factory=set)
    accepted: int = 0
    closed: int = 0
    live: int = 0

    def offer(self, count: int) -> None:
        """Drafts that continue the optimistic suffix, right or wrong by the pattern."""
        context = (*self.tokens, *self.ledger.suffix)
        drafts: list[int] = []
        for _ in range(count):
            agrees = self.agree.popleft() if self.agree else True
            right = target((*context, *drafts))
            drafts.append(right if agrees else right + 1)
        self.ledger.offer(tuple(drafts), "test")

    def issue(self) -> None:
        """Issue one window and run it: the stage keeps what came before `start`."""
        ledger, room = self.ledger, self.ledger.row_room
        begun, before = ledger.begun, self.consumed
        window = ledger.issue(self.tokens[-1])
        assert len(window.tokens) <= min(room, ledger.width)
        assert window.opens_epoch is not begun
        expected = len(self.tokens) - 1 if window.opens_epoch else len(before)
        assert window.start == expected, "positions have a gap"
        self.consumed = before[: window.start]
        replies = []
        for token in window.tokens:
            self.consumed = (*self.consumed, token)
            replies.append(target(self.consumed))
        self.owed.append((window, tuple(replies)))
        self._check_in_flight()

    def _check_in_flight(self) -> None:
        ledger = self.ledger
        rows = sum(len(w.tokens) for w, _ in self.owed if w.epoch == ledger.epoch)
        assert ledger.in_flight == len(self.owed) <= MAX_IN_FLIGHT
        if ledger.runahead is None:
            assert ledger.live <= ledger.depth
        else:
            assert rows <= ledger.runahead

    def answer(self) -> None:
        window, replies = self.owed.popleft()
        before = self.ledger.length
        dependents = [w.tokens[0] for w, _ in self.owed if w.epoch == window.epoch]
        dependents += self.ledger.suffix[-self.ledger.queued :] if self.ledger.queued else []
        live = [w.id for w, _ in self.owed if w.epoch == self.ledger.epoch]
        verdict = self.ledger.judge(window.id, replies)
        assert self.ledger.length >= before, "a committed token was taken back"
        if window.id in self.voided:
            assert verdict == Outcome(stale=True), "a voided window was judged"
            assert self.ledger.length == before
            return
        assert not verdict.stale
        self._compare(verdict, window, dependents)
        self._commit(verdict, window)
        if verdict.closes:
            assert verdict.voided == len(live)
            self.voided.update(live)
            assert self.ledger.suffix == []
            assert not self.ledger.begun

    def _compare(self, verdict: Outcome, window: Window, dependents: list[int]) -> None:
        """As many drafts stay as agree; the epoch goes on if the dependent one agrees too."""
        right = TRUTH[len(self.tokens) :]
        accepted = 0
        while accepted < len(window.drafts) and window.drafts[accepted] == right[accepted]:
            accepted += 1
        goes_on = accepted == len(window.drafts) and dependents[:1] == [right[accepted]]
        assert (verdict.accepted, verdict.closes) == (accepted, not goes_on)

    def _commit(self, verdict: Outcome, window: Window) -> None:
        self.tokens += verdict.tokens
        assert self.tokens == TRUTH[: len(self.tokens)], "a wrong token was committed"
        assert self.ledger.length == len(self.tokens)
        assert len(verdict.tokens) == verdict.accepted + verdict.closes
        assert verdict.verified == len(window.drafts) == len(verdict.sources)
        assert verdict.tokens[: verdict.accepted] == window.drafts[: verdict.accepted]
        self.accepted += verdict.accepted
        self.closed += verdict.closes
        assert len(self.tokens) == len(PROMPT) + 1 + self.accepted + self.closed


def run(
    pattern: tuple[bool, ...],
    schedule: tuple[bool, ...],
    *,
    width: int,
    surplus: int = 0,
    depth: int = 1,
    runahead: int | None = None,
) -> Run:
    """Issue (True in `schedule`) or answer until enough is committed, then drain.

    `surplus` drafts more than fit are offered, so that some stay queued.
    """
    first = TRUTH[: len(PROMPT) + 1]
    ledger = Ledger(length=len(first), width=width, depth=depth, runahead=runahead)
    state = Run(ledger, deque(pattern), first)
    state.consumed = first[:-1]
    turns = deque(schedule)
    while len(state.tokens) < len(first) + WANTED:
        _turn(state, issue=turns.popleft() if turns else not state.owed, surplus=surplus)
    while state.owed:
        state.answer()
    return state


def _turn(state: Run, *, issue: bool, surplus: int) -> None:
    ledger = state.ledger
    if issue or not state.owed:
        wanted = ledger.draft_room + surplus - ledger.queued
        if ledger.row_room and wanted > 0:
            state.offer(wanted)
        if ledger.row_room and not (ledger.begun and not ledger.queued):
            state.issue()
            return
    if state.owed:
        state.answer()


PATTERNS = list(product([True, False], repeat=5))
SCHEDULES = list(product([True, False], repeat=4))


def run_all(**limits: int) -> None:
    for pattern, schedule in product(PATTERNS, SCHEDULES):
        run(pattern, schedule, **limits)


@pytest.mark.parametrize("surplus", [0, 2])
@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_any_agreement_at_any_depth(depth, width, surplus):
    run_all(width=width, depth=depth, surplus=surplus)


@pytest.mark.parametrize("surplus", [0, 1])
@pytest.mark.parametrize("runahead", [1, 2, 3, 7])
def test_any_agreement_with_a_budget_of_rows(runahead, surplus):
    run_all(width=3, runahead=runahead, surplus=surplus)


def test_the_enumeration_reaches_what_it_is_about():
    """Voided windows, boundaries that judge on, and whole windows all occur."""
    runs = [
        run(pattern, schedule, width=2, depth=3)
        for pattern, schedule in product(PATTERNS, SCHEDULES)
    ]
    assert any(state.voided for state in runs)
    assert any(state.closed == 1 and state.accepted >= WANTED - 1 for state in runs)
    assert len({(state.accepted, state.closed) for state in runs}) > 5


def opened(**limits: int) -> Ledger:
    ledger = Ledger(length=3, width=4, **limits)
    ledger.offer((10, 11, 12), "test")
    ledger.issue(9)
    return ledger


def test_a_boundary_that_agrees_with_a_window_in_flight_judges_on():
    ledger = opened(depth=2)
    ledger.offer((13, 14), "test")
    ledger.issue(9)
    verdict = ledger.judge(0, (10, 11, 12, 13))
    assert (verdict.tokens, verdict.closes, ledger.length) == ((10, 11, 12), False, 6)
    verdict = ledger.judge(1, (14, 15))
    assert (verdict.tokens, verdict.accepted, ledger.length) == ((13, 14, 15), 2, 9)


def test_a_boundary_that_disagrees_with_a_queued_draft_is_the_correction():
    ledger = opened(depth=1)
    ledger.offer((13, 14), "test")
    verdict = ledger.judge(0, (10, 11, 12, 99))
    assert (verdict.tokens, verdict.closes, verdict.voided) == ((10, 11, 12, 99), True, 0)
    assert verdict.rejected
    assert (ledger.queued, ledger.epoch, ledger.length) == (0, 1, 7)


def test_a_boundary_that_nothing_depends_on_is_a_bonus():
    ledger = opened(depth=1)
    verdict = ledger.judge(0, (10, 11, 12, 13))
    assert (verdict.tokens, verdict.rejected) == ((10, 11, 12, 13), False)


def test_a_mismatch_voids_what_depends_on_it_and_the_next_epoch_starts_at_once():
    ledger = opened(depth=2)
    ledger.offer((13, 14), "test")
    ledger.issue(9)
    verdict = ledger.judge(0, (10, 99, 98, 97))
    assert (verdict.tokens, verdict.accepted, verdict.verified) == ((10, 99), 1, 3)
    assert verdict.rejected
    assert verdict.voided == 1
    window = ledger.issue(99)
    assert (window.start, window.epoch, window.opens_epoch) == (4, 1, True)
    assert ledger.judge(1, ()).stale


def test_at_most_64_windows_are_in_flight():
    ledger = Ledger(length=2, width=1, runahead=1000)
    for _ in range(MAX_IN_FLIGHT):
        if ledger.begun:
            ledger.offer((1,), "test")
        ledger.issue(0)
    assert ledger.row_room == 0
    with pytest.raises(StageError, match="no window can be issued now"):
        ledger.issue(0)


def test_replies_out_of_order_or_of_the_wrong_size_are_refused():
    with pytest.raises(StageError, match="reply to window 1 came out of order; owed is 0"):
        opened().judge(1, (1, 2, 3, 4))
    with pytest.raises(StageError, match="window 0 has 4 rows, its reply 2"):
        opened().judge(0, (1, 2))
    with pytest.raises(StageError, match="owed is none"):
        Ledger(length=1, width=1).judge(0, (1,))


def second_follower(ledger: Ledger) -> int | None:
    """A planted fault: the boundary is compared one token late."""
    flights = list(ledger.flights)
    dependents = [*(flights[0].tokens if flights else ()), *ledger.queue]
    return dependents[min(1, len(dependents) - 1)] if dependents else None


def wrong_rows(window: Window, replied: tuple[int, ...]) -> int:
    """A planted fault: a draft is compared with the reply of its own row."""
    pairs = zip(window.drafts, replied[window.opens_epoch :], strict=False)
    return next((i for i, (draft, own) in enumerate(pairs) if draft != own), len(window.drafts))


def nothing_voided(ledger: Ledger) -> int:
    """A planted fault: a mismatch leaves the epoch alive."""
    return 0


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("outrider.engine.ledger.Ledger.follower", second_follower),
        ("outrider.engine.ledger.agreeing", wrong_rows),
        ("outrider.engine.ledger.Ledger.close_epoch", nothing_voided),
    ],
)
def test_the_enumeration_catches_planted_faults(monkeypatch, name, fault):
    monkeypatch.setattr(name, fault)
    with pytest.raises((AssertionError, StageError, IndexError)):
        run_all(width=2, depth=2)
