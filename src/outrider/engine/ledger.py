"""The ledger of windows in flight for one session: issue, judge, void. Pure, torch-free.

An epoch is one optimistic branch. Its first window holds the pending token and drafts, later ones
drafts only, each starting where the last one ended. A window's reply carries the target's token
after every row, so a draft is accepted when it equals the reply of the row before it. The token
after a window's last row, the boundary, judges the first draft of what depends on it (the next
window, or drafts still queued); where nothing does, it is a bonus. A mismatch commits the agreeing
prefix and the correction, voids the rest of the epoch and starts the next one at once: no
acknowledgement is awaited, because a window's `start` tells the stage where to settle.
"""

from collections import deque
from dataclasses import dataclass, field
from itertools import chain

from outrider.errors import StageError
from outrider.records import Window

MAX_IN_FLIGHT = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of one reply.

    tokens: newly committed ones, drafts first. accepted: how many of them were drafts. verified:
    drafts that this window held. closes: the last token is the target's own and ends the epoch.
    rejected: a draft, of this window or the first after it, was found wrong.
    voided: windows in flight that became stale. stale: the reply belonged to an earlier epoch.
    """

    tokens: tuple[int, ...] = ()
    accepted: int = 0
    verified: int = 0
    sources: tuple[str, ...] = ()
    closes: bool = False
    rejected: bool = False
    voided: int = 0
    stale: bool = False

    @property
    def source(self) -> str | None:
        """Proposer of the window's first draft."""
        return self.sources[0] if self.sources else None


@dataclass(slots=True, kw_only=True)
class Ledger:
    """Windows of one session whose committed tokens are `length` long, the pending one included.

    width: rows of a window at most. depth: live windows at most. runahead: rows in flight at most,
    instead of depth; windows then shrink to the budget that is left.
    """

    length: int
    width: int
    depth: int = 1
    runahead: int | None = None
    epoch: int = 0
    _next_id: int = 0
    flights: deque[Window] = field(default_factory=deque)
    queue: list[int] = field(default_factory=list)
    _sources: list[str] = field(default_factory=list)  # of what is in flight, live, and queued
    _end: int | None = None  # position after the newest live row; None: the epoch has not begun

    @property
    def begun(self) -> bool:
        """True if a window of the current epoch was issued."""
        return self._end is not None

    @property
    def runs_ahead(self) -> bool:
        """True if a window may be issued after one in flight."""
        return self.depth > 1 or self.runahead is not None

    @property
    def live(self) -> int:
        """Windows in flight of the current epoch."""
        return sum(flight.epoch == self.epoch for flight in self.flights)

    @property
    def in_flight(self) -> int:
        """Windows whose reply is owed, stale ones included."""
        return len(self.flights)

    @property
    def queued(self) -> int:
        """Drafts offered and not issued."""
        return len(self.queue)

    @property
    def suffix(self) -> list[int]:
        """The optimistic suffix: drafts of the epoch in flight, then queued ones."""
        live = (flight for flight in self.flights if flight.epoch == self.epoch)
        return [*chain.from_iterable(flight.drafts for flight in live), *self.queue]

    @property
    def row_room(self) -> int:
        """Rows that the next window may have; 0 where none may be issued now."""
        if len(self.flights) >= MAX_IN_FLIGHT:
            return 0
        if self.runahead is None:
            return self.width if self.live < self.depth else 0
        flying = sum(len(f.tokens) for f in self.flights if f.epoch == self.epoch)
        return max(min(self.width, self.runahead - flying), 0 if flying else 1)

    @property
    def draft_room(self) -> int:
        """Drafts that the next window may hold."""
        return self.row_room if self.begun else max(self.row_room - 1, 0)

    def offer(self, tokens: tuple[int, ...], source: str) -> None:
        """Queue drafts that follow the optimistic suffix."""
        self.queue += tokens
        self._sources += [source] * len(tokens)

    def issue(self, pending: int, session: int = 0, draft_probs: object | None = None) -> Window:
        """The next window: the pending token first if it opens the epoch, then queued drafts.

        Positions up to the pending one are final.
        """
        room, opens = self.row_room, not self.begun
        if room == 0 or (self.begun and not self.queue):
            raise StageError("no window can be issued now: nothing to send or no room for it.")
        drafts = tuple(self.queue[: room - opens])
        tokens = (pending, *drafts) if opens else drafts
        del self.queue[: len(drafts)]
        start = self.length - 1 if self._end is None else self._end
        window = Window(
            session=session,
            id=self._next_id,
            epoch=self.epoch,
            start=start,
            floor=self.length - 1 if drafts else start + 1,
            tokens=tokens,
            wanted=len(tokens),
            opens_epoch=opens,
            draft_probs=draft_probs if drafts else None,
        )
        self._next_id += 1
        self._end = window.end
        self.flights.append(window)
        return window

    def judge(self, window_id: int, replied: tuple[int, ...]) -> Outcome:
        """Compare the oldest window with its reply: one token of the target per row."""
        if not self.flights or self.flights[0].id != window_id:
            owed = self.flights[0].id if self.flights else "none"
            raise StageError(f"reply to window {window_id} came out of order; owed is {owed}.")
        window = self.flights.popleft()
        if window.epoch != self.epoch:
            return Outcome(stale=True)
        if len(replied) != len(window.tokens):
            raise StageError(
                f"window {window_id} has {len(window.tokens)} rows, its reply {len(replied)}."
            )
        return self._outcome(window, replied)

    def restart(self) -> int:
        """Forget what is in flight, as nothing of it will be answered; the next window opens an
        epoch after the committed tokens. Returns how many live windows became void."""
        voided = self.close_epoch()
        self.flights.clear()
        return voided

    def _outcome(self, window: Window, replied: tuple[int, ...]) -> Outcome:
        accepted = agreeing(window, replied)
        drafts = window.drafts
        sources = tuple(self._sources[: len(drafts)])
        del self._sources[: len(drafts)]
        follower = self.follower()
        # The token after the last kept row; with everything kept it is the boundary.
        own = replied[accepted if window.opens_epoch else accepted - 1]
        whole = accepted == len(drafts)
        if whole and follower is not None and own == follower:
            self.length += accepted
            return Outcome(tokens=drafts, accepted=accepted, verified=len(drafts), sources=sources)
        self.length += accepted + 1
        return Outcome(
            tokens=(*drafts[:accepted], own),
            accepted=accepted,
            verified=len(drafts),
            sources=sources,
            closes=True,
            rejected=not whole or follower is not None,
            voided=self.close_epoch(),
        )

    def follower(self) -> int | None:
        """The first draft that depends on the window just answered."""
        if self.flights:
            return self.flights[0].tokens[0]
        return self.queue[0] if self.queue else None

    def close_epoch(self) -> int:
        voided = self.live
        self.epoch += 1
        self.queue.clear()
        self._sources.clear()
        self._end = None
        return voided


def agreeing(window: Window, replied: tuple[int, ...]) -> int:
    """Number of drafts of a window that stay. A later window's first draft was judged by the
    boundary before it, or its epoch would be void."""
    drafts = window.drafts
    judges = replied if window.opens_epoch else (drafts[0], *replied)
    accepted = 0
    while accepted < len(drafts) and judges[accepted] == drafts[accepted]:
        accepted += 1
    return accepted
