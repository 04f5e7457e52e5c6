"""Stages in processes of their own on this machine, seen from the coordinator.

Sockets lead from the coordinator to the first stage, from each to the next, and from the last
straight back. A stage ends when the side before it has gone, so none outlives the coordinator.
"""

import socket
import subprocess
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NoReturn

from outrider.core_types import Reply, Window
from outrider.errors import StageError
from outrider.sampling.params import SamplingParams
from outrider.stage.chain import link_settings
from outrider.stage.channel import Inbox, Outbox
from outrider.stage.frame import Frame, Void, take_oldest
from outrider.stage.link import LOCAL, LinkSettings
from outrider.stage.wire import Close, Failed, Message, Open, Ready

Command = Callable[[int, int, int, LinkSettings], Sequence[str]]
"""The command of stage number `i`, given its two socket numbers and the link that leads to it."""
GRACE_S = 5.0


class ProcessStage:
    """Runs windows through processes that `command` starts.

    `deadline_s` is the longest silence while an answer is owed, and the longest start. Raises
    StageError, naming the stage, if one cannot start, dies, or stays silent longer.
    """

    def __init__(
        self,
        count: int,
        command: Command,
        settings: LinkSettings = LOCAL,
        *,
        seed: int = 0,
        deadline_s: float = 300.0,
    ) -> None:
        links, ways = link_settings(count, settings), _sockets(count + 1)
        self._deadline_s = deadline_s
        self._processes: list[subprocess.Popen[bytes]] = []
        for number in range(count):
            into, out = ways[number][1], ways[number + 1][0]
            words = command(number, into.fileno(), out.fileno(), links[number])
            fds = (into.fileno(), out.fileno())
            self._processes.append(
                subprocess.Popen(
                    words, pass_fds=fds, stdin=subprocess.DEVNULL, start_new_session=True
                )
            )
            into.close()
            out.close()
        self._outbox = Outbox(ways[0][0])
        self._inbox = Inbox(ways[-1][1], links[-1], seed + count)
        self._owed: Counter[int] = Counter()
        self._sessions: dict[int, bool] = {}  # whether they have taps
        self._answers: list[Reply] = []
        self._began(self._wait())

    def _began(self, messages: Sequence[Message | None]) -> None:
        for message in messages:
            if not isinstance(message, Ready):
                self._fail(message)
            self.vocab_size, self.max_length = message.vocab_size, message.max_length
            self.exact = message.exact

    @property
    def num_sessions(self) -> int:
        return len(self._sessions)

    def open(
        self, session: int, sampling: SamplingParams, prompt_len: int, taps: Sequence[int] = ()
    ) -> None:
        self._sessions[session] = bool(taps)
        self._send(
            Open(session=session, sampling=sampling, prompt_len=prompt_len, taps=tuple(taps))
        )

    def close(self, session: int) -> None:
        self._sessions.pop(session, None)
        self._owed.pop(session, None)
        self._answers = [reply for reply in self._answers if reply.session != session]
        if self._processes:
            self._send(Close(session))

    def submit(self, window: Window) -> None:
        self._send(Frame(window=window))
        if window.wanted or self._sessions[window.session]:
            self._owed[window.session] += 1
        else:  # Nothing to wait for: more of the prompt can follow at once.
            self._answers.append(Reply(session=window.session, id=window.id))

    def void(self, session: int, epoch: int) -> None:
        self._send(Void(session, epoch))

    @property
    def replied(self) -> bool:
        return bool(self._answers) or self._inbox.arrived

    def poll(self) -> list[Reply]:
        while not self._answers and self._owed.total():
            self._take(self._wait())
        return take_oldest(self._answers)

    def check(self) -> None:
        """Raise StageError unless all processes run; each checks its states when sessions end."""
        if any(process.poll() is not None for process in self._processes):
            self._fail(None)

    def shutdown(self) -> None:
        """Let the processes end by themselves, one behind the other; harmless if done twice."""
        processes, self._processes = self._processes, []
        if not processes:
            return
        self._outbox.close()
        self._inbox.close()
        for process in processes:
            try:
                process.wait(GRACE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _send(self, message: Message) -> None:
        try:
            self._outbox.send(message)
        except StageError:
            self._fail(None)

    def _wait(self) -> list[Message | None]:
        messages = self._inbox.take(self._deadline_s)
        if not messages:
            self.shutdown()
            raise StageError(
                f"no stage has answered for {self._deadline_s:g} s: raise stages.deadline_s if "
                "passes may take that long, else look for the stage that hangs."
            )
        return messages

    def _take(self, messages: Sequence[Message | None]) -> None:
        for message in messages:
            if not isinstance(message, Reply):
                self._fail(message)
            if message.session in self._sessions:
                self._owed[message.session] -= 1
                self._answers.append(message)

    def _fail(self, message: Message | None) -> NoReturn:
        """Raise for a stage that failed or died; all processes are ended."""
        processes = self._processes
        self.shutdown()
        if isinstance(message, Failed):
            raise StageError(message.reason)
        dead = [
            f"stage {number} of {len(processes)} died ({_ending(process.returncode)})"
            for number, process in enumerate(processes)
            if process.returncode
        ]
        raise StageError(f"{dead[0] if dead else 'the stages ended'}: its requests are lost.")


def _sockets(count: int) -> list[tuple[socket.socket, socket.socket]]:
    return [socket.socketpair() for _ in range(count)]


def _ending(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit status {code}"
