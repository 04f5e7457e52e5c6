"""Measures of the trained family: losses, copying, loops, agreement of drafters, examples."""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
import random
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import nn
from transformers import AutoTokenizer, Qwen3_5ForCausalLM

from recipes.demo import corpus, edits, fast_kernels, generate, heads, mix, tokens, workloads

LONG, BATCH = 384, 16


class Family:
    """The exported models, as transformers loads them, in fp32."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "target"
        self.tokenizer = AutoTokenizer.from_pretrained(folder / "target")
        self.target = self._load(folder / "target")
        self.draft = self._load(folder / "draft") if (folder / "draft").exists() else None
        self.mtp = heads.Mtp(self.target.config)
        tensors = load_file(folder / "target" / "model.safetensors")
        own = {k.removeprefix("mtp."): v for k, v in tensors.items() if k.startswith("mtp.")}
        if own:
            self.mtp.load_state_dict(own)
        self.has_mtp = bool(own)

    @staticmethod
    def _load(folder: Path) -> Qwen3_5ForCausalLM:
        net = Qwen3_5ForCausalLM.from_pretrained(folder, dtype=torch.float32)
        return net.eval().requires_grad_(False)


@torch.no_grad()
def loss_and_entropy(net: nn.Module, rows: list[list[int]]) -> tuple[float, float]:
    """Mean cross entropy and mean entropy of the predictions, in nats."""
    losses, entropies = [], []
    for row in rows:
        ids = torch.tensor([row])
        log_p = F.log_softmax(net(input_ids=ids[:, :-1], use_cache=False).logits[0], -1)
        losses.append(F.nll_loss(log_p, ids[0, 1:]))
        entropies.append(-(log_p.exp() * log_p).sum(-1).mean())
    return float(torch.stack(losses).mean()), float(torch.stack(entropies).mean())


def complete(
    family: Family, prompts: list[str], new: int, temperature: float = 0.0
) -> list[tuple[list[int], list[int]]]:
    """Prompt ids and continuation ids, cut before the end token; prompts are padded on the left."""
    encoded = [family.tokenizer.encode(prompt) for prompt in prompts]
    end, results = family.target.config.eos_token_id, []
    for at in range(0, len(encoded), BATCH):
        part = encoded[at : at + BATCH]
        width = max(map(len, part))
        ids = torch.tensor([[end] * (width - len(p)) + p for p in part])
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in part])
        warm = torch.full((len(part),), temperature)
        out = generate.continue_rows(family.target, ids, new, warm, mask)[:, width:].tolist()
        cut = [row[: row.index(end)] if end in row else row for row in out]
        results += list(zip(part, cut, strict=True))
    return results


def seen_before(
    prompt: list[int], output: list[int], size: int = 8
) -> tuple[list[bool], list[bool]]:
    """For each output token: does the 8-gram that it ends occur earlier, in output or context."""
    ids, start = prompt + output, len(prompt)
    context, own = set(), set()
    in_output, in_context = [], []
    for end in range(size, len(ids) + 1):
        gram = tuple(ids[end - size : end])
        if end > start:
            in_output.append(end - size >= start and gram in own)
            in_context.append(gram in context)
        context.add(gram)
        if end - size >= start:
            own.add(gram)
    missing = len(output) - len(in_output)
    return [False] * missing + in_output, [False] * missing + in_context


@torch.no_grad()
def draft_hits(family: Family, prompt: list[int], output: list[int]) -> list[bool]:
    """Where the draft model's greedy token is the target's, on the target's own text."""
    ids = torch.tensor([prompt + output])
    guess = family.draft(input_ids=ids[:, :-1], use_cache=False).logits[0].argmax(-1)
    return (guess[len(prompt) - 1 :] == ids[0, len(prompt) :]).tolist()


@torch.no_grad()
def mtp_hits(family: Family, prompt: list[int], output: list[int]) -> list[bool]:
    """The same for the MTP layer's first step; its first guess is for the second output token."""
    ids = torch.tensor([prompt + output])
    base = family.target.model
    hidden = base(input_ids=ids[:, :-2], use_cache=False).last_hidden_state
    places = torch.arange(hidden.shape[1])[None].expand(3, 1, -1)
    out = family.mtp(hidden, base.embed_tokens(ids[:, 1:-1]), base.rotary_emb(hidden, places))
    guess = family.target.lm_head(out)[0].argmax(-1)
    return (guess[len(prompt) - 1 :] == ids[0, len(prompt) + 1 :]).tolist()


def mean_acceptance(runs: list[list[bool]], depth: int) -> float:
    """Tokens per target pass with chains of `depth` drafts, replayed over hits per position."""
    tokens_out = passes = 0
    for hits in runs:
        at = 0
        while at < len(hits):
            accepted = 0
            while accepted < depth and at + accepted < len(hits) and hits[at + accepted]:
                accepted += 1
            tokens_out, passes, at = tokens_out + accepted + 1, passes + 1, at + accepted + 1
    return tokens_out / max(1, passes)


def share(flags: list[list[bool]]) -> float:
    total = sum(map(len, flags))
    return sum(map(sum, flags)) / max(1, total)


def lines_kept(expected: str, output: str) -> float:
    """Share of the expected lines that the output has, in order."""
    a, b = expected.splitlines(), output.splitlines()
    blocks = difflib.SequenceMatcher(None, a, b, autojunk=False).get_matching_blocks()
    return sum(block.size for block in blocks) / max(1, len(a))


