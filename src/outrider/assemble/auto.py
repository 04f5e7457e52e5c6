"""`method = "auto"`: what the given files allow, best first by the cost model."""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from outrider.assemble.drafter import Drafting, load_drafting, model_of
from outrider.assemble.target import LoadedTarget
from outrider.config.checks import check
from outrider.config.settings import Method, RunConfig
from outrider.costs.timing import measure_costs
from outrider.draft.block.block_loader import holds_block_drafter, read_block
from outrider.draft.heads.eagle3 import is_eagle3
from outrider.draft.heads.mtp import holds_mtp
from outrider.errors import ConfigError
from outrider.formats.files import read_json_or_empty
from outrider.formats.hub import resolve

LOG = logging.getLogger(__name__)
SECONDS = 0.2
DRAFTS = 8

PRIORS: Mapping[str, float] = {
    "suffix": 0.4,
    "suffix+draft": 0.6,
    "mtp": 0.65,
    "eagle3": 0.65,
    "dflash": 0.6,
    "dspark": 0.7,
}
"""Chance that a draft is kept if those before it were, before anything was seen. Rough figures of
published drafters; only their order decides where costs are alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picked:
    """A configuration with its method, what was loaded for it, and why."""

    config: RunConfig
    draft: Drafting | None
    reason: str


def pick(config: RunConfig, target: LoadedTarget) -> Picked:
    """Load every method that the files allow and take the one with the best expected speedup.

    Where no pass can be measured here, that is the method of the file given, else `suffix`.
    """
    measured: dict[str, float] = {}
    found: dict[str, Picked] = {}
    for method, trial in _trials(config, target):
        draft = load_drafting(trial.speculative, target)
        if config.stages.is_local:
            measured[method] = _speedup(method, target, draft)
        found[method] = Picked(config=trial, draft=draft, reason="")
    best = max(found, key=lambda method: measured.get(method, 0.0))
    figures = [f"{method} {value:.2f}x" for method, value in measured.items()]
    reason = f"speculative.method = 'auto' picked {best!r}" + (
        f", expected before anything is drafted: {', '.join(figures)}." if figures else "."
    )
    LOG.warning("%s", reason)
    return replace(found[best], reason=reason)


def _trials(config: RunConfig, target: LoadedTarget) -> Iterator[tuple[Method, RunConfig]]:
    """Methods that can run with these files and settings, what was given for the purpose first.

    Raises ConfigError where the drafter that was given cannot run, or nothing can.
    """
    speculative, refusal = config.speculative, None
    own = _method_of(speculative.draft_model, target) if speculative.draft_model else None
    methods: list[Method] = [own] if own else []
    if target.parts and holds_mtp(target.folder):
        methods.append("mtp")
    for method in (*methods, "suffix"):
        name = speculative.draft_model if method == own else None
        changed = replace(speculative, method=method, draft_model=name)
        trial = replace(config, speculative=changed)
        try:
            check(trial)
        except ConfigError as error:
            if method == own:
                raise
            refusal = error
        else:
            own = own or method
            yield method, trial
    if own is None and refusal:
        raise refusal


def _method_of(name: str, target: LoadedTarget) -> Method:
    """The method that a drafter's file is for."""
    folder = resolve(name)
    if holds_block_drafter(folder):
        return read_block(folder, target.decoder.config.num_layers).lineage.value
    return "eagle3" if is_eagle3(read_json_or_empty(folder / "config.json")) else "suffix+draft"


def _speedup(method: str, target: LoadedTarget, draft: Drafting | None) -> float:
    """Tokens per cost of the best number of drafts, in units of plain decoding."""
    paid = model_of(draft)
    sources, most = method.split("+"), min(DRAFTS, target.decoder.max_length - 1)
    costs = measure_costs(target.decoder, paid, sources, drafts=most, seconds=SECONDS)
    drafting = [*(costs.draft[sources[-1]] or [0.0] * most)]
    chance, plain = PRIORS[method], costs.verify[0]
    rates = [1.0]
    for drafts in range(1, most + 1):
        tokens = sum(chance**kept for kept in range(drafts + 1))
        rates.append(tokens * plain / (costs.verify[drafts] + drafting[drafts - 1]))
    return max(rates)
