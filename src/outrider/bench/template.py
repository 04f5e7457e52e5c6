"""Templates beside this file, filled in by jinja2."""

from importlib.resources import files

import jinja2


def fill(name: str, **values: object) -> str:
    """The template `name` (`.html`: what is filled in is escaped); raises where a value lacks."""
    writer = jinja2.Environment(
        autoescape=name.endswith(".html"), trim_blocks=True, undefined=jinja2.StrictUndefined
    )
    writer.filters["shown"] = _shown
    return writer.from_string(text(name)).render(**values)


def text(name: str) -> str:
    """A file beside this one."""
    return files("outrider.bench").joinpath(name).read_text(encoding="utf-8")


def _shown(value: object) -> str:
    """A setting or fact in words."""
    if isinstance(value, list):
        return " ".join(map(_shown, value)) or "none"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
