"""Lossless speculative decoding for hybrid and dense language models.

The public names, loaded on first use: importing the package loads neither torch nor any other
library. Their types are declared in `__init__.pyi`.
"""

from importlib import import_module

__version__ = "0.1.0"

_HOMES = {
    "CheckpointError": "outrider.errors",
    "Commit": "outrider.records",
    "ConfigError": "outrider.errors",
    "Context": "outrider.records",
    "Draft": "outrider.records",
    "Drafter": "outrider.draft.base",
    "Engine": "outrider.assemble.engine",
    "Generation": "outrider.engine.facade",
    "GenerationResult": "outrider.engine.facade",
    "Needs": "outrider.records",
    "LinkConfig": "outrider.config.settings",
    "OutriderError": "outrider.errors",
    "Piece": "outrider.engine.session",
    "RequestError": "outrider.errors",
    "RunConfig": "outrider.config.settings",
    "SamplingParams": "outrider.sampling.params",
    "SpeculativeConfig": "outrider.config.settings",
    "StageError": "outrider.errors",
    "StagesConfig": "outrider.config.settings",
    "StateConfig": "outrider.config.settings",
    "StateError": "outrider.errors",
    "TargetConfig": "outrider.config.settings",
    "VerifyWindowConfig": "outrider.config.settings",
}

__all__ = [
    "__version__",
    *_HOMES,
]


def __getattr__(name: str) -> object:
    """Import a public name's module when the name is first asked for."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'outrider' has no attribute {name!r}")
    value: object = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
