"""Configuration of a block drafter: how its file is to be read, from four packagings. Torch-free.

A row read one off is accepted almost never, and the text is still right, so it would go unnoticed.
Therefore the layout comes from the file, each fact with where it was found, and a request that
contradicts it is refused. Tensors count before `config.json`: the latter is often copied from
another model. Keys and names: z-lab/dflash, deepseek-ai/DeepSpec, sgl-project/SpecForge and
vllm-project/speculators as of 2026-08.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar, get_args

from outrider.errors import CheckpointError, ConfigError
from outrider.models.config import ModelConfig
from outrider.models.hf_config import parse_config

T = TypeVar("T")
Lineage = Literal["dflash", "dspark"]
Markov = Literal["vanilla", "gated", "rnn"]
Confidence = Literal["hidden", "hidden+markov"]
Json = Mapping[str, Any]
Shapes = Mapping[str, tuple[int, ...]]

MARKOV_CODE = "markov_head.markov_w1.weight"
MARKOV_GATE = "markov_head.gate_proj.weight"
MARKOV_JOINT = "markov_head.joint_proj.weight"
CONFIDENCE = "confidence_head.proj.weight"
LOG_SNR = "log_snr_embed.fc1.weight"

GGUF = "GGUF"
ANCHOR_FIRST = {"z-lab": False, "DeepSpec": True, "SpecForge": True}
ARCHITECTURES = {
    "DFlashDraftModel": "z-lab",
    "Qwen3DSparkModel": "DeepSpec",
    "DSparkDraftModel": "SpecForge",
    GGUF: GGUF,
}
NEUTRAL: Mapping[str, float | None] = {
    "input_embedding_scale": 1.0,
    "output_multiplier": 1.0,
    "final_logit_softcapping": None,
}
"""Keys that change the arithmetic, with the only value that is supported."""


@dataclass(frozen=True, slots=True)
class Fact(Generic[T]):
    """A value and the tensor, key or convention that it was read from."""

    value: T
    found: str

    def __str__(self) -> str:
        return f"{self.value} ({self.found})"


@dataclass(frozen=True, slots=True)
class View:
    """Positions that a layer's rows see.

    `window` positions of context and block at most, counted back from each row, or from the
    anchor in speculators' files; `causal` rows do not see the rows after them.
    """

    window: int | None = None
    causal: bool = False
    from_anchor: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockConfig:
    """A block drafter: its trunk in the words of a Qwen3 model, and what the rows of a block mean.

    A block is the newest token, the anchor, and masks after it. With `sample_from_anchor` row k
    predicts the (k + 1)-th token after the anchor, else row k the k-th and row 0 nothing. `taps`
    count as `records.Needs` does. `rank` is that of the Markov head, `log_snr` the least and
    the largest value of the conditioning. `views`: of each layer.
    """

    packaging: str
    trunk: ModelConfig
    views: tuple[View, ...]
    target_layers: int | None
    lineage: Fact[Lineage]
    sample_from_anchor: Fact[bool]
    block_size: int
    mask_token: int
    taps: tuple[int, ...]
    markov: Markov | None
    rank: int
    confidence: Confidence | None
    log_snr: tuple[float, float] | None

    def __post_init__(self) -> None:
        if self.max_drafts < 1:
            raise CheckpointError(
                f"block_size = {self.block_size} leaves no row that predicts: it must be at least "
                f"{1 + self.first_row}."
            )

    @property
    def first_row(self) -> int:
        """The first row that predicts."""
        return 0 if self.sample_from_anchor.value else 1

    @property
    def max_drafts(self) -> int:
        """Tokens that a whole block drafts."""
        return self.block_size - self.first_row

    def describe(self) -> dict[str, object]:
        """For `outrider inspect` and the log."""
        return {
            "packaging": self.packaging,
            "lineage": str(self.lineage),
            "sample_from_anchor": str(self.sample_from_anchor),
            "first_row": self.first_row,
            "block_size": self.block_size,
            "max_drafts": self.max_drafts,
            "mask_token": self.mask_token,
            "taps": list(self.taps),
            "markov_head": f"{self.markov}, rank {self.rank}" if self.markov else None,
            "confidence_head": self.confidence,
            "log_snr": list(self.log_snr) if self.log_snr else None,
        }


def check_method(method: str, config: BlockConfig, origin: str) -> None:
    """Refuse a file whose lineage is not the method asked for, and say what reading it so means."""
    lineage = config.lineage
    if method == lineage.value:
        return
    raise ConfigError(
        f"speculative.method = {method!r} does not fit {origin}, whose lineage is {lineage} with "
        f"sample_from_anchor = {config.sample_from_anchor}: {_consequence(method, config)}; use "
        f"speculative.method = {lineage.value!r}."
    )


def _consequence(method: str, config: BlockConfig) -> str:
    """Consequence for a file that is read as `method` reads its own kind."""
    if method not in get_args(Lineage):
        return "it reads the target's hidden states and drafts nothing by itself"
    assumed = 0 if method == "dspark" else 1
    if config.first_row < assumed:
        return "every draft would be read one row late, and almost none would be accepted"
    if config.first_row > assumed:
        return "every draft would be read one row early, and almost none would be accepted"
    if config.confidence:
        return "the rows would be right, only drafts would not end where confidence is low"
    return "the rows would be right, but there is no Markov head to correct them"


def is_block_drafter(raw: Json) -> bool:
    """True if a config.json is that of a block drafter, supported or not."""
    return (
        raw.get("speculators_model_type") in ("dflash", "dspark")
        or "dflash_config" in raw
        or any("DFlash" in name or "DSpark" in name for name in raw.get("architectures") or ())
    )


def parse_block(raw: Json, shapes: Shapes, num_target_layers: int | None) -> BlockConfig:
    """Read a folder's config.json and the shapes of its tensors.

    `num_target_layers`, where known, resolves a tap of the last layer and the default taps.
    Raises CheckpointError for another kind of drafter and for what contradicts itself.
    """
    packaging = _packaging(raw)
    fields = dict(raw.get("transformer_layer_config") or raw)
    for key in ("auto_map", "partial_rotary_factor", "quantization_config"):
        if key == "quantization_config" and fields.get(key):
            raise CheckpointError("config.json: quantised drafters are not supported.")
        fields.pop(key, None)  # Custom code is never run; the factor leaks from targets' configs.
    trunk = parse_config({**_plain(fields), "model_type": "qwen3"})
    for key, neutral in NEUTRAL.items():
        if _value(raw, key, neutral) not in (neutral, None):
            raise CheckpointError(
                f"config.json: {key} = {_value(raw, key)!r} is not supported, only {neutral!r}."
            )
    markov, rank = _markov(raw, shapes)
    return BlockConfig(
        packaging=packaging,
        trunk=trunk,
        views=tuple(_view(raw, fields, layer, packaging) for layer in range(trunk.num_layers)),
        target_layers=raw.get("num_target_layers"),
        lineage=_lineage(markov),
        sample_from_anchor=_sample_from_anchor(raw, packaging, markov),
        block_size=_whole(raw, "block_size"),
        mask_token=_whole(raw, "mask_token_id"),
        taps=_taps(raw, trunk.num_layers, raw.get("num_target_layers") or num_target_layers),
        markov=markov,
        rank=rank,
        confidence=_confidence(shapes, trunk.hidden_size, rank),
        log_snr=_log_snr(raw, shapes),
    )


def _plain(fields: Json) -> dict[str, Any]:
    """Without the windows, which each layer's view has, and what leaks from targets' configs."""
    windows = ("layer_types", "sliding_window", "use_sliding_window", "max_window_layers")
    words = {key: value for key, value in fields.items() if key not in windows}
    if isinstance(rope := words.get("rope_parameters"), dict):
        words["rope_parameters"] = {k: v for k, v in rope.items() if k != "partial_rotary_factor"}
    return words


def _packaging(raw: Json) -> str:
    if kind := raw.get("speculators_model_type"):
        if kind in ("dflash", "dspark"):
            return "speculators"
        raise CheckpointError(f"config.json: speculators_model_type {kind!r} is no block drafter.")
    name = (raw.get("architectures") or [None])[0]
    nested = raw.get("dflash_config") or {}
    projector = nested.get("projector_type") or "dflash"
    if name not in ARCHITECTURES or projector not in ("dflash", "dspark"):
        raise CheckpointError(
            f"config.json: block drafter {name!r} with projector {projector!r} is not supported; "
            f"supported are {', '.join(ARCHITECTURES)} and speculators' dflash and dspark."
        )
    if "selector_rank" in nested:
        raise CheckpointError("config.json: DFlash 2 (selector_rank) is not supported.")
    return "SpecForge" if projector == "dspark" else ARCHITECTURES[name]


def _value(raw: Json, key: str, default: Any = None) -> Any:
    """A setting from `dflash_config` or the top level."""
    return (raw.get("dflash_config") or {}).get(key, raw.get(key, default))


def _lineage(markov: Markov | None) -> Fact[Lineage]:
    if markov:
        return Fact("dspark", f"tensor {MARKOV_CODE}")
    return Fact("dflash", f"no tensor {MARKOV_CODE}")


def _whole(raw: Json, key: str) -> int:
    value = _value(raw, key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise CheckpointError(f"config.json: {key} = {value!r} must be a whole number.")
    return value


def _markov(raw: Json, shapes: Shapes) -> tuple[Markov | None, int]:
    """Kind and rank of the Markov head, from the tensors; the config must not claim another."""
    rank = _value(raw, "markov_rank") or 0
    if MARKOV_CODE not in shapes:
        if rank:
            raise CheckpointError(
                f"config.json: markov_rank = {rank}, but there is no tensor {MARKOV_CODE}."
            )
        return None, 0
    if MARKOV_GATE in shapes:
        return "gated", shapes[MARKOV_CODE][1]
    return "rnn" if MARKOV_JOINT in shapes else "vanilla", shapes[MARKOV_CODE][1]


def _sample_from_anchor(raw: Json, packaging: str, markov: Markov | None) -> Fact[bool]:
    """From its key, else from the number of drafts, else what the packaging has always meant."""
    proposals = (raw.get("speculators_config") or {}).get("proposal_methods") or [{}]
    drafts, rows = proposals[0].get("speculative_tokens"), _whole(raw, "block_size")
    declared = _value(raw, "sample_from_anchor")
    if declared is not None:
        if not declared and drafts is not None and drafts >= rows:
            raise CheckpointError(
                f"config.json: sample_from_anchor = false leaves {rows - 1} drafts of block_size "
                f"{rows}, but speculative_tokens says {drafts}."
            )
        where = "metadata" if packaging == GGUF else "config.json"
        return Fact(bool(declared), f"{where}: sample_from_anchor")
    if drafts in (rows, rows - 1):
        return Fact(drafts == rows, f"config.json: speculative_tokens = {drafts} of {rows}")
    if packaging == "speculators":
        kind = raw["speculators_model_type"]
        return Fact(kind == "dspark", f"speculators' default for {kind}")
    if packaging == GGUF:
        return Fact(markov is not None, f"{GGUF} default {'with' if markov else 'without'} Markov")
    return Fact(ANCHOR_FIRST[packaging], f"{packaging} packaging")


def _confidence(shapes: Shapes, hidden: int, rank: int) -> Confidence | None:
    if CONFIDENCE not in shapes:
        return None
    width = shapes[CONFIDENCE][1]
    if width not in (hidden, hidden + rank):
        raise CheckpointError(
            f"tensor {CONFIDENCE} reads {width} values, not the hidden {hidden} or {hidden + rank} "
            "with the Markov code."
        )
    return "hidden" if width == hidden else "hidden+markov"


def _log_snr(raw: Json, shapes: Shapes) -> tuple[float, float] | None:
    if LOG_SNR not in shapes:
        return None
    low, high = _value(raw, "min_log_snr"), _value(raw, "max_log_snr")
    if low is None or high is None or not low < high:
        raise CheckpointError(
            f"config.json: min_log_snr = {low} and max_log_snr = {high} must be two rising "
            f"numbers, for there is a tensor {LOG_SNR}."
        )
    return float(low), float(high)


def _taps(raw: Json, draft_layers: int, layers: int | None) -> tuple[int, ...]:
    """Tapped layers as `records.Needs` counts them.

    All packagings mean entries of transformers' `hidden_states`, which starts with the embedding
    and ends after the final norm: speculators their index, the others the index less one.
    """
    index = raw.get("aux_hidden_state_layer_ids")
    found = [tap - 1 for tap in index] if index is not None else _value(raw, "target_layer_ids")
    if found is None and layers:
        found = default_taps(layers, draft_layers)
    if not found or not all(isinstance(tap, int) for tap in found):
        raise CheckpointError(f"config.json: target_layer_ids = {found!r} must name layers to tap.")
    last = None if layers is None else layers - 1
    return tuple(tap + 1 if tap == last else tap for tap in found)


def default_taps(layers: int, count: int) -> list[int]:
    """z-lab's taps where a file names none: `count` of `layers`, evenly from 1 to layers - 3."""
    if count == 1:
        return [layers // 2]
    return [round(1 + place * (layers - 4) / (count - 1)) for place in range(count)]


def _view(raw: Json, fields: Json, layer: int, packaging: str) -> View:
    kinds = fields.get("layer_types") or []
    sliding = layer < len(kinds) and kinds[layer] == "sliding_attention"
    window = fields.get("sliding_window") if sliding else None
    if sliding and fields.get("use_sliding_window") is False:
        window = None
    if packaging == "speculators":
        return View(window, sliding and not raw.get("sliding_window_non_causal"), from_anchor=True)
    declared = _value(raw, "is_causal")
    return View(window, sliding if declared is None else bool(declared))
