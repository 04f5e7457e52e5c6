"""Stages that a configuration names: which layers each has, here, in a chain or in other processes.

The process of a stage loads its layers by its setup, which travels as JSON.
"""

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from pathlib import Path

import torch

from outrider.assemble.target import LoadedTarget, load_options, load_part
from outrider.config.settings import LinkConfig, RunConfig, StagesConfig, TargetConfig
from outrider.errors import ConfigError
from outrider.formats.hub import resolve
from outrider.stage.base import Stage
from outrider.stage.layer_range import LayerRange
from outrider.stage.link import LOCAL, LinkSettings
from outrider.stage.local import ChainStage, LocalStage, link_settings
from outrider.stage.process import Command, ProcessWorkers
from outrider.stage.wired import Patience, WiredStage, Workers
from outrider.state.spec import Policy


def cut(stages: StagesConfig, num_layers: int) -> list[tuple[int, int]]:
    """Layers [first, last) of each stage; where none are named, the first stages get one more.

    Raises ConfigError where the stages do not fit the model.
    """
    if stages.count > num_layers:
        raise ConfigError(
            f"stages.count = {stages.count} exceeds the {num_layers} layers of the target: every "
            "stage needs one, so use fewer."
        )
    even, more = divmod(num_layers, stages.count)
    sizes = stages.sizes or tuple(even + (number < more) for number in range(stages.count))
    if sum(sizes) != num_layers:
        raise ConfigError(
            f"stages.layers = {stages.layers!r} adds up to {sum(sizes)} and the target has "
            f"{num_layers} layers: name every layer once."
        )
    ends = list(accumulate(sizes))
    return list(zip([0, *ends], ends, strict=False))


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSetup:
    """Stage `number` of `count`: layers [first, last) of a target, and the link that leads to it.

    States can take `capacity` rows back without a checkpoint.
    """

    number: int
    count: int
    first: int
    last: int
    target: TargetConfig
    policy: Policy
    capacity: int
    link: LinkSettings = LOCAL

    @property
    def name(self) -> str:
        return f"stage {self.number} of {self.count}"

    @property
    def folder(self) -> Path:
        """Where the target lies on this machine; CheckpointError where it does not."""
        return resolve(self.target.path)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "StageSetup":
        fields = json.loads(text)
        target, link = TargetConfig(**fields.pop("target")), LinkSettings(**fields.pop("link"))
        return cls(target=target, link=link, **fields)

    def load(self) -> LayerRange:
        """Load the layers; passes of this thread use as many processor threads as were given."""
        assert self.target.threads is not None
        torch.set_num_threads(self.target.threads)
        span = self.first, self.last
        decoder = load_part(self.folder, load_options(self.target), self.target, span)
        return LayerRange(decoder, self.policy, self.capacity)


def make_setups(
    target: TargetConfig,
    spans: Sequence[tuple[int, int]],
    policy: Policy,
    capacity: int,
    link: LinkSettings = LOCAL,
    threads: Sequence[int] | None = None,
) -> list[StageSetup]:
    """One for each of `spans`; `threads` of each, unless the target names them (None: an even
    share of this machine's)."""
    share = threads or [max((os.cpu_count() or 1) // len(spans), 1)] * len(spans)
    links = link_settings(len(spans), link)
    return [
        StageSetup(
            number=number,
            count=len(spans),
            first=first,
            last=last,
            target=replace(target, threads=target.threads or share[number]),
            policy=policy,
            capacity=capacity,
            link=links[number],
        )
        for number, (first, last) in enumerate(spans)
    ]


def link_of(config: LinkConfig) -> LinkSettings:
    """A link as it was configured."""
    return LinkSettings(**asdict(config))


WORKER = "outrider.assemble.worker"


def make_stage(config: RunConfig, target: LoadedTarget, capacity: int) -> Stage:
    """Make the stage for the target's windows; states can take `capacity` rows back without a
    checkpoint.

    Raises StageError where a process does not start.
    """
    stages, policy, link = config.stages, config.state.policy, link_of(config.stages.link)
    if stages.is_apart:
        patience = Patience(
            deadline_s=stages.deadline_s, health_s=stages.health_s, resumes=stages.resumes
        )
        make = _on_cluster if stages.address else _in_processes
        return WiredStage(make(config, target, capacity), patience)
    if stages.is_local:
        return LocalStage(target.decoder, policy, capacity)
    parts = [LayerRange(decoder, policy, capacity) for decoder in target.parts]
    return ChainStage(parts, link)


def _in_processes(config: RunConfig, target: LoadedTarget, capacity: int) -> Workers:
    link = link_of(config.stages.link)
    setups = make_setups(
        replace(config.target, path=str(target.folder.absolute())),
        cut(config.stages, target.decoder.config.num_layers),
        config.state.policy,
        capacity,
        link,
    )
    return ProcessWorkers(len(setups), command_of(setups), link)


def _on_cluster(config: RunConfig, target: LoadedTarget, capacity: int) -> Workers:
    try:
        from outrider.assemble.cluster import make_workers
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"stages.address = {config.stages.address!r} needs the library {error.name}: pip "
            "install 'outrider[cluster]'."
        ) from None
    return make_workers(config, target, capacity)


def command_of(setups: Sequence[StageSetup]) -> Command:
    """The commands that start the processes of stages."""

    def command(number: int, into: int, out: int) -> Sequence[str]:
        words = [setups[number].to_json(), str(into), str(out)]
        return [sys.executable, "-m", WORKER, *words]

    return command
