"""Types of the public names, for type checkers; the package itself loads them on first use."""

from outrider.assemble.engine import Engine as Engine
from outrider.config.settings import LinkConfig as LinkConfig
from outrider.config.settings import RunConfig as RunConfig
from outrider.config.settings import SpeculativeConfig as SpeculativeConfig
from outrider.config.settings import StagesConfig as StagesConfig
from outrider.config.settings import StateConfig as StateConfig
from outrider.config.settings import TargetConfig as TargetConfig
from outrider.config.settings import VerifyWindowConfig as VerifyWindowConfig
from outrider.draft.base import Drafter as Drafter
from outrider.engine.facade import Generation as Generation
from outrider.engine.facade import GenerationResult as GenerationResult
from outrider.engine.session import Piece as Piece
from outrider.errors import CheckpointError as CheckpointError
from outrider.errors import ConfigError as ConfigError
from outrider.errors import OutriderError as OutriderError
from outrider.errors import RequestError as RequestError
from outrider.errors import StageError as StageError
from outrider.errors import StateError as StateError
from outrider.records import Commit as Commit
from outrider.records import Context as Context
from outrider.records import Draft as Draft
from outrider.records import Needs as Needs
from outrider.sampling.params import SamplingParams as SamplingParams

__version__: str
__all__: list[str]
