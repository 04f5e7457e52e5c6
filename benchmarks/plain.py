"""Speed of a model pass beside transformers, on random weights of two shapes.

    python benchmarks/plain.py [--quick] [--threads N]

Prints a plain decoding step against transformers' `generate`, the cost V(n) of a pass of n rows in
plain steps at several context lengths, and a prefill of 512 tokens against transformers. All is
measured in one run with the legs interleaved, as medians; the last line is one line of JSON.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from outrider.kernels.pass_plan import Span
from outrider.models.decoder import Decoder
from outrider.models.load import LoadOptions, load_decoder
from outrider.state.sequence import SequenceState
from outrider.state.spec import Policy

SHAPES: Mapping[str, tuple[str, dict[str, Any]]] = {
    "hybrid 8x256": (
        "Qwen3_5ForCausalLM",
        {
            "vocab_size": 2048,
            "hidden_size": 256,
            "intermediate_size": 704,
            "num_hidden_layers": 8,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 64,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 64,
            "linear_value_head_dim": 64,
            "linear_conv_kernel_dim": 4,
            "full_attention_interval": 4,
            "max_position_embeddings": 8192,
            "tie_word_embeddings": True,
        },
    ),
    "dense 30x576": (
        "LlamaForCausalLM",
        {
            "vocab_size": 49152,
            "hidden_size": 576,
            "intermediate_size": 1536,
            "num_hidden_layers": 30,
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "head_dim": 64,
            "max_position_embeddings": 8192,
            "tie_word_embeddings": True,
        },
    ),
}
CONTEXTS = (200, 1_000, 4_000)
WIDTHS = (1, 2, 4, 8, 16)
PROMPT_ROWS = 256
PREFILL = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How often each leg is measured; generate runs `tokens` tokens."""

    contexts: tuple[int, ...]
    rounds: int
    tokens: int
    prefills: int


FULL = Effort(contexts=CONTEXTS, rounds=30, tokens=40, prefills=5)
QUICK = Effort(contexts=CONTEXTS[:1], rounds=10, tokens=16, prefills=3)


def interleaved(legs: Mapping[str, Callable[[], None]], rounds: int) -> dict[str, float]:
    """Median milliseconds of each leg, run in turn A B C A B C ..., after one unmeasured turn."""
    times: dict[str, list[float]] = {name: [] for name in legs}
    for turn in range(rounds + 1):
        for name, leg in legs.items():
            start = time.perf_counter()
            leg()
            if turn:
                times[name].append((time.perf_counter() - start) * 1e3)
    return {name: statistics.median(values) for name, values in times.items()}


def prefill(
    decoder: Decoder, tokens: Tensor, policy: Policy = "log", capacity: int = 64
) -> SequenceState:
    state = decoder.new_state(policy, capacity)
    for rows in tokens.split(PROMPT_ROWS):
        hidden, _ = decoder.run(decoder.embed(rows), [Span(state, len(rows), revocable=False)])
    decoder.logits(hidden[-1:])
    return state


def window(decoder: Decoder, state: SequenceState, tokens: Tensor) -> None:
    """A pass that is taken back, so that every repeat sees the same context."""
    length = state.length
    hidden, _ = decoder.run(decoder.embed(tokens), [Span(state, len(tokens))])
    decoder.logits(hidden)
    state.settle(length)


def verify_costs(decoder: Decoder, context: int, rounds: int) -> dict[str, float]:
    """Milliseconds by row count, at `context` keys."""
    tokens = torch.randint(0, decoder.config.vocab_size, (context,))
    state = prefill(decoder, tokens)
    legs = {
        str(rows): lambda rows=rows: window(decoder, state, tokens[:rows])  # type: ignore[misc]
        for rows in WIDTHS
    }
    return interleaved(legs, rounds)


def beside_transformers(model: Any, decoder: Decoder, effort: Effort) -> dict[str, float]:
    """Milliseconds per decoded token and per prefill, ours and theirs."""
    tokens = torch.randint(0, decoder.config.vocab_size, (PREFILL,))
    state = prefill(decoder, tokens[:200])

    def generate(count: int) -> None:
        model.generate(
            tokens[None, :200], max_new_tokens=count, min_new_tokens=count, do_sample=False
        )

    def steps() -> None:
        for _ in range(effort.tokens):
            window(decoder, state, tokens[:1])

    few = 2
    legs = {
        "steps": steps,
        "few": lambda: generate(few),
        "many": lambda: generate(few + effort.tokens),
        "prefill": lambda: prefill(decoder, tokens) and None,
        "their_prefill": lambda: model(tokens[None], logits_to_keep=1) and None,
    }
    ms = interleaved(legs, effort.prefills)
    return {
        "step_ms": ms["steps"] / effort.tokens,
        "their_step_ms": (ms["many"] - ms["few"]) / effort.tokens,
        "prefill_ms": ms["prefill"],
        "their_prefill_ms": ms["their_prefill"],
    }


def measure(name: str, effort: Effort, folder: Path) -> dict[str, Any]:
    class_name, settings = SHAPES[name]
    model_class = getattr(transformers, class_name)
    torch.manual_seed(0)
    model = model_class(model_class.config_class(**settings)).eval()
    model.save_pretrained(folder)
    start = time.perf_counter()
    decoder = load_decoder(folder, LoadOptions())
    loaded = time.perf_counter() - start
    result: dict[str, Any] = {"load_s": loaded, **beside_transformers(model, decoder, effort)}
    result["verify_ms"] = {
        str(context): verify_costs(decoder, context, effort.rounds) for context in effort.contexts
    }
    return result


def show(name: str, result: Mapping[str, Any]) -> None:
    ours, theirs = result["step_ms"], result["their_step_ms"]
    print(f"\n{name} (loaded and self-tested in {result['load_s']:.1f} s)")
    print(f"  step     {ours:8.2f} ms, transformers {theirs:8.2f} ms: {theirs / ours:5.2f}x")
    ours, theirs = result["prefill_ms"], result["their_prefill_ms"]
    print(f"  {PREFILL} rows {ours:8.2f} ms, transformers {theirs:8.2f} ms: {theirs / ours:5.2f}x")
    print("  keys   step ms" + "".join(f"  V({n:>2})" for n in WIDTHS[1:]))
    for context, ms in result["verify_ms"].items():
        ratios = "".join(f"{ms[str(n)] / ms['1']:7.2f}" for n in WIDTHS[1:])
        print(f"  {context:>5} {ms['1']:8.2f}{ratios}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a few rounds at 200 keys only")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--contexts", type=int, nargs="+", help="keys at which V(n) is measured")
    parser.add_argument("--shape", choices=list(SHAPES), action="append")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    transformers.logging.set_verbosity_error()
    results = {}
    with torch.inference_mode(), tempfile.TemporaryDirectory() as folder:
        for name in options.shape or SHAPES:
            effort = QUICK if options.quick else FULL
            if options.contexts:
                effort = replace(effort, contexts=tuple(options.contexts))
            results[name] = measure(name, effort, Path(folder) / name.replace(" ", "-"))
            show(name, results[name])
    print(json.dumps({"torch": torch.__version__, "threads": options.threads, "results": results}))


if __name__ == "__main__":
    main()
