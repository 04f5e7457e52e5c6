"""A base never falls behind: one accepted epoch of 2,000 tokens, and no state grows but by keys."""

from dataclasses import dataclass

import pytest

from outrider.models.load import LoadOptions, load_decoder
from outrider.records import SamplerOutput
from outrider.sampling.params import SamplingParams
from outrider.stage.layer_range import LayerRange
from outrider.stage.link import LinkSettings
from outrider.stage.local import ChainStage
from tests.exactness.targets import engine
from tests.helpers.checkpoints import VOCAB, save_model
from tests.helpers.clock import VirtualClock
from tests.helpers.scripted import ALWAYS_RIGHT, ScriptedDrafter

TOKENS = 2000
WIDTH, DEPTH = 8, 4
TRUTH = [(place * 31 + 7) % (VOCAB - 1) + 1 for place in range(TOKENS + 16)]


@dataclass
class KnownTarget:
    """Picks what TRUTH says, whatever the logits: states are what is looked at here."""

    def pick(self, window, logits, largest=None):
        end = window.end + 1
        return SamplerOutput(tokens=tuple(TRUTH[end - window.wanted : end]))


@pytest.fixture(scope="module")
def decoders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("long")
    save_model("qwen3_5-long", folder)
    spans = [(0, 1), (1, 4)]
    return [load_decoder(folder, LoadOptions(first=a, last=b)) for a, b in spans]


@pytest.mark.parametrize("policy", ["log", "snapshots"])
def test_state_bytes_stay_flat(decoders, policy):
    capacity = WIDTH * DEPTH + 1
    parts = [LayerRange(one, policy, capacity, lambda *_: KnownTarget()) for one in decoders]
    stage = ChainStage(parts, LinkSettings(delay_ms=50.0), clock=VirtualClock())
    made = engine(
        stage, lambda: ScriptedDrafter(TRUTH, ALWAYS_RIGHT, VOCAB), width=WIDTH, depth=DEPTH
    )
    request = made.generate(TRUTH[:5], sampling=SamplingParams(), max_tokens=TOKENS - 5)
    seen = set()
    for _ in request:
        slots = [slot for part in parts for slot in part.held.values()]
        seen.add(tuple(slot.state.delta.nbytes() for slot in slots))
        assert all(slot.state.length - slot.state.floor <= capacity for slot in slots)
        assert all(len(slot.replay.rows) <= capacity for slot in slots)
        assert not any(slot.replay.checkpoints for slot in slots)
    counters = request.counters
    assert counters.emitted == TOKENS - 5
    assert counters.epochs_closed <= 1
    assert counters.accepted > 1900
    assert counters.max_in_flight == DEPTH
    assert not counters.rollbacks
    assert len(seen) == 1
