"""The suffix automaton against a search through all substrings."""

from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.draft.lookup.index import ROOT, SuffixAutomaton

TEXT = st.lists(st.integers(0, 1), min_size=1, max_size=150)


def automaton_for(tokens: list[int], *, base: int = 0, refreshed: int = 16) -> SuffixAutomaton:
    automaton = SuffixAutomaton(base, refreshed=refreshed)
    for token in tokens:
        automaton.append(token)
    return automaton


def ends(tokens: list[int], part: list[int]) -> list[int]:
    """Return the position of the last token of each occurrence of `part`."""
    size = len(part)
    return [end - 1 for end in range(size, len(tokens) + 1) if tokens[end - size : end] == part]


@settings(max_examples=100, deadline=None)
@given(TEXT, st.lists(st.integers(0, 2), max_size=30), st.integers(0, 3))
def test_following_any_tokens_gives_the_longest_suffix_known(
    tokens: list[int], asked: list[int], refreshed: int
) -> None:
    automaton, state, matched = automaton_for(tokens, base=7, refreshed=refreshed), ROOT, 0
    for count, token in enumerate(asked, start=1):
        state, matched = automaton.follow(state, matched, token)
        lengths = [size for size in range(count + 1) if ends(tokens, asked[count - size : count])]
        assert matched == max(lengths)
        if matched:
            assert automaton.end[state] - 7 in ends(tokens, asked[count - matched : count])


@settings(max_examples=100, deadline=None)
@given(TEXT)
def test_the_match_is_the_longest_suffix_that_occurred_before(tokens: list[int]) -> None:
    automaton = automaton_for(tokens, refreshed=3)
    matched = automaton.length[automaton.match]
    longer = tokens[len(tokens) - matched - 1 :]
    assert len(ends(tokens, longer)) <= 1
    if matched:
        earlier = ends(tokens, tokens[-matched:])[:-1]
        assert automaton.match_end in earlier


@settings(max_examples=60, deadline=None)
@given(TEXT)
def test_a_step_exists_exactly_where_the_text_goes_on(tokens: list[int]) -> None:
    automaton = automaton_for(tokens)
    for start in range(len(tokens)):
        state = ROOT
        for end in range(start, len(tokens)):
            for token in (0, 1):
                known = bool(ends(tokens, [*tokens[start:end], token]))
                assert (automaton.step(state, token) != -1) == known
            state = automaton.step(state, tokens[end])
            if end - start > 6:
                break


def test_states_stay_below_twice_the_tokens() -> None:
    for tokens in ([0] * 500, [0, 1] * 250, [n * n % 7 % 3 for n in range(500)]):
        assert len(automaton_for(tokens).length) <= 2 * len(tokens)
