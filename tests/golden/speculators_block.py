"""Make golden vectors of block drafters with speculators 0.9.0's own modules.

    pip download --no-deps speculators==0.9.0 && unzip -d FOLDER speculators-0.9.0-*.whl
    PYTHONPATH=.:src:FOLDER python tests/golden/speculators_block.py

Only the network's modules run; what speculators imports for training (datasets, openai, ...) is
replaced by empty stand-ins, so that nothing more has to be installed. Weights, features and tokens
are drawn from seeds, as the test draws them again; the file holds what came out.
"""

import importlib.abc
import importlib.machinery
import sys
from pathlib import Path
from unittest import mock

import torch
from safetensors.torch import save_file

from tests.golden.cases import KINDS, LENGTH, case
from tests.helpers.blocks import HIDDEN, VOCAB, make_config, make_tensors

FILE = Path(__file__).with_name("speculators_block.safetensors")


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    names = (
        "aiohttp",
        "datasets",
        "hs_connectors",
        "loguru",
        "openai",
        "psutil",
        "pydantic_settings",
    )
    names = (*names, "torchaudio", "torchvision", "typer")

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in self.names:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        module = mock.MagicMock(name=spec.name)
        module.__spec__, module.__path__, module.__name__ = spec, [], spec.name
        return module

    def exec_module(self, module):
        pass


def build(kind):
    """Their model with the kind's weights, and the target's embedding and head in it."""
    from speculators.models.dflash import DFlashDraftModel, DFlashSpeculatorConfig
    from speculators.models.dspark import DSparkDraftModel, DSparkSpeculatorConfig

    raw = make_config(kind)
    for key in ("architectures", "speculators_config"):
        raw.pop(key)
    raw["transformer_layer_config"].pop("partial_rotary_factor")
    pair = (DSparkDraftModel, DSparkSpeculatorConfig)
    if raw["speculators_model_type"] == "dflash":
        pair = (DFlashDraftModel, DFlashSpeculatorConfig)
        for key in ("markov_rank", "markov_head_type"):
            raw.pop(key)
    else:
        raw["enable_confidence_head"] = kind.confidence
        raw["confidence_head_with_markov"] = kind.reads_code
    config = pair[1](**raw)
    config.transformer_layer_config._attn_implementation = "eager"
    model = pair[0](config).eval()
    tensors = make_tensors(kind)
    _, head = case(kind)[2:]
    known = {**tensors, "embed_tokens.weight": case(kind)[2]}
    known.setdefault("lm_head.weight", head)
    missing, unexpected = model.load_state_dict(known, strict=False)
    assert not unexpected, unexpected
    assert all(name.startswith("verifier") or name in ("t2d", "d2t") for name in missing), missing
    model.verifier_lm_head.weight.data.zero_()
    return model


def rows(model, kind, features, tokens):
    """Corrected logits [rows, draft vocab] and confidence logits of the block behind LENGTH."""
    seen = {}

    def keep(logits, targets, *rest, **named):
        seen["logits"] = logits[0]
        seen["confidence"] = rest[0] if kind.markov else None
        return torch.zeros(()), {}

    module = sys.modules[type(model).__module__]
    size = LENGTH + 2 * kind.rows + 1
    ids = torch.zeros(1, size, dtype=torch.long)
    ids[0, : len(tokens)] = torch.tensor(tokens)
    hidden = torch.zeros(1, size, features.shape[1])
    hidden[0, :LENGTH] = features
    mask = torch.zeros(1, size)
    mask[0, LENGTH] = 1
    with mock.patch.object(module, "compute_metrics", keep):
        model(
            hidden,
            ids,
            mask,
            torch.zeros(1, size, HIDDEN),
            torch.zeros(1, size, dtype=torch.long),
            max_anchors=1,
        )
    return seen["logits"], seen["confidence"]


@torch.no_grad()
def vectors(kind):
    """Greedy drafts, one after the other: each is read with those before it in place."""
    features, tokens, *_ = case(kind)
    model, tokens = build(kind), list(tokens)
    first = 0 if kind.anchor_first else 1
    ids = torch.arange(VOCAB) if model.d2t is None else model.d2t + torch.arange(kind.reduced)
    for row in range(first, kind.rows):
        logits, confidence = rows(model, kind, features, tokens)
        tokens.append(int(ids[logits[row].argmax()]))
    out = {"logits": logits[first:].contiguous(), "tokens": torch.tensor(tokens[LENGTH + 1 :])}
    if confidence is not None:
        out["confidence"] = confidence[0, first:].sigmoid()
    return out


def main():
    sys.meta_path.append(StandIns())
    found = {
        f"{name}.{key}": value
        for name, kind in KINDS.items()
        for key, value in vectors(kind).items()
    }
    save_file(found, FILE, metadata={"made_with": f"speculators 0.9.0, torch {torch.__version__}"})


if __name__ == "__main__":
    main()
