"""Stages on a Ray cluster, from a configuration."""

from dataclasses import replace
from pathlib import Path

from outrider import __version__
from outrider.assemble.actor import StageActor
from outrider.assemble.decisions import cut
from outrider.assemble.stage_setup import link_of, make_setups
from outrider.assemble.target import LoadedTarget
from outrider.config.settings import RunConfig, TargetConfig
from outrider.formats.hub import fingerprint
from outrider.stage.peer import Hello, Tls
from outrider.stage.ray_actors import ClusterWorkers, Place


def make_workers(config: RunConfig, target: LoadedTarget, capacity: int) -> ClusterWorkers:
    """Actors for the stages of a target, which must lie on every machine under the same name."""
    stages, link = config.stages, link_of(config.stages.link)
    assert stages.address is not None
    setups = make_setups(
        _everywhere(config.target),
        cut(stages, target.decoder.config.num_layers),
        config.state.policy,
        capacity,
        link,
        [max(int(wants.get("cpus", 1.0)), 1) for wants in stages.wants],
    )
    keys = str(Path(stages.tls).expanduser().absolute()) if stages.tls else None
    places = [
        Place(arguments=(setup.to_json(), keys), wants=wants)
        for setup, wants in zip(setups, stages.wants, strict=True)
    ]
    hello = Hello(
        name="the coordinator", version=__version__, target=fingerprint(target.folder), key=""
    )
    tls = Tls.load(keys) if keys else None
    return ClusterWorkers(stages.address, StageActor, places, hello, back=link, tls=tls)


def _everywhere(target: TargetConfig) -> TargetConfig:
    """The target as other machines find it: a folder from the root, names as they are."""
    path = Path(target.path).expanduser()
    return replace(target, path=str(path.absolute())) if path.exists() else target
