"""Sequences whose recurrent layers run as one group get the bits that each would get alone."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from outrider.kernels import delta_group
from outrider.kernels.selftest import Kernels
from outrider.models import group as groups
from outrider.models import pass_plan
from outrider.models.decoder import Decoder
from outrider.models.pass_plan import Span
from outrider.state.seats import Seats
from outrider.state.sequence import SequenceState
from tests.helpers.checkpoints import VOCAB
from tests.helpers.runs import make_decoder, random_tokens, run, same_state, step

CAPACITY = 9


@pytest.fixture(scope="module", params=("qwen3_5", "qwen3_next"))
def decoder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    return make_decoder(request.param, tmp_path_factory.mktemp(request.param), fused=False)


@dataclass
class Sequence:
    """A sequence in the group, and the same tokens stepped alone."""

    tokens: list[int]
    state: SequenceState
    plain: SequenceState
    position: int

    @classmethod
    def begin(cls, decoder: Decoder, seed: int, prompt: int) -> "Sequence":
        tokens = random_tokens(500, seed=seed)
        states = [decoder.new_state("log", CAPACITY), decoder.new_state("log", 0)]
        for state in states:
            run(decoder, state, tokens[:prompt], revocable=False)
        return cls(tokens, *states, prompt)


@dataclass
class Load:
    """Sequences with seats; `joined` are the widths of every group that ran."""

    decoder: Decoder
    seats: Seats
    sequences: list[Sequence]
    chance: random.Random = field(default_factory=lambda: random.Random(5))
    partly: int = 0

    def move(self, widths: list[int]) -> None:
        """One pass, of which each sequence keeps a random part; narrow windows go first."""
        order = sorted(zip(widths, self.sequences, strict=True), key=lambda pair: pair[0])
        keeps = [self.chance.randint(1, width) for width, _ in order]
        rows = [
            one.tokens[one.position :][:keep] + random_tokens(width - keep, seed=one.position)
            for (width, one), keep in zip(order, keeps, strict=True)
        ]
        self.seats.take([one.state.delta for one in self.sequences])
        hidden = self.decoder.embed(torch.tensor([token for row in rows for token in row]))
        spans = [Span(one.state, width) for width, one in order]
        hidden, _ = self.decoder.run(hidden, spans, seats=self.seats)
        parts = self.decoder.logits(hidden).split([width for width, _ in order])
        for (width, one), keep, logits in zip(order, keeps, parts, strict=True):
            self._compare(one, keep, logits)
            self.partly += keep < width

    def _compare(self, one: Sequence, keep: int, logits: torch.Tensor) -> None:
        start, end = one.position, one.position + keep
        assert torch.equal(logits[:keep], step(self.decoder, one.plain, one.tokens[start:end]))
        one.position = end
        one.state.settle(end)
        one.state.raise_floor(end)
        one.state.check()
        assert same_state(one.state, one.plain)


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Row counts of each group, behind a 0 where it worked on copies."""
    seen: list[list[int]] = []
    make: Callable[..., groups.Group] = groups._group

    def watched(members: list[groups.Member], *rest: object) -> object:
        group = make(members, *rest)
        seen.append([0] * (group.rows.picked is not None) + group.sizes)
        return group

    monkeypatch.setattr(groups, "_group", watched)
    return seen


@torch.inference_mode()
def test_a_group_gives_the_bits_of_steps(decoder: Decoder, joined: list[list[int]]) -> None:
    seats = decoder.new_seats("log", CAPACITY)
    assert seats is not None
    prompts = (1, 31, 40, 64, 65, 20, 7, 90)
    sequences = [Sequence.begin(decoder, 7 + n, rows) for n, rows in enumerate(prompts)]
    load = Load(decoder, seats, sequences)
    for number in range(24):
        if number in (9, 17):  # one leaves, the last one takes its seat
            seats.free(sequences.pop(number % 4).state.delta)
        if number == 14:
            sequences.append(Sequence.begin(decoder, 3, 50))
        chosen = [1] if number % 4 == 0 else [1, 1, 1, 2, 6, 7, 9]
        load.move([load.chance.choice(chosen) for _ in sequences])
    assert load.partly > 15
    assert any(len(rows) >= 5 and set(rows) == {1} for rows in joined)
    assert any(rows[0] and len(set(rows)) >= 2 for rows in joined), "padded"
    assert any(rows[0] == 0 and len(rows) > 3 for rows in joined), "few of those with seats"
    assert [one.state.delta.seat.number for one in sequences] != sorted(range(len(sequences)))
    for one in sequences:
        saved = one.state.copy()
        assert same_state(saved, one.plain), "leaving a seat keeps everything"
        again = one.tokens[one.position :][:4]
        assert torch.equal(run(decoder, saved, again), step(decoder, one.plain, again))


