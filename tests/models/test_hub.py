"""Where a model's name leads, with a fake hub: no test opens a connection."""

from pathlib import Path
from unittest.mock import Mock

import pytest
from huggingface_hub import errors

from outrider.errors import CheckpointError
from outrider.formats import hub

RESPONSE = Mock(headers={}, request=None)


class Hub:
    """Answers like snapshot_download and remembers how it was asked."""

    def __init__(self, answer: Path | Exception) -> None:
        self.answer = answer
        self.calls: list[tuple[str, dict]] = []

    def __call__(self, repo: str, **options) -> str:
        self.calls.append((repo, options))
        if isinstance(self.answer, Exception):
            raise self.answer
        return str(self.answer)


@pytest.fixture
def answer(monkeypatch, tmp_path):
    """Install a fake hub; the working directory is empty, so that no name is a path."""
    monkeypatch.chdir(tmp_path)

    def install(value: Path | Exception) -> Hub:
        fake = Hub(value)
        monkeypatch.setattr(hub, "snapshot_download", fake)
        return fake

    return install


def refusal(spec: str) -> str:
    with pytest.raises(CheckpointError) as caught:
        hub.resolve(spec)
    return str(caught.value)


def http(kind: type[errors.HfHubHTTPError], text: str = "No") -> errors.HfHubHTTPError:
    return kind(text, response=RESPONSE)


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize("name", ["demo", "demo-draft"])
def test_demo_family_is_shipped(monkeypatch, name):
    monkeypatch.setattr(hub.demo, "path", lambda spec: Path("shipped") / spec)
    assert hub.resolve(name) == Path("shipped") / name


def test_existing_folder_and_file_are_taken_as_they_are(tmp_path):
    file = tmp_path / "model.gguf"
    file.write_bytes(b"")
    assert hub.resolve(str(tmp_path)) == tmp_path
    assert hub.resolve(str(file)) == file


def test_hub_id_fetches_only_what_a_text_model_needs(answer, tmp_path):
    folder = tmp_path / "cache"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    fake = answer(folder)
    assert hub.resolve("org/name-1.5@refs/pr/2") == folder
    repo, options = fake.calls[0]
    assert (repo, options["revision"]) == ("org/name-1.5", "refs/pr/2")
    patterns = options["allow_patterns"]
    assert {"config.json", "tokenizer.json", "*.safetensors"} <= set(patterns)
    assert not any(name.endswith((".bin", ".py", ".pt", "*")) for name in patterns)
    hub.resolve("org/name")
    assert fake.calls[1][1]["revision"] is None


def test_hub_repository_that_is_no_model(answer, tmp_path):
    answer(tmp_path)
    assert refusal("org/data").startswith("Model org/data on the hub has no config.json")


@pytest.mark.parametrize(
    "spec", ["./missing/model", "/no/such", "~/no-such-model", "bare", "a/b/c", "org/x.gguf", ""]
)
def test_missing_path_is_no_request(answer, spec):
    fake = answer(AssertionError("the hub was asked"))
    if spec == "":
        spec = " "
    assert "does not exist on this machine and is no hub ORG/NAME@REVISION" in refusal(spec)
    assert fake.calls == []


def test_missing_name_in_an_existing_folder_is_no_request(answer, tmp_path):
    fake = answer(AssertionError("the hub was asked"))
    (tmp_path / "models").mkdir()
    assert refusal("models/qwem") == (
        "Model 'models/qwem' is not in the folder 'models': correct the path, or add @REVISION "
        "(such as @main) where the hub is meant."
    )
    assert fake.calls == []


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (http(errors.GatedRepoError), "Model org/name@v1 is gated: accept its terms on the hub"),
        (
            http(errors.RepositoryNotFoundError),
            "Model org/name@v1 is not on the hub, or is private: correct the name, or set HF_TOK",
        ),
        (
            http(errors.RevisionNotFoundError),
            "Model org/name has no revision 'v1' on the hub: use one that exists.",
        ),
        (
            caused(errors.LocalEntryNotFoundError("x"), http(errors.RevisionNotFoundError)),
            "Model org/name has no revision 'v1' on the hub: use one that exists.",
        ),
        (
            caused(errors.LocalEntryNotFoundError("x"), errors.OfflineModeIsEnabled("x")),
            "Model org/name@v1 is not complete in the local cache and HF_HUB_OFFLINE forbids the",
        ),
        (
            caused(errors.LocalEntryNotFoundError("x"), ConnectionError("no route")),
            "Model org/name@v1 is not in the local cache and the hub cannot be reached: connect",
        ),
        (
            http(errors.HfHubHTTPError, "500 Server Error.\nmore"),
            "Model org/name@v1 could not be downloaded (500 Server Error): try again later.",
        ),
        (
            OSError(28, "No space left on device"),
            "Model org/name@v1 could not be downloaded ([Errno 28] No space left on device): che",
        ),
    ],
)
def test_each_failure_has_its_sentence(answer, error, expected):
    answer(error)
    assert refusal("org/name@v1").startswith(expected)


def test_offline_and_not_cached_through_the_real_library(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert "HF_HUB_OFFLINE forbids the network" in refusal("org/name@v1")
