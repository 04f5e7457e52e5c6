"""Where figures come from: code, versions, machine, files, command line."""

import hashlib
import platform
import subprocess
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import outrider

PACKAGES = ("torch", "transformers", "tokenizers", "safetensors")
HASHED = ("*.safetensors", "*.gguf", "config.json", "tokenizer.json", "generation_config.json")
BLOCK = 1 << 20


def collect(folders: Iterable[Path], arguments: Iterable[str]) -> dict[str, object]:
    """Everything that is known without the engine; `folders` hold the models in use."""
    return {
        "outrider": outrider.__version__,
        **_code(Path(outrider.__file__).parent),
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processor": processor(Path("/proc/cpuinfo")),
        "files": {str(folder): file_hashes(folder) for folder in folders},
        "command": list(arguments),
    }


def _code(package: Path) -> dict[str, object]:
    """Commit and whether files differ from it (None outside a checkout); the newest source file."""
    commit = _git(package, "rev-parse", "HEAD")
    changes = _git(package, "status", "--porcelain", "--untracked-files=no", "--", ".")
    newest = max(file.stat().st_mtime for file in package.rglob("*.py"))
    return {
        "commit": commit,
        "dirty": None if commit is None or changes is None else bool(changes),
        "built_at": datetime.fromtimestamp(newest, UTC).isoformat(timespec="seconds"),
    }


def _git(folder: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words],
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def processor(listing: Path) -> str:
    """The processor's name from Linux's listing, elsewhere what Python knows."""
    if listing.is_file():
        for line in listing.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def file_hashes(folder: Path) -> dict[str, str]:
    """SHA-256 of weights, configuration and tokenizer in a folder, or of a single file."""
    if folder.is_file():
        return {folder.name: _sha256(folder)}
    files = sorted({file for pattern in HASHED for file in folder.glob(pattern)})
    return {file.name: _sha256(file) for file in files}


def _sha256(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()


def command_line() -> list[str]:
    """The words that started this process, the program by its name alone."""
    return [Path(sys.argv[0]).name, *sys.argv[1:]]
