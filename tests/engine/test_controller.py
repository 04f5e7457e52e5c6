"""The controller finds the best length, gives up where nothing pays, and comes back."""

import random

import pytest

from outrider.costs.batch_model import BatchCostModel, Costs
from outrider.engine.controller import Controller, ControllerSettings
from outrider.records import Draft
from tests.engine.world import Source, World, changing, steady

MOST = 12


def verify(slope: float) -> list[float]:
    return [1.0 + slope * rows for rows in range(MOST + 1)]


def draft(cost: float) -> list[float]:
    return [cost * (tokens + 1) for tokens in range(MOST)]


def world_of(rate: float, *, slope: float = 0.1, cost: float = 0.25, seed: int = 0) -> World:
    return World(verify(slope), Source("draft", steady("draft", rate), draft(cost)), seed=seed)


@pytest.mark.parametrize("rate", [0.05, 0.3, 0.5, 0.7, 0.8, 0.9, 0.97])
@pytest.mark.parametrize(("slope", "cost"), [(0.03, 0.1), (0.1, 0.25), (0.3, 0.1), (0.1, 0.5)])
def test_it_reaches_the_best_fixed_length(rate: float, slope: float, cost: float) -> None:
    world = world_of(rate, slope=slope, cost=cost)
    best, _ = world.best_fixed(1500)
    run = world.run(Controller(world.costs()), 1500)
    assert run.speed(1.0) > 0.96 * best


def test_it_settles_near_the_best_length() -> None:
    world = world_of(0.8, slope=0.05, cost=0.1)
    _, length = world.best_fixed(4000)
    lengths = world.run(Controller(world.costs()), 1500).lengths[500:]
    assert sum(abs(used - length) <= 2 for used in lengths) > 0.8 * len(lengths)


def test_it_gives_up_when_acceptance_collapses_and_comes_back() -> None:
    phases = changing("draft", (300, 0.9), (1000, 0.0), (2000, 0.9))
    world = World(verify(0.1), Source("draft", phases, draft(0.3)))
    controller = Controller(world.costs())
    lengths = world.run(controller, 2000).lengths
    assert sum(lengths[200:300]) > 200
    assert sum(lengths[400:1000]) < 30, "only probes while nothing is accepted"
    back = next(number for number in range(1000, 2000) if min(lengths[number : number + 5]) >= 2)
    assert back < 1500
    assert sum(lengths[1600:]) > 800


@pytest.mark.parametrize("cost", [0.1, 0.3, 0.8])
@pytest.mark.parametrize("slope", [0.05, 0.3])
def test_probing_where_nothing_is_accepted_costs_under_three_percent(slope, cost) -> None:
    world = world_of(0.0, slope=slope, cost=cost)
    controller = Controller(world.costs())
    world.run(controller, 100)  # It has learned by now.
    run = world.run(controller, 3000)
    assert sum(run.lengths) > 0, "it probes now and then"
    assert run.cost - 3000 < 0.03 * 3000


def test_probing_a_free_source_is_bounded_too() -> None:
    world = World(verify(0.3), Source("suffix", steady("suffix", 0.0)))
    controller = Controller(world.costs())
    world.run(controller, 100)
    run = world.run(controller, 3000)
    assert sum(run.lengths) > 0
    assert run.cost - 3000 < 0.03 * 3000


def test_the_same_inputs_give_the_same_choices() -> None:
    runs = [world_of(0.7).run(Controller(world_of(0.7).costs()), 400) for _ in range(2)]
    assert runs[0] == runs[1]


def test_asking_again_in_a_round_changes_nothing() -> None:
    controller = Controller(world_of(0.7).costs())
    for accepted in (0, 0, 0, 0, 0, 0, 1, 0):
        asked = [controller.choose() for _ in range(3)]
        assert len(set(asked)) == 1
        controller.learn("draft" if asked[0] else None, asked[0], min(accepted, asked[0]))


def mixed(chance: random.Random, allowed: int) -> Draft:
    """A lookup drafter whose long drafts are right and whose short ones are wrong."""
    length = min(chance.choice([1, 1, 1, 10]), allowed)
    return Draft(tokens=(0,) * length, source="suffix")


def lookup(number: int, chance: random.Random, allowed: int):
    found = mixed(chance, allowed)
    rate = 0.95 if len(found.tokens) > 5 else 0.05
    return found, [rate] * len(found.tokens)


