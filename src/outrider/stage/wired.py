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
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NoReturn, Protocol

from outrider.errors import StageError, StageLost
from outrider.records import Reply, Window
from outrider.sampling.params import SamplingParams
from outrider.stage.base import Frame, Stage, Void, take_oldest
from outrider.stage.channel import Inbox, Outbox
from outrider.stage.wire import Audit, Close, Failed, Message, Open, Ready

AGAIN_ROWS = 256
"""Rows of a window that brings a fresh state to where a lost one stood."""
AGAIN_ID = -2
AGAIN_EPOCH = 1 << 62
"""No void is about these: they hold final tokens."""


@dataclass(slots=True)
class Sent:
    """Windows that a session was sent: enough to bring its states back.

    `running`: the stages hold its states. `losses`: how often they were lost. After a `fault`
    nothing is sent any more: it answers all that is owed, and whatever comes.
    """

    opened: Open
    tokens: list[int] = field(default_factory=list)
    owed: deque[Window] = field(default_factory=deque)
    voided: int = -1
    running: bool = False
    losses: int = 0
    fault: Exception | None = None

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

    def fail(self, fault: Exception) -> list[Reply]:
        """End the session; returns the answers that it was owed."""
        self.fault = fault
        owed, self.owed = self.owed, deque()
        return [self.refuse(window) for window in owed]

    def refuse(self, window: Window) -> Reply:
        """The answer to a window after a `fault`."""
        return Reply(session=window.session, id=window.id, fault=self.fault)

    def skip_void(self) -> Iterator[Reply]:
        """Answer windows of void epochs, which need no stage; they are the oldest owed."""
        while self.owed and self.owed[0].id >= 0 and self.owed[0].epoch <= self.voided:
            window = self.owed.popleft()
            yield Reply(session=window.session, id=window.id, skipped=True)


LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """Seconds to wait, and how often to try again.

    `deadline_s` is the longest silence while an answer is owed, and the longest start; within
    `health_s` a stage that died or hangs is noticed. `resumes` is how often a session may lose its
    state and be brought back; a loss while the stages start anew is one more.
    """

    deadline_s: float = 300.0
    health_s: float = 4.0
    resumes: int = 2


class Workers(Protocol):
    """Starts, watches and ends the stages of one chain."""

    def start(self, seconds: float) -> tuple[Outbox, Inbox]:
        """Start what does not run and join all; ways to the first stage and from the last.

        Raises StageError where that fails or takes longer than `seconds`, StageLost where a stage
        that had started is lost meanwhile.
        """

    def fault(self, seconds: float) -> str | None:
        """Which stage died or hangs, in words; they get `seconds` to show that they are well."""

    def stop(self) -> None:
        """End what the stages run, and those for good that do not hear of it."""

    def shutdown(self) -> None:
        """End everything; harmless if done twice."""


class _UnansweredError(StageError):
    """Nothing will come of what is owed, and nobody knows which stage is to blame."""


