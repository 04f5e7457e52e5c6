"""What int8 weights gain and cost: plain steps beside fp32, and how often the best token is equal.

    python benchmarks/rounding.py [--target smollm2] [--threads 1] [--tokens 140] [--rounds 9]
        [--questions 24] [--steps 12]

Agreement is teacher-forced on the unrounded model's own greedy answers. Speed is the median ratio
of alternating legs of plain steps behind a short prompt, in one process. Prints lines for people;
the last line is one line of JSON. `--questions 0` measures speed alone.
"""

import argparse
import json
import statistics
import time

import torch
from torch import Tensor
from torch.nn import functional

from outrider.assemble.target import LoadedTarget, load_target
from outrider.config.settings import TargetConfig
from outrider.models.decoder import Decoder
from outrider.models.pass_plan import Span
from outrider.state.sequence import SequenceState

QUESTIONS = (
    "What is the capital of France and what is it known for?",
    "Write a short story about a fox and a river.",
    "Explain how photosynthesis works.",
    "Write a Python function that reverses a list.",
    "List five tips for a healthy breakfast.",
    "What is the difference between a virus and a bacterium?",
    "Summarize the plot of Romeo and Juliet.",
    "How do I change a bicycle tyre?",
    "Name three rivers.",
    "Why is the sky blue?",
    "Write a poem about the sea.",
    "Write a SQL query that counts users by country.",
    "What causes inflation?",
    "Explain recursion to a child.",
    "Give me a recipe for pancakes.",
    "Who was Marie Curie?",
    "Write an email asking for a day off.",
    "What are prime numbers? Give some examples.",
    "Translate 'good morning' into Spanish, French and German.",
    "Describe the water cycle.",
    "Write a JavaScript function that sums an array.",
    "What should I pack for a hiking trip?",
    "How does a steam engine work?",
    "Tell me about the history of Rome.",
)
Text = tuple[list[int], list[int]]
"""Prompt and answer."""


@torch.inference_mode()
def run(decoder: Decoder, tokens: list[int], state: SequenceState | None = None) -> Tensor:
    """Logits of every row of a pass."""
    state = state or decoder.new_state("log", 0)
    hidden = decoder.embed(torch.tensor(tokens))
    return decoder.logits(decoder.run(hidden, [Span(state, len(tokens), revocable=False)])[0])


def ask(target: LoadedTarget, question: str) -> list[int]:
    return target.tokenizer.encode_chat([{"role": "user", "content": question}])


def answer(target: LoadedTarget, prompt: list[int], most: int) -> list[int]:
    """Greedy tokens up to the end token."""
    state, tokens = target.decoder.new_state("log", 0), list[int]()
    rows = prompt
    while len(tokens) < most:
        token = int(run(target.decoder, rows, state)[-1].argmax())
        if token in target.tokenizer.end_tokens:
            break
        tokens.append(token)
        rows = [token]
    return tokens


def milliseconds(decoder: Decoder, prompt: list[int], steps: int) -> float:
    """Of a plain step."""
    state = decoder.new_state("log", 0)
    token = int(run(decoder, prompt, state)[-1].argmax())
    begin = time.perf_counter()
    for _ in range(steps):
        token = int(run(decoder, [token], state)[-1].argmax())
    return (time.perf_counter() - begin) / steps * 1e3


def agreement(whole: Decoder, small: Decoder, texts: list[Text]) -> dict[str, float]:
    equal, divergence, losses = [], [], {"perplexity_fp32": [], "perplexity_int8": []}
    for prompt, answer in texts:
        pair = [run(one, (prompt + answer)[:-1])[len(prompt) - 1 :] for one in (whole, small)]
        equal.append(pair[0].argmax(-1) == pair[1].argmax(-1))
        logs = [logits.log_softmax(-1) for logits in pair]
        divergence.append((logs[0].exp() * (logs[0] - logs[1])).sum(-1))
        for kept, log in zip(losses.values(), logs, strict=True):
            kept.append(functional.nll_loss(log, torch.tensor(answer), reduction="none"))
    return {
        "tokens": sum(map(len, equal)),
        "equal_best": float(torch.cat(equal).float().mean()),
        "divergence_nats": float(torch.cat(divergence).mean()),
        **{name: float(torch.cat(values).mean().exp()) for name, values in losses.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="smollm2")
    for name, value in (("threads", 1), ("tokens", 140), ("rounds", 9), ("steps", 12)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--questions", type=int, default=len(QUESTIONS))
    given = parser.parse_args()
    loaded, seconds = [], []
    for quantize in ("none", "int8"):
        begin = time.perf_counter()
        config = TargetConfig(path=given.target, threads=given.threads, quantize=quantize)
        loaded.append(load_target(config))
        seconds.append(time.perf_counter() - begin)
    whole, small = (target.decoder for target in loaded)
    prompt = ask(loaded[0], QUESTIONS[0])
    pairs = [
        [milliseconds(one, prompt, given.steps) for one in (whole, small)]
        for _ in range(given.rounds + 1)
    ][1:]
    ratios = sorted(a / b for a, b in pairs)
    facts = {
        "speedup": statistics.median(ratios),
        "speedup_range": (ratios[0], ratios[-1]),
        "step_ms": [statistics.median(column) for column in zip(*pairs, strict=True)],
        "load_s": seconds,
    }
    print(f"int8 is {facts['speedup']:.2f} times as fast ({ratios[0]:.2f} to {ratios[-1]:.2f})")
    if given.questions:
        prompts = [ask(loaded[0], question) for question in QUESTIONS[: given.questions]]
        texts = [(prompt, answer(loaded[0], prompt, given.tokens)) for prompt in prompts]
        found = agreement(whole, small, texts)
        print(f"best token equal in {found['equal_best']:.2%} of {found['tokens']} rows")
        facts |= found
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
