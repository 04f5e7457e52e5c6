"""Our end tokens of a GGUF file are those at which llama.cpp's own server ends."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from outrider.formats.gguf_tokenizer import MIDDLES, PLAIN, TEXTS
from outrider.models.model_file import load_tokenizer
from recipes.gguf import content, write
from tests.helpers.checkpoints import randomise
from tests.helpers.gguf_files import DENSE
from tests.llama_cpp.conftest import serve
from tests.models.test_gguf_ends import byte_level, control

OTHERS = ("<|im_start|>", "<|user|>", "<|fim_prefix|>", "<|begin_of_text|>", "<|start|>")
GPT_OSS = {"<|return|>", "<|call|>", "<|calls|>", "<|flush|>"}
GEMMA = {"<|tool_response>"}
MIDDLE = {"<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"}
"""Of several marks with one role llama.cpp takes any one, so there is one for each here."""
FILES = {
    "all": {*TEXTS, *PLAIN, *MIDDLE} - GPT_OSS - GEMMA,
    "gpt-oss": {"<|end|>", "<|return|>", "<|call|>"},
    "solar": {"<|end|>", "<|flush|>", "<|calls|>"},
    "gemma": {"</s>", "<eos>", "<turn|>", *GEMMA},
}


def test_the_marks_are_all_known() -> None:
    assert set().union(*FILES.values()) - MIDDLE == {*TEXTS, *PLAIN}
    assert all(len(texts & MIDDLE) == 1 for texts in MIDDLES.values())


def model(values: dict[str, Any], folder: Path) -> Path:
    torch.manual_seed(0)
    settings = {**DENSE, "vocab_size": len(values["tokenizer.ggml.tokens"])}
    made = transformers.LlamaForCausalLM(transformers.LlamaConfig(**settings)).eval()
    randomise(made)
    given = content(made)
    given.metadata.update(values)
    return write(given, folder / "model.gguf")


@pytest.mark.parametrize("name", FILES)
def test_we_end_where_the_server_ends(name: str, tmp_path: Path) -> None:
    marks = sorted(FILES[name])
    file = model(byte_level(control(*marks, *OTHERS)), tmp_path)
    tokenizer, ends = load_tokenizer(file), set()
    with serve(file) as ask:
        for text in (*marks, *OTHERS):
            token = tokenizer.encode(text)[-1]
            assert tokenizer.token(token) == text
            answer = ask(
                "/completion",
                prompt=[1, 2, 3],
                n_predict=4,
                temperature=0,
                logit_bias=[[token, 1000.0]],
            )
            if answer["stop_type"] == "eos":
                ends.add(token)
    assert ends
    assert ends == tokenizer.end_tokens
