"""A whole model that llama.cpp runs, as a one-stage chain."""

from torch import Tensor

from outrider.llamacpp.llama_model import LlamaModel
from outrider.stage.layer_range import Due
from outrider.stage.local import LocalStage
from outrider.state.spec import Policy


class LlamaStage(LocalStage):
    """A `LocalStage` that hands token ids over as they are, takes the logits that come back, and
    picks greedily without torch: after a pass each call of it is a hundredth of a small model's
    step, or several."""

    def __init__(self, model: LlamaModel, policy: Policy, *, in_step: bool = True) -> None:
        super().__init__(model, policy, model.context.snapshots, in_step=in_step)
        self._model = model

    def run_pass(self, due: list[Due]) -> tuple[Tensor, None]:
        tokens = [token for one in due for token in one.frame.window.tokens]
        return self._model.forward(tokens, [one.span for one in due]), None

    def _logits(self, due: list[Due], hidden: Tensor) -> Tensor:
        return hidden

    def _likeliest(self, logits: Tensor) -> list[int] | None:
        return self._model.context.likeliest(logits)
