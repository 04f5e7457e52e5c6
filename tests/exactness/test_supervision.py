"""The engine's thread outlives whatever fails in it: callers get an error, and a new engine."""

import threading
import time

import pytest

from outrider.draft.lookup.suffix import SuffixDrafter
from outrider.engine.facade import MOST_FAILURES, EngineFacade
from outrider.engine.scheduler import Scheduler
from outrider.errors import BusyError, DownError, StageError
from tests.exactness.targets import admission, engine, prompts
from tests.exactness.test_scheduler import SECONDS, Caller, ask
from tests.helpers.checkpoints import VOCAB

SOON = 5


class Broken:
    """Engines whose pass fails `times` times, one of which each engine has."""

    def __init__(self, target, times):
        self.target, self.times, self.made = target, times, []

    def __call__(self) -> EngineFacade:
        own = engine(self.target.stage("log", 8), SuffixDrafter)
        if len(self.made) < self.times:
            own.step = self._fail
        self.made.append(own)
        return own

    def _fail(self, rows):
        raise RuntimeError("the device is gone")


@pytest.fixture
def supervised(hybrid):
    made = []

    def make(times, remake=True, **limits):
        broken = Broken(hybrid, times)
        own = broken()
        scheduler = Scheduler(
            own, own.tokenizer, admission(**limits), remake=broken if remake else None
        )
        made.append((scheduler, broken))
        return scheduler, broken

    yield make
    for scheduler, broken in made:
        scheduler.close()
        assert not scheduler._thread.is_alive()
        assert all(own.stage.num_sessions == 0 for own in broken.made)


def wait_for(there):
    end = time.monotonic() + SECONDS
    while not there():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_an_engine_that_fails_is_made_anew(hybrid, supervised):
    scheduler, broken = supervised(1, max_sequences=1)
    callers = [Caller() for _ in range(3)]
    for caller in callers:  # One runs, two wait.
        try:
            ask(scheduler, prompts()[1], caller)
        except DownError:
            caller.ended.put(StageError("the engine failed"))
    for caller in callers:
        error = caller.ended.get(timeout=SOON)
        assert isinstance(error, StageError)
        assert "the engine failed" in str(error)
    wait_for(lambda: len(broken.made) == 2 and scheduler._shared.down is None)
    output = hybrid.oracle("greedy", prompts(), 40)[1]
    caller = Caller()
    ask(scheduler, output.prompt, caller)
    assert caller.result().token_ids == output.tokens
    seen = scheduler.snapshot().result(timeout=SECONDS)
    assert (seen.running, seen.waiting) == (0, 0)


def test_an_engine_whose_every_pass_fails_is_made_anew(hybrid, supervised):
    """Each request of it ends with an error of its own, which tells nobody that it is broken."""
    scheduler, broken = supervised(0)
    polls = []

    def failing():
        polls.append(1)
        raise RuntimeError("the device is gone")

    broken.made[0].stage.run_batch = failing
    for _ in range(20):
        caller = Caller()
        try:
            ask(scheduler, prompts()[1], caller)
        except DownError:
            break
        event = caller.ended.get(timeout=SECONDS)
        if not isinstance(event, StageError):
            break
    assert len(polls) == MOST_FAILURES
    wait_for(lambda: len(broken.made) == 2 and scheduler._shared.down is None)
    output = hybrid.oracle("greedy", prompts(), 40)[1]
    caller = Caller()
    ask(scheduler, output.prompt, caller)
    assert caller.result().token_ids == output.tokens


@pytest.mark.parametrize("times", [1, 9])
def test_an_engine_that_cannot_be_made_anew_says_why(supervised, times):
    """One that nobody can make, and one that fails whenever it is made."""
    scheduler, broken = supervised(times, remake=times > 1)
    reason = "failed 3 times in a row" if times > 1 else "nobody said how"
    for _ in range(9):
        caller = Caller()
        try:
            ask(scheduler, prompts()[1], caller)
        except DownError:
            time.sleep(0.05)
            continue
        assert isinstance(caller.ended.get(timeout=SOON), StageError)
    wait_for(lambda: reason in (scheduler._shared.down or ""))
    assert len(broken.made) == (4 if times > 1 else 1)
    for refused in (
        lambda: ask(scheduler, prompts()[1], Caller()),
        lambda: scheduler.snapshot().result(timeout=SOON),
    ):
        with pytest.raises(DownError, match=r"the engine failed \(RuntimeError: the device is"):
            refused()


def test_figures_that_fail_are_no_end(hybrid, supervised, monkeypatch):
    scheduler, broken = supervised(0)
    monkeypatch.setattr(Scheduler, "_count", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        scheduler.snapshot().result(timeout=SOON)
    monkeypatch.undo()
    caller = Caller()
    ask(scheduler, prompts()[1], caller)
    assert caller.result().token_ids == hybrid.oracle("greedy", prompts(), 40)[1].tokens
    assert len(broken.made) == 1


def test_a_request_that_cannot_begin_leaves_nothing(hybrid, supervised, monkeypatch):
    """Neither a session on the stage nor a place among those that share passes."""
    scheduler, broken = supervised(0)
    own, joined = broken.made[0], []
    budget = own.speculation.budget

    def lend():
        made = budget()
        joined.append(made)
        made.close = lambda: joined.remove(made)
        return made

    object.__setattr__(own.speculation, "budget", lend)
    opened = own.stage.open

    def failing(session, *given, **named):
        opened(session, *given, **named)
        if not failures:
            failures.append(session)
            raise MemoryError("no room")

    failures: list[int] = []
    monkeypatch.setattr(own.stage, "open", failing)
    first, second = Caller(), Caller()
    ask(scheduler, prompts()[1], first)
    assert isinstance(first.ended.get(timeout=SOON), StageError)
    assert joined == []
    assert own.stage.num_sessions == 0
    assert not own.sessions
    ask(scheduler, prompts()[1], second)
    assert second.result().token_ids == hybrid.oracle("greedy", prompts(), 40)[1].tokens
    assert failures
    assert joined == []


def test_closing_while_the_engine_is_made_anew(hybrid, supervised):
    gate, asked = threading.Event(), threading.Event()
    scheduler, broken = supervised(1)

    def slow():
        asked.set()
        gate.wait(SECONDS)
        return broken()

    scheduler._remake = slow
    caller = Caller()
    ask(scheduler, prompts()[1], caller)
    assert isinstance(caller.ended.get(timeout=SOON), StageError)
    assert asked.wait(SOON)
    with pytest.raises(DownError, match="is being started again"):
        ask(scheduler, prompts()[1], Caller())
    with pytest.raises(DownError):
        scheduler.prepare([1, 2, VOCAB - 1])
    closer = threading.Thread(target=scheduler.close)
    closer.start()
    gate.set()
    closer.join(SECONDS)
    assert not closer.is_alive()
    with pytest.raises(BusyError, match="going down"):
        scheduler.snapshot().result(timeout=SOON)
