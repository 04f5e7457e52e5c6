"""Where text goes: results to standard output, everything else to standard error."""

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from errno import EACCES, EISDIR
from pathlib import Path
from secrets import token_hex
from stat import S_IMODE
from typing import Any

from outrider.errors import ConfigError, OutriderError, RequestError


def say(text: str) -> None:
    """Print one line for the user on standard error."""
    print(text, file=sys.stderr, flush=True)


def fail(error: OutriderError) -> None:
    """Print an error as the one line that it is."""
    say(f"outrider: error: {' '.join(str(error).split())}")


def put(text: str) -> None:
    """Write a piece of the result to standard output at once, and nothing else."""
    sys.stdout.write(text)
    sys.stdout.flush()


def end_line(text: str) -> None:
    """End the last line on a terminal, where the shell's prompt follows; a pipe stays exact."""
    if sys.stdout.isatty() and text and not text.endswith("\n"):
        put("\n")


def table(rows: Iterable[tuple[str, str]], title: str) -> None:
    """Print (label, value) rows on standard error."""
    from rich.console import Console
    from rich.table import Table

    grid = Table(title=title, show_header=False, title_justify="left")
    for row in rows:
        grid.add_row(*row)
    Console(stderr=True, markup=False, highlight=False).print(grid)


def busy(text: str) -> AbstractContextManager[object]:
    """A spinner while something long runs, on a terminal only."""
    if not sys.stderr.isatty():
        return nullcontext()
    from rich.console import Console

    return Console(stderr=True).status(text)


def outline(value: Mapping[str, Any], indent: int = 0) -> Iterator[str]:
    """Lines of nested mappings as an indented outline; lists of plain values on one line."""
    for key, item in value.items():
        label = f"{'  ' * indent}{str(key).replace('_', ' ')}"
        if isinstance(item, Mapping):
            yield f"{label}:"
            yield from outline(item, indent + 1)
        elif isinstance(item, list | tuple):
            yield f"{label}: {', '.join(str(part) for part in item) or 'none'}"
        else:
            yield f"{label}: {_plain(item)}"


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)


def read_text(file: Path) -> str:
    """Contents of a UTF-8 text file; raises RequestError naming it."""
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise RequestError(
            f"{file} cannot be read ({_reason(error)}): name a readable file."
        ) from None
    except UnicodeDecodeError:
        raise RequestError(f"{file} is not UTF-8 text: convert it.") from None


class OutputFile:
    """A file for the result: proved writable before work starts, replaced by a result and at once.

    A context, at whose end nothing but a result is left. Until there is one, what comes to be it
    stands beside the file; a device or a pipe is written to as it is.
    """

    def __init__(self, path: Path, flag: str = "--output") -> None:
        """Raise ConfigError where `path` cannot be written; what it holds stays for now."""
        self._path, self._flag = path, flag
        self._partial: Path | None = None
        try:
            self._prove()
        except OSError as error:
            raise ConfigError(
                f"{flag} {path} cannot be written ({_reason(error)}): name a file in a folder that "
                "you may write to."
            ) from None

    def __enter__(self) -> "OutputFile":
        return self

    def __exit__(self, *error: object) -> None:
        if self._partial is not None:
            self._partial.unlink(missing_ok=True)

    def write(self, text: str) -> None:
        """Replace the contents; where that fails, the text goes to standard output instead."""
        try:
            self._replace(text)
        except OSError as error:
            put(text)
            raise RequestError(
                f"{self._flag} {self._path} could no longer be written ({_reason(error)}): the "
                "result went to standard output."
            ) from None

    def _prove(self) -> None:
        if self._path.is_dir():
            raise IsADirectoryError(EISDIR, os.strerror(EISDIR))
        if self._path.exists() and not os.access(self._path, os.W_OK):
            raise PermissionError(EACCES, os.strerror(EACCES))
        if self._path.exists() and not self._path.is_file():
            return
        partial = self._path.resolve().with_name(f".outrider-{token_hex(8)}.partial")
        partial.touch(exist_ok=False)
        self._partial = partial

    def _replace(self, text: str) -> None:
        if self._partial is None:
            self._path.write_text(text, encoding="utf-8")
            return
        file = self._path.resolve()
        self._partial.write_text(text, encoding="utf-8")
        if file.exists():
            self._partial.chmod(S_IMODE(file.stat().st_mode))
        self._partial.replace(file)


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
