"""The whole model in this process, as a one-stage chain."""

from outrider.core_types import Reply, Window
from outrider.stage.frame import Frame, Void, to_reply
from outrider.stage.part import Part


class LocalStage(Part):
    """Runs windows on a whole `Decoder`, one packed pass for each `poll`."""

    replied = False
    """Nothing is on its way: `poll` runs what it answers."""

    def submit(self, window: Window) -> None:
        self.take(Frame(window=window))

    def void(self, session: int, epoch: int) -> None:
        self.take(Void(session, epoch))

    def poll(self) -> list[Reply]:
        return [to_reply(frame) for frame in self.run()]

    def shutdown(self) -> None:
        pass
