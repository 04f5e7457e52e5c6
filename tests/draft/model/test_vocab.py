"""Vocabularies are compared token by token."""

from types import SimpleNamespace
from typing import Any

import pytest

from outrider.draft.model.draft_model import make_draft_model, missing_tokens, shared_vocabulary
from outrider.errors import ConfigError

TARGET = {0: "<s>", 1: "a", 2: "b", 3: "c"}


def test_equal_vocabularies_are_shared_whole():
    assert shared_vocabulary(TARGET, dict(TARGET)) == 4


def test_rows_beyond_the_other_vocabulary_are_accepted_and_not_proposed():
    assert shared_vocabulary(TARGET, {**TARGET, 4: "<pad0>", 5: "<pad1>"}) == 4
    assert shared_vocabulary({**TARGET, 9: "<image>"}, TARGET) == 4


def test_the_first_differing_token_is_named():
    draft = {**TARGET, 2: "B", 3: "C"}
    with pytest.raises(ConfigError, match="id 2 is 'b' to the target and 'B' to the draft model"):
        shared_vocabulary(TARGET, draft)


def test_same_size_proves_nothing():
    with pytest.raises(ConfigError, match="id 0 is '<s>' to the target and 'c'"):
        shared_vocabulary(TARGET, {0: "c", 1: "b", 2: "a", 3: "<s>"})


def test_a_hole_is_a_difference_unless_both_have_it():
    draft = {token_id: text for token_id, text in TARGET.items() if token_id != 1}
    with pytest.raises(ConfigError, match="id 1 is 'a' to the target and no token to the draft"):
        shared_vocabulary(TARGET, draft)
    assert shared_vocabulary(draft, dict(draft)) == 4


def test_an_empty_vocabulary_is_refused():
    with pytest.raises(ConfigError, match="no token in common"):
        shared_vocabulary(TARGET, {})


def test_what_a_model_lacks_are_tokens_and_no_padding():
    assert missing_tokens({**TARGET, 6: "</think>", 5: "<think>"}, 4) == [5, 6]
    assert missing_tokens(TARGET, 4) == []


def test_the_first_end_token_that_has_a_row_is_read_for_those_that_a_model_lacks():
    decoder: Any = SimpleNamespace(vocab_size=4, max_length=8)
    for ends, instead in (([9, 3, 2], 2), ([9], 0)):
        own: Any = SimpleNamespace(vocabulary=lambda: TARGET, end_tokens=ends)
        model = make_draft_model("small", decoder, own, own, 4)
        assert model.rows_of([0, 3, 4, 9, 1]) == [0, 3, instead, instead, 1]
