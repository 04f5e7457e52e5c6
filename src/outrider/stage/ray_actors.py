"""The workers of stages as actors of a Ray cluster: one actor for each stage.

Ray finds the machines, starts the actors and tells which are well. It carries no frames: those go
over sockets from stage to stage, as typed messages, and never through the coordinator.
"""

import json
import logging
import secrets
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError

from outrider.errors import StageError, StageLost
from outrider.stage.channel import Inbox, Outbox
from outrider.stage.link import LOCAL, LinkSettings
from outrider.stage.peer import Address, Hello, Tls, answer, call, listen

REACH_S = 5.0
CALLS = 4
"""Calls of one actor at once: one that serves, one that is ending, and the short ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One actor to be: what its class is made from, and amounts of what its machine must have
    ("cpus", "gpus", or a resource that `ray start` was told of)."""

    arguments: tuple[Any, ...]
    wants: Mapping[str, float]

    @property
    def words(self) -> str:
        """As the configuration says it."""
        return " ".join(
            f"{name}={amount:g}" for name, amount in ({"cpus": 1.0} | {**self.wants}).items()
        )

    def options(self) -> dict[str, Any]:
        """In Ray's words."""
        rest = dict(self.wants)
        return {
            "num_cpus": rest.pop("cpus", 1.0),
            "num_gpus": rest.pop("gpus", None),
            "scheduling_strategy": "DEFAULT" if rest else "SPREAD",
            "resources": rest,
            "max_concurrency": CALLS,
            "max_restarts": 0,
        }


class ClusterWorkers:
    """As `wired.Workers`: actors of class `kind` at `places`.

    `hello` is the coordinator's, without a key; `back` the link that leads from the last stage.
    """

    def __init__(
        self,
        address: str,
        kind: type,
        places: Sequence[Place],
        hello: Hello,
        *,
        back: LinkSettings = LOCAL,
        tls: Tls | None = None,
    ) -> None:
        _join(address)
        self._kind: Any = ray.remote(kind)
        self._places = places
        self._hello = hello
        self._back = back
        self._tls = tls
        self._actors: list[Any] = [None] * len(places)
        self._runs: list[Any] = []
        self._found: str | None = None

    def start(self, seconds: float) -> tuple[Outbox, Inbox]:
        """As `Workers.start`; refuses actors of another version or target before they load.

        An actor that dies meanwhile is lost, and the next start makes another one in its place.
        """
        end, self._found = time.monotonic() + seconds, None
        for number, place in enumerate(self._places):
            if self._actors[number] is None:
                make = self._kind.options(**place.options())
                self._actors[number] = make.remote(*place.arguments)
        hello = replace(self._hello, key=secrets.token_hex(16))
        with listen(node_address()) as listener:
            addresses = [*self._meet(hello, end), listener.getsockname()[:2]]
            self._runs = [
                actor.serve.remote(*addresses[number + 1], seconds)
                for number, actor in enumerate(self._actors)
            ]
            left = end - time.monotonic()
            back = answer(listener, hello, left, self._tls, self._check_runs)
        try:
            out = call(addresses[0], hello, end - time.monotonic(), self._tls)
        except StageError:
            back.close()
            raise
        return Outbox(out), Inbox(back, self._back, len(self._places), near=False)

    def _meet(self, hello: Hello, end: float) -> list[Address]:
        """Ask all actors who they are; where each of them listens."""
        asked = [actor.hello.remote(hello.key) for actor in self._actors]
        addresses = []
        for number, one in enumerate(asked):
            found = json.loads(self._get(number, one, end))
            hello.check(Hello(**found["hello"]))
            host, port = found["address"]
            addresses.append((host, port))
        return addresses

    def _get(self, number: int, asked: Any, end: float) -> Any:
        try:
            return ray.get(asked, timeout=max(end - time.monotonic(), 0.0))
        except ray.exceptions.GetTimeoutError:
            reason = (
                f"no machine of the cluster had {self._places[number].words} free for it; `ray "
                "status` shows what there is"
            )
        except RayActorError as error:
            self._actors[number] = None
            raise StageLost(f"{self._name(number)} died ({_last_line(error)})") from None
        except RayError as error:
            reason = _last_line(error)
        raise StageError(f"{self._name(number)} did not start: {reason}.")

    def _check_runs(self) -> None:
        """Raise if a stage has ended before its chain was joined; those before it then do too."""
        done, _ = ray.wait(self._runs, num_returns=len(self._runs), timeout=0.0)
        if done and (found := self.fault(REACH_S)):
            raise StageLost(found)  # The others leave because this one has.
        for number, run in reversed(list(enumerate(self._runs))):
            if run in done:
                said = self._get(number, run, time.monotonic() + 1.0)
                raise StageError(f"{self._name(number)} did not start: {said or 'it left'}")

    def fault(self, seconds: float) -> str | None:
        """As `Workers.fault`: asks every actor for a sign of life."""
        actors = [actor for actor in self._actors if actor is not None]
        if self._found or seconds <= 0.0 or len(actors) < len(self._actors):
            return self._found
        asked = [actor.health.remote() for actor in actors]
        done, _ = ray.wait(asked, num_returns=len(asked), timeout=seconds)
        for number, one in enumerate(asked):
            if reason := _ailment(one, done, seconds):
                self._found = self._found or f"{self._name(number)} {reason}"
                ray.kill(self._actors[number])
                self._actors[number] = None
        return self._found

    def stop(self) -> None:
        """Nothing: actors leave their chain when a neighbour has, and join another when told."""

    def shutdown(self) -> None:
        for actor in self._actors:
            if actor is not None:
                ray.kill(actor)
        self._actors = [None] * len(self._places)

    def _name(self, number: int) -> str:
        return f"stage {number} of {len(self._places)}"


def node_address() -> str:
    """The address of this machine within the cluster."""
    here = ray.get_runtime_context().get_node_id()
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return next(str(n["NodeManagerAddress"]) for n in nodes if n["NodeID"] == here)


def _join(address: str) -> None:
    """Become a part of a running cluster; StageError where there is none."""
    host, _, port = address.rpartition(":")
    try:
        if host and port.isdigit():  # Ray itself would try for minutes.
            socket.create_connection((host, int(port)), REACH_S).close()
        if not ray.is_initialized():
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, RuntimeError, ValueError) as error:
        raise StageError(
            f"stages.address = {address!r} leads to no Ray cluster ({_last_line(error)}): start "
            "one with `ray start --head`, and run this on one of its machines."
        ) from None


def _ailment(asked: Any, done: Sequence[Any], seconds: float) -> str | None:
    """Fault of an actor that was asked how it is."""
    if asked not in done:
        return f"hangs (no sign of life for {seconds:g} s)"
    try:
        ray.get(asked)
    except RayActorError:
        return "died (its process or its machine has gone)"
    except RayError as error:
        return f"is not well ({_last_line(error)})"
    return None


def _last_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[-1].rstrip(".")
