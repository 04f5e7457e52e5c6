"""The frame: flags that are promised, version, help, inspection and other processes."""

import json
import re
import signal
import subprocess
import sys

import pytest

from outrider import __version__

SAMPLING = {
    "--max-tokens",
    "--temperature",
    "--top-k",
    "--top-p",
    "--min-p",
    "--repetition-penalty",
    "--presence-penalty",
    "--frequency-penalty",
    "--logit-bias",
    "--seed",
    "--stop",
    "--ignore-eos",
}
RUN = {
    "--target",
    "--backend",
    "--method",
    "--draft-model",
    "--draft-temperature",
    "--ngram-fallback",
    "--min-probability",
    "--max-draft-tokens",
    "--window",
    "--depth",
    "--runahead-tokens",
    "--rollback",
    "--capacity",
    "--stages",
    "--stage-layers",
    "--stage-processes",
    "--no-stage-processes",
    "--link-delay-ms",
    "--link-jitter-ms",
    "--link-mbps",
    "--exact",
    "--no-exact",
    "--device",
    "--dtype",
    "--quantize",
    "--max-length",
    "--threads",
    "--gpu-layers",
    "--config",
}
CHAT = {"--system", "--enable-thinking", "--no-enable-thinking"}
OWN = {
    "--prompt-file",
    "--output",
    "--chat",
    "--messages",
    "--json",
    "--stats",
    "--compare",
    "--print-config",
}
SERVE = {"--host", "--port", "--api-key", "--model-name", "--max-sequences", "--print-config"}
BENCH = {
    "--workload",
    "--prompts",
    "--tokens",
    "--repeats",
    "--pause",
    "--max-drift",
    "--seed",
    "--ignore-eos",
    "--quick",
    "--peer",
    "--output",
    "--html",
    "--json",
    "--fail-under",
}
PLAN = {"--acceptance", "--rtt-ms", "--draft-ms", "--most-depth", "--json"}
HELP = {"-h", "--help"}


@pytest.mark.parametrize(
    ("command", "flags"),
    [
        ([], {"--version", "--log-level", "--install-completion", "--show-completion"}),
        (["generate"], OWN | CHAT | SAMPLING | RUN),
        (["chat"], CHAT | SAMPLING | RUN),
        (["plan"], PLAN | RUN),
        (["serve"], SERVE | RUN),
        (["inspect"], {"--json"}),
        (["doctor"], {"--json"}),
        (["bench"], BENCH | RUN),
        (["bench", "compare"], {"--json", "--fail-under"}),
    ],
)
def test_flags_are_a_promise(outrider_command, command, flags):
    ended = outrider_command(*command, "--help")
    lines = [line for line in ended.out.splitlines() if line.startswith("  -")]
    shown = {flag for line in lines for flag in re.findall(r"--?[a-z][a-z-]*", line[:45])}
    assert ended.code == 0
    assert shown == flags | HELP


def test_version(outrider_command):
    ended = outrider_command("--version")
    assert (ended.code, ended.out) == (0, f"outrider {__version__}\n")


def test_unknown_command_and_log_level_are_wrong_usage(outrider_command):
    assert outrider_command("frobnicate").code == 2
    assert outrider_command("--log-level", "loud", "doctor").code == 2


def test_inspect_as_outline_and_as_json(outrider_command):
    ended = outrider_command("inspect", "demo")
    assert ended.out.splitlines() == [
        "model: demo",
        "layers:",
        "  attention: 2",
        "  gated delta net: 6",
        "parameters: 1,234,567",
        "drafters: suffix, ngram-cache",
        "tied embeddings: yes",
    ]
    facts = json.loads(outrider_command("inspect", "demo", "--json").out)
    assert facts["layers"] == {"attention": 2, "gated delta net": 6}


def test_doctor(outrider_command):
    assert outrider_command("doctor").out == "torch: 2\nkernels: none\n"
    assert json.loads(outrider_command("doctor", "--json").out) == {"torch": "2", "kernels": []}


def test_help_loads_nothing_heavy():
    code = (
        "import sys\nfrom outrider.cli.main import main\n"
        "try: main(['generate', '--help'])\n"
        "finally: print(sorted({name.partition('.')[0] for name in sys.modules}), file=sys.stderr)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = ended.stderr
    assert "'typer'" in loaded
    for name in ("torch", "tokenizers", "safetensors", "huggingface_hub", "jinja2", "rich"):
        assert f"'{name}'" not in loaded


def test_interrupted_process_prints_what_it_has_and_exits_130(start):
    process = start(["generate", "hi"], "wait_after=2")
    seen = b""
    while seen != b"def f():":
        seen += process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert (process.returncode, out, err) == (130, b"", b"")


def test_interrupted_process_prints_its_json(start):
    process = start(["--log-level", "info", "generate", "hi", "--json"], "interrupt_after=2")
    out, err = process.communicate()
    assert (process.returncode, err) == (130, b"")
    assert json.loads(out)["text"] == "def f():"


def test_closed_pipe_is_quiet(start):
    process = start(["generate", "hi"], "endless=True")
    process.stdout.read(8)
    process.stdout.close()
    err = process.stderr.read()
    process.wait()
    assert err == b""
    assert process.returncode == 1


def test_no_colour_where_standard_error_is_a_file(start):
    process = start(["generate", "hi", "--stats"])
    _, err = process.communicate()
    assert process.returncode == 0
    assert b"\x1b" not in err


def test_completion_is_offered(start, monkeypatch):
    monkeypatch.setenv("_OUTRIDER_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "outrider ge")
    monkeypatch.setenv("COMP_CWORD", "1")
    out, _ = start([]).communicate()
    assert out.split() == [b"generate"]
