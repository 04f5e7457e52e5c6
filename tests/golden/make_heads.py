"""Golden vectors of EAGLE-3 and MTP from the `speculators` package, whose modules are not ours.

    python -m venv --system-site-packages VENV        # torch and transformers of constraints.txt
    VENV/bin/pip install --no-deps speculators==0.9.0 loguru pydantic pydantic-core \
        pydantic-settings annotated-types typing-inspection
    VENV/bin/python -m tests.golden.make_heads

Writes each drafter as speculators saves it, with `vectors.safetensors`: inputs and the logits of
every step. What speculators imports for training alone (a client, data sets) is replaced by mocks.
"""

import importlib.metadata
import sys
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, PretrainedConfig, Qwen3_5TextConfig, Qwen3Config

from tests.helpers.checkpoints import HYBRID

HERE = Path(__file__).parent / "heads"
UNUSED = ("openai", "openai.types", "openai.types.chat", "openai.types.completion")
HIDDEN, VOCAB, DRAFT, ROWS, STEPS = 48, 96, 64, 14, 3
IDS = [1, 2, 4]
LAYER: dict[str, Any] = {
    "hidden_size": HIDDEN,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "vocab_size": VOCAB,
    "max_position_embeddings": 512,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "pad_token_id": None,
}
VARIANTS: dict[str, tuple[type[PretrainedConfig], dict[str, bool]]] = {
    "eagle3-llama": (LlamaConfig, {}),
    "eagle3-qwen3": (Qwen3Config, {"norm_before_residual": True, "norm_before_fc": True}),
    "eagle3-1": (LlamaConfig, {"fc_norm": True, "norm_output": True}),
}


def randomise(module: torch.nn.Module) -> None:
    """Weights of a size that makes every part matter."""
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, parameter.shape[-1] ** -0.5)
            else:
                parameter.normal_(0, 0.2).add_(1.0)


def verifier(algorithm: str) -> Any:
    from speculators.config import SpeculatorsConfig, VerifierConfig
    from speculators.proposals.greedy import GreedyTokenProposalConfig

    return SpeculatorsConfig(
        algorithm=algorithm,
        proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=STEPS)],
        default_proposal_method="greedy",
        verifier=VerifierConfig(name_or_path=None, architectures=["Qwen3_5ForCausalLM"]),
    )


def make_eagle3(name: str, kind: type[PretrainedConfig], flags: dict[str, bool]) -> None:
    from speculators.models.eagle3 import Eagle3SpeculatorConfig
    from speculators.models.eagle3.core import Eagle3DraftModel

    layer = kind(**LAYER)
    layer._attn_implementation = "eager"
    config = Eagle3SpeculatorConfig(
        transformer_layer_config=layer,
        draft_vocab_size=DRAFT,
        eagle_aux_hidden_state_layer_ids=IDS,
        speculators_config=verifier("eagle3"),
        **flags,
    )
    model = Eagle3DraftModel(config).eval()
    randomise(model)
    ids = torch.randperm(VOCAB)[:DRAFT].sort().values
    member = torch.zeros(VOCAB, dtype=torch.bool).index_fill(0, ids, True)
    model.load_vocab_mappings(member, ids - torch.arange(DRAFT))
    taps = torch.randn(1, ROWS, len(IDS) * HIDDEN)
    tokens = torch.randint(0, VOCAB, (1, ROWS))
    logits: list[torch.Tensor] = []
    model.lm_head.register_forward_hook(lambda _, __, out: logits.append(out[0]))
    with torch.no_grad():
        model(taps, tokens, torch.ones_like(tokens), ttt_steps=STEPS)
    model.save_pretrained(HERE / name)
    (HERE / name / "config.py").unlink()  # a copy of speculators' own file
    save(HERE / name, taps[0], tokens[0], logits)


def make_mtp() -> None:
    from speculators.convert.mtp.converter import MTPConverter
    from speculators.models.mtp import MTPSpeculatorConfig
    from speculators.models.mtp.core import MTPDraftModel

    config = Qwen3_5TextConfig(**HYBRID)
    config._attn_implementation = "eager"
    model = MTPDraftModel(
        MTPSpeculatorConfig(transformer_layer_config=config, speculators_config=verifier("mtp"))
    ).eval()
    randomise(model)
    with torch.no_grad():  # Zero-centred norms.
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1 and "mtp_layers" in name:
                parameter.sub_(1.0)
    folder = HERE / "mtp"
    folder.mkdir(exist_ok=True)
    # Under the names of a target's file, as speculators' converter maps them.
    state, stem = model.state_dict(), "mtp_layers.0."
    parts = ("self_attn.", "mlp.", "input_layernorm.", "post_attention_layernorm.")
    ends = [name for name in state if name.removeprefix(stem).startswith(parts)]
    names = [f"mtp.layers.0.{name.removeprefix(stem)}" for name in ends]
    names += [f"mtp.{rest}.weight" for rest in ("fc", "norm")]
    names += [f"mtp.pre_fc_norm_{half}.weight" for half in ("hidden", "embedding")]
    tensors = {name: state[MTPConverter._remap_key(name)] for name in names}
    tensors |= {name: state[name] for name in ("embed_tokens.weight", "lm_head.weight")}
    save_file({k: v.contiguous() for k, v in tensors.items()}, folder / "model.safetensors")
    hidden, tokens = torch.randn(1, ROWS, HIDDEN), torch.randint(0, VOCAB, (1, ROWS))
    with torch.no_grad():
        logits = model(tokens, hidden)[0]
    save(folder, hidden[0], tokens[0], [step[0] for step in logits])


def save(folder: Path, taps: torch.Tensor, tokens: torch.Tensor, logits: list[Any]) -> None:
    steps = {f"logits.{number}": step.contiguous() for number, step in enumerate(logits)}
    packages = ("speculators", "transformers", "torch")
    versions = {name: importlib.metadata.version(name) for name in packages}
    tensors = {"taps": taps.contiguous(), "tokens": tokens.contiguous(), **steps}
    save_file(tensors, folder / "vectors.safetensors", metadata=versions)


def main() -> None:
    for name in (*UNUSED, "datasets", "hs_connectors"):
        sys.modules[name] = MagicMock()
    torch.manual_seed(0)
    HERE.mkdir(exist_ok=True)
    for name, (kind, flags) in VARIANTS.items():
        make_eagle3(name, kind, flags)
    make_mtp()


if __name__ == "__main__":
    main()
