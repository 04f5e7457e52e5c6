"""Every round of drafts on a dense target is the one that transformers' own DFlash makes.

transformers 5.24 ships the network for one model family only, whose block has the same arithmetic
under other names.
"""

import torch
from transformers import MuseGlimmerAssistantConfig, MuseGlimmerAssistantModel
from transformers.generation.candidate_generator import DFlashTokenCandidateGenerator

from outrider.draft.block.block_drafter import BlockDrafter
from outrider.draft.block.block_loader import load_block
from outrider.draft.token_choice import GreedyChooser
from tests.exactness.targets import engine, generate, make_target
from tests.helpers.blocks import (
    HEADS,
    HIDDEN,
    INNER,
    KV_HEADS,
    MASK,
    VOCAB,
    WIDTH,
    Kind,
    write,
)
from tests.helpers.runs import random_tokens

KIND = Kind(taps=(0, 0))
NEW = 40


def assistant(tensors):
    config = MuseGlimmerAssistantConfig(
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        num_hidden_layers=KIND.layers,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=WIDTH,
        rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        layer_types=["full_attention"] * KIND.layers,
        block_size=KIND.rows,
        mask_token_id=MASK,
        target_layer_ids=list(KIND.taps),
    )
    model = MuseGlimmerAssistantModel(config).eval()
    names = {
        "fc.weight": "encoder.fc.weight",
        "hidden_norm.weight": "encoder.output_norm_enc.weight",
    }
    model.load_state_dict({names.get(key, key): value for key, value in tensors.items()})
    return model


def theirs(monkeypatch, target, model, prompt):
    """Their output and, by length of context, their drafts."""
    rounds, original = {}, DFlashTokenCandidateGenerator.get_candidates

    def record(self, input_ids, *given, **named):
        candidates, logits = original(self, input_ids, *given, **named)
        if drafts := candidates[0, input_ids.shape[1] :].tolist():
            rounds[input_ids.shape[1]] = drafts
        return candidates, logits

    monkeypatch.setattr(DFlashTokenCandidateGenerator, "get_candidates", record)
    out = target.oracle_model.generate(
        torch.tensor([prompt]),
        assistant_model=model,
        speculation_type="dflash",
        max_new_tokens=NEW,
        do_sample=False,
        eos_token_id=None,
    )
    return out[0, len(prompt) :].tolist(), rounds


class Recorded(BlockDrafter):
    """Keeps its drafts by length of context."""

    rounds: dict[int, list[int]]

    def propose(self, context, budget):
        draft = super().propose(context, budget)
        self.rounds[len(context)] = list(draft.tokens)
        return draft


def test_every_round_has_the_drafts_of_transformers(tmp_path, monkeypatch):
    target = make_target("dense", tmp_path / "target")
    tensors = write(KIND.changed(num_target_layers=2), tmp_path / "drafter")
    model = load_block(tmp_path / "drafter", target.decoder)
    accepted = 0
    for length in (1, 30, 70):
        prompt = random_tokens(length, seed=length)
        drafter = Recorded(model, GreedyChooser(vocab_size=VOCAB))
        drafter.rounds = {}
        made = engine(target.stage("log", 8), lambda: drafter, budget=KIND.rows - 1)  # noqa: B023
        mine = generate(made, prompt, {}, NEW)
        with monkeypatch.context() as patch:
            tokens, rounds = theirs(patch, target, assistant(tensors), prompt)
        assert list(mine.result.token_ids) == tokens
        # Near the end they draft whole blocks all the same, Outrider what may still be generated.
        assert len(drafter.rounds) > 10
        for size, drafts in drafter.rounds.items():
            assert drafts == rounds[size][: len(drafts)]
        accepted += mine.counters.accepted
    assert accepted > 0