class WiredStage(Stage):
    """Runs windows through the stages that `workers` start.

    Raises StageError, naming the stage, if one cannot start. Later the sessions bear what befalls
    the stages, and the next window finds these started anew: a session whose state was lost more
    often than `patience` allows fails, as do all that wait when no stage answers or they cannot
    start anew. The replies owed to it then carry the fault. `run_batch` raises StageError if a
    stage failed or answers out of order.
    """

    def __init__(self, workers: Workers, patience: Patience) -> None:
        self.workers = workers
        self.patience = patience
        self._sent: dict[int, Sent] = {}
        self._answers: list[Reply] = []
        self._counts: list[int] = []
        self.ways: tuple[Outbox, Inbox] | None = None
        self._torn = False
        self.resumed = 0
        try:
            self._connect()
        except BaseException as error:
            self.shutdown()
            if isinstance(error, StageLost):  # One that does not even start is not tried again.
                raise StageError(f"{error}, before it was ready.") from None
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
        with self._in_step():
            sent = self._sent.pop(session, None)
            if sent is not None and sent.running:
                self._send(Close(session))
        self._answers = [reply for reply in self._answers if reply.session != session]

    def submit(self, window: Window) -> None:
        sent = self._sent[window.session]
        if sent.fault is not None:
            self._answers.append(sent.refuse(window))
            return
        with self._in_step():
            if not sent.add(window):  # Nothing to wait for: more of the prompt can follow at once.
                self._answers.append(Reply(session=window.session, id=window.id))
            if (
                self.ways is not None
            ):  # Else `run_batch` starts the stages anew and sends what is owed.
                self._deliver(sent, window)

    def void(self, session: int, epoch: int) -> None:
        sent = self._sent[session]
        sent.voided = epoch
        with self._in_step():
            if sent.running:
                self._send(Void(session, epoch))

    def run_ready(self) -> bool:
        return bool(self._answers) or (self.ways is not None and self.ways[1].arrived)

    def run_batch(self) -> list[Reply]:
        while not self._answers and any(sent.owed for sent in self._sent.values()):
            with self._in_step():
                if self.ways is None:
                    self._resume()
            self._take()
        return take_oldest(self._answers)

    def check(self) -> None:
        """As `Stage.check`; every stage checks its states and counts its sessions.

        Raises StageError where one holds another number than are open. Where the stages are lost
        there is nothing to check.
        """
        self._counts.clear()
        with self._in_step():
            if self.ways is not None:
                self._send(Audit())
        while self.ways is not None and not self._counts:
            self._take()
        running = sum(sent.running for sent in self._sent.values())
        if self.ways is not None and set(self._counts) != {running}:
            raise StageError(
                f"stages hold {', '.join(map(str, self._counts))} sessions and {running} run: "
                "states were leaked or lost."
            )

    def shutdown(self) -> None:
        self._down()
        self.workers.shutdown()

    @contextmanager
    def _in_step(self) -> Iterator[None]:
        """Around what changes both sides of the ways.

        What an interrupt cuts short in here leaves the stages out of step with what is known of
        them: the next call ends what they run first.
        """
        if self._torn:
            self._down()
        self._torn = True
        with self._bearing():
            yield
        self._torn = False

    @contextmanager
    def _bearing(self) -> Iterator[None]:
        """Let the sessions bear it where stages are lost: no call raises for another's sake."""
        try:
            yield
        except StageLost as error:
            self._bear(error)
        except _UnansweredError as error:
            LOG.warning("%s", error)
            for sent in self._sent.values():
                if sent.owed:
                    self._answers += sent.fail(StageError(str(error)))

    def _bear(self, error: StageLost) -> None:
        """Go on without a stage that was lost, but for sessions that have borne that too often."""
        running = [sent for sent in self._sent.values() if sent.fault is None]
        over = [sent for sent in running if sent.losses > self.patience.resumes]
        for sent in over:
            self._answers += sent.fail(StageLost(f"{error}: its requests are lost."))
        if len(over) < len(running) or not over:
            LOG.warning("%s: its requests go on where it is replaced", error)
        if over:
            LOG.warning("%s: requests lost: %d", error, len(over))

    def _connect(self) -> None:
        try:
            self.ways = self.workers.start(self.patience.deadline_s)
        except StageLost as error:
            self._lose(str(error))
        outbox, inbox = self.ways
        outbox.watch(self.patience.health_s / 2, self._look)
        self._await(inbox)
        for message in inbox.take(0.0):
            if not isinstance(message, Ready):
                self._fail(message)
            self.vocab_size, self.max_length = message.vocab_size, message.max_length
            self.exact = message.exact

    def _resume(self) -> None:
        """Start the stages anew, and bring back every session that is owed an answer."""
        try:
            self._connect()
        except StageLost:
            raise
        except StageError as error:
            self._down()
            raise _UnansweredError(str(error)) from None
        self.resumed += 1
        for sent in self._sent.values():
            self._answers += sent.skip_void()
            for window in list(sent.owed):
                self._deliver(sent, window)

    def _deliver(self, sent: Sent, window: Window) -> None:
        try:
            if not sent.running:
                sent.running = True
                self._send(sent.opened)
                for past in sent.history(window.start):
                    self._send(Frame.of(past))
            self._send(Frame.of(window))
        except (StageLost, _UnansweredError):
            raise
        except StageError as error:  # It fits into no message, which is nobody else's business.
            self._answers += sent.fail(error)

    def _send(self, message: Message) -> None:
        assert self.ways is not None
        try:
            self.ways[0].send(message)
        except StageLost as error:
            if self.ways is None:
                raise  # Found lost while there was no room, and counted.
            self._lose(self.workers.fault(self.patience.health_s / 2), str(error))

    def _take(self) -> None:
        """Wait for what the last stage says and take it in."""
        if self.ways is None:
            return
        with self._bearing():
            self._await(self.ways[1])  # An interrupt does no harm here.
        with self._in_step():
            for message in self.ways[1].take(0.0) if self.ways else ():
                if isinstance(message, Reply):
                    self._answer(message)
                elif isinstance(message, Audit):
                    self._counts = list(message.counts)
                else:
                    self._fail(message)

    def _answer(self, reply: Reply) -> None:
        sent = self._sent.get(reply.session)
        if sent is None or sent.fault is not None:
            return
        if reply.fault is not None:
            self._answers += sent.fail(reply.fault)
            return
        if reply.id == AGAIN_ID:
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

    def _await(self, inbox: Inbox) -> None:
        """Wait until the last stage has said something."""
        patience, began, waited = self.patience, time.monotonic(), 0.0
        while not inbox.wait(min(patience.health_s / 2, max(patience.deadline_s - waited, 0.0))):
            waited = time.monotonic() - began
            self._look(waited)

    def _look(self, waited: float) -> None:
        """Raise for stages that are lost, or have been silent for too long."""
        if found := self.workers.fault(self.patience.health_s / 2):
            self._lose(found)
        if waited >= self.patience.deadline_s:
            self._down()
            raise _UnansweredError(
                f"no stage has answered for {self.patience.deadline_s:g} s: raise "
                "stages.deadline_s if a pass or a start may take that long, else look for the "
                "stage that hangs."
            )

    def _fail(self, message: Message | None) -> NoReturn:
        """Raise for stages that failed or ended."""
        if message is None:
            self._lose(self.workers.fault(self.patience.health_s / 2))
        self._down()
        if isinstance(message, Failed):
            raise StageError(message.reason)
        raise StageError(f"the last stage said {type(message).__name__}, which nobody asked for.")

    def _lose(self, found: str | None, said: str = "the stages ended") -> NoReturn:
        """End what the stages run; `found` is what is known of the one that was lost."""
        for sent in self._sent.values():
            sent.losses += sent.running or bool(sent.owed)
        self._down()
        raise StageLost(found or self.workers.fault(0.0) or said)

    def _down(self) -> None:
        """End what the stages run; the states of all sessions are gone."""
        for sent in self._sent.values():
            sent.running = False
        ways, self.ways = self.ways, None
        for way in ways or ():
            way.close()
        self.workers.stop()
        self._torn = False
