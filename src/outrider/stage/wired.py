"""Stages at the other end of sockets, seen from the coordinator; `Workers` says where they run.

Windows go to the first stage, what it makes of them from each stage to the next, and answers from
the last straight back. A stage that is lost takes the states of its sessions along, but what they
consumed is known here: replacements prefill it and are sent again what is owed, so that whoever
waits notices nothing but the time.
"""

import logging
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NoReturn, Protocol

from outrider.core_types import Reply, Window
from outrider.errors import StageError, StageLost
from outrider.sampling.params import SamplingParams
from outrider.stage.channel import Inbox, Outbox
from outrider.stage.frame import Frame, Void, take_oldest
from outrider.stage.wire import Audit, Close, Failed, Message, Open, Ready

LOG = logging.getLogger(__name__)
AGAIN_ROWS = 256
"""Rows of a window that brings a fresh state to where a lost one stood."""
AGAIN_ID = -2
AGAIN_EPOCH = 1 << 62
"""No void is about these: they hold final tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """Seconds to wait, and how often to try again.

    `deadline_s` is the longest silence while an answer is owed, and the longest start; within
    `health_s` a stage that died or hangs is noticed. `resumes` is how often a session may lose its
    state and be brought back.
    """

    deadline_s: float = 300.0
    health_s: float = 4.0
    resumes: int = 2


class Workers(Protocol):
    """What starts, watches and ends the stages of one chain."""

    def start(self, seconds: float) -> tuple[Outbox, Inbox]:
        """Start what does not run and join all; ways to the first stage and from the last.

        Raises StageError where that fails or takes longer than `seconds`.
        """

    def fault(self, seconds: float) -> str | None:
        """Which stage died or hangs, in words; they get `seconds` to show that they are well."""

    def stop(self) -> None:
        """End what the stages run, and those for good that do not hear of it."""

    def shutdown(self) -> None:
        """End everything; harmless if done twice."""


@dataclass(slots=True)
class Sent:
    """What a session was sent: enough to bring its states back.

    `running`: the stages hold its states. `losses`: how often they were lost.
    """

    opened: Open
    tokens: list[int] = field(default_factory=list)
    owed: deque[Window] = field(default_factory=deque)
    voided: int = -1
    running: bool = False
    losses: int = 0

    def add(self, window: Window) -> bool:
        """Take note of a window; returns whether it will be answered."""
        del self.tokens[window.start :]
        self.tokens += window.tokens
        if window.wanted or self.opened.taps:
            self.owed.append(window)
            return True
        return False

    def history(self, end: int) -> Iterator[Window]:
        """Windows that bring fresh states to position `end`."""
        for start in range(0, end, AGAIN_ROWS):
            tokens = tuple(self.tokens[start : min(start + AGAIN_ROWS, end)])
            yield Window(
                session=self.opened.session,
                id=AGAIN_ID,
                epoch=AGAIN_EPOCH,
                start=start,
                floor=start + len(tokens),
                tokens=tokens,
                wanted=0,
            )

    def skip_void(self) -> Iterator[Reply]:
        """Answer windows of void epochs, which need no stage; they are the oldest owed."""
        while self.owed and self.owed[0].id >= 0 and self.owed[0].epoch <= self.voided:
            window = self.owed.popleft()
            yield Reply(session=window.session, id=window.id, skipped=True)


class WiredStage:
    """Runs windows through the stages that `workers` start.

    Raises StageError, naming the stage, if one cannot start, fails, answers out of order, or is
    lost more often than `patience` allows. The next window then finds them started anew.
    """

    def __init__(self, workers: Workers, patience: Patience) -> None:
        self._workers = workers
        self._patience = patience
        self._sent: dict[int, Sent] = {}
        self._answers: list[Reply] = []
        self._counts: list[int] = []
        self._ways: tuple[Outbox, Inbox] | None = None
        self.resumed = 0
        try:
            self._connect()
        except StageError:
            self.shutdown()
            raise

    @property
    def num_sessions(self) -> int:
        return len(self._sent)

    def open(
        self, session: int, sampling: SamplingParams, prompt_len: int, taps: Sequence[int] = ()
    ) -> None:
        """As `Stage.open`; the stages hear of it with the first window."""
        opened = Open(session=session, sampling=sampling, prompt_len=prompt_len, taps=tuple(taps))
        self._sent[session] = Sent(opened)

    def close(self, session: int) -> None:
        sent = self._sent.pop(session, None)
        self._answers = [reply for reply in self._answers if reply.session != session]
        if sent is not None and sent.running:
            self._try_send(Close(session))

    def submit(self, window: Window) -> None:
        sent = self._sent[window.session]
        if not sent.add(window):  # Nothing to wait for: more of the prompt can follow at once.
            self._answers.append(Reply(session=window.session, id=window.id))
        if self._ways is None:
            return  # `poll` starts the stages anew and sends what is owed.
        try:
            self._deliver(sent, window)
        except StageLost as error:
            self._bear(error)

    def void(self, session: int, epoch: int) -> None:
        sent = self._sent[session]
        sent.voided = epoch
        if sent.running:
            self._try_send(Void(session, epoch))

    @property
    def replied(self) -> bool:
        return bool(self._answers) or (self._ways is not None and self._ways[1].arrived)

    def poll(self) -> list[Reply]:
        while not self._answers and any(sent.owed for sent in self._sent.values()):
            try:
                if self._ways is None:
                    self._resume()
                self._take()
            except StageLost as error:
                self._bear(error)
        return take_oldest(self._answers)

    def check(self) -> None:
        """As `Stage.check`; every stage checks its states and counts its sessions.

        Raises StageError where one holds another number than are open.
        """
        if self._ways is None:
            return
        self._counts.clear()
        self._send(Audit())
        while not self._counts:
            self._take()
        running = sum(sent.running for sent in self._sent.values())
        if set(self._counts) != {running}:
            raise StageError(
                f"stages hold {', '.join(map(str, self._counts))} sessions and {running} run: "
                "states were leaked or lost."
            )

    def shutdown(self) -> None:
        self._down()
        self._workers.shutdown()

    def _connect(self) -> None:
        try:
            self._ways = self._workers.start(self._patience.deadline_s)
            for message in self._listen():
                if not isinstance(message, Ready):
                    self._fail(message)
                self.vocab_size, self.max_length = message.vocab_size, message.max_length
                self.exact = message.exact
        except StageLost as error:  # One that does not even start is not tried again.
            raise StageError(f"{error}, before it was ready.") from None
        except StageError:
            self._down()
            raise

    def _resume(self) -> None:
        """Start the stages anew, and bring back every session that is owed an answer."""
        self._connect()
        self.resumed += 1
        for sent in self._sent.values():
            self._answers += sent.skip_void()
            for window in sent.owed:
                self._deliver(sent, window)

    def _deliver(self, sent: Sent, window: Window) -> None:
        if not sent.running:
            sent.running = True
            self._send(sent.opened)
            for past in sent.history(window.start):
                self._send(Frame(window=past))
        self._send(Frame(window=window))

    def _try_send(self, message: Message) -> None:
        try:
            self._send(message)
        except StageLost as error:
            self._bear(error)

    def _send(self, message: Message) -> None:
        assert self._ways is not None
        try:
            self._ways[0].send(message)
        except StageLost:
            self._fail(None)

    def _bear(self, error: StageLost) -> None:
        """Go on without a stage that was lost, unless a session has borne that too often."""
        if any(sent.losses > self._patience.resumes for sent in self._sent.values()):
            raise StageLost(f"{error}: its requests are lost.")
        LOG.warning("%s: its requests go on where it is replaced", error)

    def _take(self) -> None:
        for message in self._listen():
            if isinstance(message, Reply):
                self._answer(message)
            elif isinstance(message, Audit):
                self._counts = list(message.counts)
            else:
                self._fail(message)

    def _answer(self, reply: Reply) -> None:
        sent = self._sent.get(reply.session)
        if sent is None or reply.id == AGAIN_ID:
            return
        owed = sent.owed[0].id if sent.owed else None
        if reply.id != owed:
            self._down()
            raise StageError(
                f"the last stage answered window {reply.id} out of order, {owed} was owed: its "
                "requests are lost."
            )
        sent.owed.popleft()
        self._answers.append(reply)

    def _listen(self) -> list[Message | None]:
        """What the last stage sent, at least one message."""
        assert self._ways is not None
        patience, began = self._patience, time.monotonic()
        while True:
            left = began + patience.deadline_s - time.monotonic()
            if messages := self._ways[1].take(min(patience.health_s / 2, max(left, 0.0))):
                return messages
            if found := self._workers.fault(patience.health_s / 2):
                self._lose(found)
            if left <= 0.0:
                self._down()
                raise StageError(
                    f"no stage has answered for {patience.deadline_s:g} s: raise "
                    "stages.deadline_s if passes may take that long, else look for the stage that "
                    "hangs."
                )

    def _fail(self, message: Message | None) -> NoReturn:
        """Raise for stages that failed or ended."""
        if isinstance(message, Failed):
            self._down()
            raise StageError(message.reason)
        self._lose(self._workers.fault(self._patience.health_s / 2))

    def _lose(self, found: str | None) -> NoReturn:
        self._down()
        found = found or self._workers.fault(0.0) or "the stages ended"
        raise StageLost(found)

    def _down(self) -> None:
        """End what the stages run; the states of all sessions are gone."""
        ways, self._ways = self._ways, None
        for way in ways or ():
            way.close()
        self._workers.stop()
        for sent in self._sent.values():
            sent.losses += sent.running
            sent.running = False
