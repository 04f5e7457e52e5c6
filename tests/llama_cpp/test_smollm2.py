"""SmolLM2's GGUF file: tokens, choices and text beside llama.cpp's own on the same file."""

import random
from pathlib import Path

import pytest
import torch
from gguf import GGUFReader, quants

from outrider import Engine, SamplingParams, SpeculativeConfig, TargetConfig
from outrider.bench.verdict import first_difference
from outrider.llamacpp.llama_context import (
    BatchPiece,
    ContextSettings,
    LlamaContext,
    LlamaWeights,
)
from outrider.models.load import LoadOptions, load_decoder
from outrider.models.model_file import load_tokenizer
from recipes.gguf import Content, write
from tests.helpers.runs import run
from tests.llama_cpp.conftest import Ask

ROOT = Path(__file__).resolve().parents[2]
LINES = 10_000
POSITIONS = 1_000
SCRIPTS = ((0x20, 0x7F), (0xA0, 0x24F), (0x370, 0x5FF), (0x900, 0x97F), (0x3040, 0x30FF))
MORE = ((0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0x1F300, 0x1F64F), (0x2190, 0x22FF))


def mixed_lines() -> list[str]:
    """Code and prose of this repository, and random text of many scripts."""
    files = sorted(
        [*ROOT.glob("src/**/*.py"), *ROOT.glob("tests/**/*.py"), *ROOT.glob("docs/**/*.md")]
    )
    lines = [line for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    rng = random.Random("lines")
    lines = rng.sample(sorted({line for line in lines if line}), LINES // 2)
    while len(lines) < LINES:
        scripts = rng.choices(SCRIPTS + MORE, k=rng.randint(1, 4))
        words = [
            "".join(chr(rng.randint(*script)) for _ in range(rng.randint(1, 9)))
            for script in rng.choices(scripts, k=rng.randint(1, 8))
        ]
        lines.append(rng.choice((" ", "  ", "\t", "")).join(words))
    return lines


def test_ten_thousand_lines_have_llama_cpps_tokens(smollm2: Path, ask: Ask) -> None:
    tokenizer = load_tokenizer(smollm2)
    different = [
        line
        for line in mixed_lines()
        if tokenizer.encode(line, add_special=False)
        != ask("/tokenize", content=line, add_special=False, parse_special=True)["tokens"]
    ]
    assert different == []


@pytest.mark.timeout(600)
@torch.inference_mode()
def test_the_best_token_is_llama_cpps(smollm2: Path, ask: Ask) -> None:
    """Teacher-forced over documents; llama.cpp multiplies 4-bit weights with 8-bit activations."""
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    tokens = load_tokenizer(smollm2).encode(text)[: POSITIONS + 1]
    decoder = load_decoder(smollm2, LoadOptions())
    best = run(decoder, decoder.new_state("log", 0), tokens, revocable=False).argmax(-1).tolist()
    theirs = [
        ask(
            "/completion",
            prompt=tokens[:end],
            n_predict=1,
            temperature=0.0,
            cache_prompt=True,
            return_tokens=True,
            ignore_eos=False,
        )["tokens"][0]
        for end in range(1, POSITIONS + 1)
    ]
    equal = sum(ours == their for ours, their in zip(best, theirs, strict=False))
    print(f"best token equal in {equal} of {POSITIONS} rows")
    assert equal >= 0.95 * POSITIONS, f"equal in {equal} of {POSITIONS}"


def test_it_answers() -> None:
    engine = Engine.load(TargetConfig(path="smollm2", backend="torch"))
    question = [{"role": "user", "content": "What is the capital of France?"}]
    generation = engine.generate(engine.tokenizer.encode_chat(question), max_tokens=24)
    text = "".join(piece.text for piece in generation)
    engine.close()
    assert "Paris" in text


@torch.inference_mode()
def test_both_backends_choose_alike(smollm2: Path) -> None:
    """llama.cpp rounds activations to 8 bits beside 4-bit weights: near-ties fall otherwise."""
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    tokens = load_tokenizer(smollm2).encode(text)[:256]
    decoder = load_decoder(smollm2, LoadOptions())
    ours = run(decoder, decoder.new_state("log", 0), tokens, revocable=False).argmax(-1)
    context = LlamaContext(LlamaWeights(smollm2), ContextSettings(length=256))
    piece = BatchPiece(context.take(), 0, len(tokens), len(tokens))
    theirs = context.run(tokens, [piece]).argmax(-1)
    equal = int((ours == theirs).sum())
    assert equal >= 0.92 * len(tokens), f"equal in {equal} of {len(tokens)}"


PROMPTS = ("for i in range(10):\n    print(i)\nfor i in", "one two three one two three one two")
TOKENS = 24
NEAR = 0.2
"""Nats apart that two tokens may lie where 4-bit kernels choose otherwise with rows beside."""


def widened(file: Path) -> Content:
    """The fp32 model that a quantised file stands for."""
    reader = GGUFReader(file)
    metadata = {name: field.contents() for name, field in reader.fields.items()}
    architecture = metadata.pop("general.architecture")
    known = {name: value for name, value in metadata.items() if not name.startswith("GGUF.")}
    tensors = {one.name: quants.dequantize(one.data, one.tensor_type) for one in reader.tensors}
    return Content(architecture=architecture, metadata=known, tensors=tensors)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["F32", "Q4_1"])
def test_speculation_keeps_the_tokens(kind: str, smollm2: Path, tmp_path: Path) -> None:
    """All of them in fp32; in 4 bits but for near-ties, which are told."""
    file = write(widened(smollm2), tmp_path / "wide.gguf") if kind == "F32" else smollm2
    target = TargetConfig(path=str(file), backend="llama.cpp", threads=1, max_length=256)
    speculative = SpeculativeConfig(method="suffix", max_draft_tokens=4)
    engine = Engine.load(target, speculative=speculative)
    sampling, accepted = SamplingParams(temperature=0.0, logprobs=2), 0
    for prompt in PROMPTS:
        plain = engine.generate(
            prompt, sampling=sampling, max_tokens=TOKENS, ignore_eos=True, method="off"
        )
        entries = [entry for piece in plain for entry in piece.logprobs]
        drafted = engine.generate(prompt, sampling=sampling, max_tokens=TOKENS, ignore_eos=True)
        list(drafted)
        accepted += drafted.counters.accepted
        assert set(drafted.counters.rollbacks) <= {"log", "snapshots"}
        found = first_difference(prompt, plain.result.token_ids, drafted.result.token_ids)
        if found is None:
            continue
        (_, first), (_, second) = entries[found.place].top
        print(f"{kind}: token {found.place} of {prompt!r} differs, {first - second:.3f} nats apart")
        assert kind != "F32"
        assert first - second < NEAR
    assert accepted > 0
    engine.close()
