"""Other people's clients against `outrider serve`: schemathesis and lm-eval.

    pip install schemathesis 'lm-eval[api]'
    python benchmarks/clients.py [--target demo] [--examples 50]

Starts the server in a process of its own. Schemathesis sends what the OpenAPI description allows
and what it does not, and must see no 5xx. lm-eval's `local-completions` runs one task that
generates and one that scores choices (`echo` with `logprobs`), from files written here.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import httpx
from serve import served

from outrider.formats.hub import resolve

LINES = ["for i in range(", "import numpy as ", "def __init__(self, ", "if __name__ == "]
CHOICES = [" 10", " banana", " self", " the"]
TASK = """
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: {kind}
doc_to_text: "{{{{text}}}}"
metadata: {{version: 1}}
"""
GENERATE = """
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["\\n"], max_gen_toks: 12, temperature: 0, do_sample: false}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
"""
CHOOSE = """
doc_to_choice: choices
doc_to_target: 0
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
"""


def answer(address: str, text: str) -> str:
    """What the server says behind `text` up to the line's end."""
    body = {"prompt": text, "max_tokens": 12, "temperature": 0, "stop": ["\n"]}
    found = httpx.post(f"{address}/v1/completions", json=body, timeout=60).json()
    return str(found["choices"][0]["text"])


def write_tasks(folder: Path, address: str) -> None:
    """Right is what the server itself says greedily; other words stand beside it as choices."""
    asked = [{"text": line, "answer": answer(address, line)} for line in LINES]
    rows = [{**one, "choices": [one["answer"] or " 1", *CHOICES]} for one in asked]
    data = folder / "rows.json"
    data.write_text(json.dumps(rows), encoding="utf-8")
    for name, kind, more in (
        ("outrider_generate", "generate_until", GENERATE),
        ("outrider_choose", "multiple_choice", CHOOSE),
    ):
        text = TASK.format(name=name, data=json.dumps(str(data)), kind=kind) + more
        (folder / f"{name}.yaml").write_text(text, encoding="utf-8")


def lm_eval(address: str, target: str) -> int:
    with tempfile.TemporaryDirectory() as name:
        write_tasks(Path(name), address)
        tokenizer = resolve(target)
        about = (
            f"model=served,base_url={address}/v1/completions,tokenizer={tokenizer},max_length=1024"
        )
        model = httpx.get(f"{address}/v1/models", timeout=60).json()["data"][0]["id"]
        words = ["--model", "local-completions", "--model_args", about.replace("served", model)]
        words += ["--tasks", "outrider_generate,outrider_choose", "--include_path", name]
        offline = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": name}
        return subprocess.call([sys.executable, "-m", "lm_eval", *words], env=offline)


def schemathesis(address: str, examples: int) -> int:
    words = ["run", f"{address}/openapi.json", "--checks", "not_a_server_error"]
    words += ["--max-examples", str(examples), "--request-timeout", "60", "--suppress-health-check"]
    code = "from schemathesis.cli import schemathesis; schemathesis()"
    with tempfile.TemporaryDirectory() as notes:  # It writes some where it runs.
        return subprocess.call([sys.executable, "-c", code, *words, "all"], cwd=notes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="demo")
    parser.add_argument("--examples", type=int, default=50)
    options, flags = parser.parse_known_args()
    with served("--target", options.target, *flags) as server:
        codes = [schemathesis(server.address, options.examples)]
        codes += [lm_eval(server.address, options.target)]
        alive = httpx.get(f"{server.address}/health", timeout=60).status_code
    print(json.dumps({"schemathesis": codes[0], "lm_eval": codes[1], "health": alive}))
    sys.exit(any(codes) or alive != 200)


if __name__ == "__main__":
    main()
