"""What the installed distribution says of itself."""

import importlib.metadata
import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

import outrider

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def constraints() -> dict[str, str]:
    """Tested version of each library, by normalised name."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in pins}


def requirements() -> list[Requirement]:
    extras = PROJECT["optional-dependencies"].values()
    return [Requirement(r) for r in [*PROJECT["dependencies"], *(r for e in extras for r in e)]]


def test_the_version_has_one_source():
    assert importlib.metadata.version("outrider") == outrider.__version__
    assert "version" in PROJECT["dynamic"]


def test_every_requirement_has_a_tested_version_that_satisfies_it():
    pins = constraints()
    for requirement in requirements():
        assert pins[requirement.name.replace("_", "-")] in requirement.specifier, requirement


def test_torch_is_pinned_by_its_public_version():
    assert constraints()["torch"] == "2.13.0"


def test_library_requirements_are_loose():
    specifiers = [Requirement(r).specifier for r in PROJECT["dependencies"]]
    assert {s.operator for specifier in specifiers for s in specifier} == {">="}


def test_the_extras_that_install_commands_name_exist():
    assert {"server", "cluster", "bench", "dev"} <= set(PROJECT["optional-dependencies"])


def test_licences_travel_with_the_distribution():
    files = importlib.metadata.metadata("outrider").get_all("License-File")
    assert {"LICENSE", "NOTICE"} <= set(files)
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text