def test_a_lookup_drafter_is_trusted_by_the_length_it_dares() -> None:
    world = World(verify(0.2), Source("suffix", lookup))
    run = world.run(Controller(world.costs()), 800)
    late = run.lengths[300:]
    assert sum(length == 1 for length in late) < 0.1 * len(late)
    assert sum(length >= 7 for length in late) > 0.2 * len(late)
    best, _ = world.best_fixed(800)
    assert run.speed(1.0) > best


def test_in_a_chain_a_poor_draft_gives_way_to_a_promising_source() -> None:
    """Short lookups are wrong, the draft model is good: the chain beats each of its parts."""
    suffix = Source("suffix", lookup)
    model = Source("draft", steady("draft", 0.8), draft(0.2))
    speeds = {}
    for sources in ((suffix,), (model,), (suffix, model)):
        world = World(verify(0.06), *sources)
        run = world.run(Controller(world.costs()), 1000)
        speeds["+".join(source.name for source in sources)] = run.speed(1.0)
    assert set(run.sources[300:]) >= {"suffix", "draft"}
    assert speeds["suffix+draft"] > max(speeds["suffix"], speeds["draft"])


def test_confidence_decides_how_much_of_a_draft_is_verified() -> None:
    controller = Controller(Costs(verify=verify(0.3), draft={"ngram-cache": ()}))
    sure = Draft(tokens=(1, 2, 3, 4), source="ngram-cache", confidence=(0.95, 0.9, 0.1, 0.9))
    kept = controller.keep(sure)
    assert kept == Draft(tokens=(1, 2), source="ngram-cache", confidence=(0.95, 0.9))


def test_confidence_is_believed_only_as_far_as_it_proves_true() -> None:
    controller = Controller(Costs(verify=verify(0.3), draft={"ngram-cache": ()}))
    boast = Draft(tokens=(1, 2), source="ngram-cache", confidence=(0.97, 0.97))
    verified = []
    for _ in range(60):
        kept = controller.keep(boast)
        verified.append(len(kept.tokens) if kept else 0)
        controller.learn("ngram-cache" if kept else None, verified[-1], 0)
    assert verified[0] == 2
    assert sum(verified[20:]) <= 6


def test_sampled_drafts_are_never_cut() -> None:
    controller = Controller(world_of(0.5).costs())
    sampled = Draft(tokens=(1, 2), source="draft", probs=object(), confidence=(0.01, 0.01))
    for _ in range(30):
        assert controller.keep(sampled) is sampled
        controller.learn("draft", 2, 0)


def test_measured_costs_replace_the_calibrated_ones() -> None:
    """Calibration said that rows are cheap; they turn out to cost a whole step each."""
    controller = Controller(Costs(verify=verify(0.02), draft={"draft": draft(0.1)}))
    chance = random.Random(1)
    asked = []
    for _ in range(200):
        length = controller.choose()
        asked.append(length)
        if length:
            controller.keep(Draft(tokens=(0,) * length, source="draft"))
        accepted = 0
        while accepted < length and chance.random() < 0.6:
            accepted += 1
        controller.timed(1 + length, 1.0 + 1.0 * length, length, 0.1 * length)
        controller.learn("draft" if length else None, length, accepted)
    assert max(asked[:9]) >= 2
    assert sum(asked[100:]) < 30


def test_a_plain_step_is_looked_at_now_and_then() -> None:
    controller = Controller(Costs(verify=verify(0.02), draft={"suffix": ()}))
    plain = 0
    for _ in range(1000):
        length = controller.choose()
        plain += length == 0
        if length:
            controller.keep(Draft(tokens=(0,) * length, source="suffix"))
        controller.timed(1 + length, 1.0 + 0.02 * length, length, 0.01)
        controller.learn("suffix" if length else None, length, length)
    assert 6 <= plain <= 12


def test_a_single_slow_pass_changes_nothing() -> None:
    runs = []
    for hiccup in (False, True):
        controller = Controller(world_of(0.8).costs())
        asked = []
        for number in range(100):
            length = controller.choose()
            asked.append(length)
            if length:
                controller.keep(Draft(tokens=(0,) * length, source="draft"))
            slow = 50.0 if hiccup and number % 40 == 39 else 1.0
            controller.timed(1 + length, slow * (1 + 0.1 * length), length, 0.25 * length)
            controller.learn("draft" if length else None, length, length - number % 2)
        runs.append(asked)
    assert runs[0] == runs[1]


