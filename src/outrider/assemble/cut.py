"""Which layers each stage has."""

from itertools import accumulate

from outrider.config.settings import StagesConfig
from outrider.errors import ConfigError


def cut(stages: StagesConfig, num_layers: int) -> list[tuple[int, int]]:
    """Layers [first, last) of each stage; where none are named, the first stages get one more.

    Raises ConfigError where the stages do not fit the model.
    """
    if stages.count > num_layers:
        raise ConfigError(
            f"stages.count = {stages.count} exceeds the {num_layers} layers of the target: every "
            "stage needs one, so use fewer."
        )
    even, more = divmod(num_layers, stages.count)
    sizes = stages.sizes or tuple(even + (number < more) for number in range(stages.count))
    if sum(sizes) != num_layers:
        raise ConfigError(
            f"stages.layers = {stages.layers!r} adds up to {sum(sizes)} and the target has "
            f"{num_layers} layers: name every layer once."
        )
    ends = list(accumulate(sizes))
    return list(zip([0, *ends], ends, strict=False))
