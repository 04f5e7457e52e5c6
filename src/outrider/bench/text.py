"""The kind of text that a workload is, measured on its tokens. Pure.

Acceptance depends on the text as much as on the drafter: a lookup drafter lives on copied text, and
on random tokens no drafter can be right. Both are measured here, so that a figure is not read
without them.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from outrider.errors import RequestError

GRAM = 8
LEAST_PAIRS = 2_000
"""Pairs of tokens below which coincidences tell nothing."""
BROKEN = "\N{REPLACEMENT CHARACTER}"
MOST_BROKEN = 0.001
LEAST_COINCIDENCE = 3.0
"""Uniformly random tokens give 1; text gives tens (bytes) to thousands (large vocabularies)."""


def copied_share(prompt: Sequence[int], output: Sequence[int], gram: int = GRAM) -> float:
    """Share of output tokens that end a run of `gram` tokens seen earlier in the context.

    What a lookup could have known, whichever drafter was used. 0.0 for an empty output.
    """
    tokens = [*prompt, *output]
    seen: set[tuple[int, ...]] = set()
    copied = 0
    for end in range(gram, len(tokens) + 1):
        run = tuple(tokens[end - gram : end])
        copied += end > len(prompt) and run in seen
        seen.add(run)
    return copied / len(output) if output else 0.0


def coincidence(prompts: Iterable[Sequence[int]], vocab_size: int) -> tuple[float, int]:
    """Ratio by which two tokens of a prompt are likelier equal than random ones, and the pairs
    seen."""
    equal = pairs = 0
    for prompt in prompts:
        equal += sum(count * (count - 1) // 2 for count in Counter(prompt).values())
        pairs += len(prompt) * (len(prompt) - 1) // 2
    return (equal * vocab_size / pairs if pairs else 0.0), pairs


def refuse_random(
    texts: Sequence[str], prompts: Sequence[Sequence[int]], vocab_size: int, name: str
) -> None:
    """Raise RequestError where the prompts look like uniformly random tokens.

    Written out as text and read again they no longer look so, but half characters betray them:
    vocabularies hold single bytes, and bytes in random order are no UTF-8.
    """
    found, pairs = coincidence(prompts, vocab_size)
    broken = sum(text.count(BROKEN) for text in texts)
    if broken > MOST_BROKEN * sum(map(len, texts)):
        raise RequestError(
            f"--workload {name} looks like random tokens written out as text ({broken} characters "
            "are broken): acceptance on it would be meaningless, so use real prompts."
        )
    if pairs >= LEAST_PAIRS and found < LEAST_COINCIDENCE:
        raise RequestError(
            f"--workload {name} looks like random tokens (two tokens of a prompt are equal "
            f"{found:.1f} times as often as by chance, in text at least {LEAST_COINCIDENCE:g} "
            "times): acceptance on it would be meaningless, so use real prompts."
        )
