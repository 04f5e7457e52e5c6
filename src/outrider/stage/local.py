"""The whole model in this process, or layer ranges one after the other, with links between them.

The first of several parts stands beside the coordinator; a link leads to each later one, and one
from the last part straight back. A single part has a link there and back. Parts run in `run_batch`
and `run_ready`, the last part with something due first: an answer is never kept waiting.
"""

from collections.abc import Sequence

import torch

from outrider.errors import StageError
from outrider.models.base import Model
from outrider.records import Reply, Window
from outrider.sampling.params import SamplingParams
from outrider.stage.base import Frame, Stage, Void, take_oldest
from outrider.stage.layer_range import LayerRange
from outrider.stage.link import LOCAL, Clock, Link, LinkSettings
from outrider.state.base import State
from outrider.state.spec import Policy


class LocalStage(LayerRange, Stage):
    """Runs windows on a whole `Model`, one packed pass for each `run_batch`."""

    has_snapshots = True

    def __init__(
        self,
        decoder: Model,
        policy: Policy,
        capacity: int,
        *,
        in_step: bool = False,
    ) -> None:
        """`in_step`: each `run_batch` comes after its caller took in all replies before."""
        self._in_step = in_step
        super().__init__(decoder, policy, capacity)
        self.snapshots: dict[int, State] = {}

    def submit(self, window: Window) -> None:
        self.take(Frame.of(window))

    def void(self, session: int, epoch: int) -> None:
        self.take(Void(session, epoch))

    def run_ready(self) -> bool:
        return False  # Nothing is on its way: `run_batch` runs what it answers.

    def run_batch(self) -> list[Reply]:
        if self._in_step:
            for held in self.held.values():
                held.judge_oldest()
        return [frame.reply for frame in self.run()]

    def snapshot_nbytes(self, session: int) -> int:
        return self.held[session].state.copy_nbytes()

    def snapshot(self, session: int, key: int) -> int:
        self.snapshots[key] = self.held[session].state.copy()
        return self.snapshots[key].nbytes()

    def open_from(
        self,
        key: int,
        session: int,
        sampling: SamplingParams,
        prompt: Sequence[int],
        taps: Sequence[int] = (),
    ) -> None:
        sampler = self.make_sampler(sampling, len(prompt))
        self._open(session, self.snapshots[key].copy(), sampler, taps)
        held = self.held[session]
        seen = tuple(prompt[: held.state.length])
        window = Window(
            session=session, id=-1, epoch=0, start=0, floor=len(seen), tokens=seen, wanted=0
        )
        held.sampler.pick(window, torch.empty(0, self.vocab_size))
        held.replay.restart(held.state.length)

    def drop_snapshot(self, key: int) -> None:
        self.snapshots.pop(key, None)

    def shutdown(self) -> None:
        pass


def link_settings(parts: int, settings: LinkSettings) -> list[LinkSettings]:
    """The link into each part, then the way back."""
    return [LOCAL if parts > 1 else settings, *[settings] * parts]


class ChainStage(Stage):
    """Runs windows through `parts` in order; link number `i` has the seed `seed` + i."""

    def __init__(
        self,
        parts: Sequence[LayerRange],
        settings: LinkSettings = LOCAL,
        *,
        seed: int = 0,
        clock: Clock | None = None,
    ) -> None:
        self._parts = list(parts)
        links = enumerate(link_settings(len(parts), settings), seed)
        self._links: list[Link[Frame | Void]] = [Link(link, number) for number, link in links]
        self._clock = clock or Clock()
        self._answers: list[Reply] = []
        self._tapped: set[int] = set()
        self.vocab_size = parts[-1].vocab_size
        self.max_length = parts[0].max_length
        self.exact = all(part.exact for part in parts)

    @property
    def num_sessions(self) -> int:
        return max(part.num_sessions for part in self._parts)

    def open(
        self, session: int, sampling: SamplingParams, prompt_len: int, taps: Sequence[int] = ()
    ) -> None:
        if list(taps) != sorted(taps):
            raise StageError(f"taps {list(taps)} must be in the order of the layers.")
        for part in self._parts:
            part.open(session, sampling, prompt_len, taps)
        if taps:
            self._tapped.add(session)

    def close(self, session: int) -> None:
        for part in self._parts:
            part.close(session)
        self._tapped.discard(session)
        self._answers = [reply for reply in self._answers if reply.session != session]

    def submit(self, window: Window) -> None:
        self._send(0, Frame.of(window))
        if not window.wanted and window.session not in self._tapped:
            # Nothing to wait for: more of the prompt can follow at once.
            self._answers.append(Reply(session=window.session, id=window.id))

    def void(self, session: int, epoch: int) -> None:
        for number in range(len(self._parts)):
            self._send(number, Void(session, epoch))

    def run_ready(self) -> bool:
        while not self._answers and self._advance():
            pass
        return bool(self._answers)

    def run_batch(self) -> list[Reply]:
        while not self.run_ready() and self._sleep():
            pass
        return take_oldest(self._answers)

    def check(self) -> None:
        for part in self._parts:
            part.check()

    def shutdown(self) -> None:
        pass

    def _send(self, number: int, message: Frame | Void) -> None:
        self._links[number].send(message, message.nbytes, self._clock.now())

    def _advance(self) -> bool:
        """Hand over what has arrived and run one part; False if there was nothing to run."""
        now = self._clock.now()
        for part, link in zip(self._parts, self._links, strict=False):
            for message in link.due(now):
                part.take(message)
        for frame in self._links[-1].due(now):
            self._answer(frame)
        for number in reversed(range(len(self._parts))):
            if self._parts[number].waiting:
                for frame in self._parts[number].run():
                    self._send(number + 1, frame)
                return True
        return False

    def _answer(self, frame: Frame | Void) -> None:
        session = frame.session if isinstance(frame, Void) else frame.window.session
        if isinstance(frame, Frame) and frame.is_answered and self._parts[0].has(session):
            self._answers.append(frame.reply)

    def _sleep(self) -> bool:
        """Wait for the next arrival; False if nothing is on its way."""
        due = min(link.next_due for link in self._links)
        if due == float("inf"):
            return False
        self._clock.sleep(max(due - self._clock.now(), 0.0))
        return True