@torch.inference_mode()
def test_a_checkpoint_of_a_seated_state_restores_it(decoder: Decoder) -> None:
    seats = decoder.new_seats("checkpoint", 0)
    assert seats is not None
    tokens = [random_tokens(90, seed=seed) for seed in range(3)]
    states = [decoder.new_state("checkpoint", 0) for _ in tokens]
    plain = [decoder.new_state("log", 0) for _ in tokens]
    for state, twin, ids in zip(states, plain, tokens, strict=True):
        run(decoder, state, ids[:30], revocable=False)
        run(decoder, twin, ids[:30], revocable=False)
    seats.take([state.delta for state in states])
    for position in range(30, 36):
        for wrong in (True, False):
            saved = [state.checkpoint() for state in states]
            now = torch.tensor([(ids[position] + wrong) % VOCAB for ids in tokens])
            spans = [Span(state, 1, revocable=False) for state in states]
            hidden, _ = decoder.run(decoder.embed(now), spans, seats=seats)
            if wrong:
                for state, old in zip(states, saved, strict=True):
                    state.restore(old)
        logits = decoder.logits(hidden)
        for row, twin, ids in zip(logits, plain, tokens, strict=True):
            assert torch.equal(row, step(decoder, twin, ids[position : position + 1])[0])
    assert all(same_state(*pair) for pair in zip(states, plain, strict=True))


def test_seats_are_as_large_as_the_formula_says(decoder: Decoder) -> None:
    seats = decoder.new_seats("log", CAPACITY)
    assert seats is not None
    states = [decoder.new_state("log", CAPACITY) for _ in range(4)]
    for count in (1, 3, 4):
        seats.take([state.delta for state in states[:count]])
        assert seats.nbytes() == (count + 1) * seats.spec.seat_bytes()
    for state in states:
        seats.free(state.delta)
    assert not seats.taken
    assert decoder.new_seats("snapshots", CAPACITY) is None, "a base for each row shares nothing"


def test_a_shape_whose_bits_change_in_company_runs_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = 2, 4, 16, 16
    assert Kernels(exact=True).can_group_delta(*shape)
    apply = delta_group.apply_group

    def other(rows: delta_group.GroupRows, *rest: torch.Tensor) -> torch.Tensor:
        return torch.nextafter(apply(rows, *rest), torch.tensor(9.0))

    monkeypatch.setattr(delta_group, "apply_group", other)
    assert not Kernels(exact=True).can_group_delta(*shape)
    assert Kernels(exact=False).can_group_delta(*shape)


@torch.inference_mode()
def test_sequences_of_very_different_lengths_attend_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dense model too, whose states have no seats."""
    decoder = make_decoder("qwen3", tmp_path, fused=False)
    joined = []
    together = pass_plan.attend_together

    def watched(*given: Any) -> object:
        found = together(*given)
        joined.append([group.pages.pages for group in found])
        return found

    monkeypatch.setattr(pass_plan, "attend_together", watched)
    lengths = [1, 62, 63, 64, 200, 270, 330]
    tokens = [random_tokens(400, seed=n) for n in lengths]
    states, plain = ([decoder.new_state("log", 8) for _ in lengths] for _ in range(2))
    for state, twin, ids, length in zip(states, plain, tokens, lengths, strict=True):
        run(decoder, state, ids[:length], revocable=False)
        run(decoder, twin, ids[:length], revocable=False)
    for widths in ([1] * 7, [1, 2, 2, 3, 3, 3, 3], [1] * 7, [2, 2, 2, 3, 40, 64, 64]):
        rows = [ids[s.length :][:w] for ids, s, w in zip(tokens, states, widths, strict=True)]
        hidden = decoder.embed(torch.tensor([token for row in rows for token in row]))
        spans = [Span(*pair, revocable=False) for pair in zip(states, widths, strict=True)]
        logits = decoder.logits(decoder.run(hidden, spans)[0]).split(widths)
        for found, twin, row in zip(logits, plain, rows, strict=True):
            assert torch.equal(found, step(decoder, twin, row))
    assert joined[0] == [[1, 1, 1, 2, 4, 5, 6]]
    sizes = [[len(pages) for pages in groups_of_pass] for groups_of_pass in joined]
    assert sizes == [[7], [7], [7], [4, 3]]
    assert all(same_state(*pair) for pair in zip(states, plain, strict=True))
