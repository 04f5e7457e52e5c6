"""A draft model stops where its own record says that nobody will get there."""

from outrider.draft.model.draft_model import RunAhead
from outrider.records import Commit, Context

START = 10
COMMITTED = list(range(START))


def judged(right: int, wrong: int) -> RunAhead:
    """After so many drafts, each alone in its round."""
    ahead, position = RunAhead(), START
    for draft in [1] * right + [2] * wrong:
        ahead.propose(position, (draft,))
        ahead.observe(Commit(position=position, tokens=(1, 1), accepted=int(draft == 1)))
        position += 2
    return ahead


def drafted(ahead: RunAhead) -> int:
    """Drafts until it stops, in steps of two at most."""
    suffix: list[int] = []
    while step := ahead.room(Context(COMMITTED, suffix)):
        assert step <= 2
        ahead.propose(START + len(suffix), (7,) * step)
        suffix += (7,) * step
    return len(suffix)


def test_a_model_that_is_mostly_right_drafts_further():
    found = [drafted(judged(*record)) for record in ((2, 40), (20, 20), (95, 5))]
    assert found[0] < 5 < found[1] < 20 < found[2] < 200


def test_its_own_drafts_in_flight_count_and_those_of_others_do_not():
    ahead = judged(20, 20)
    count = drafted(ahead)
    ahead, committed = judged(20, 20), COMMITTED
    ahead.propose(START + 2, (7,) * count)
    assert ahead.room(Context(committed, [5, 5, *(7,) * count])) == 0
    ahead.observe(Commit(position=START, tokens=(5, 5, 7), accepted=3))
    assert ahead.room(Context([*committed, 5, 5, 7], (7,) * (count - 1))) > 0


def test_drafts_behind_a_correction_are_not_held_against_it():
    """They are void: neither counted as wrong nor as being in flight."""
    ahead, fresh = judged(20, 20), judged(20, 21)
    ahead.propose(START, (7,) * 9)
    ahead.observe(Commit(position=START, tokens=(6,), accepted=0))
    assert drafted(ahead) == drafted(fresh)


def test_drafts_of_an_abandoned_suffix_are_forgotten():
    ahead = judged(20, 20)
    ahead.propose(START, (7,) * 40)
    assert ahead.room(Context(COMMITTED, (7,) * 40)) == 0
    assert ahead.room(Context(COMMITTED, (8,) * 40)) == 2
