"""Checks of what a caller asks for, each refusal a sentence. Torch-free."""

import operator
from collections.abc import Callable, Iterable, Mapping, Set
from typing import Any

from outrider.errors import LengthError, RequestError
from outrider.sampling.params import SamplingParams

SHOWN = 80
"""Characters of a value that a message shows at most."""
_NO_IDS = (bytes, bytearray, Mapping, Set)
"""Types that can be iterated and are no list of token ids."""


def encode_prompt(
    prompt: object, encode: Callable[[str], list[int]], *, max_length: int, vocab_size: int
) -> list[int]:
    """Return the token ids of a prompt that is text or ids.

    Raises RequestError where it is neither, empty or holds unknown tokens, and LengthError where
    it leaves no room in a context of `max_length`.
    """
    tokens = encode(_unicode(prompt)) if isinstance(prompt, str) else _ids(prompt)
    if not tokens:
        raise RequestError("the prompt is empty: give at least one token to continue from.")
    if len(tokens) >= max_length:
        raise LengthError(
            f"the prompt has {len(tokens)} tokens and the context {max_length}: "
            "shorten it, or raise target.max_length where the model allows."
        )
    unknown = [token for token in tokens if not 0 <= token < vocab_size]
    if unknown:
        raise RequestError(f"prompt token {unknown[0]} is outside the vocabulary of {vocab_size}.")
    return tokens


def _unicode(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(
            f"the prompt holds {text[error.start]!r} at {error.start}, half of a surrogate pair "
            "and no character: give text that was decoded whole."
        ) from None
    return text


def _ids(prompt: object) -> list[int]:
    if isinstance(prompt, _NO_IDS) or not isinstance(prompt, Iterable):
        raise RequestError(
            f"prompt = {_shown(prompt)} is neither text nor a list of token ids: give one of them."
        )
    found: list[int] = []
    for token in prompt:
        try:
            if isinstance(token, bool):
                raise TypeError
            found.append(operator.index(token))
        except TypeError:
            raise RequestError(
                f"the prompt holds {_shown(token)}, which is no token id: give one text, or a list "
                "of whole numbers; several prompts are requests of their own."
            ) from None
    return found


def check_count(key: str, value: Any, least: int) -> None:
    """Raise RequestError unless `value` is None or a whole number of at least `least`."""
    if value is None:
        return
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise RequestError(
            f"{key} = {_shown(value)} is no whole number: use {least} or more, or leave it out."
        )
    if value < least:
        raise RequestError(f"{key} = {value} must be {least} or more.")


def check_flag(key: str, value: object) -> None:
    """Raise RequestError unless `value` is true or false; a text would count as true."""
    if not isinstance(value, bool):
        raise RequestError(
            f"{key} = {_shown(value)} is neither true nor false: use one of the two."
        )


def check_sampling(sampling: object, *, score_prompt: bool) -> None:
    """Raise RequestError for what are no sampling settings, or none that score a prompt."""
    if not isinstance(sampling, SamplingParams):
        raise RequestError(
            f"sampling = {_shown(sampling)} is no SamplingParams: give one, as in "
            "SamplingParams(temperature=0.8), or leave it out."
        )
    if score_prompt and sampling.logprobs is None:
        raise RequestError(
            "score_prompt = True needs sampling.logprobs, the number of alternatives for each "
            "token of the prompt: set it (0 gives none), or leave score_prompt out."
        )


def _shown(value: object) -> str:
    """A value as a message shows it, long ones cut."""
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
