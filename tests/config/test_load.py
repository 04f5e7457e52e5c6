"""Sources of the configuration, their order, and the sentence for each bad setting."""

import tomllib
from pathlib import Path

import pytest

from outrider.config import keys
from outrider.config.load import FLAGS, Loaded, load
from outrider.config.run import (
    RunConfig,
    SpeculativeConfig,
    TargetConfig,
    VerifyWindowConfig,
)
from outrider.config.show import lines
from outrider.errors import ConfigError


def resolve(file: Path | None = None, *, environment=None, flags=None) -> Loaded:
    return load(file, environment=environment or {}, flags=flags)


def write(folder: Path, text: str) -> Path:
    path = folder / "run.toml"
    path.write_text(text)
    return path


def message(**sources) -> str:
    with pytest.raises(ConfigError) as caught:
        resolve(**sources)
    return str(caught.value)


def test_defaults_are_those_of_the_records():
    assert resolve().config == RunConfig()
    assert set(resolve().origins.values()) == {"default"}


def test_a_file_of_stages_holds_the_keys_of_that_section(tmp_path):
    file = tmp_path / "two.toml"
    file.write_text(
        "address = '10.0.0.1:6379'\nlayers = '5,3'\nresources = 'cpus=4 front=1, back=1'\n"
        "[link]\ndelay_ms = 5\n"
    )
    loaded = resolve(flags={"--stages": str(file), "--link-delay-ms": 7.0})
    stages = loaded.config.stages
    assert (stages.address, stages.count, stages.sizes) == ("10.0.0.1:6379", 2, (5, 3))
    assert stages.wants == ({"cpus": 4.0, "front": 1.0}, {"back": 1.0})
    assert stages.link.delay_ms == 7.0
    assert loaded.origins["stages.address"] == f"--stages {file}"
    assert resolve(flags={"--stages": "3"}).config.stages.count == 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("adress = 'auto'", "stages.adress is not a configuration key: did you mean stages.add"),
        ("address = 5", "stages.address = 5 is not allowed: use text."),
        ("[target]\npath = 'demo'", "stages.target is not a configuration key"),
        ("count = ", "is not valid TOML"),
    ],
)
def test_a_file_of_stages_holds_nothing_else(tmp_path, text, said):
    file = tmp_path / "two.toml"
    file.write_text(text)
    found = message(flags={"--stages": str(file)})
    assert found.startswith(f"--stages {file}")
    assert said in found


def test_each_source_overrides_the_one_before(tmp_path):
    file = write(
        tmp_path,
        "[speculative.verify_window]\ndepth = 2\nmax_tokens = 4\nrunahead_tokens = 9\n"
        "[target]\npath = 'from-file'\n",
    )
    environment = {
        "OUTRIDER_SPECULATIVE__VERIFY_WINDOW__DEPTH": "3",
        "OUTRIDER_SPECULATIVE__VERIFY_WINDOW__MAX_TOKENS": "5",
        "UNRELATED": "x",
    }
    loaded = resolve(file, environment=environment, flags={"--depth": "4", "--method": None})
    window = loaded.config.speculative.verify_window
    assert window == VerifyWindowConfig(depth=4, max_tokens=5, runahead_tokens=9)
    assert loaded.config.target.path == "from-file"
    assert loaded.origins["speculative.verify_window.depth"] == "flag --depth"
    assert loaded.origins["speculative.verify_window.max_tokens"] == (
        "environment variable OUTRIDER_SPECULATIVE__VERIFY_WINDOW__MAX_TOKENS"
    )
    assert loaded.origins["target.path"] == f"file {file}"
    assert loaded.origins["speculative.method"] == "default"


def test_text_becomes_the_type_of_its_key():
    environment = {
        "OUTRIDER_TARGET__EXACT": "false",
        "OUTRIDER_TARGET__THREADS": "none",
        "OUTRIDER_TARGET__PATH": "123",
        "OUTRIDER_SPECULATIVE__MAX_DRAFT_TOKENS": "auto",
        "OUTRIDER_SPECULATIVE__MIN_PROBABILITY": "0.25",
    }
    config = resolve(environment=environment).config
    assert config.target == TargetConfig(exact=False, path="123")
    assert config.speculative == SpeculativeConfig(min_probability=0.25)
    assert resolve(flags={"--max-draft-tokens": "6"}).config.speculative.max_draft_tokens == 6


