"""Processes of stages killed at every moment: those within their limit end with plain decoding's
tokens, the others with an error that names the stage, and nothing is left behind."""

import re
import sys
import threading
from contextlib import contextmanager
from itertools import product

import pytest

from outrider.errors import StageError, StageLost
from outrider.sampling.params import SamplingParams
from outrider.stage import process
from outrider.stage.process import ProcessWorkers
from outrider.stage.wired import Patience, WiredStage
from tests.exactness.targets import SAMPLINGS, engine, finished, prompts
from tests.helpers.checkpoints import VOCAB
from tests.helpers.scripted import SCRIPTS, ScriptedDrafter
from tests.stage.test_process import workers

pytestmark = pytest.mark.timeout(300)
TOKENS = 40
SHORT = [(0, 0), (1, 1)]
"""Cells of (stage, resumes) that are not left to the soak."""
MOMENTS = ("running", "closing", "voiding", "restarting")


class Killable:
    """The workers of a stage, every process that they ever started, and whom to kill next."""

    def __init__(self, made: ProcessWorkers) -> None:
        self.made, self.started = made, []
        self.doomed: list[int] = []
        """Stages to kill as soon as they have been started, one for each start."""

    def __getattr__(self, name):
        return getattr(self.made, name)

    def start(self, seconds):
        ways = self.made.start(seconds)
        self.started += self.made.processes
        if self.doomed:
            self.kill(self.doomed.pop(0))
        return ways

    def kill(self, number):
        self.made.processes[number].kill()
        self.made.processes[number].wait(20.0)


@contextmanager
def running(target, **patience):
    """A stage of two processes, which are gone afterwards with the threads that read from them."""
    threads = threading.active_count()
    made = Killable(workers(target))
    stage = WiredStage(made, Patience(health_s=0.5, **patience))
    try:
        yield stage, made
    finally:
        stage.shutdown()
    assert all(process.returncode is not None for process in made.started)
    assert threading.active_count() == threads


def begun(target, stage, count=3):
    """An engine, and requests with what plain decoding says of each."""
    outputs = target.oracle("seeded", prompts(6), TOKENS)[6 - count :]
    truths = iter([output.all_tokens for output in outputs])
    script = lambda: ScriptedDrafter(next(truths), SCRIPTS["partly"], VOCAB)  # noqa: E731
    made = engine(stage, script, width=4, depth=4)
    settings = SamplingParams(**SAMPLINGS["seeded"])
    return made, [
        (made.generate(one.prompt, sampling=settings, max_tokens=TOKENS), one) for one in outputs
    ]


