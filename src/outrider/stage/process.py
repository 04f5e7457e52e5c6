"""The workers of stages as processes of this machine.

Sockets lead from the coordinator to the first stage, from each to the next, and from the last
straight back. A stage ends when the side before it has gone, so none outlives the coordinator.
"""

import logging
import os
import socket
import subprocess
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from outrider.errors import StageError, StageLost
from outrider.records import Window
from outrider.stage.base import Frame, Void
from outrider.stage.channel import Inbox, Outbox
from outrider.stage.layer_range import LayerRange
from outrider.stage.link import LOCAL, LinkSettings
from outrider.stage.wire import Audit, Close, Failed, Message, Open, Ready, say

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


LOG = logging.getLogger(__name__)


def serve(part: LayerRange, inbox: Inbox, outbox: Outbox) -> None:
    """Run until the side before has gone, or said that it failed."""
    while True:
        for message in inbox.take(0.0 if part.waiting else None):
            if message is None:
                return
            if isinstance(message, Failed):
                outbox.send(message)
                return
            _handle(part, message, outbox)
        for frame in part.run():
            if not part.is_tail or frame.is_answered:
                _hand_on(frame, outbox, reply=part.is_tail)


def _hand_on(frame: Frame, outbox: Outbox, *, reply: bool) -> None:
    """Send what was made of a window; where that fits into no message, the fault of its session."""
    try:
        outbox.send(frame.reply if reply else frame)
    except StageLost:
        raise
    except StageError as error:
        failed = frame.ended(taps=None, tokens=(), logprobs=(), fault=error)
        outbox.send(failed.reply if reply else failed)


def _handle(part: LayerRange, message: Message, outbox: Outbox) -> None:
    """Sessions and voids are passed on at once: they overtake the frames that wait here."""
    if isinstance(message, Frame):
        part.take(message)
        return
    if isinstance(message, Open):
        _open(part, message, outbox)
        return
    if isinstance(message, Close):
        _close(part, message.session)
    elif isinstance(message, Void):
        part.take(message)
    elif isinstance(message, Audit):
        part.check()
        outbox.send(Audit((*message.counts, part.num_sessions)))
        return
    else:
        raise StageError(f"a stage was sent {type(message).__name__}, which it has no use for.")
    if not part.is_tail:
        outbox.send(message)


def _open(part: LayerRange, message: Open, outbox: Outbox) -> None:
    """Begin a session here and further on; its fault is on its way where that fails here."""
    failed: Exception | None = None
    try:
        part.open(message.session, message.sampling, message.prompt_len, message.taps)
    except Exception as error:
        failed = error
    if not part.is_tail:
        outbox.send(message)
    if failed is not None:
        nothing = Window(
            session=message.session, id=-1, epoch=0, start=0, floor=1, tokens=(0,), wanted=0
        )
        _hand_on(Frame.of(nothing, fault=failed), outbox, reply=part.is_tail)


def _close(part: LayerRange, session: int) -> None:
    """End a session. A state that contradicts its bookkeeping has harmed nobody else."""
    try:
        part.check(session)
    except Exception as error:
        LOG.error("a session ended with a wrong state: %s", say(error))
    part.close(session)


def report_ready(part: LayerRange, inbox: Inbox | None, outbox: Outbox) -> bool:
    """Say that this stage has loaded, once those before it have (`inbox` None: it is the first).

    False if one of them has not: whoever waits for the last stage is told so, and the process ends.
    """
    exact = part.exact
    for message in inbox.take() if inbox else ():
        if not isinstance(message, Ready):
            if message is not None:
                outbox.send(message)
            return False
        exact = exact and message.exact
    outbox.send(Ready(vocab_size=part.vocab_size, max_length=part.max_length, exact=exact))
    return True


def run(
    name: str, load: Callable[[], LayerRange], inbox: Inbox, outbox: Outbox, *, first: bool
) -> str | None:
    """Load a stage, say so, and serve until the side before has gone.

    Returns, and tells the side after, what failed here; None where it is that one which has gone.
    """
    try:
        part = load()
        if report_ready(part, None if first else inbox, outbox):
            serve(part, inbox, outbox)
    except Exception as error:
        said = say(error)
        try:
            outbox.send(Failed(f"{name} failed: {said}"))
        except StageError:
            return None
        return said
    return None
