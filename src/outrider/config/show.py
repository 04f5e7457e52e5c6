"""The resolved configuration as text: TOML that can be read back, each value with its origin."""

import json
from collections.abc import Iterator
from itertools import groupby

from outrider.config import keys
from outrider.config.load import Loaded

SECRET = "api_key"


def lines(loaded: Loaded) -> Iterator[str]:
    """Lines of a TOML file; a key without a value appears as a comment."""
    items = list(keys.flatten(loaded.config))
    for section, group in groupby(items, key=lambda item: item[0].rpartition(".")[0]):
        yield f"[{section}]"
        for key, value in group:
            yield _line(key.rpartition(".")[2], value, loaded.origins[key])
        yield ""


def _line(name: str, value: object, origin: str) -> str:
    if name == SECRET and value is not None:
        return f"# {name} is set, and not shown".ljust(38) + f"# {origin}"
    if value is None:
        return f"# {name} is not set".ljust(38) + f"# {origin}"
    # JSON's strings, numbers and booleans are valid TOML.
    return f"{name} = {json.dumps(value)}".ljust(38) + f"# {origin}"
