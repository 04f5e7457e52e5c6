"""The demo family as GGUF files: llama.cpp's server goes on as both backends do."""

import json

import pytest

from outrider import Engine, TargetConfig, demo
from recipes import gguf
from tests.llama_cpp.conftest import serve

TOKENS = 64


@pytest.mark.parametrize("backend", ["torch", "llama.cpp"])
@pytest.mark.parametrize("name", ["demo", "demo-draft"])
def test_greedy_text_is_equal_in_fp32(name, backend, tmp_path):
    folder = demo.path(name)
    file = tmp_path / "model.gguf"
    gguf.convert(folder, file, pre="qwen2")
    engine = Engine.load(TargetConfig(path=str(file), backend=backend))
    rows = demo.workloads()["code"].read_text(encoding="utf-8").splitlines()[:4]
    with serve(file) as ask:
        for row in rows:
            prompt = engine.tokenizer.encode(json.loads(row)["prompt"])
            ours = engine.generate(prompt, max_tokens=TOKENS, ignore_eos=True, method="off")
            tokens = [token for piece in ours for token in piece.tokens]
            theirs = ask(
                "/completion",
                prompt=prompt,
                n_predict=TOKENS,
                temperature=0.0,
                return_tokens=True,
                ignore_eos=True,
            )
            assert theirs["tokens"] == tokens
    engine.close()