def halfway(made, requests):
    while any(request.counters.emitted < TOKENS // 4 for request, _ in requests):
        made.step()
    assert not any(request.done for request, _ in requests)


def kill_at(moment, number, stage, killable, made, requests):
    """Kill a stage; returns how many losses that is, and the requests that are left."""
    if moment == "voiding":
        void, stage_void = [], stage.void

        def kill_first(session, epoch):
            if not void:
                killable.kill(number)
            void.append(session)
            stage_void(session, epoch)

        stage.void = kill_first
        while not void:
            made.step()
        stage.void = stage_void
        return 1, requests
    killable.kill(number)
    if moment == "closing":
        requests.pop(0)[0].close()
    if moment == "restarting":
        killable.doomed = [1 - number]
        return 2, requests
    return 1, requests


def ends(request, output, numbers):
    """Whether a request ended well; else its error names one of the stages."""
    try:
        finished(request)
    except StageLost:
        tokens, said = request.result.token_ids, str(request.fault)
        named = "|".join(f"stage {number} of 2 died \\(signal 9\\)" for number in numbers)
        assert re.search(rf"({named}).*: its requests are lost\.", said)
        assert len(tokens) < TOKENS
        assert tokens == output.tokens[: len(tokens)]
        return False
    assert request.result.token_ids == output.tokens
    assert 0 < request.counters.accepted < request.counters.verified
    return True


@pytest.mark.parametrize(
    ("number", "resumes"),
    [
        cell if cell in SHORT else pytest.param(*cell, marks=pytest.mark.soak)
        for cell in product((0, 1), (0, 1, 2))
    ],
)
def test_a_stage_killed_at_every_moment(hybrid, number, resumes):
    with running(hybrid, resumes=resumes) as (stage, killable):
        for moment in MOMENTS:
            made, requests = begun(hybrid, stage)
            halfway(made, requests)
            losses, left = kill_at(moment, number, stage, killable, made, requests)
            # With no resumes nobody is left to start the stages anew, and to lose a second one.
            numbers = (number, 1 - number)
            survived = [ends(*one, numbers) for one in left]
            assert survived == [losses <= resumes] * len(left), moment
            assert stage.num_sessions == 0
            killable.doomed = []
            made, requests = begun(hybrid, stage, count=1)
            assert ends(*requests[0], ())
            stage.check()
            assert set(stage._counts) == {0}


def test_only_those_beyond_their_limit_end(hybrid):
    """The first request has borne a loss before the second one begins."""
    with running(hybrid, resumes=1) as (stage, killable):
        made, requests = begun(hybrid, stage, count=2)
        (old, new), (old_output, new_output) = zip(*requests, strict=True)
        settings = SamplingParams(**SAMPLINGS["seeded"])
        new.close()
        halfway(made, [(old, old_output)])
        killable.kill(0)
        emitted = old.counters.emitted
        while old.counters.emitted == emitted:
            made.step()
        made.speculation = engine(stage, None).speculation
        new = made.generate(new_output.prompt, sampling=settings, max_tokens=TOKENS)
        while not new.counters.emitted:
            made.step()
        assert not old.done
        killable.kill(1)
        assert not ends(old, old_output, (1,))
        finished(new)
        assert new.result.token_ids == new_output.tokens
        assert stage.num_sessions == 0
        stage.check()
        assert stage.resumed == 2


@pytest.mark.parametrize("number", [0, 1])
def test_a_stage_killed_while_it_starts_refuses(hybrid, number):
    killable = Killable(workers(hybrid))
    killable.doomed = [number]
    with pytest.raises(StageError, match=rf"stage {number} of 2 died \(signal 9\), before it was"):
        WiredStage(killable, Patience(health_s=0.5))
    assert len(killable.started) == 2
    assert all(process.returncode is not None for process in killable.started)


BAD_STARTS = {
    "hangs": (
        "import time; time.sleep(600)",
        r"no stage has answered for 0\.5 s: raise stages\.de",
    ),
    "ends": ("pass", r"the stages ended, before it was ready"),
    "fails": ("raise SystemExit(3)", r"stage \d of 1 died \(exit status 3\), before it was ready"),
    "talks": (
        "import os, sys; os.write(int(sys.argv[2]), b'Loading the model ...' * 99)",
        "it is damaged",
    ),
}


@pytest.mark.parametrize("name", BAD_STARTS)
def test_a_process_that_is_no_stage_refuses(monkeypatch, name):
    monkeypatch.setattr(process, "GRACE_S", 0.2)
    script, said = BAD_STARTS[name]
    made = ProcessWorkers(
        1, lambda _, into, out: [sys.executable, "-c", script, str(into), str(out)]
    )
    with pytest.raises(StageError, match=said):
        WiredStage(made, Patience(health_s=0.2, deadline_s=0.5 if name == "hangs" else 60.0))
    assert [process.returncode is not None for process in made.processes] == [True]


def test_a_command_that_is_not_there_is_named():
    made = ProcessWorkers(2, lambda number, *_: [sys.executable if not number else "/no/such"])
    with pytest.raises(StageError, match=r"stage 1 of 2 cannot be started \(.*No such file"):
        WiredStage(made, Patience())
    assert all(process.returncode is not None for process in made.processes)


def test_a_stage_that_had_to_be_ended_is_not_blamed(monkeypatch):
    """Stage 0 does not hear that the chain has ended; stage 1 is the one that died."""
    monkeypatch.setattr(process, "GRACE_S", 0.2)
    scripts = ["import time; time.sleep(600)", "raise SystemExit(3)"]
    made = ProcessWorkers(2, lambda number, *_: [sys.executable, "-c", scripts[number]])
    with pytest.raises(StageError, match=r"stage 1 of 2 died \(exit status 3\)"):
        WiredStage(made, Patience(health_s=0.2))
    assert made.processes[0].returncode == -9