def test_every_flag_maps_to_one_key():
    assert set(FLAGS.values()) <= set(keys.hints())
    assert len(set(FLAGS.values())) == len(FLAGS)


def test_printed_configuration_reads_back_as_the_same(tmp_path):
    flags = {"--target": 'a "quoted" path', "--exact": True, "--depth": "2"}
    loaded = resolve(flags=flags)
    text = "\n".join(lines(loaded))
    assert resolve(write(tmp_path, text)).config == loaded.config
    assert tomllib.loads(text)["target"]["exact"] is True
    assert "depth = 2                             # flag --depth" in text
    assert "# capacity is not set                 # default" in text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[targets]\npath = 'x'", "targets is not a configuration key: did you mean target?"),
        ("[target]\npaht = 'x'", "target.paht is not a configuration key: did you mean target.pa"),
        (
            "[speculative]\ndepth = 3",
            "speculative.depth is not a configuration key: did you mean "
            "speculative.verify_window.depth?",
        ),
        ("[zzz]\nqqq = 1", "zzz is not a configuration key: use one of target.path, "),
        ("target = 3", "target = 3 is a section: give its keys, under [target]"),
        ("[target]\npath = 3", "target.path = 3 is not allowed: use text."),
        ("[target]\nexact = 1", "target.exact = 1 is not allowed: use true or false."),
        ("[state]\ncapacity = true", "state.capacity = True is not allowed: use a whole number."),
        (
            "[state]\nrollback = 'logs'",
            "state.rollback = 'logs' is not allowed: use 'auto', 'log', 'snapshots' or "
            "'checkpoint' (did you mean 'log'?).",
        ),
    ],
)
def test_bad_file_names_file_key_value_and_fix(tmp_path, text, expected):
    file = write(tmp_path, text)
    assert message(file=file).startswith(f"file {file}: {expected}")


def test_file_that_cannot_be_read(tmp_path):
    missing = tmp_path / "none.toml"
    assert message(file=missing) == (
        f"--config {missing} cannot be read (no such file or directory): name a TOML file."
    )
    broken = write(tmp_path, "[target\n")
    assert message(file=broken).startswith(f"--config {broken} is not valid TOML (")


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("OUTRIDER_TARGET_PATH", "x", "target_path is not a configuration key: did you mean targ"),
        ("OUTRIDER_FOO__THREADS", "1", "foo.threads is not a configuration key: did you mean tar"),
        ("OUTRIDER_TARGET__THREADS", "two", "target.threads = 'two' is not allowed: use a whole"),
        ("OUTRIDER_TARGET__EXACT", "maybe", "target.exact = 'maybe' is not allowed: use true or"),
    ],
)
def test_bad_environment_names_the_variable(name, value, expected):
    found = message(environment={name: value})
    assert found.startswith(f"environment variable {name}: {expected}")


@pytest.mark.parametrize(
    ("flag", "value", "expected"),
    [
        ("--depth", "0", "speculative.verify_window.depth = 0 is out of range: use a number from"),
        ("--depth", "65", "speculative.verify_window.depth = 65 is out of range: use a number fr"),
        ("--window", "0", "speculative.verify_window.max_tokens = 0 is out of range: use a numbe"),
        ("--capacity", "0", "state.capacity = 0 is out of range: use a number of at least 1."),
        ("--threads", "0", "target.threads = 0 is out of range: use a number from 1 to 1024."),
        ("--target", " ", "target.path = '' is empty: name a model folder, a hub ID@REVISION or"),
        ("--max-draft-tokens", "x", "speculative.max_draft_tokens = 'x' is not allowed: use a who"),
        ("--dtype", "fp32", "target.dtype = 'fp32' is not allowed: use 'float32', 'bfloat16' or"),
    ],
)
def test_bad_flag_names_the_flag(flag, value, expected):
    assert message(flags={flag: value}).startswith(f"flag {flag}: {expected}")


def test_python_callers_get_the_same_refusals():
    with pytest.raises(ConfigError, match=r"speculative\.method = 'magic' is not allowed"):
        SpeculativeConfig(method="magic")
    with pytest.raises(ConfigError, match=r"speculative\.min_probability = 1\.5 is out of range"):
        SpeculativeConfig(min_probability=1.5)
    with pytest.raises(ConfigError, match=r"speculative\.verify_window = 3 is not allowed"):
        SpeculativeConfig(verify_window=3)