def held_out_edits(family: Family, size: int, count: int) -> list[edits.Edit]:
    """Edits of held-out code chunks of `size` tokens (within a tenth)."""
    rng = random.Random(f"edit-{size}")
    texts = [s.text for s in corpus.load() if s.held_out]
    renames = edits.Renames.of(tokens.load(family.folder / "tokenizer.json"), texts)
    found: list[edits.Edit] = []
    while len(found) < count:
        text = rng.choices(texts, [len(t) for t in texts])[0]
        edit = edits.make_edit(rng, edits.cut_chunk(rng, text, size), renames)
        if edit and abs(len(family.tokenizer.encode(edit.answer)) / size - 1) < 0.1:
            found.append(edit)
    return found


def copy_accuracy(family: Family, size: int, count: int = 64) -> dict[str, float]:
    """Lines kept and exact answers for chunks of `size` tokens."""
    wanted = held_out_edits(family, size, count)
    runs = complete(family, [edit.prompt for edit in wanted], int(size * 1.2) + 8)
    texts = [family.tokenizer.decode(output) for _, output in runs]
    kept = [lines_kept(edit.answer, text) for edit, text in zip(wanted, texts, strict=True)]
    exact = [edit.answer == text for edit, text in zip(wanted, texts, strict=True)]
    return {"lines": sum(kept) / count, "exact": sum(exact) / count}


def workload_report(family: Family, rows: list[dict[str, Any]]) -> dict[str, float]:
    """Loops and drafter agreement on the target's greedy text."""
    runs = complete(family, [row["prompt"] for row in rows], LONG)
    kept = [(row, run) for row, run in zip(rows, runs, strict=True) if len(run[1]) > 2]
    rows, runs = [row for row, _ in kept], [run for _, run in kept]
    flags = [seen_before(prompt, output) for prompt, output in runs]
    report = {
        "tokens": sum(len(output) for _, output in runs) / len(runs),
        "repeat_output": share([f[0] for f in flags]),
        "repeat_context": share([f[1] for f in flags]),
    }
    if "expected" in rows[0]:
        texts = [family.tokenizer.decode(output) for _, output in runs]
        lines = [lines_kept(r["expected"], t) for r, t in zip(rows, texts, strict=True)]
        report["lines"] = sum(lines) / len(lines)
    for name, model, hits_of in (
        ("draft", family.draft, draft_hits),
        ("mtp", family.mtp if family.has_mtp else None, mtp_hits),
    ):
        if model is not None:
            hits = [hits_of(family, *run) for run in runs]
            report[f"{name}_agreement"] = share(hits)
            skip = 0 if name == "draft" else 1
            fresh = [
                [h for h, old in zip(one, f[1][skip:], strict=True) if not old]
                for one, f in zip(hits, flags, strict=True)
            ]
            report[f"{name}_agreement_fresh"] = share(fresh)
            for depth in (1,) if name == "mtp" else (1, 2, 3, 4, 6):
                report[f"{name}_length_{depth}"] = mean_acceptance(hits, depth)
    return report


def step_cost(net: Qwen3_5ForCausalLM, steps: int = 40) -> float:
    """Milliseconds per token of plain decoding in transformers, one row."""
    ids = torch.arange(64)[None]
    generate.continue_rows(net, ids, 4, torch.zeros(1))
    times = []
    for _ in range(3):
        start = time.perf_counter()
        generate.continue_rows(net, ids, steps, torch.zeros(1))
        times.append(time.perf_counter() - start)
    return min(times) / steps * 1000


def run(work: Path, folder: Path) -> None:
    """Write `report.json` and `examples.txt` to the work folder."""
    fast_kernels.install()
    family = Family(folder)
    tokenizer = tokens.load(folder / "target" / "tokenizer.json")
    held_out = mix.Mix(tokenizer, corpus.load(), held_out=True)
    stage, rng = dataclasses.replace(mix.LATER, noise=0.0), random.Random(2)
    report: dict[str, Any] = {}
    for part in mix.PARTS:
        rows = [held_out.row(rng, part, stage)[0] for _ in range(12)]
        loss, entropy = loss_and_entropy(family.target, rows)
        report[f"held-out {part}"] = {
            "loss": loss,
            "entropy": entropy,
            "perplexity": math.exp(loss),
        }
    for size in (50, 100, 200, 300, 450):
        report[f"copy {size}"] = copy_accuracy(family, size)
    prompts = workloads.read(folder / "workloads")
    for name, rows in prompts.items():
        report[f"workload {name}"] = workload_report(family, rows)
        (work / "report.json").write_text(json.dumps(report, indent=1))
    report["cost"] = {"target_ms": step_cost(family.target)}
    if family.draft is not None:
        report["cost"]["draft_ms"] = step_cost(family.draft)
    (work / "report.json").write_text(json.dumps(report, indent=1))
    examples(family, prompts, work / "examples.txt")


def examples(family: Family, prompts: dict[str, list[dict[str, Any]]], file: Path) -> None:
    """A greedy and a sampled continuation of two prompts of each workload."""
    lines = []
    for temperature in (0.0, 0.8):
        for name, rows in prompts.items():
            texts = [row["prompt"] for row in rows[:2]]
            torch.manual_seed(0)
            for prompt, (_, output) in zip(
                texts, complete(family, texts, 160, temperature), strict=True
            ):
                title = f"=== {name}, temperature {temperature}"
                lines += [title, prompt, "--- continuation", family.tokenizer.decode(output)]
    file.write_text("\n".join(lines) + "\n")
