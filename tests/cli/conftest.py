"""The command line with a scripted engine, in this process and in others."""

import io
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import outrider
from outrider.cli.main import main

# Subprocesses import it by this path too.
sys.path.insert(0, str(Path(__file__).parent))
import fake_engine


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str


@pytest.fixture
def script(monkeypatch) -> fake_engine.Script:
    """The scripted engine's script, installed."""
    script = fake_engine.Script()
    stand_ins = fake_engine.modules(script)
    for name, module in stand_ins.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(outrider, "assemble", stand_ins["outrider.assemble"], raising=False)
    for name in list(os.environ):
        if name.startswith("OUTRIDER_"):
            monkeypatch.delenv(name)
    return script


@pytest.fixture
def outrider_command(script, capsys, monkeypatch):
    """Run the command line and return its exit code and both outputs."""

    def run(*arguments: str, stdin: str = "") -> Ended:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        captured = capsys.readouterr()
        return Ended(int(ended.value.code or 0), captured.out, captured.err)

    return run


@pytest.fixture
def start():
    """Start the command line in a process of its own, with a scripted engine."""
    started: list[subprocess.Popen] = []

    def run(arguments: list[str], settings: str = "") -> subprocess.Popen:
        code = (
            f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import fake_engine; "
            f"fake_engine.install({settings}); from outrider.cli.main import main; main()"
        )
        process = subprocess.Popen(
            [sys.executable, "-c", code, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | {"PYTHONUTF8": "1"},
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()
