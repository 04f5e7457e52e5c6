"""Logits to token, written again from the documentation: numpy, float64, one row, no tricks.

Shares no code with the package (a test checks it), so that a misunderstanding there cannot hide.
"""

import hashlib
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Row = NDArray[np.float64]
TARGET = 0
Settings = Mapping[str, Any]


def uniform(seed: int, position: int, purpose: int = TARGET, choice: int = 0) -> float:
    """The documented number: 53 bits of a keyed blake2b of four little-endian integers."""
    counter = struct.pack("<QQQQ", seed, choice, position, purpose)
    digest = hashlib.blake2b(counter, digest_size=8, person=b"outrider").digest()
    return (int.from_bytes(digest, "little") >> 11) / 2.0**53


def adjusted(logits: Row, prompt: Sequence[int], output: Sequence[int], settings: Settings) -> Row:
    """Bias, then repetition (prompt and output), presence and frequency penalty (output)."""
    row = logits.astype(np.float64).copy()
    for token, bias in settings.get("logit_bias", {}).items():
        row[token] += bias
    penalty = settings.get("repetition_penalty", 1.0)
    for token in {*prompt, *output}:
        row[token] = row[token] / penalty if row[token] > 0 else row[token] * penalty
    for token in set(output):
        row[token] -= settings.get("presence_penalty", 0.0)
        row[token] -= settings.get("frequency_penalty", 0.0) * list(output).count(token)
    return row


def probabilities(row: Row, settings: Settings) -> Row:
    """Temperature, top-k, top-p, min-p; ties with the last one kept are kept too."""
    scaled = (row - row.max()) / settings["temperature"]
    probs = np.exp(scaled)
    if top_k := settings.get("top_k", 0):
        probs[row < np.sort(row)[::-1][:top_k][-1]] = 0.0
    probs /= probs.sum()
    if (top_p := settings.get("top_p", 1.0)) < 1.0:
        ranked = np.sort(probs)[::-1]
        reached = int(np.searchsorted(np.cumsum(ranked), top_p))
        probs[probs < ranked[min(reached, len(ranked) - 1)]] = 0.0
        probs /= probs.sum()
    probs[probs < settings.get("min_p", 0.0) * probs.max()] = 0.0
    return probs / probs.sum()


def choose(
    logits: Row, prompt: Sequence[int], output: Sequence[int], settings: Settings
) -> tuple[int, float]:
    """The next token, and how far the decision was from another one (logits or probability)."""
    row = adjusted(logits, prompt, output, settings)
    if not settings.get("temperature", 0.0):
        first, second = np.sort(row)[::-1][:2]
        return int(row.argmax()), float(first - second)
    edges = np.cumsum(probabilities(row, settings))
    number = uniform(settings["seed"], len(prompt) + len(output))
    return int(np.argmax(edges > number)), float(np.abs(edges - number).min())
