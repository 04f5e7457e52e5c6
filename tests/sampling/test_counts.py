from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.errors import StateError
from outrider.sampling.logits import TokenCounts

VOCAB = 5
TOKENS = st.lists(st.integers(0, VOCAB - 1), max_size=6)


def histogram(tokens: list[int]) -> list[float]:
    counts = Counter(tokens)
    return [float(counts[token]) for token in range(VOCAB)]


@settings(max_examples=60, deadline=None)
@given(TOKENS, st.integers(0, 6), st.lists(st.tuples(st.integers(0, 12), TOKENS), max_size=5))
def test_counts_equal_a_recount_after_any_script(
    prompt: list[int], prompt_len: int, script: list[tuple[int, list[int]]]
) -> None:
    counts = TokenCounts(prompt, prompt_len=prompt_len)
    tokens = list(prompt)
    for length, added in script:
        length = min(length, len(tokens))
        counts.cut(length)
        counts.extend(added)
        tokens = tokens[:length] + added
        everything, generated = counts.tables(VOCAB, torch.device("cpu"))
        assert everything.tolist() == histogram(tokens)
        assert generated.tolist() == histogram(tokens[prompt_len:])
        assert len(counts) == len(tokens)


def test_a_gap_is_refused() -> None:
    with pytest.raises(StateError, match="hold 2 tokens and cannot be cut to 3"):
        TokenCounts([1, 2]).cut(3)
