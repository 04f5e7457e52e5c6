"""Draft models that know fewer tokens than their target, or take in less text."""

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from outrider import ConfigError, Engine, SpeculativeConfig, TargetConfig
from outrider.config.settings import VerifyWindowConfig
from outrider.sampling.params import SamplingParams
from tests.helpers.gguf_files import Content, build, content, write
from tests.helpers.gguf_tokens import byte_level_metadata

LACKED = 2
"""The last tokens of the vocabulary, `<tool_call>` and three spaces, which no merge makes."""
PROMPT = "def <tool_call> fib(n):\n   <tool_call> return n"
TOKENS = 60


@pytest.fixture(scope="module")
def whole() -> Content:
    plain = content(build("qwen35"))
    metadata = {**plain.metadata, **byte_level_metadata("qwen2", size=96)}
    return replace(plain, metadata=metadata)


@pytest.fixture(scope="module")
def smaller(whole: Content) -> Content:
    """The same weights without the rows of the last tokens."""
    metadata = {**whole.metadata, "qwen35.vocab_size": 96 - LACKED}
    for key, value in metadata.items():
        if isinstance(value, list) and len(value) == 96:
            metadata[key] = value[:-LACKED]
    tensors = dict(whole.tensors)
    for name in ("token_embd.weight", "output.weight"):
        tensors[name] = tensors[name][:-LACKED]
    return replace(whole, metadata=metadata, tensors=tensors)


@pytest.fixture(scope="module")
def files(whole: Content, smaller: Content, tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("draft")
    made = {"whole": whole, "smaller": smaller}
    for length in (1, 40):
        metadata = {**whole.metadata, "qwen35.context_length": length}
        made[f"context {length}"] = replace(whole, metadata=metadata)
    return {name: write(given, folder / f"{name}.gguf") for name, given in made.items()}


def load(target: Path, **speculative: object) -> Engine:
    given = SpeculativeConfig(**{"max_draft_tokens": 3, **speculative})
    return Engine.load(TargetConfig(path=str(target), backend="torch"), speculative=given)


def generate(engine: Engine, prompt: str = PROMPT, **more: object):
    request = engine.generate(prompt, max_tokens=TOKENS, ignore_eos=True, **more)
    list(request)
    return request


def said(caplog: pytest.LogCaptureFixture, words: str) -> list[str]:
    return [text for record in caplog.records if words in (text := record.getMessage())]


WINDOWS = {"serial": {}, "in flight": {"verify_window": VerifyWindowConfig(depth=3, max_tokens=3)}}


@pytest.mark.parametrize("temperature", [0.0, 1.5])
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("method", ["draft", "suffix+draft"])
def test_drafting_goes_on_where_the_draft_model_lacks_tokens(
    files, caplog, method: str, window: str, temperature: float
) -> None:
    """Prompt and output hold tokens that the draft model has no row for."""
    model = str(files["smaller"])
    with caplog.at_level(logging.WARNING):
        engine = load(files["whole"], method=method, draft_model=model, **WINDOWS[window])
    assert said(caplog, "lacks") == [
        f"speculative.draft_model = {model!r} lacks 2 of the target's tokens, '<tool_call>' first: "
        "it never drafts them, and reads '<|endoftext|>' where one stands in a text."
    ]
    sampling, lacked = SamplingParams(temperature=temperature, seed=4), 0
    for more in ("", " <tool_call>", "   x", "<tool_call>" * 3):
        plain = generate(engine, PROMPT + more, method="off", sampling=sampling)
        drafted = generate(engine, PROMPT + more, sampling=sampling)
        assert drafted.result.token_ids == plain.result.token_ids
        counts = drafted.counters.by_source["draft"]
        assert counts.verified > 0
        assert counts.accepted > 0 or temperature, "sampled tokens of such a model are seldom met"
        lacked += sum(token >= 94 for token in plain.result.token_ids)
    assert lacked > 0 or not temperature
    assert len(said(caplog, "lacks")) == 1, "at load only"


def test_a_draft_model_that_knows_more_never_drafts_it(files, caplog) -> None:
    engine = load(files["smaller"], method="draft", draft_model=str(files["whole"]))
    assert not said(caplog, "lacks")
    drafted = generate(engine)
    assert drafted.result.token_ids == generate(engine, method="off").result.token_ids
    assert drafted.counters.by_source["draft"].accepted > 0


def test_that_a_text_has_outgrown_the_draft_model_is_said_once(files, caplog) -> None:
    model = str(files["context 40"])
    engine = load(files["whole"], method="draft", draft_model=model)
    short = engine.generate("def", max_tokens=8, ignore_eos=True)
    list(short)
    assert short.counters.proposed > 0
    assert not said(caplog, "outgrown")
    for _ in range(3):
        drafted = generate(engine)
        assert drafted.result.token_ids == generate(engine, method="off").result.token_ids
    assert said(caplog, "outgrown") == [
        f"speculative.draft_model = {model!r} has a context of 40 tokens, and a text has outgrown "
        "it: from there on it drafts nothing, in this request and in every other. Use one with a "
        "longer context, or set target.max_length = 40."
    ]


def test_a_draft_model_that_could_never_draft_is_refused(files) -> None:
    model = str(files["context 1"])
    with pytest.raises(ConfigError) as caught:
        load(files["whole"], method="draft", draft_model=model)
    assert str(caught.value) == (
        f"speculative.draft_model = {model!r} has a context of 1 token, so it could never draft: "
        "use a draft model with a longer one."
    )
