"""One small hierarchy of errors; each message is one sentence with key, value, reason and fix."""

MOST_SHOWN = 200
"""Letters of a caller's own text that a message gives back."""


def shown(text: str) -> str:
    """A caller's text for a message, cut where it is long."""
    return text if len(text) <= MOST_SHOWN else f"{text[: MOST_SHOWN - 1]}…"


class OutriderError(Exception):
    """Anything that Outrider refuses or cannot do; the command line prints it and exits 1."""


class ConfigError(OutriderError):
    """A setting, flag or request field that is unknown, out of range or contradicts another."""


class CheckpointError(OutriderError):
    """A model, drafter or tokenizer file that is missing, damaged or does not fit."""


class StateError(OutriderError):
    """A sequence state was asked for something that it cannot do exactly."""


class StageError(OutriderError):
    """A stage died, hung or answered out of order."""


class StageLost(StageError):
    """A stage died or hangs: its requests can go on where it is replaced."""


class RequestError(OutriderError):
    """A request that cannot be served: empty or too long a prompt, limits, a full queue."""


class LengthError(RequestError):
    """A prompt that leaves no room in the context."""


class BusyError(RequestError):
    """A request that could be served later: the queue is full, or the server is going down."""


class DownError(BusyError):
    """The engine has failed; it is being made anew, or cannot be."""
