"""Sources of the configuration, their order, and the sentence for each bad setting."""

import tomllib
from pathlib import Path

import pytest

from outrider.config import keys
from outrider.config.settings import (
    RunConfig,
    ServerConfig,
    SpeculativeConfig,
    TargetConfig,
    VerifyWindowConfig,
)
from outrider.config.sources import FLAGS, Loaded, lines, load
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


ADDRESS = "10.96.4.17"
LINKS = {
    "{}_SERVICE_HOST": ADDRESS,
    "{}_SERVICE_PORT": "8000",
    "{}_SERVICE_PORT_HTTP": "8000",
    "{}_PORT": f"tcp://{ADDRESS}:8000",
    "{}_PORT_8000_TCP": f"tcp://{ADDRESS}:8000",
    "{}_PORT_8000_TCP_PROTO": "tcp",
    "{}_PORT_8000_TCP_PORT": "8000",
    "{}_PORT_8000_TCP_ADDR": ADDRESS,
    "{}_PORT_53_UDP": "udp://[2001:db8::1]:53",
    "{}_PORT_53_UDP_ADDR": "2001:db8::1",
    "{}_PORT_8000_TCP_START": f"tcp://{ADDRESS}:8000",
    "{}_PORT_8000_TCP_PORT_END": "8004",
    "{}_NAME": "/web/outrider",
    "{}_ENV_LANG": "C.UTF-8",
}


@pytest.mark.parametrize(
    "service",
    [
        *(f"OUTRIDER_{name.upper()}" for name in sorted(keys.sections()) if "." not in name),
        "OUTRIDER_SERVER_GPU",
        "OUTRIDER_SERVER__GPU",
        "OUTRIDER",
    ],
)
def test_variables_of_a_service_of_that_name_are_no_settings(service):
    """What Kubernetes and Docker put into the environment; the settings beside it still count."""
    environment = {name.format(service): value for name, value in LINKS.items()}
    loaded = resolve(environment=environment | {"OUTRIDER_SERVER__PORT": "8001"})
    assert loaded.config == RunConfig(server=ServerConfig(port=8001))


@pytest.mark.parametrize(
    ("name", "value", "near"),
    [
        ("OUTRIDER_SERVER_PORT", "8001", "server.port"),
        ("OUTRIDER_SERVER_PORT", "tcp://somewhere", "server.port"),
        ("OUTRIDER_SERVER_PORT", "tcp://name.example:80", "server.port"),
        ("OUTRIDER_SERVER_PORT", f"http://{ADDRESS}:80", "server.port"),
        ("OUTRIDER_SERVER_HOST", ADDRESS, "server.host"),
        ("OUTRIDER_SERVER_MODEL_NAME", "/web/outrider/x", "server.model_name"),
        ("OUTRIDER_SERVER_ENV_PORT", "1", "server.port"),
        ("OUTRIDER_SERVER_SERVICE_HOST", "name", "server"),
        ("OUTRIDER_SERVER_PORT_8000_TCP_ADDR", "8000", "server"),
    ],
)
def test_what_only_resembles_such_a_variable_is_refused(name, value, near):
    found = message(environment={name: value})
    assert found.startswith(f"environment variable {name}: ")
    assert "is not a configuration key" in found
    assert near in found


def test_a_setting_with_the_value_of_a_link_is_refused():
    value = f"tcp://{ADDRESS}:8000"
    assert message(environment={"OUTRIDER_SERVER__PORT": value}).startswith(
        f"environment variable OUTRIDER_SERVER__PORT: server.port = {value!r} is not allowed"
    )


@pytest.mark.parametrize("key", ["schlüssel", "\N{SNOWMAN}", "good,schlüssel", "tab\tbed"])
def test_a_key_that_no_header_can_carry_is_refused(key):
    found = message(flags={"--api-key": key})
    assert "server.api_key holds a character that no client can send in a header" in found
    assert key not in found


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("allowed_hosts", "llm.example.com:80"),
        ("allowed_hosts", "https://llm.example.com"),
        ("allowed_hosts", "a,,b"),
        ("allowed_origins", "app.example.com"),
        ("allowed_origins", "https://app.example.com/"),
        ("allowed_origins", "null"),
    ],
)
def test_names_that_could_never_match_are_refused(setting, value):
    with pytest.raises(ConfigError, match=rf"server\.{setting} holds .*: give "):
        ServerConfig(**{setting: value})
