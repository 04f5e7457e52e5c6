"""`outrider inspect` and `outrider doctor`: what a model is, and what this machine can do."""

import json
from collections.abc import Mapping
from typing import Annotated, Any

from typer import Argument, Option

from outrider.cli.terminal import busy, outline, put

Json = Annotated[bool, Option("--json", help="Print JSON.")]


def inspect(
    path: Annotated[str, Argument(metavar="MODEL", help="As for --target.")],
    json: Json = False,
) -> None:
    """Show a model: architecture, bytes of state for each policy, drafters, default decisions."""
    from outrider.assemble import inspection

    with busy(f"reading {path}"):
        facts = inspection.inspect(path)
    _show(facts, as_json=json)


def doctor(json: Json = False) -> None:
    """Show versions, processor and kernels."""
    from outrider.assemble import inspection

    with busy("loading kernels"):
        facts = inspection.doctor()
    _show(facts, as_json=json)


def _show(facts: Mapping[str, Any], *, as_json: bool) -> None:
    text = json.dumps(facts, indent=2) if as_json else "\n".join(outline(facts))
    put(text + "\n")
