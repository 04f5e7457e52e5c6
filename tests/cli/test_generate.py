"""`outrider generate`: what goes in, what comes out where, and how it refuses."""

import json
import os
from pathlib import Path
from unittest.mock import Mock

import pytest

from outrider.cli.main import main
from outrider.errors import CheckpointError, ConfigError
from outrider.sampling.params import SamplingParams

TEXT = "def f(): 🙂\n"


def test_text_alone_goes_to_standard_output(outrider_command, script):
    ended = outrider_command("generate", "hi")
    assert (ended.code, ended.out, ended.err) == (0, TEXT, "")
    assert script.calls == [
        {
            "prompt": "hi",
            "method": None,
            "max_tokens": 512,
            "sampling": SamplingParams(temperature=0.5, top_k=11),
            "stop": (),
            "ignore_eos": False,
        }
    ]
    assert script.closed == 1


def test_text_that_was_held_back_is_not_lost(outrider_command, script):
    script.held = "the end"
    assert outrider_command("generate", "hi").out == TEXT + "the end"


def test_flags_reach_configuration_and_request(outrider_command, script):
    ended = outrider_command(
        *["generate", "hi", "--target", "m", "--method", "ngram-cache", "--depth", "2"],
        *["--rollback", "snapshots", "--capacity", "9", "--max-draft-tokens", "auto"],
        *["--window", "4", "--no-exact", "--device", "cuda", "--dtype", "bfloat16"],
        *["--threads", "2", "--max-length", "99", "--max-tokens", "2", "--temperature", "0"],
        *["--top-k", "3", "--top-p", "0.5", "--min-p", "0.1", "--repetition-penalty", "1.1"],
        *["--presence-penalty", "0.2", "--frequency-penalty", "-0.3", "--seed", "5"],
        *["--logit-bias", "4=-1.5", "--logit-bias", "5=2", "--stop", "a", "--stop", "b"],
        "--ignore-eos",
    )
    assert ended.code == 0
    config, call = script.configs[0], script.calls[0]
    assert (config.target.path, config.target.device, config.target.exact) == ("m", "cuda", False)
    assert (config.target.dtype, config.target.threads, config.target.max_length) == (
        "bfloat16",
        2,
        99,
    )
    assert config.speculative.method == "ngram-cache"
    assert (
        config.speculative.verify_window.depth,
        config.speculative.verify_window.max_tokens,
    ) == (
        2,
        4,
    )
    assert (config.state.rollback, config.state.capacity) == ("snapshots", 9)
    assert call["sampling"] == SamplingParams(
        temperature=0,
        top_k=3,
        top_p=0.5,
        min_p=0.1,
        repetition_penalty=1.1,
        presence_penalty=0.2,
        frequency_penalty=-0.3,
        seed=5,
        logit_bias={4: -1.5, 5: 2.0},
    )
    assert (call["max_tokens"], call["stop"], call["ignore_eos"]) == (2, ("a", "b"), True)


def test_prompt_from_file_or_standard_input_is_exact(outrider_command, script, tmp_path):
    file = tmp_path / "prompt.txt"
    file.write_text(" grüß\n")
    outrider_command("generate", "--prompt-file", str(file))
    outrider_command("generate", stdin="piped\n")
    outrider_command("generate", "-", stdin="dash")
    assert [call["prompt"] for call in script.calls] == [" grüß\n", "piped\n", "dash"]


def test_json_carries_the_whole_result(outrider_command, script):
    ended = outrider_command("generate", "hi", "--json", "--seed", "3")
    record = json.loads(ended.out)
    assert ended.out.count("\n") == 1
    assert set(record) == {"text", "token_ids", "finish_reason", "usage", "timings", "seed"}
    assert (record["text"], record["token_ids"], record["finish_reason"]) == (
        TEXT,
        [0, 1, 2],
        "stop",
    )
    assert record["timings"]["predicted_n"] == 3
    assert "🙂" in ended.out


def test_stats_go_to_standard_error(outrider_command):
    ended = outrider_command("generate", "hi", "--stats")
    assert ended.out == TEXT
    assert "mean acceptance length" in ended.err
    assert "750.0 tokens/s" in ended.err


def test_print_config_runs_nothing(outrider_command, script, tmp_path, monkeypatch):
    file = tmp_path / "run.toml"
    file.write_text("[state]\ncapacity = 5\n")
    monkeypatch.setenv("OUTRIDER_TARGET__THREADS", "3")
    ended = outrider_command("generate", "--config", str(file), "--depth", "2", "--print-config")
    assert ended.code == 0
    rows = {line.partition(" =")[0]: line for line in ended.out.splitlines()}
    assert rows["capacity"].endswith(f"# file {file}")
    assert rows["threads"].endswith("# environment variable OUTRIDER_TARGET__THREADS")
    assert rows["depth"].endswith("# flag --depth")
    assert rows["path"].endswith("# default")
    assert script.configs == []


def test_chat_takes_system_and_user(outrider_command, script):
    outrider_command("generate", "--chat", "--system", "S", "hi", "--no-enable-thinking")
    expected = [{"role": "system", "content": "S"}, {"role": "user", "content": "hi"}]
    assert script.chats == [(expected, {"enable_thinking": False})]
    assert script.calls[0]["prompt"] == [0, 1]


