"""Stages in processes of their own: the oracle's tokens, and errors that name the stage."""

import signal
from contextlib import closing, contextmanager

import pytest

from outrider.assemble.stage_setup import make_setups
from outrider.assemble.stages import command_of
from outrider.config.settings import TargetConfig
from outrider.errors import StageError
from outrider.sampling.params import SamplingParams
from outrider.stage.link import LOCAL, LinkSettings
from outrider.stage.process import ProcessWorkers
from outrider.stage.wired import Patience, WiredStage
from tests.exactness.targets import SAMPLINGS, engine, finished, prompts
from tests.helpers.checkpoints import VOCAB
from tests.helpers.scripted import SCRIPTS, ScriptedDrafter

LINK = LinkSettings(delay_ms=20.0, jitter_ms=5.0, mbps=50.0)
TOKENS = 48


def workers(target, link=LOCAL, **changed):
    config = TargetConfig(path=str(target.folder), threads=1, **changed)
    setups = make_setups(config, [(0, 1), (1, 4)], "log", 18, link)
    return ProcessWorkers(len(setups), command_of(setups), link)


@contextmanager
def running(target, link=LINK, **patience):
    """A stage of two processes, which are gone afterwards."""
    made = workers(target, link)
    stage = WiredStage(made, Patience(**patience))
    try:
        yield stage
    finally:
        stage.shutdown()
        assert all(process.returncode is not None for process in made.processes)


def test_two_requests_at_once_equal_the_oracle_over_a_slow_link(hybrid):
    outputs = hybrid.oracle("seeded", prompts(6), TOKENS)[4:]
    truths = iter([output.all_tokens for output in outputs])
    settings = SamplingParams(**SAMPLINGS["seeded"], logprobs=2)
    with running(hybrid) as stage:
        made = engine(
            stage,
            lambda: ScriptedDrafter(next(truths), SCRIPTS["partly"], VOCAB),
            width=4,
            depth=4,
        )
        requests = [
            made.generate(output.prompt, sampling=settings, max_tokens=TOKENS) for output in outputs
        ]
        for request, output in zip(requests, outputs, strict=True):
            finished(request)
            assert request.result.token_ids == output.tokens
            counters = request.counters
            assert 0 < counters.accepted < counters.verified
            assert counters.max_in_flight > 1
            assert counters.rollbacks.get("log", 0) > 0
            assert len(counters.occupancy_ms) > 2
            assert sum(counters.occupancy_ms) > 0.0
        assert stage.num_sessions == 0
        stage.check()


SIGNALS = {
    signal.SIGKILL: r"stage 1 of 2 died \(signal 9\)",
    signal.SIGSTOP: r"stage 1 of 2 hangs \(its process is stopped\)",
}


def hit(stage, signal_number):
    stage.workers.processes[1].send_signal(signal_number)


@pytest.mark.parametrize("signal_number", SIGNALS)
def test_a_lost_stage_is_named_and_its_requests_fail(hybrid, signal_number):
    with (
        running(hybrid, resumes=0, health_s=0.5) as stage,
        closing(engine(stage, None)) as made,
    ):
        request = made.generate([1, 2, 3], max_tokens=40)
        assert next(iter(request)).tokens
        hit(stage, signal_number)
        with pytest.raises(StageError, match=SIGNALS[signal_number]):
            list(request)
        request.close()
        assert made.generate([1, 2, 3], max_tokens=4).result.token_ids == ()


@pytest.mark.parametrize("signal_number", SIGNALS)
def test_requests_go_on_where_a_lost_stage_is_replaced(hybrid, signal_number):
    outputs = hybrid.oracle("seeded", prompts(6), TOKENS)[3:]
    truths = iter([output.all_tokens for output in outputs])
    settings = SamplingParams(**SAMPLINGS["seeded"], logprobs=2)
    with running(hybrid, health_s=0.5) as stage:
        script = lambda: ScriptedDrafter(next(truths), SCRIPTS["partly"], VOCAB)  # noqa: E731
        made = engine(stage, script, width=4, depth=4)
        requests = [
            made.generate(output.prompt, sampling=settings, max_tokens=TOKENS) for output in outputs
        ]
        while requests[0].counters.emitted < TOKENS // 2:
            made.step()
        hit(stage, signal_number)
        for request, output in zip(requests, outputs, strict=True):
            finished(request)
            assert request.result.token_ids == output.tokens
            assert 0 < request.counters.accepted < request.counters.verified
        assert stage.resumed == 1
        stage.check()


def test_a_session_that_fails_on_a_stage_says_why_and_the_other_goes_on(hybrid):
    output = hybrid.oracle("greedy", prompts(6), TOKENS)[3]
    with running(hybrid) as stage, closing(engine(stage, None)) as made:
        request = made.generate([1, 2, 3], max_tokens=40)
        other = made.generate(output.prompt, max_tokens=TOKENS)
        assert next(iter(request)).tokens
        made.sessions[0].ledger.length += 5
        with pytest.raises(StageError, match=r"a window starts at \d+, but only \d+ tokens came"):
            list(request)
        finished(other)
        assert other.result.token_ids == output.tokens
        assert stage.resumed == 0
        assert stage.num_sessions == 0
        stage.check()


def test_a_stage_that_cannot_load_says_why(hybrid):
    with pytest.raises(StageError, match=r"stage \d of 2 failed: .*max_length 9999 exceeds"):
        WiredStage(workers(hybrid, max_length=9999), Patience())


def test_silence_ends_at_the_deadline(hybrid):
    with running(hybrid, LinkSettings(delay_ms=5000.0)) as stage:
        stage.patience = Patience(deadline_s=0.05)
        made = engine(stage, None)
        with pytest.raises(StageError, match=r"no stage has answered for 0\.05 s"):
            list(made.generate([1, 2, 3], max_tokens=4))
