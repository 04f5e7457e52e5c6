"""The code corpus: one pinned version of CPython's standard library, found on this interpreter.

Files are listed with their SHA-256 in `manifest.json`; nothing is downloaded. Held-out files are
never trained on and share under 5 % of their 5-line runs with the files that are.
"""

from __future__ import annotations

import hashlib
import json
import platform
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PYTHON_VERSION = "3.11.7"
MANIFEST = Path(__file__).with_name("manifest.json")
RUN_LINES = 5

# Folders that hold tests, tables, generated text or other people's packages.
EXCLUDED_FOLDERS = frozenset(
    [
        "test",
        "tests",
        "idle_test",
        "encodings",
        "pydoc_data",
        "_bundled",
        "site-packages",
        "__pycache__",
        "lib-dynload",
    ]
)
# Generated per machine, or a near-duplicate of another file (over a third of its 5-line runs).
EXCLUDED_FILES = frozenset(
    (
        "__phello__/spam.py",
        "chunk.py",
        "distutils/msvccompiler.py",
        "lib2to3/fixes/fix_reload.py",
        "lib2to3/pgen2/token.py",
        "lib2to3/pgen2/tokenize.py",
        "venv/__main__.py",
        "wave.py",
        "xml/etree/__init__.py",
    )
)
# Whole modules that no training file shares text with; they also feed the shipped prompts.
HELD_OUT = (
    "bisect.py",
    "calendar.py",
    "colorsys.py",
    "concurrent/futures/thread.py",
    "configparser.py",
    "csv.py",
    "fractions.py",
    "heapq.py",
    "http/cookies.py",
    "json/decoder.py",
    "json/scanner.py",
    "queue.py",
    "sched.py",
    "shlex.py",
    "statistics.py",
    "textwrap.py",
    "trace.py",
    "wsgiref/headers.py",
    "zipapp.py",
)


@dataclass(frozen=True)
class Source:
    """One file of the corpus: path inside the library, text, and whether it is held out."""

    path: str
    text: str
    sha256: str
    held_out: bool


def library_root() -> Path:
    """The running interpreter's standard library; any version but the pinned one is refused."""
    if platform.python_version() != PYTHON_VERSION:
        raise SystemExit(
            f"the demo corpus is CPython {PYTHON_VERSION}'s standard library; "
            f"this interpreter is {platform.python_version()}"
        )
    return Path(sysconfig.get_path("stdlib"))


def is_included(path: str) -> bool:
    """True if a path relative to the library belongs to the corpus."""
    parts = Path(path).parts
    if any(part in EXCLUDED_FOLDERS or part.startswith("config-") for part in parts[:-1]):
        return False
    return path not in EXCLUDED_FILES and not parts[-1].startswith("_sysconfigdata")


def scan(root: Path) -> Iterator[Source]:
    """Every included file under `root`, in path order."""
    for file in sorted(root.rglob("*.py")):
        path = file.relative_to(root).as_posix()
        raw = file.read_bytes()
        if is_included(path) and raw.strip():
            text = raw.decode("utf-8", "replace").replace("\r\n", "\n")
            yield Source(path, text, hashlib.sha256(raw).hexdigest(), path in HELD_OUT)


def load() -> list[Source]:
    """The corpus, checked file by file against the committed manifest."""
    sources = list(scan(library_root()))
    wanted = {entry["path"]: entry["sha256"] for entry in json.loads(MANIFEST.read_text())["files"]}
    found = {source.path: source.sha256 for source in sources}
    if found != wanted:
        different = sorted(p for p in found.keys() | wanted.keys() if found.get(p) != wanted.get(p))
        raise SystemExit(f"the standard library differs from the manifest: {different[:5]}")
    return sources


def line_runs(text: str) -> set[bytes]:
    """Hashes of every run of 5 consecutive non-blank lines, indentation ignored."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    runs = ("\n".join(lines[i : i + RUN_LINES]) for i in range(len(lines) - RUN_LINES + 1))
    return {hashlib.sha256(run.encode()).digest()[:6] for run in runs}


def shared_with(runs: set[bytes], others: set[bytes]) -> float:
    """Share of `runs` that also occur in `others`."""
    return len(runs & others) / max(1, len(runs))


def near_duplicates(sources: list[Source], limit: float = 1 / 3) -> dict[str, float]:
    """Files whose 5-line runs mostly occur in earlier, longer files: candidates for exclusion."""
    seen: set[bytes] = set()
    result = {}
    for source in sorted(sources, key=lambda s: -len(s.text)):
        runs = line_runs(source.text)
        if runs and (share := shared_with(runs, seen)) > limit:
            result[source.path] = share
        seen |= runs
    return result


def write_manifest(sources: list[Source]) -> None:
    """Record path, size, SHA-256 and split of each file, and what the held-out ones share.

    The counts of shared runs let the overlap be tested without the library.
    """
    trained: set[bytes] = set()
    for source in sources:
        if not source.held_out:
            trained |= line_runs(source.text)
    files = [
        {
            "path": source.path,
            "bytes": len(source.text.encode()),
            "sha256": source.sha256,
            "split": "held-out" if source.held_out else "train",
        }
        for source in sources
    ]
    held_out = {}
    for source in sources:
        if source.held_out:
            runs = line_runs(source.text)
            held_out[source.path] = {"runs": len(runs), "shared": len(runs & trained)}
    body = {"python": PYTHON_VERSION, "files": files, "held_out_runs": held_out}
    MANIFEST.write_text(json.dumps(body, indent=1) + "\n")
