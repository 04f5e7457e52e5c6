"""The prompts that ship with the package: held-out code, edits, structured text, and prose.

Written once and versioned: benchmarks and acceptance tests of later versions read the same files.
"""

from __future__ import annotations

import ast
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from recipes.demo import corpus, edits, structured

PROMPTS = 32
RE_EMIT_TOKENS = (120, 360)
CODE_TOKENS = (60, 200)
STRUCTURED_TOKENS = (70, 240)
WORDS = (
    "a about above after again against all almost along always among and another any around as "
    "ask at away back because become before begin behind below between black boat both bread "
    "bring brother build but call carry change child city clear close cold come corn could "
    "country cross dark day deep different door down draw dry each early earth east eat end "
    "enough even every eye face fall far farm fast father feel few field find fire first fish "
    "follow food for found four from garden gave get girl give gold good grass great green "
    "ground grow half hand hard have he head hear heavy help here high hill his hold horse hot "
    "hour house hundred ice idea in into island it just keep kind king know lake land large "
    "last late laugh lead learn leave left less letter life light like line list listen little "
    "long look lost love low make many map mark may men milk mind money moon more morning most "
    "mother mountain move much music must name near never new next night north not notice now "
    "number of off often old on once one only open or order other our out over own page paper "
    "part pass people perhaps picture place plain plan play point quick quiet rain ran reach "
    "read ready red rest rich ride right river road rock room round run sail same saw say "
    "school sea second see seem serve set several she ship short should show side silver simple "
    "since sing sky sleep slow small snow so some song soon sound south stand star start stay "
    "step still stone stop story street strong such sun sure table take talk tell ten than that "
    "the their then there these they thing think this those though thousand three through time "
    "to together told too top toward town travel tree true turn two under until up upon us use "
    "valley very voice wait walk wall want warm was watch water way we week well went were west "
    "what wheel when where which while white who whole why wide wild will wind winter with "
    "without woman wonder wood word work world would write year yellow yes yet you young your"
)


def _fits(tokenizer: Tokenizer, text: str, bounds: tuple[int, int]) -> bool:
    return bounds[0] <= len(tokenizer.encode(text).ids) <= bounds[1]


def re_emit(tokenizer: Tokenizer, sources: list[corpus.Source]) -> Iterator[dict[str, Any]]:
    """Edits of held-out chunks; `expected` is the chunk renamed."""
    rng, texts = random.Random("re-emit"), [s.text for s in sources if s.held_out]
    renames = edits.Renames.of(tokenizer, texts)
    while True:
        text = rng.choices(texts, [len(t) for t in texts])[0]
        edit = edits.make_edit(rng, edits.cut_chunk(rng, text, rng.randint(120, 340)), renames)
        if edit and edit.answer.count("\n") > 8 and _fits(tokenizer, edit.answer, RE_EMIT_TOKENS):
            yield {"prompt": edit.prompt, "expected": edit.answer}


def _functions(text: str) -> list[int]:
    """First lines (0-based) of the functions and classes of a module."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return [node.lineno - 1 for node in ast.walk(ast.parse(text)) if isinstance(node, kinds)]


def code(tokenizer: Tokenizer, sources: list[corpus.Source]) -> Iterator[dict[str, Any]]:
    """The lines before a function of a held-out file, and its first lines."""
    rng, texts = random.Random("code"), [s.text for s in sources if s.held_out]
    while True:
        text = rng.choices(texts, [len(t) for t in texts])[0]
        lines = text.splitlines(keepends=True)
        start = rng.choice(_functions(text))
        prompt = "".join(lines[max(0, start - rng.randint(4, 14)) : start + rng.randint(1, 4)])
        if _fits(tokenizer, prompt, CODE_TOKENS):
            yield {"prompt": prompt}


def structured_text(tokenizer: Tokenizer, sources: list[corpus.Source]) -> Iterator[dict[str, Any]]:
    """The first records of a document with a held-out seed, kinds in turn."""
    rng, kinds = random.Random("structured"), list(structured.KINDS)
    number = 0
    while True:
        text = structured.document(structured.HELD_OUT_SEED + number, kinds[number % len(kinds)])
        lines = text.splitlines(keepends=True)
        prompt = "".join(lines[: rng.randint(3, 14)])
        number += 1
        if len(lines) > 30 and _fits(tokenizer, prompt, STRUCTURED_TOKENS):
            yield {"prompt": prompt}


def prose(tokenizer: Tokenizer, sources: list[corpus.Source]) -> Iterator[dict[str, Any]]:
    """Sentences of shuffled words: nothing that the model knows, the worst case for drafters."""
    rng, words = random.Random("prose"), WORDS.split()
    while True:
        sentences = [rng.sample(words, rng.randint(6, 14)) for _ in range(rng.randint(4, 8))]
        yield {"prompt": " ".join(" ".join(s).capitalize() + "." for s in sentences) + " "}


WORKLOADS = {"re-emit": re_emit, "code": code, "structured": structured_text, "prose": prose}


def write(folder: Path, tokenizer: Tokenizer) -> None:
    """Write every workload; prompts that repeat are dropped."""
    folder.mkdir(parents=True, exist_ok=True)
    sources = corpus.load()
    for name, make in WORKLOADS.items():
        rows: dict[str, dict[str, Any]] = {}
        for row in make(tokenizer, sources):
            rows.setdefault(row["prompt"], row)
            if len(rows) == PROMPTS:
                break
        lines = [
            json.dumps({"id": f"{name}-{i:02d}", **row}) for i, row in enumerate(rows.values())
        ]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")


def read(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """All workloads by name."""
    return {
        name: [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]
        for name in WORKLOADS
    }
