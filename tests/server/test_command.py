"""`outrider serve` as a process: it says where it listens, and a signal ends it in good order."""

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from outrider.cli.main import main

COMMAND = "from outrider.cli.main import main; main()"
PROMPT = "def add(a, b):\n    return a + b\n\n\ndef add_more(a, b):\n"


@contextmanager
def started(*arguments: str) -> Iterator[subprocess.Popen]:
    command = [sys.executable, "-c", COMMAND, "serve", *arguments]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def cli(capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        main(["serve", *arguments])
    captured = capsys.readouterr()
    return int(ended.value.code or 0), captured.out, captured.err


def test_it_serves_what_generate_prints_and_ends_on_a_signal(capsys):
    with pytest.raises(SystemExit):
        main(["generate", "--method", "off", "--max-tokens", "60", "--ignore-eos", PROMPT])
    printed = capsys.readouterr().out
    with started("--port", "0", "--max-sequences", "2") as process:
        line = process.stderr.readline()
        assert line.startswith("outrider: serving demo on http://127.0.0.1:")
        address = line.split()[-1]
        body = {"prompt": PROMPT, "max_tokens": 60, "stream": True, "ignore_eos": True}
        # A fixed number: on a busy machine the controller may find that nothing pays.
        body["speculative"] = {"max_draft_tokens": 4}
        text, drafts = "", 0
        with httpx.stream("POST", f"{address}/v1/completions", json=body, timeout=60) as answer:
            for line in answer.iter_lines():
                if not text:
                    process.send_signal(signal.SIGTERM)
                if line.startswith("data: {"):
                    event = json.loads(line[6:])
                    text += event["choices"][0]["text"]
                    drafts = event.get("timings", {}).get("draft_n_accepted", drafts)
        assert line == "" or line == "data: [DONE]"
        assert text == printed
        assert drafts > 0
        _, errors = process.communicate(timeout=60)
        assert (process.returncode, errors) == (0, "")


def test_an_address_that_is_taken_is_one_line(capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code, out, err = cli(capsys, "--port", port)
    assert (code, out) == (1, "")
    assert err.startswith(f"outrider: error: server.host = '127.0.0.1' with server.port = {port}")
    assert err.count("\n") == 1


def test_settings_are_checked_and_the_key_is_never_shown(capsys):
    code, out, _ = cli(capsys, "--print-config", "--api-key", "secret", "--host", "0.0.0.0")
    assert code == 0
    assert "secret" not in out
    assert "# api_key is set, and not shown" in out
    assert 'host = "0.0.0.0"' in out
    code, _, err = cli(capsys, "--api-key", "a,,b")
    assert code == 1
    assert "holds an empty key" in err
    code, _, err = cli(capsys, "--port", "70000")
    assert "server.port = 70000 is out of range" in err


def test_other_machines_without_a_key_are_warned_of(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "outrider.assemble.engine", None)
    with pytest.raises(ModuleNotFoundError):
        main(["serve", "--host", "0.0.0.0", "--port", "0"])
    assert "server.api_key is not set: everyone who reaches it" in capsys.readouterr().err


def test_a_missing_library_is_named(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "outrider.server.listen", None)
    code, _, err = cli(capsys)
    assert code == 1
    assert "pip install 'outrider[server]'" in err
