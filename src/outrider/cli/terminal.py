"""Where text goes: results to standard output, everything else to standard error."""

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
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
        reason = (error.strerror or str(error)).lower()
        raise RequestError(f"{file} cannot be read ({reason}): name a readable file.") from None
    except UnicodeDecodeError:
        raise RequestError(f"{file} is not UTF-8 text: convert it.") from None


class OutputFile:
    """A file for the result: proved writable before work starts, replaced only by a result."""

    def __init__(self, path: Path) -> None:
        """Raise ConfigError where `path` cannot be written; what it holds stays for now."""
        self._path = path
        self._is_new = not path.exists()
        try:
            with path.open("a", encoding="utf-8"):
                pass
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise ConfigError(
                f"--output {path} cannot be written ({reason}): name a file in a folder that you "
                "may write to."
            ) from None

    def write(self, text: str) -> None:
        """Replace the contents; where that fails, the text goes to standard output instead."""
        try:
            self._path.write_text(text, encoding="utf-8")
        except OSError as error:
            put(text)
            reason = (error.strerror or str(error)).lower()
            raise RequestError(
                f"--output {self._path} could no longer be written ({reason}): the result went to "
                "standard output."
            ) from None

    def discard(self) -> None:
        """Remove the file if this run made it and has nothing to put there."""
        if self._is_new and self._path.exists() and not self._path.stat().st_size:
            self._path.unlink()
