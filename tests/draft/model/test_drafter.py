"""A draft model drafts what a fresh run of it would, whatever was rejected before."""

import random
import sys

import pytest
import torch

from outrider.draft.model.draft_model import DraftModel, DraftModelDrafter
from outrider.draft.model.sync import DraftSync
from outrider.draft.token_choice import GreedyChooser, SampledChooser
from outrider.errors import ConfigError, StageError
from outrider.models.decoder import Decoder
from outrider.records import Commit, Context
from outrider.sampling.logits import probabilities
from outrider.sampling.params import SamplingParams
from outrider.sampling.rng import Key, Purpose, draw
from outrider.state.delta_log import DeltaCopy, DeltaState
from outrider.state.sequence import SequenceState
from outrider.state.spec import POLICIES
from tests.draft.model.play import Session, fresh_draft, play
from tests.helpers.checkpoints import VOCAB
from tests.helpers.runs import make_decoder, random_tokens, run

CAPACITY = 24


@pytest.fixture(scope="module", params=["qwen3_5", "mistral"])
def decoder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    return make_decoder(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    return make_decoder("qwen3_5", tmp_path_factory.mktemp("hybrid"))


def drafter_of(
    decoder: Decoder, policy: str = "log", capacity: int = 64, **choice: object
) -> DraftModelDrafter:
    chooser = GreedyChooser(**{"vocab_size": VOCAB, **choice})
    return DraftModelDrafter(DraftModel(decoder, VOCAB), chooser, policy, capacity)


def compare(decoder: Decoder, policy: str, depth: int, drafts: int) -> tuple[int, int]:
    """Return how many of `drafts` drafts equal a fresh run's, and how many rounds rejected some.

    A new session starts, with a new drafter, before one outgrows the tiny model.
    """
    done = equal = rejected = 0
    while done < drafts:
        session = Session(drafter_of(decoder, policy, CAPACITY), random.Random(done))
        session.open(random_tokens(70))
        for context, budget, drafted in play(session, drafts - done, depth=depth):
            assert len(drafted[0]) == budget
            equal += drafted == fresh_draft(decoder, policy, context, budget)
            done += 1
            if len(session.committed) > 440:
                break
        rejected += session.rejected
    return equal, rejected


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("policy", POLICIES)
def test_all_drafts_are_those_of_a_fresh_run(decoder: Decoder, policy: str, depth: int) -> None:
    """Over all policies and depths this compares 204 drafts per model."""
    equal, rejected = compare(decoder, policy, depth, 34)
    assert equal == 34
    assert rejected > 8


def test_a_window_beyond_the_capacity_is_still_right(hybrid: Decoder, monkeypatch) -> None:
    """Capacity 4, drafts of up to 6 and suffixes of up to 18: checkpoints and resets."""
    used = count_calls(monkeypatch, "restore", "reset", "settle")
    monkeypatch.setattr(sys.modules[__name__], "CAPACITY", 4)
    assert compare(hybrid, "log", 3, 40)[0] == 40
    assert used["restore"] > 2
    assert used["settle"] > 2


def restore_columns_only(state: DeltaState, copy: DeltaCopy) -> None:
    for lost in state.tensors()[:-1]:
        lost.zero_()
    state.columns.storage.copy_(copy.tensors[-1])
    state.columns.origin = copy.origin


def plan_as_if_done(sync: DraftSync, context: Context, plan=DraftSync.plan, **lengths) -> int:
    """Records what the plan takes back, so that nobody does it."""
    length = plan(sync, context, **lengths)
    sync.record_trim(length)
    return length


@pytest.mark.parametrize("fault", ["rollback skipped", "recurrent state lost"])
def test_a_planted_fault_is_found(hybrid: Decoder, monkeypatch, fault: str) -> None:
    drafts = 40
    if fault == "rollback skipped":
        monkeypatch.setattr(DraftSync, "plan", plan_as_if_done)
        equal, _ = compare(hybrid, "log", 1, drafts)
    else:
        monkeypatch.setattr(DeltaState, "restore", restore_columns_only)
        equal, _ = compare(hybrid, "checkpoint", 1, drafts)
    assert equal < drafts


def count_calls(monkeypatch, *names: str) -> dict[str, int]:
    """Count calls of methods of SequenceState from now on."""
    calls = dict.fromkeys(names, 0)

    def counted(name, method):
        def call(self, *args):
            calls[name] += 1
            return method(self, *args)

        return call

    for name in names:
        monkeypatch.setattr(SequenceState, name, counted(name, getattr(SequenceState, name)))
    return calls


class Passes:
    """Counts the rows of each pass of a decoder, and fails where it is told to."""

    def __init__(self, monkeypatch) -> None:
        self.rows: list[int] = []
        self.fail_at = -1
        real = Decoder.run

        def counted(decoder, hidden, spans, taps=()):
            result = real(decoder, hidden, spans, taps)
            if len(self.rows) == self.fail_at:
                self.fail_at = -1
                raise RuntimeError("planted")
            self.rows.append(len(hidden))
            return result

        monkeypatch.setattr(Decoder, "run", counted)


def follow(drafter: DraftModelDrafter, committed: list[int], tokens: list[int]) -> None:
    """Commit `tokens`."""
    drafter.observe(Commit(position=len(committed), tokens=tuple(tokens)))
    committed.extend(tokens)


def test_drafting_takes_a_pass_per_token(hybrid: Decoder, monkeypatch) -> None:
    drafter, committed = drafter_of(hybrid), []
    follow(drafter, committed, random_tokens(30))
    passes = Passes(monkeypatch)
    drafter.propose(Context(committed), 3)
    assert passes.rows == [30, 1, 1]


def test_catching_up_is_one_pass_over_the_missing_tokens(hybrid: Decoder, monkeypatch) -> None:
    drafter, committed = drafter_of(hybrid), []
    follow(drafter, committed, random_tokens(30))
    draft = drafter.propose(Context(committed), 3)
    assert draft is not None
    passes = Passes(monkeypatch)
    follow(drafter, committed, [*draft.tokens, 5])
    drafter.propose(Context(committed), 2)
    assert passes.rows == [2, 1], "all accepted: the last draft and the bonus are missing"
    follow(drafter, committed, [7])
    for token in range(20):  # Another drafter works.
        follow(drafter, committed, [token])
    assert passes.rows == [2, 1], "observing runs nothing"
    drafter.propose(Context(committed), 1)
    assert passes.rows[2:] == [21]


def test_a_rejected_draft_costs_no_second_prefill(decoder: Decoder, monkeypatch) -> None:
    drafter, committed = drafter_of(decoder), []
    follow(drafter, committed, random_tokens(100))
    for _ in range(5):
        draft = drafter.propose(Context(committed), 4)
        assert draft is not None
        wrong = (draft.tokens[1] + 1) % VOCAB
        follow(drafter, committed, [draft.tokens[0], wrong])
        passes = Passes(monkeypatch)
    drafter.propose(Context(committed), 4)
    assert passes.rows == [1, 1, 1, 1]


def test_long_catching_up_is_cut_on_a_grid(hybrid: Decoder, monkeypatch) -> None:
    drafter, committed = drafter_of(hybrid), []
    passes = Passes(monkeypatch)
    follow(drafter, committed, random_tokens(10))
    drafter.propose(Context(committed), 1)
    follow(drafter, committed, random_tokens(300))
    drafter.propose(Context(committed), 1)
    assert passes.rows == [10, 246, 54]


def test_asking_twice_runs_nothing_twice(hybrid: Decoder, monkeypatch) -> None:
    """A draft that ended at once is asked for again with every poll of an idle window."""
    drafter, committed = drafter_of(hybrid, min_probability=1.0), []
    follow(drafter, committed, random_tokens(30))
    passes = Passes(monkeypatch)
    assert drafter.propose(Context(committed), 4) is None
    assert drafter.propose(Context(committed), 4) is None
    assert passes.rows == [30]


@pytest.mark.parametrize("fail_at", range(5))
def test_a_failed_pass_leaves_nothing_wrong_behind(decoder: Decoder, monkeypatch, fail_at) -> None:
    drafter, committed = drafter_of(decoder), []
    follow(drafter, committed, random_tokens(300))
    passes = Passes(monkeypatch)
    passes.fail_at = fail_at  # 0 and 1 are the prefill's, the others are steps.
    with pytest.raises(RuntimeError, match="planted"):
        drafter.propose(Context(committed), 4)
    draft = drafter.propose(Context(committed), 4)
    assert draft is not None
    assert (draft.tokens, draft.confidence) == fresh_draft(decoder, "log", committed, 4)


@torch.inference_mode()
@pytest.mark.parametrize("policy", POLICIES)
def test_a_target_that_drafts_for_itself_is_always_right(decoder: Decoder, policy: str) -> None:
    drafter, committed = drafter_of(decoder, policy), random_tokens(40)
    state = decoder.new_state("log", 0)
    row = run(decoder, state, committed, revocable=False)[-1]
    follow(drafter, [], [*committed, int(row.argmax())])
    committed.append(int(row.argmax()))
    for _ in range(6):
        draft = drafter.propose(Context(committed), 5)
        assert draft is not None
        target = []
        for token in (committed[-1], *draft.tokens):
            target.append(int(run(decoder, state, [token], revocable=False)[-1].argmax()))
        assert draft.tokens == tuple(target[:-1])
        follow(drafter, committed, target)


def test_padded_rows_are_never_proposed(hybrid: Decoder) -> None:
    """Only 5 of the 96 rows are tokens of the target: the likeliest of these is proposed."""
    drafter = drafter_of(hybrid, vocab_size=5)
    draft = drafter.propose(Context(random_tokens(30)), 20)
    assert draft is not None
    assert max(draft.tokens) < 5
    everything = drafter_of(hybrid).propose(Context(random_tokens(30)), 20)
    assert everything is not None
    assert max(everything.tokens) >= 5


@torch.inference_mode()
def test_confidence_is_the_probability_of_the_row(hybrid: Decoder) -> None:
    committed = random_tokens(30)
    draft = drafter_of(hybrid).propose(Context(committed), 3)
    assert draft is not None
    assert draft.confidence is not None
    state = hybrid.new_state("log", 0)
    rows = run(hybrid, state, [*committed, *draft.tokens[:2]], revocable=False)[-3:]
    assert draft.confidence == pytest.approx(rows.softmax(-1).amax(-1).tolist(), rel=1e-5)


def test_an_unsure_draft_ends_before_the_unsure_row(hybrid: Decoder) -> None:
    committed = random_tokens(30)
    draft = drafter_of(hybrid).propose(Context(committed), 12)
    assert draft is not None
    assert draft.confidence is not None
    least = sorted(draft.confidence)[3]
    first = next(i for i, value in enumerate(draft.confidence) if value < least)
    short = drafter_of(hybrid, min_probability=least).propose(Context(committed), 12)
    assert (short.tokens if short else ()) == draft.tokens[:first]


def test_a_context_beyond_the_draft_models_length_gets_no_draft(hybrid: Decoder) -> None:
    tokens = random_tokens(hybrid.max_length + 1)
    drafter = drafter_of(hybrid)
    draft = drafter.propose(Context(tokens[:-3]), 8)
    assert draft is not None
    assert len(draft.tokens) == 3
    assert drafter.propose(Context(tokens), 8) is None


@pytest.mark.parametrize("policy", POLICIES)
def test_a_token_that_the_model_lacks_is_read_as_another_one(
    hybrid: Decoder, monkeypatch, policy: str
) -> None:
    """In the prompt, among what was committed, in the suffix; and nothing runs twice for it."""
    lacked, instead = VOCAB + 5, 7
    model = DraftModel(hybrid, VOCAB, instead)
    drafter = DraftModelDrafter(model, GreedyChooser(vocab_size=VOCAB), policy)
    passes, committed, suffix = Passes(monkeypatch), [], []
    for added, behind in (([3, lacked, 5], []), ([lacked], [4]), ([4, 9], [lacked, 6])):
        follow(drafter, committed, added)
        suffix = behind
        context = Context(committed, suffix)
        read = [token if token < VOCAB else instead for token in (*committed, *suffix)]
        draft = drafter.propose(context, 3)
        assert draft is not None
        assert (draft.tokens, draft.confidence) == fresh_draft(hybrid, policy, read, 3)
    before = len(passes.rows)
    again = drafter.propose(Context(committed, suffix), 1)
    assert again is not None
    assert again.tokens == draft.tokens[:1]
    assert sum(passes.rows[before:]) < len(committed), "it knew the target's ids again"


def sampled(decoder: Decoder, seed: int = 3) -> DraftModelDrafter:
    chooser = SampledChooser(
        vocab_size=VOCAB - 6, target_rows=VOCAB + 8, temperature=0.8, key=Key(seed=seed)
    )
    return DraftModelDrafter(DraftModel(decoder, VOCAB - 6), chooser)


@torch.inference_mode()
def test_sampled_drafts_come_with_the_distribution_drawn_from(hybrid: Decoder) -> None:
    committed = random_tokens(30)
    draft = sampled(hybrid).propose(Context(committed), 4)
    assert draft is not None
    assert isinstance(draft.probs, torch.Tensor)
    assert draft.probs.shape == (4, VOCAB + 8)
    rows = run(hybrid, hybrid.new_state("log", 0), [*committed, *draft.tokens], revocable=False)
    for place, token in enumerate(draft.tokens):
        row = rows[len(committed) - 1 + place, : VOCAB - 6]
        probs = probabilities(row, SamplingParams(temperature=0.8), None)
        assert torch.equal(draft.probs[place, : VOCAB - 6], probs)
        uniform = Key(seed=3).uniform(len(committed) + place, Purpose.DRAFT)
        assert token == draw(probs, uniform)
    assert not draft.probs[:, VOCAB - 6 :].any()
    other = sampled(hybrid, seed=4).propose(Context(committed), 4)
    assert other is not None
    assert other.tokens != draft.tokens


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"min_probability = 1\.5 is out of range"):
        GreedyChooser(vocab_size=8, min_probability=1.5)
    with pytest.raises(ConfigError, match=r"draft temperature = 0\.0 is not positive"):
        SampledChooser(vocab_size=8, target_rows=8, temperature=0.0, key=Key(seed=1))


def test_nan_in_a_draft_model_is_an_error() -> None:
    with pytest.raises(StageError, match="position 7 hold NaN"):
        GreedyChooser(vocab_size=2).choose(torch.tensor([[0.0, float("nan")]]), 7)
