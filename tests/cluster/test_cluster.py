"""Stages as actors of a Ray cluster: the oracle's tokens, whatever happens to the actors."""

import json
import os
import random
import signal
from itertools import product

import pytest
import ray

from outrider.errors import StageError
from outrider.sampling.params import SamplingParams
from outrider.stage.wired import Patience, WiredStage
from tests.exactness.cells import Cell, check_cell
from tests.exactness.targets import SAMPLINGS, engine, finished, prompts
from tests.helpers.checkpoints import VOCAB
from tests.helpers.scripted import SCRIPTS, ScriptedDrafter

pytestmark = [pytest.mark.xdist_group("cluster"), pytest.mark.timeout(300)]
TOKENS = 48


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("name", ["hybrid", "deep"])
def test_every_depth_and_sampling(targets, chains, name, count):
    """The product of (depth) x (stages) x (target) x (sampling)."""
    stage = chains.get(name, count)
    for depth, sampling in product((1, 2, 4, 16), SAMPLINGS):
        cell = Cell(method="partly", sampling=sampling, depth=depth, width=4, count=4)
        check_cell(targets[name], cell, stage)
    stage.check()
    assert stage.resumed == 0


def test_stages_stand_where_their_resources_are(chains):
    stage = chains.get("hybrid", 3)
    nodes = [process(actor)["node"] for actor in stage.workers._actors]
    assert nodes[0] != nodes[1] == nodes[2]


def process(actor):
    """Number and node of an actor's process."""

    def describe(_):
        context = ray.get_runtime_context()
        return json.dumps({"pid": os.getpid(), "node": context.get_node_id()})

    return json.loads(ray.get(actor.__ray_call__.remote(describe)))


def requests(target, stage, depth=4):
    """An engine on a running stage, and a request for each of three outputs."""
    outputs = target.oracle("seeded", prompts(6), TOKENS)[3:]
    truths = iter([output.all_tokens for output in outputs])
    made = engine(
        stage,
        lambda: ScriptedDrafter(next(truths), SCRIPTS["partly"], VOCAB),
        width=4,
        depth=depth,
    )
    settings = SamplingParams(**SAMPLINGS["seeded"], logprobs=0)
    begun = [made.generate(one.prompt, sampling=settings, max_tokens=TOKENS) for one in outputs]
    return made, begun, outputs


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_stage_is_replaced_and_another_chain_goes_on(targets, chains, signal_number):
    hit, spared = chains.get("hybrid", 2), chains.get("deep", 2)
    resumed = hit.resumed
    made, begun, outputs = requests(targets["hybrid"], hit)
    other, spared_begun, spared_outputs = requests(targets["deep"], spared)
    while begun[0].counters.emitted < TOKENS // 2:
        made.step()
        other.step()
    lost = process(hit.workers._actors[1])["pid"]
    os.kill(lost, signal_number)
    for request, output in zip([*begun, *spared_begun], [*outputs, *spared_outputs], strict=True):
        finished(request)
        assert request.result.token_ids == output.tokens
        assert 0 < request.counters.accepted < request.counters.verified
    assert hit.resumed == resumed + 1
    assert spared.resumed == 0
    assert process(hit.workers._actors[1])["pid"] != lost
    hit.check()
    spared.check()


def test_without_resumes_the_stage_is_named_and_the_next_request_runs(targets, chains):
    stage = chains.get("hybrid", 2)
    stage.patience = Patience(resumes=0)
    made, begun, _ = requests(targets["hybrid"], stage)
    while not begun[0].counters.emitted:
        made.step()
    os.kill(process(stage.workers._actors[0])["pid"], signal.SIGKILL)
    with pytest.raises(StageError, match=r"stage 0 of 2 died .*: its requests are lost"):
        list(begun[0])
    for request in begun:
        request.close()
    stage.patience = Patience()
    made, begun, outputs = requests(targets["hybrid"], stage)
    for request, output in zip(begun, outputs, strict=True):
        finished(request)
        assert request.result.token_ids == output.tokens
    stage.check()


def test_a_cluster_that_is_not_there(chains):
    with pytest.raises(StageError, match=r"'127\.0\.0\.1:1' leads to no Ray cluster .*ray start"):
        chains.workers("hybrid", 2, address="127.0.0.1:1")


def test_what_no_machine_has_is_named(chains):
    workers = chains.workers("hybrid", 2, nodes=("nowhere", "back"))
    with pytest.raises(StageError, match=r"stage 0 of 2 .* had cpus=0\.5 nowhere=1 free for it"):
        WiredStage(workers, Patience(deadline_s=1.0))


def test_another_version_is_refused_by_name(chains):
    workers = chains.workers("hybrid", 2, version="9.9.9")
    said = r"the coordinator has version 9\.9\.9 and stage 0 of 2 has version 0\.1\.0: install the"
    with pytest.raises(StageError, match=said):
        WiredStage(workers, Patience())


@pytest.mark.parametrize("count", [40, pytest.param(1000, marks=pytest.mark.soak)])
def test_requests_that_are_left_leave_nothing_behind(targets, chains, count):
    stage, chance = chains.get("hybrid", 3), random.Random(count)
    outputs = targets["hybrid"].oracle("greedy", prompts(6), TOKENS)
    asked = [chance.choice(outputs) for _ in range(count)]
    truths = iter([output.all_tokens for output in asked])
    made = engine(
        stage,
        lambda: ScriptedDrafter(next(truths), SCRIPTS["partly"], VOCAB),
        width=4,
        depth=4,
    )
    running = []
    for output in asked:
        running.append((made.generate(output.prompt, max_tokens=TOKENS), output))
        for _ in range(chance.randrange(4)):
            made.step()
        if len(running) > 3 or chance.random() < 0.3:
            request, _ = running.pop(chance.randrange(len(running)))
            request.close()
    for request, output in running:
        finished(request)
        assert request.result.token_ids == output.tokens
    assert 0 < len(running) < count
    assert stage.num_sessions == 0
    stage.check()
    assert set(stage._counts) == {0}
