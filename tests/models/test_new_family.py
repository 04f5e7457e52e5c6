"""The page on a new architecture: its file is added to a copy of the package, and models load."""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from tests.architecture.source import PACKAGE, ROOT
from tests.architecture.test_contracts import lint
from tests.helpers.checkpoints import save_model
from tests.helpers.gguf_files import build, content, write

PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
SECTION = PAGE.split("\n## A new architecture\n")[1].split("\n## ")[0]
(FAMILY,) = re.findall(r"```python\n(.*?)```", SECTION, re.DOTALL)
RUN = """
import sys
from pathlib import Path

import numpy as np
import torch

from outrider.kernels.pass_plan import Span
from outrider.models.load import LoadOptions, load_decoder

with torch.inference_mode():
    decoder = load_decoder(Path(sys.argv[1]), LoadOptions(reference=True))
    tokens = torch.arange(1, 30)
    state = decoder.new_state("log", 8)
    hidden, _ = decoder.run(decoder.embed(tokens), [Span(state, len(tokens), revocable=False)])
    np.save(sys.argv[2], decoder.logits(hidden).numpy())
"""


@pytest.fixture(scope="module")
def extended(tmp_path_factory):
    """A folder with a copy of the package to which the architecture was added."""
    folder = tmp_path_factory.mktemp("extended")
    ignored = shutil.ignore_patterns("*.safetensors", "*.pyc")
    shutil.copytree(PACKAGE, folder / "outrider", ignore=ignored)
    path = folder / "outrider" / "models" / "families" / "toy.py"
    path.write_text(FAMILY, encoding="utf-8")
    return folder


def logits(package, model, result):
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(model), str(result)],
        env={**os.environ, "PYTHONPATH": str(package)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return np.load(result)


def test_a_folder_of_it_loads_and_is_computed(extended, tmp_path):
    """Its layers are those of Qwen3 without biases, so it must give that model's logits."""
    save_model("qwen3", tmp_path / "model")
    config = tmp_path / "model" / "config.json"
    words = json.loads(config.read_text(encoding="utf-8"))
    assert not words["attention_bias"]
    expected = logits(PACKAGE.parent, tmp_path / "model", tmp_path / "expected.npy")
    words["model_type"] = "toy"
    config.write_text(json.dumps(words), encoding="utf-8")
    found = logits(extended, tmp_path / "model", tmp_path / "found.npy")
    assert np.array_equal(found, expected)


def test_a_gguf_file_of_it_loads_and_is_computed(extended, tmp_path):
    given = content(build("qwen3"))
    write(given, tmp_path / "qwen3.gguf")
    metadata = {key.replace("qwen3.", "toy."): value for key, value in given.metadata.items()}
    write(replace(given, architecture="toy", metadata=metadata), tmp_path / "toy.gguf")
    expected = logits(PACKAGE.parent, tmp_path / "qwen3.gguf", tmp_path / "expected.npy")
    found = logits(extended, tmp_path / "toy.gguf", tmp_path / "found.npy")
    assert np.array_equal(found, expected)


def test_it_keeps_every_contract(extended):
    assert " 0 broken" in lint(extended)


@pytest.mark.parametrize(
    "path", sorted(set(re.findall(r"`(?:src/outrider/)?(\w+/[\w/.]+)`", SECTION)))
)
def test_the_page_names_files_that_exist(path):
    roots = (ROOT, PACKAGE)
    assert path == "models/families/toy.py" or any((root / path).exists() for root in roots)
