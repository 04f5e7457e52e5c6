"""The command line: parses, and turns every refusal into one line and an exit code.

Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 `--compare` found a difference, 130
interrupted; `bench` has two more. Nothing here loads torch; a command does when it is run.
"""

import logging
import sys
from collections.abc import Sequence
from typing import Annotated, Literal

import typer

from outrider import __version__
from outrider.cli.bench import app as bench
from outrider.cli.chat import chat
from outrider.cli.generate import generate
from outrider.cli.inspect import doctor, inspect
from outrider.cli.plan import plan
from outrider.cli.serve import serve
from outrider.cli.terminal import fail, put
from outrider.errors import OutriderError

app = typer.Typer(
    name="outrider",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(generate)
app.command()(chat)
app.command()(plan)
app.command()(serve)
app.command()(inspect)
app.command()(doctor)
app.add_typer(bench, name="bench")


def _print_version(wanted: bool) -> None:
    if wanted:
        put(f"outrider {__version__}\n")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print version."),
    ] = False,
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        typer.Option("--log-level", help="What is logged to standard error."),
    ] = "warning",
) -> None:
    """Lossless speculative decoding: the same text as the target alone, sooner."""
    logging.basicConfig(format="outrider: %(levelname)s: %(message)s")
    logging.getLogger("outrider").setLevel(log_level.upper())


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line on `arguments` (default: those of the process) and exit."""
    try:
        app(args=None if arguments is None else list(arguments), prog_name="outrider")
    except OutriderError as error:
        fail(error)
        sys.exit(1)
