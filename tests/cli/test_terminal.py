"""What only a terminal sees: a spinner while loading, the end of the last line, no colour."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

CODE = (
    f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import fake_engine; "
    "fake_engine.install(); from outrider.cli.main import main; main()"
)


def on_terminal(arguments: list[str], stream: str, **environment: str) -> tuple[str, str]:
    """Run with one output on a pseudo-terminal; returns what it and the other output got."""
    reader, terminal = pty.openpty()
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, stream: terminal}
    process = subprocess.Popen(
        [sys.executable, "-c", CODE, *arguments],
        stdin=subprocess.DEVNULL,
        env=os.environ | {"TERM": "xterm"} | environment,
        **streams,
    )
    os.close(terminal)
    out, err = process.communicate()
    seen = b""
    while chunk := _read(reader):
        seen += chunk
    os.close(reader)
    return seen.decode(), (out or err or b"").decode()


def _read(reader: int) -> bytes:
    try:
        return os.read(reader, 65536)
    except OSError:  # the other side is closed
        return b""


@pytest.mark.parametrize("environment", [{"NO_COLOR": "1"}, {}])
def test_loading_shows_on_a_terminal(environment):
    seen, out = on_terminal(["generate", "hi", "--stats"], "stderr", **environment)
    assert "loading demo" in seen
    assert out == "def f(): 🙂\n"
    coloured = any(f"\x1b[{code}m" in seen for code in (31, 32, 33, 34, 35, 36))
    assert coloured == (not environment)


def test_the_last_line_is_ended_on_a_terminal_only():
    arguments = ["generate", "hi", "--max-tokens", "2"]
    seen, _ = on_terminal(arguments, "stdout")
    assert seen == "def f():\r\n"
    _, out = on_terminal(arguments, "stderr")
    assert out == "def f():"
