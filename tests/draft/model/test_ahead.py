"""A draft model stops where its own record says that nobody will get there."""

from outrider.core_types import Commit, Context
from outrider.draft.model.ahead import Ahead

START = 10
COMMITTED = list(range(START))


def judged(right: int, wrong: int) -> Ahead:
    """After so many drafts, each alone in its round."""
    ahead, position = Ahead(), START
    for draft in [1] * right + [2] * wrong:
        ahead.propose(position, (draft,))
        ahead.observe(Commit(position=position, tokens=(1, 1), accepted=int(draft == 1)))
        position += 2
    return ahead


def test_a_model_that_is_mostly_right_drafts_further():
    rooms = [judged(*record).room(Context(COMMITTED)) for record in ((2, 40), (20, 20), (95, 5))]
    assert rooms == sorted(rooms)
    assert rooms[0] < 4 < rooms[1] < 20 < rooms[2]


def test_its_own_drafts_in_flight_count_and_those_of_others_do_not():
    ahead = judged(20, 20)
    alone = ahead.room(Context(COMMITTED))
    ahead.propose(START + 2, (7, 7, 7))
    assert ahead.room(Context(COMMITTED, [5, 5, 7, 7, 7])) == alone - 3
    ahead.observe(Commit(position=START, tokens=(5, 5, 7), accepted=3))
    held = ahead.room(Context([*COMMITTED, 5, 5, 7], [7, 7]))
    assert alone - 3 < held <= alone - 1


def test_drafts_behind_a_correction_are_not_held_against_it():
    """They are void: neither counted as wrong nor as being in flight."""
    ahead, fresh = judged(20, 20), judged(20, 21)
    ahead.propose(START, (7, 7, 7))
    ahead.observe(Commit(position=START, tokens=(6,), accepted=0))
    assert ahead.room(Context([*COMMITTED, 6])) == fresh.room(Context([*COMMITTED, 6]))


def test_drafts_of_an_abandoned_suffix_are_forgotten():
    ahead = judged(20, 20)
    alone = ahead.room(Context(COMMITTED))
    ahead.propose(START, (7, 7))
    assert ahead.room(Context(COMMITTED, [8, 8])) == alone