@pytest.mark.parametrize("wrap", [lambda messages: messages, lambda m: {"messages": m}])
def test_chat_takes_messages_from_a_file(outrider_command, script, tmp_path, wrap):
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    file = tmp_path / "messages.json"
    file.write_text(json.dumps(wrap(messages)))
    outrider_command("generate", "--chat", "--messages", str(file))
    outrider_command("generate", "--chat", "--messages", str(file), "c")
    assert script.chats[0] == (messages, {"enable_thinking": None})
    assert script.chats[1][0] == [*messages, {"role": "user", "content": "c"}]


def test_output_file_holds_the_result(outrider_command, tmp_path):
    file = tmp_path / "out.txt"
    file.write_text("old")
    ended = outrider_command("generate", "hi", "--output", str(file))
    assert (ended.out, file.read_text()) == ("", TEXT)
    outrider_command("generate", "hi", "--json", "--output", str(file))
    assert json.loads(file.read_text())["text"] == TEXT


def test_an_empty_result_is_a_result(outrider_command, script, tmp_path):
    script.pieces = ()
    new, old = tmp_path / "new.txt", tmp_path / "old.txt"
    old.write_text("old")
    for file in (new, old):
        ended = outrider_command("generate", "hi", "--output", str(file))
        assert (ended.code, ended.out, ended.err) == (0, "", "")
        assert file.read_text() == ""
    assert sorted(tmp_path.iterdir()) == [new, old]


def test_the_output_is_replaced_at_once_and_keeps_its_mode(
    outrider_command, script, tmp_path, monkeypatch
):
    file, link = tmp_path / "out.txt", tmp_path / "link.txt"
    file.write_text("old")
    file.chmod(0o640)
    link.symlink_to(file)
    seen, replace = [], Path.replace

    def watched(partial, target):
        seen.append((partial.parent, partial.read_text(), file.read_text()))
        return replace(partial, target)

    monkeypatch.setattr(Path, "replace", watched)
    assert outrider_command("generate", "hi", "--output", str(link)).code == 0
    assert seen == [(tmp_path, TEXT, "old")]
    assert link.is_symlink()
    assert (file.read_text(), file.stat().st_mode & 0o777) == (TEXT, 0o640)
    new = tmp_path / "new.txt"
    monkeypatch.setattr(Path, "replace", replace)
    assert outrider_command("generate", "hi", "--output", str(new)).code == 0
    plain = tmp_path / "plain.txt"
    plain.touch()
    assert new.stat().st_mode == plain.stat().st_mode
    assert sorted(tmp_path.iterdir()) == [link, new, file, plain]


def test_a_folder_is_no_output(outrider_command, script, tmp_path):
    ended = outrider_command("generate", "hi", "--output", str(tmp_path))
    assert ended.code == 1
    assert f"--output {tmp_path} cannot be written (is a directory): name a file" in ended.err
    assert script.configs == []
    assert list(tmp_path.iterdir()) == []


