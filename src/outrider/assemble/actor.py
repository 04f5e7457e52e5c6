"""The actor of one stage: what Ray starts on a machine of its cluster.

Ray carries its few calls, frames travel over sockets of its own (`outrider.stage.peer`). The
layers stay loaded when a chain is joined anew.
"""

import json
import socket
import threading
from dataclasses import asdict

from outrider import __version__
from outrider.assemble.stage_setup import StageSetup
from outrider.errors import OutriderError
from outrider.formats.hub import fingerprint
from outrider.stage.channel import Inbox, Outbox
from outrider.stage.layer_range import LayerRange
from outrider.stage.peer import Hello, Tls, answer, call, listen
from outrider.stage.process import run
from outrider.stage.ray_actors import node_address


class StageActor:
    """One stage. `hello` and `serve` are called for each joining, in this order; `health` at any
    time. `setup` is a StageSetup as JSON, `tls` a folder of certificates or None."""

    def __init__(self, setup: str, tls: str | None) -> None:
        self._setup = StageSetup.from_json(setup)
        self._tls = Tls.load(tls) if tls else None
        self._part: LayerRange | None = None
        self._ends: list[socket.socket | Inbox | Outbox] = []
        self._serving = threading.Lock()

    def hello(self, key: str) -> str:
        """Leave the chain of before and open a port; JSON of a Hello and the port's address."""
        for end in self._ends:
            end.close()
        listener = listen(node_address())
        self._ends = [listener]
        target = fingerprint(self._setup.folder)
        self._hello = Hello(name=self._setup.name, version=__version__, target=target, key=key)
        self._listener = listener
        return json.dumps({"hello": asdict(self._hello), "address": listener.getsockname()[:2]})

    def serve(self, host: str, port: int, seconds: float) -> str | None:
        """Load, join the stages before and after, who listens at `host`, and serve until those
        have gone. Returns what failed."""
        listener, ends, hello = self._listener, self._ends, self._hello
        with self._serving:
            try:
                part = self._load()
                outbox = Outbox(call((host, port), hello, seconds, self._tls))
                ends.append(outbox)
                end = answer(listener, hello, seconds, self._tls)
                inbox = Inbox(end, self._setup.link, self._setup.number, near=False)
                ends.append(inbox)
                first = self._setup.number == 0
                return run(hello.name, lambda: part, inbox, outbox, first=first)
            except OutriderError as error:
                return str(error)
            finally:
                if self._part is not None:
                    self._part.clear()
                for one in ends:
                    one.close()

    def health(self) -> None:
        """Return at once."""

    def _load(self) -> LayerRange:
        self._part = self._part or self._setup.load()
        return self._part
