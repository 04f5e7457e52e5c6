"""Work in parts, on several threads: nothing is lost, and no bit is another."""

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from outrider.kernels import workers
from outrider.kernels.compiled import CompiledKernels
from outrider.kernels.norm import rms_norm
from outrider.kernels.pass_plan import Span
from outrider.kernels.workers import share
from outrider.models.decoder import Decoder
from tests.helpers.runs import make_decoder, random_tokens

COUNTS = (1, 2, 3)


@pytest.fixture
def use(monkeypatch):
    """Sets how many threads share, however little work there is."""
    before = torch.get_num_threads()
    monkeypatch.setattr(workers, "PART_NS", 1)
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("threads", COUNTS)
@pytest.mark.parametrize("count", [0, 1, 2, 7])
def test_parts_cover_the_work_and_no_more_threads_than_torchs_take_them(use, threads, count):
    use(threads)
    parts = []
    share(100, count, lambda first, last: parts.append((first, last, threading.get_ident())))
    done = [place for first, last, _ in sorted(parts) for place in range(first, last)]
    assert done == list(range(count))
    assert len(parts) == max(1, min(count, threads))


def test_short_work_stays_on_the_calling_thread(use, monkeypatch):
    use(2)
    monkeypatch.setattr(workers, "PART_NS", 1000)
    parts = []
    share(1999, 8, lambda *bounds: parts.append((*bounds, threading.get_ident())))
    assert parts == [(0, 8, threading.get_ident())]


@pytest.mark.parametrize("bad", [0, 1])
def test_an_error_in_a_part_is_the_callers_and_the_threads_live_on(use, bad):
    use(2)

    def fail(first: int, last: int) -> None:
        if first == bad:
            raise ValueError(f"part {first}")

    for _ in range(3):
        with pytest.raises(ValueError, match=f"part {bad}"):
            share(100, 2, fail)


@pytest.mark.parametrize("shape", [(40, 33), (776, 256)])
def test_shared_products_norms_and_gates_have_the_bits_of_one_thread(use, shape):
    torch.manual_seed(0)
    kernels, weight = CompiledKernels(), torch.randn(shape)
    product = kernels.linear(weight, torch.randn(shape[0]))
    x, y = torch.randn(37, shape[1]), torch.randn(37, shape[1])
    norm = rms_norm(torch.rand(shape[1]), 1e-3)

    def results():
        both = torch.cat([x, y], 1)
        added = kernels.add_norm(x, y, norm)
        return product(x), kernels.norm(x, norm), *added, kernels.add(x + 0, y), kernels.gated(both)

    use(1)
    alone = results()
    assert torch.equal(alone[4], x + y)
    for threads in COUNTS[1:]:
        use(threads)
        assert all(map(torch.equal, results(), alone))


@pytest.fixture(scope="module", params=["qwen3", "qwen3_5", "qwen3_next"])
def decoder(request, tmp_path_factory):
    return make_decoder(request.param, tmp_path_factory.mktemp("model"))


def hidden_rows(decoder: Decoder, tokens: list[int], cut: int) -> torch.Tensor:
    state = decoder.new_state("log", 64)
    rows = []
    with torch.inference_mode():
        for part in torch.tensor(tokens).split(cut):
            span = Span(state, len(part), revocable=False)
            rows.append(decoder.run(decoder.embed(part), [span])[0])
    return torch.cat(rows)


def test_passes_on_several_threads_have_the_bits_of_steps_on_one(use, decoder):
    tokens = random_tokens(150)
    use(1)
    alone = hidden_rows(decoder, tokens, 1)
    for threads in COUNTS[1:]:
        use(threads)
        for cut in (150, 64, 7):
            assert torch.equal(hidden_rows(decoder, tokens, cut), alone)


def test_a_pass_of_several_sequences_on_several_threads_has_the_bits_of_each_alone(use, decoder):
    prompts = [random_tokens(rows, seed=rows) for rows in (70, 1, 33)]
    tokens = [token for prompt in prompts for token in prompt]
    use(1)
    alone = torch.cat([hidden_rows(decoder, prompt, 1) for prompt in prompts])
    for threads in COUNTS:
        use(threads)
        states = [decoder.new_state("log", 64) for _ in prompts]
        spans = [Span(s, len(p), revocable=False) for s, p in zip(states, prompts, strict=True)]
        with torch.inference_mode():
            packed = decoder.run(decoder.embed(torch.tensor(tokens)), spans)[0]
        assert torch.equal(packed, alone)


def test_two_sequences_at_once_share_the_workers(use, decoder):
    prompts = [random_tokens(130, seed=seed) for seed in range(4)]
    use(1)
    alone = [hidden_rows(decoder, prompt, 50) for prompt in prompts]
    use(2)
    with ThreadPoolExecutor(2) as callers:
        for _ in range(5):
            found = callers.map(lambda prompt: hidden_rows(decoder, prompt, 50), prompts)
            assert all(map(torch.equal, found, alone))


SCRIPT = """
import os, sys, torch
from outrider.kernels.workers import share
torch.set_num_threads(2)
def work(first, last): pass
def shared(): share(10**9, 2, work)
shared()
if {fork}:
    child = os.fork()
    if child == 0:
        shared()
        os._exit(7)
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
sys.exit(7)
"""


@pytest.mark.parametrize("fork", [False, pytest.param(True, id="fork")])
def test_a_forked_process_shares_too_and_idle_workers_keep_none_alive(fork):
    if fork and not hasattr(os, "fork"):
        pytest.skip("this system cannot fork")
    run = [sys.executable, "-c", SCRIPT.format(fork=fork)]
    assert subprocess.run(run, timeout=120, env=dict(os.environ)).returncode == 7
