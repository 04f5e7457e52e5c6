"""Drafters of hidden states beside the demo target: what is loaded, refused and accounted for."""

import json

import pytest

from outrider.assemble.drafter import load_drafting
from outrider.assemble.engine import Engine
from outrider.assemble.target import load_target, sha256
from outrider.config.settings import RunConfig, SpeculativeConfig, StagesConfig, TargetConfig
from outrider.draft.heads.one_token import Head
from outrider.errors import CheckpointError, ConfigError
from tests.helpers.heads import eagle3_tensors, save_eagle3

IDS = "eagle_aux_hidden_state_layer_ids"


def drafter_for_demo(folder, recorded):
    raw = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "hidden_size": 256,
        "intermediate_size": 32,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "max_position_embeddings": 64,
        "vocab_size": 2048,
        "draft_vocab_size": 40,
        "eagle_config": {IDS: [1, 3, 6]},
        "outrider": {"target_sha256": recorded},
    }
    return save_eagle3(folder, raw, eagle3_tensors(raw, 256, 3))


def test_another_target_than_the_recorded_one_is_refused(tmp_path):
    target = load_target(TargetConfig())
    for recorded in (sha256(target.folder), "0" * 64):
        folder = drafter_for_demo(tmp_path / recorded[:8], recorded)
        speculative = SpeculativeConfig(method="eagle3", draft_model=str(folder))
        if recorded != "0" * 64:
            head = load_drafting(speculative, target)
            assert isinstance(head, Head)
            assert head.layers.max_length == target.decoder.max_length
            continue
        with pytest.raises(CheckpointError, match="was trained for the target with SHA-256 0000"):
            load_drafting(speculative, target)


def test_a_file_that_is_no_eagle3_drafter(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    speculative = SpeculativeConfig(method="eagle3", draft_model=str(tmp_path))
    with pytest.raises(CheckpointError, match=r"cannot be loaded: .*is no EAGLE-3 drafter"):
        load_drafting(speculative, load_target(TargetConfig()))


def test_mtp_on_the_demo_counts_its_own_state_and_what_it_drafts():
    engine = Engine.load("demo", speculative=SpeculativeConfig(method="mtp", max_draft_tokens=2))
    assert [spec.delta is not None for spec in engine.specs] == [True, False]
    generation = engine.generate("def main(", max_tokens=24)
    list(generation)
    counters = generation.counters
    assert set(counters.by_source) == {"mtp"}
    assert 0 < counters.accepted < counters.verified
    off = engine.generate("def main(", max_tokens=24, method="off")
    list(off)
    assert off.result.token_ids == generation.result.token_ids


def test_stages_in_other_processes_have_no_head_to_share():
    config = RunConfig(
        speculative=SpeculativeConfig(method="mtp"), stages=StagesConfig(count=2, processes=True)
    )
    with pytest.raises(ConfigError, match=r"stages\.processes and stages\.address leave"):
        load_drafting(config.speculative, load_target(config.target, config.stages))
