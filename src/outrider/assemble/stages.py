"""The stages that a configuration names: here, in a chain, or in processes of their own."""

import sys
from collections.abc import Sequence
from dataclasses import replace

from outrider.assemble.decisions import cut
from outrider.assemble.stage_setup import StageSetup, link_of, make_setups
from outrider.assemble.target import LoadedTarget
from outrider.config.settings import RunConfig
from outrider.errors import ConfigError
from outrider.stage.base import Stage
from outrider.stage.layer_range import LayerRange
from outrider.stage.local import ChainStage, LocalStage
from outrider.stage.process import Command, ProcessWorkers
from outrider.stage.wired import Patience, WiredStage, Workers

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
