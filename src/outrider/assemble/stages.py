"""The stages that a configuration names: here, in a chain, or in processes of their own."""

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from outrider.assemble.cut import cut
from outrider.assemble.target import LoadedTarget
from outrider.config.run import LinkConfig, RunConfig, TargetConfig
from outrider.sampling.params import SamplingParams
from outrider.stage.base import Stage
from outrider.stage.chain import ChainStage
from outrider.stage.link import LinkSettings
from outrider.stage.local import LocalStage
from outrider.stage.part import Part
from outrider.stage.process import ProcessStage
from outrider.state.spec import Policy
from outrider.verify.tail import Tail

WORKER = "outrider.assemble.worker"


def make_stage(config: RunConfig, target: LoadedTarget, capacity: int) -> Stage:
    """What runs the target's windows; states can take `capacity` rows back without a checkpoint.

    Raises StageError where a process does not start.
    """
    stages, policy, link = config.stages, config.state.rollback, link_of(config.stages.link)
    if stages.processes:
        commands = WorkerCommands(
            target=replace(config.target, path=str(target.folder.absolute())),
            spans=cut(stages, target.decoder.config.num_layers),
            policy=policy,
            capacity=capacity,
        )
        return ProcessStage(stages.count, commands, link, deadline_s=stages.deadline_s)
    if stages.is_local:
        return LocalStage(target.decoder, policy, capacity, make_picker)
    parts = [Part(decoder, policy, capacity, make_picker) for decoder in target.parts]
    return ChainStage(parts, link)


def make_picker(sampling: SamplingParams, prompt_len: int) -> Tail:
    """The verifier of one session."""
    return Tail(sampling, prompt_len=prompt_len, choice=sampling.choice)


def link_of(config: LinkConfig) -> LinkSettings:
    """A link as it was configured."""
    return LinkSettings(**asdict(config))


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerCommands:
    """The commands that start the processes of a target's stages, layers [first, last) each."""

    target: TargetConfig
    spans: Sequence[tuple[int, int]]
    policy: Policy
    capacity: int

    def __call__(self, number: int, into: int, out: int, link: LinkSettings) -> Sequence[str]:
        count = len(self.spans)
        threads = self.target.threads or max((os.cpu_count() or 1) // count, 1)
        setup = {
            "number": number,
            "count": count,
            "span": self.spans[number],
            "sockets": [into, out],
            "link": asdict(link),
            "target": asdict(replace(self.target, threads=threads)),
            "policy": self.policy,
            "capacity": self.capacity,
        }
        return [sys.executable, "-m", WORKER, json.dumps(setup)]
