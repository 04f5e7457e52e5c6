"""The whole model in this process, as a one-stage chain."""

from collections.abc import Sequence

import torch

from outrider.models.base import Model
from outrider.records import Reply, Window
from outrider.sampling.params import SamplingParams
from outrider.stage.base import PickerFactory
from outrider.stage.frame import Frame, Void, to_reply
from outrider.stage.part import Part
from outrider.state.base import State
from outrider.state.spec import Policy


class LocalStage(Part):
    """Runs windows on a whole `Model`, one packed pass for each `poll`; a `KeepingStage`."""

    replied = False
    """Nothing is on its way: `poll` runs what it answers."""

    def __init__(
        self,
        decoder: Model,
        policy: Policy,
        capacity: int,
        picker: PickerFactory,
        *,
        in_step: bool = False,
    ) -> None:
        """`in_step`: each `poll` comes after its caller took in all replies of those before."""
        self._in_step = in_step
        super().__init__(decoder, policy, capacity, picker)
        self._kept: dict[int, State] = {}

    def submit(self, window: Window) -> None:
        self.take(Frame(window=window))

    def void(self, session: int, epoch: int) -> None:
        self.take(Void(session, epoch))

    def poll(self) -> list[Reply]:
        if self._in_step:
            for slot in self._slots.values():
                slot.judge_oldest()
        return [to_reply(frame) for frame in self.run()]

    def copy_nbytes(self, session: int) -> int:
        return self._slots[session].state.copy_nbytes()

    def keep(self, session: int, key: int) -> int:
        self._kept[key] = self._slots[session].state.copy()
        return self._kept[key].nbytes()

    def open_kept(
        self,
        session: int,
        sampling: SamplingParams,
        prompt: Sequence[int],
        key: int,
        taps: Sequence[int] = (),
    ) -> None:
        picker = self._picker(sampling, len(prompt))
        self._open(session, self._kept[key].copy(), picker, taps)
        slot = self._slots[session]
        seen = tuple(prompt[: slot.state.length])
        window = Window(
            session=session, id=-1, epoch=0, start=0, floor=len(seen), tokens=seen, wanted=0
        )
        slot.picker.pick(window, torch.empty(0, self.vocab_size))
        slot.replay.restart(slot.state.length)

    def forget(self, key: int) -> None:
        self._kept.pop(key, None)

    def shutdown(self) -> None:
        pass
