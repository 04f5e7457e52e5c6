"""Reading the text and JSON files of a model folder."""

import json
from pathlib import Path
from typing import Any

from outrider.errors import CheckpointError


def read_text(path: Path) -> str:
    """Contents of a UTF-8 file; raises CheckpointError where it is unreadable or not UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise CheckpointError(
            f"{path.name} is missing from {path.parent}: fetch it again."
        ) from None
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise CheckpointError(f"{path} cannot be read ({reason}): fetch it again.") from None
    except UnicodeDecodeError:
        raise CheckpointError(f"{path} is not UTF-8 text: fetch it again.") from None


def read_json(path: Path) -> dict[str, Any]:
    """Contents of a JSON object file.

    Raises CheckpointError where it is missing, unreadable, not JSON or not an object.
    """
    try:
        value = json.loads(read_text(path))
    except ValueError as error:
        raise CheckpointError(f"{path} is not valid JSON ({error}): fetch it again.") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} holds a {type(value).__name__}: a JSON object is needed.")
    return value


def read_json_or_empty(path: Path) -> dict[str, Any]:
    """As `read_json`, for a file that a model folder may leave out."""
    return read_json(path) if path.exists() else {}
