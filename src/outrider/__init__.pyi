"""Types of the public names, for type checkers; the package itself loads them on first use."""

from outrider.assemble.engine import Engine as Engine
from outrider.config.run import LinkConfig as LinkConfig
from outrider.config.run import RunConfig as RunConfig
from outrider.config.run import SpeculativeConfig as SpeculativeConfig
from outrider.config.run import StagesConfig as StagesConfig
from outrider.config.run import StateConfig as StateConfig
from outrider.config.run import TargetConfig as TargetConfig
from outrider.config.run import VerifyWindowConfig as VerifyWindowConfig
from outrider.core_types import Commit as Commit
from outrider.core_types import Context as Context
from outrider.core_types import Draft as Draft
from outrider.core_types import Needs as Needs
from outrider.draft.base import Drafter as Drafter
from outrider.engine.engine import Generation as Generation
from outrider.engine.engine import GenerationResult as GenerationResult
from outrider.engine.session import Piece as Piece
from outrider.errors import CheckpointError as CheckpointError
from outrider.errors import ConfigError as ConfigError
from outrider.errors import OutriderError as OutriderError
from outrider.errors import RequestError as RequestError
from outrider.errors import StageError as StageError
from outrider.errors import StateError as StateError
from outrider.sampling.params import SamplingParams as SamplingParams

__version__: str
__all__: list[str]
