"""The only reader of an EAGLE-3 drafter's config.json: three packagings, one description.

How layer ids count is found from the file, because the packagings disagree:
docs/decisions/eagle-packagings.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outrider.errors import CheckpointError
from outrider.formats.files import read_json
from outrider.models.config import ModelConfig
from outrider.models.hf_config import parse_config

IDS = "eagle_aux_hidden_state_layer_ids"


@dataclass(frozen=True, slots=True, kw_only=True)
class Eagle3Config:
    """The description that an EAGLE-3 file gives.

    layers: its decoder layers; `vocab_size` is the target's. layer_ids: as written, None for the
    default. outputs: ids are 0-based layer outputs; else boundaries (the input of layer i, which is
    the output of i - 1). The norm flags: see `models.eagle3`.
    """

    origin: str
    packaging: str
    layers: ModelConfig
    draft_vocab: int
    layer_ids: tuple[int, ...] | None
    outputs: bool
    target_hidden: int | None
    norm_before_residual: bool
    norm_before_fc: bool
    fc_norm: bool
    norm_output: bool

    def taps_for(self, target: ModelConfig) -> tuple[int, ...]:
        """The target's layers to tap, ascending; CheckpointError where the two do not fit."""
        self._check_sizes(target)
        count = target.num_layers
        ids = self.layer_ids
        taps = (1, count // 2 - 1, count - 4) if ids is None else ids
        if ids is not None and not self.outputs:
            taps = tuple(one - 1 for one in ids)
        if list(taps) != sorted(set(taps)) or taps[0] < -1 or taps[-1] >= count:
            raise CheckpointError(
                f"{self.origin}: layer ids {list(ids or taps)} ask for the outputs of layers "
                f"{list(taps)}, but the target has layers 0 to {count - 1}: use the target that "
                "the drafter was trained for."
            )
        return taps

    def _check_sizes(self, target: ModelConfig) -> None:
        expected = {
            "hidden size": (self.target_hidden or self.layers.hidden_size, target.hidden_size),
            "vocabulary": (self.layers.vocab_size, target.vocab_size),
        }
        for what, (made_for, found) in expected.items():
            if made_for != found:
                raise CheckpointError(
                    f"{self.origin}: the drafter was made for a target with a {what} of "
                    f"{made_for}, but this one's is {found}: use the target that it was trained "
                    "for."
                )


def is_eagle3(raw: Mapping[str, Any]) -> bool:
    """True if a config.json describes an EAGLE-3 drafter.

    SafeAILab's own files say only that their vocabulary is reduced; block drafters may say so too.
    """
    if kind := raw.get("speculators_model_type"):
        return bool(kind == "eagle3")
    named = any("eagle3" in str(name).lower() for name in raw.get("architectures") or ())
    is_block = "dflash_config" in raw or "block_size" in raw
    return named or ("draft_vocab_size" in raw and not is_block)


def read_eagle3_config(folder: Path) -> Eagle3Config:
    """Read `folder`/config.json; CheckpointError where it describes no EAGLE-3 drafter."""
    origin = str(folder / "config.json")
    raw = read_json(folder / "config.json")
    if not is_eagle3(raw):
        raise CheckpointError(
            f"{origin}: architectures {raw.get('architectures')} is no EAGLE-3 drafter; method "
            "eagle3 reads the files of SafeAILab, SpecForge and speculators."
        )
    nested = raw.get("eagle_config") or {}
    flags = {**raw, **nested}
    speculators = raw.get("speculators_model_type") is not None
    body = dict(raw.get("transformer_layer_config") or raw) if speculators else dict(raw)
    body.pop("auto_map", None)  # code of its author, which is not needed
    body.setdefault("model_type", "qwen3" if speculators else "llama")
    layers = parse_config({"num_hidden_layers": 1, **body}, origin=origin)
    ids = tuple(flags[IDS]) if flags.get(IDS) else None
    return Eagle3Config(
        origin=origin,
        packaging="speculators" if speculators else "SpecForge" if nested else "SafeAILab",
        layers=layers,
        draft_vocab=raw.get("draft_vocab_size") or layers.vocab_size,
        layer_ids=ids,
        # SpecForge counts outputs and begins at 1; everybody else counts boundaries.
        outputs=bool(nested.get(IDS)) and nested[IDS][0] == 1,
        target_hidden=raw.get("target_hidden_size"),
        **{name: bool(flags.get(name)) for name in FLAGS},
    )


FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
