"""Lossless speculative decoding for hybrid and dense language models.

The public names, loaded on first use: importing the package loads neither torch nor any other
library. Their types are declared in `__init__.pyi`.
"""

from importlib import import_module

__version__ = "0.1.0"

_HOMES = {
    "CheckpointError": "outrider.errors",
    "Commit": "outrider.core_types",
    "ConfigError": "outrider.errors",
    "Context": "outrider.core_types",
    "Draft": "outrider.core_types",
    "Drafter": "outrider.draft.base",
    "Engine": "outrider.assemble.engine",
    "Generation": "outrider.engine.engine",
    "GenerationResult": "outrider.engine.engine",
    "Needs": "outrider.core_types",
    "LinkConfig": "outrider.config.run",
    "OutriderError": "outrider.errors",
    "Piece": "outrider.engine.session",
    "RequestError": "outrider.errors",
    "RunConfig": "outrider.config.run",
    "SamplingParams": "outrider.sampling.params",
    "SpeculativeConfig": "outrider.config.run",
    "StageError": "outrider.errors",
    "StagesConfig": "outrider.config.run",
    "StateConfig": "outrider.config.run",
    "StateError": "outrider.errors",
    "TargetConfig": "outrider.config.run",
    "VerifyWindowConfig": "outrider.config.run",
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
