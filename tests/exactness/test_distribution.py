"""Rejection sampling through the whole engine: the law of the output, by enumeration.

A vocabulary of 5, two tokens: 25 outcomes. The target is a table, so the law is known exactly.
"""

import numpy as np
import pytest
import torch

from outrider.records import Reply
from outrider.verify.sampler import Sampler
from tests.exactness.targets import Letters, engine, generate
from tests.helpers.scripted import SampledDrafter
from tests.oracle.sampling import probabilities

VOCAB, REQUESTS = 5, 1200
PROMPT = [0]


class TableStage:
    """A stage whose logits depend on the last token by a table [vocab, vocab]; serial."""

    vocab_size, max_length, exact = VOCAB, 64, True

    def __init__(self, table):
        self.table, self.pickers, self.queue = table, {}, []

    @property
    def num_sessions(self):
        return len(self.pickers)

    def open(self, session, sampling, prompt_len, taps=()):
        self.pickers[session] = Sampler(sampling, prompt_len=prompt_len)

    def submit(self, window):
        self.queue.append(window)

    def void(self, session, epoch):
        pass

    def run_ready(self):
        return False

    def run_batch(self):
        window = self.queue.pop(0)
        logits = self.table[list(window.tokens)][len(window.tokens) - window.wanted :]
        picked = self.pickers[window.session].pick(window, logits)
        return [Reply(session=window.session, id=window.id, tokens=picked.tokens)]

    def close(self, session):
        del self.pickers[session]

    def check(self):
        pass

    def shutdown(self):
        pass


@pytest.mark.parametrize("settings", [{"temperature": 0.8}, {"temperature": 1.2, "top_p": 0.8}])
def test_sampled_drafts_leave_the_distribution_alone(settings):
    generator = torch.Generator().manual_seed(1)
    table = torch.randn(VOCAB, VOCAB, generator=generator)
    drafts = torch.softmax(torch.randn(8, VOCAB, generator=generator), -1).double()

    def draw(row):
        return int(torch.multinomial(row, 1, generator=generator))

    found = np.zeros((VOCAB, VOCAB))
    accepted = verified = 0
    made = engine(
        TableStage(table), lambda: SampledDrafter(drafts, 3, draw), width=4, tokenizer=Letters()
    )
    for seed in range(REQUESTS):
        generation = generate(made, PROMPT, {**settings, "seed": seed}, 4)
        found[generation.result.token_ids[1:3]] += 1
        accepted += generation.counters.accepted
        verified += generation.counters.verified
    assert 0 < accepted < verified
    expected = REQUESTS * law(table.double().numpy(), settings)
    assert not found[expected == 0].any()
    chi_square = (((found - expected) ** 2) / np.where(expected > 0, expected, 1)).sum()
    assert chi_square < 55  # 24 degrees of freedom at most: a chance of 3e-4; the seeds are fixed


def law(table, settings):
    """Probability of the second and third token, summed over the first (the prefill's)."""
    step = np.array([probabilities(row, settings) for row in table])
    first = step[PROMPT[-1]]
    return (first @ step)[:, None] * step
