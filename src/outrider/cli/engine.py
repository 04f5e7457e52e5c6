"""How the commands get an engine. Importing this loads no torch; `open_engine` does."""

from typing import TYPE_CHECKING

from outrider.cli.terminal import busy
from outrider.config.settings import RunConfig

if TYPE_CHECKING:
    from outrider.assemble.engine import Engine


def open_engine(config: RunConfig) -> "Engine":
    """Load the model that a configuration names."""
    from outrider.assemble.engine import Engine

    with busy(f"loading {config.target.path}"):
        return Engine.load_run(config)
