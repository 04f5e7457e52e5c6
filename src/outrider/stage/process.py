"""The workers of stages as processes of this machine.

Sockets lead from the coordinator to the first stage, from each to the next, and from the last
straight back. A stage ends when the side before it has gone, so none outlives the coordinator.
"""

import os
import socket
import subprocess
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from outrider.errors import StageError
from outrider.stage.channel import Inbox, Outbox
from outrider.stage.link import LOCAL, LinkSettings

Command = Callable[[int, int, int], Sequence[str]]
"""The command of stage number `i`, given the numbers of its two sockets."""
GRACE_S = 5.0


class ProcessWorkers:
    """As `wired.Workers`: one process for each of `count` stages, which `command` starts.

    `back` is the link that leads from the last one.
    """

    def __init__(self, count: int, command: Command, back: LinkSettings = LOCAL) -> None:
        self._count = count
        self._command = command
        self._back = back
        self.processes: list[subprocess.Popen[bytes]] = []
        self._hung: int | None = None
        self._ended: set[int] = set()

    def start(self, seconds: float) -> tuple[Outbox, Inbox]:
        """Start all processes; what they cannot do they say through the socket."""
        self.stop()
        self._hung, self.processes = None, []
        self._ended.clear()
        try:
            return self._start()
        except OSError as error:
            raise StageError(
                f"stage {len(self.processes)} of {self._count} cannot be started ({error}): free "
                "memory, processes or files on this machine, or use fewer stages."
            ) from None

    def _start(self) -> tuple[Outbox, Inbox]:
        with ExitStack() as opened:
            ways = [socket.socketpair() for _ in range(self._count + 1)]
            for end in (end for way in ways for end in way):
                opened.callback(end.close)
            for number in range(self._count):
                self._launch(number, ways[number][1], ways[number + 1][0])
            opened.pop_all()
        return Outbox(ways[0][0]), Inbox(ways[-1][1], self._back, self._count)

    def _launch(self, number: int, into: socket.socket, out: socket.socket) -> None:
        fds = (into.fileno(), out.fileno())
        words = self._command(number, *fds)
        with into, out:
            process = subprocess.Popen(
                words, pass_fds=fds, stdin=subprocess.DEVNULL, start_new_session=True
            )
        self.processes.append(process)

    def fault(self, seconds: float) -> str | None:
        """The first stage that ended by itself, or was stopped; the system knows at once."""
        for number, process in enumerate(self.processes):
            name = f"stage {number} of {self._count}"
            if self._hung == number or _stopped(process):
                self._hung = number
                return f"{name} hangs (its process is stopped)"
            if process.poll() and self._hung is None and number not in self._ended:
                return f"{name} died ({_ending(process.returncode)})"
        return None

    def stop(self) -> None:
        """Let the processes end by themselves, one after the other."""
        for number, process in enumerate(self.processes):
            if _stopped(process):
                self._hung = number
                process.kill()
        for number, process in enumerate(self.processes):
            try:
                process.wait(GRACE_S)
            except subprocess.TimeoutExpired:
                self._ended.add(number)
                process.kill()
                process.wait()

    def shutdown(self) -> None:
        self.stop()


def _stopped(process: subprocess.Popen[bytes]) -> bool:
    """True if a signal keeps a process from running."""
    if process.poll() is not None:
        return False
    look = os.WSTOPPED | os.WNOHANG | os.WNOWAIT
    try:
        return os.waitid(os.P_PID, process.pid, look) is not None
    except ChildProcessError:  # It has ended since.
        return False


def _ending(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit status {code}"