def test_a_pipe_is_written_to_as_it_is(outrider_command, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    assert outrider_command("generate", "hi", "--output", str(pipe)).code == 0
    assert os.read(reader, 4096).decode() == TEXT
    os.close(reader)
    assert list(tmp_path.iterdir()) == [pipe]
    assert pipe.is_fifo()


def test_unwritable_output_is_an_error_before_work_starts(outrider_command, script, tmp_path):
    file = tmp_path / "missing" / "out.txt"
    ended = outrider_command("generate", "hi", "--output", str(file))
    assert (ended.code, ended.out) == (1, "")
    assert ended.err == (
        f"outrider: error: --output {file} cannot be written (no such file or directory): name a "
        "file in a folder that you may write to.\n"
    )
    assert script.configs == []


def test_output_is_untouched_where_nothing_was_generated(outrider_command, script, tmp_path):
    script.load_error = CheckpointError("m is damaged: fetch it again.")
    old, new = tmp_path / "old.txt", tmp_path / "new.txt"
    old.write_text("old")
    for file in (old, new):
        ended = outrider_command("generate", "hi", "--output", str(file))
        assert (ended.code, ended.err) == (1, "outrider: error: m is damaged: fetch it again.\n")
    assert old.read_text() == "old"
    assert list(tmp_path.iterdir()) == [old]


def test_output_that_becomes_unwritable_loses_nothing(outrider_command, tmp_path, monkeypatch):
    def full(*_args, **_options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.write_text", full)
    ended = outrider_command("generate", "hi", "--output", str(tmp_path / "out.txt"))
    assert (ended.code, ended.out) == (1, TEXT)
    assert "could no longer be written (no space left on device): the result went to" in ended.err
    assert list(tmp_path.iterdir()) == []


def test_failure_midway_keeps_what_was_generated(outrider_command, script, tmp_path):
    script.fail_after = 2
    file = tmp_path / "out.txt"
    ended = outrider_command("generate", "hi", "--output", str(file))
    assert (ended.code, file.read_text()) == (1, "def f():")
    assert ended.err == "outrider: error: stage 0 died: start it again.\n"
    assert outrider_command("generate", "hi").out == "def f():"
    assert script.closed == 2


def test_interrupt_delivers_what_was_generated(outrider_command, script, tmp_path):
    script.interrupt_after = 2
    assert outrider_command("generate", "hi").code == 130
    ended = outrider_command("generate", "hi", "--json")
    assert ended.code == 130
    assert json.loads(ended.out)["text"] == "def f():"
    assert json.loads(ended.out)["finish_reason"] == "cancelled"
    file = tmp_path / "out.txt"
    assert outrider_command("generate", "hi", "--output", str(file)).code == 130
    assert file.read_text() == "def f():"
    assert script.closed == 3


def test_figures_of_an_interrupted_request_are_final(outrider_command, script):
    script.interrupt_after = 2
    ended = outrider_command("generate", "hi", "--stats")
    assert ended.code == 130
    assert "500.0 tokens/s" in ended.err
    assert "2 tokens in 4.0 ms" in ended.err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ["--method", "magic"],
            "flag --method: speculative.method = 'magic' is not allowed: use 'off'",
        ),
        (["--depth", "0"], "flag --depth: speculative.verify_window.depth = 0 is out of range"),
        (["--exact", "--device", "cuda"], "target.exact = true cannot hold with target.device"),
        (
            ["--config", "none.toml"],
            "--config none.toml cannot be read (no such file or directory)",
        ),
        (["--temperature", "-1"], "temperature = -1"),
        (["--top-p", "2"], "top_p = 2"),
        (["--logit-bias", "4"], "--logit-bias '4' is not ID=VALUE: give a token id and a number"),
        (["--max-tokens", "0"], "--max-tokens 0 is out of range: use at least 1."),
        (["--max-tokens", "-3"], "--max-tokens -3 is out of range: use at least 1."),
        (["--prompt-file", "none.txt"], "none.txt cannot be read (no such file or directory)"),
        (["--chat", "--messages", "none.json"], "none.json cannot be read (no such file or dir"),
        (["--compare", "--method", "off"], "--compare with speculative.method = 'off' would comp"),
    ],
)
def test_refusals_are_one_line_before_a_model_is_loaded(
    outrider_command, script, tmp_path, monkeypatch, arguments, expected
):
    monkeypatch.chdir(tmp_path)
    ended = outrider_command("generate", *arguments, stdin="hi")
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith(f"outrider: error: {expected}")
    assert ended.err.count("\n") == 1
    assert script.configs == []


@pytest.mark.parametrize("text", ["{", "3", '{"messages": 3}', '["a"]'])
def test_messages_that_are_none(outrider_command, tmp_path, text):
    file = tmp_path / "messages.json"
    file.write_text(text)
    ended = outrider_command("generate", "--chat", "--messages", str(file))
    assert ended.code == 1
    assert f"--messages {file} is " in ended.err
    assert "correct it." in ended.err or '[{"role": "user", "content": "..."}]' in ended.err


def test_interrupt_before_the_first_token_keeps_the_old_output(outrider_command, script, tmp_path):
    script.interrupt_after = 0
    file = tmp_path / "out.txt"
    file.write_text("old")
    assert outrider_command("generate", "hi", "--output", str(file)).code == 130
    assert file.read_text() == "old"


def test_text_that_is_not_utf8(outrider_command, tmp_path):
    file = tmp_path / "prompt.txt"
    file.write_bytes(b"\xff")
    ended = outrider_command("generate", "--prompt-file", str(file))
    assert ended.err == f"outrider: error: {file} is not UTF-8 text: convert it.\n"


def test_empty_prompt_is_the_engine_s_refusal(outrider_command):
    ended = outrider_command("generate", stdin="")
    assert (ended.code, ended.err) == (
        1,
        "outrider: error: prompt is empty: give at least one token.\n",
    )


def test_errors_of_several_lines_become_one(outrider_command, script):
    script.load_error = ConfigError("a\n  b")
    assert outrider_command("generate", "hi").err == "outrider: error: a b\n"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["hi", "--system", "S"], "--system needs --chat"),
        (["hi", "--messages", "m.json"], "--messages needs --chat"),
        (["hi", "--no-enable-thinking"], "--enable-thinking needs --chat"),
        (["hi", "--prompt-file", "f"], "give PROMPT or --prompt-file, not both"),
        (["hi", "--frobnicate"], "--frobnicate"),
        (["hi", "--depth", "two"], "Invalid value for '--depth'"),
    ],
)
def test_wrong_usage_exits_with_2(outrider_command, script, arguments, expected):
    ended = outrider_command("generate", *arguments)
    assert (ended.code, ended.out) == (2, "")
    assert expected in ended.err
    assert script.configs == []


def test_no_prompt_on_a_terminal_is_wrong_usage(script, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", Mock(isatty=lambda: True))
    with pytest.raises(SystemExit) as ended:
        main(["generate"])
    assert ended.value.code == 2
    assert "give PROMPT, --prompt-file or text on standard input" in capsys.readouterr().err
