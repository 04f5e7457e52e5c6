"""The coordinator's record of a session whose states lie in other processes."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from outrider.records import Reply, Window
from outrider.stage.wire import Open

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
