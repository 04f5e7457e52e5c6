"""The demo family: tiny trained models that ship with the package, found by name."""

from pathlib import Path

from outrider.errors import CheckpointError

_FOLDERS = {
    "demo": "target",
    "demo-draft": "draft",
    "demo-eagle3": "eagle3",
    "demo-dflash": "dflash",
    "demo-dspark": "dspark",
    "demo-dspark-bonus": "dspark-bonus",
}


def path(name: str) -> Path:
    """The folder of a shipped model: "demo" is the target, "demo-..." its drafters.

    Raises CheckpointError for another name, or where an installation lacks the weights.
    """
    folder = _FOLDERS.get(name)
    if folder is None:
        known = ", ".join(repr(key) for key in sorted(_FOLDERS))
        raise CheckpointError(f"There is no shipped model {name!r}: the shipped ones are {known}.")
    found = Path(__file__).with_name(folder)
    if not (found / "model.safetensors").is_file():
        raise CheckpointError(
            f"The shipped model {name!r} is missing from this installation: reinstall the package, "
            "or make it with `python -m recipes.demo.make`."
        )
    return found


def workloads() -> dict[str, Path]:
    """The shipped prompt files by workload; each line is a JSON object with `id` and `prompt`."""
    folder = Path(__file__).with_name("workloads")
    return {file.stem: file for file in sorted(folder.glob("*.jsonl"))}
