"""A Ray cluster of two nodes on this machine, and chains of stages on it."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

import outrider
from outrider import __version__
from outrider.assemble.actor import StageActor
from outrider.assemble.stage_setup import make_setups
from outrider.config.settings import TargetConfig
from outrider.formats.hub import fingerprint
from outrider.stage.peer import Hello
from outrider.stage.ray_actors import ClusterWorkers, Place
from outrider.stage.wired import Patience, WiredStage
from tests.exactness.targets import Target, make_target

CAPACITY = 65
SPANS = {2: [(0, 1), (1, 4)], 3: [(0, 2), (2, 3), (3, 4)]}
"""The last of three holds attention only in the hybrid target."""
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "PYTHONPATH": str(Path(outrider.__file__).parents[1]),
}


@pytest.fixture(scope="session")
def targets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Target]:
    return {name: make_target(name, tmp_path_factory.mktemp(name)) for name in ("hybrid", "deep")}


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a cluster whose nodes offer `front` and `back`; both are gone afterwards."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    folder = tmp_path_factory.mktemp("ray")
    with (
        pytest.MonkeyPatch.context() as patch,
        # Ray puts sockets there, whose names must be short.
        TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as sockets,
        node(folder, "front", "--head", f"--port={port}", f"--temp-dir={sockets}"),
        node(folder, "back", f"--address=127.0.0.1:{port}"),
    ):
        for name, value in QUIET.items():
            patch.setenv(name, value)
        yield f"127.0.0.1:{port}"
        import ray

        ray.shutdown()


@contextmanager
def node(folder: Path, resource: str, *arguments: str) -> Iterator[None]:
    words = [f'--resources={{"{resource}": 8}}', "--num-cpus=16", "--object-store-memory=80000000"]
    words += ["--include-dashboard=false"] if "--head" in arguments else []
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", *arguments, *words]
    environment = {**os.environ, **QUIET}
    with (folder / f"{resource}.log").open("w+") as log:
        process = subprocess.Popen(
            command, env=environment, stdout=log, stderr=log, start_new_session=True
        )
        try:
            await_start(process, Path(log.name))
            yield
        finally:
            process.terminate()
            process.wait(60)


def await_start(process: subprocess.Popen, log: Path) -> None:
    while "Ray runtime started" not in log.read_text():
        try:
            process.wait(0.1)
        except subprocess.TimeoutExpired:
            continue
        raise AssertionError(log.read_text())


class Chains:
    """Stages on the cluster by target and number, started when they are first asked for."""

    def __init__(self, cluster: str, targets: dict[str, Target]) -> None:
        self._cluster, self._targets = cluster, targets
        self._made: dict[tuple[str, int], WiredStage] = {}

    def get(self, name: str, count: int) -> WiredStage:
        if (name, count) not in self._made:
            self._made[name, count] = WiredStage(self.workers(name, count), Patience(health_s=5.0))
        return self._made[name, count]

    def workers(
        self,
        name: str,
        count: int,
        version: str = __version__,
        address: str | None = None,
        nodes: Sequence[str] = ("front", "back", "back"),
    ) -> ClusterWorkers:
        folder = self._targets[name].folder
        config = TargetConfig(path=str(folder), threads=1)
        setups = make_setups(config, SPANS[count], "log", CAPACITY)
        places = [
            Place(arguments=(setup.to_json(), None), wants={"cpus": 0.5, node: 1.0})
            for setup, node in zip(setups, nodes, strict=False)
        ]
        hello = Hello(name="the coordinator", version=version, target=fingerprint(folder), key="")
        return ClusterWorkers(address or self._cluster, StageActor, places, hello)

    def close(self) -> None:
        for stage in self._made.values():
            stage.shutdown()


@pytest.fixture(scope="session")
def chains(cluster: str, targets: dict[str, Target]) -> Iterator[Chains]:
    made = Chains(cluster, targets)
    yield made
    made.close()