def test_windows_that_keep_never_saw_are_learned_from_as_well() -> None:
    """With several windows in flight, drafts and judged windows do not match up."""
    controller = Controller(world_of(0.5).costs(), ControllerSettings(probe_share=0.0, grant=0.0))
    for _ in range(50):
        controller.keep(Draft(tokens=(1,), source="draft"))
        controller.learn("draft", 4, 0)
    assert controller.choose() == 0
    for _ in range(100):
        controller.learn("draft", 4, 4)
        controller.learn("another", 2, 2)
    assert controller.choose() >= 4


def test_it_says_what_it_chose_and_why() -> None:
    world = World(
        verify(0.06),
        Source("suffix", lookup),
        Source("draft", steady("draft", 0.8), draft(0.2)),
    )
    controller = Controller(world.costs())
    world.run(controller, 300)
    before = controller.choose()
    suffix, model = controller.explain()
    assert suffix.startswith("suffix: asked for all it has; accepted by place 0.")
    assert model.startswith("draft: asked for ")
    assert "verified most often" in model
    assert "tokens per plain step" in model
    assert controller.choose() == before, "explaining changes nothing"


def test_no_drafts_allowed_is_plain_decoding() -> None:
    controller = Controller(Costs(verify=[1.0], draft={"draft": []}))
    assert controller.choose() == 0
    assert Controller(Costs(verify=[1.0, 1.1], draft={})).choose() == 0


SIDE_BY_SIDE, WARM = 12, 60


def packed(sessions: int, verify: list[float], rate: float, rounds: int) -> tuple[float, float]:
    """Sessions in one pass, each with a controller, over drafts of five that cost nothing.

    Returns tokens per cost against that of plain decoding, and the mean number of drafts, once
    what is granted for a first look at the start was spent.
    """
    chance = random.Random(2)
    costs = Costs(verify=verify, draft={"suffix": ()}, drafts=5)
    company = BatchCostModel(costs)
    controllers = [Controller(costs, company=company) for _ in range(sessions)]
    tokens = cost = drafts = 0.0
    for number in range(-WARM, rounds):
        if number == 0:
            tokens = cost = drafts = 0.0
        kept = []
        for controller in controllers:
            asked = controller.limit("suffix", 5)
            draft = controller.keep(Draft(tokens=(0,) * asked, source="suffix")) if asked else None
            kept.append(len(draft.tokens) if draft else 0)
        rows = sum(kept) + sessions
        for controller, verified in zip(controllers, kept, strict=True):
            hits = [chance.random() < rate for _ in range(verified)]
            accepted = hits.index(False) if False in hits else verified
            controller.share(rows, sessions, 0)
            controller.timed(rows, verify[rows - 1], verified, 0.0)
            controller.learn("suffix" if verified else None, verified, accepted)
            tokens += 1 + accepted
        cost += verify[rows - 1]
        drafts += sum(kept)
    plain = sessions / verify[sessions - 1]
    return tokens / cost / plain, drafts / rounds / sessions


def test_the_rows_of_all_sessions_decide_whether_a_draft_pays() -> None:
    """Rows are nearly free up to those of all sessions' plain steps, and dear beyond them."""
    rows = range(1, SIDE_BY_SIDE * 6 + 1)
    steep = [1.0 + 0.02 * n + 0.5 * max(n - SIDE_BY_SIDE, 0) for n in rows]
    alone, drafts = packed(1, steep, 0.8, 400)
    assert alone > 2.0
    assert drafts > 3.0
    together, drafts = packed(SIDE_BY_SIDE, steep, 0.8, 400)
    assert together > 0.97, "speculation does not lower what all get together"
    assert drafts < 0.1, "probes only"


def test_where_rows_stay_cheap_all_sessions_draft() -> None:
    flat = [1.0 + 0.02 * n for n in range(1, SIDE_BY_SIDE * 6 + 1)]
    together, drafts = packed(SIDE_BY_SIDE, flat, 0.8, 400)
    assert together > 1.3
    assert drafts > 2.0


def test_nobody_drafts_at_a_price_that_only_all_together_pay() -> None:
    """Beside drafts of others another one is cheap, but a pass with any costs twice as much."""
    rows = range(1, SIDE_BY_SIDE * 6 + 1)
    jump = [1.0 + 0.002 * n + (n > SIDE_BY_SIDE) for n in rows]
    together, drafts = packed(SIDE_BY_SIDE, jump, 0.3, 400)
    assert together > 0.95
    assert drafts < 0.1
    together, _ = packed(SIDE_BY_SIDE, jump, 0.9, 400)
    assert together > 1.5, "where drafts are good enough, all of them pay together"
