"""`outrider generate` as a process of its own, on the models that ship."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROMPT = Path(__file__).parents[2] / "examples" / "rename.txt"
COMMAND = [sys.executable, "-c", "from outrider.cli.main import main; main()", "generate"]


def generate(*flags: str, prompt: Path = PROMPT) -> tuple[dict, str]:
    words = [*COMMAND, "--target", "demo", "--max-tokens", "64", "--json", *flags]
    done = subprocess.run(
        [*words, "--prompt-file", str(prompt)], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout), done.stderr


@pytest.mark.parametrize("rollback", ["log", "snapshots", "checkpoint"])
@pytest.mark.parametrize(
    "flags",
    [
        ["--method", "suffix", "--max-draft-tokens", "6"],
        ["--method", "draft", "--draft-model", "demo-draft", "--max-draft-tokens", "3"],
        [
            *["--method", "suffix", "--ngram-fallback", "draft", "--draft-model", "demo-draft"],
            *["--depth", "3", "--window", "4"],
        ],
    ],
    ids=["suffix", "draft", "fallback"],
)
def test_speculation_keeps_the_tokens_and_pays_in_passes(
    flags: list[str], rollback: str, tmp_path: Path
) -> None:
    prompt = tmp_path / "code.txt"  # where text is repeated, no draft would be wrong
    prompt.write_text("import json\n\n\nclass Store:\n    def load(self, path):\n")
    record, said = generate("--compare", "--rollback", rollback, *flags, prompt=prompt)
    timings = record["timings"]
    assert "the same 64 tokens" in said
    assert timings["speculative_accepted_n"] > 0
    assert timings["speculative_verified_n"] > timings["speculative_accepted_n"]
    assert timings[f"rollback_{rollback}_n"] > 0
    assert timings["exact"] is True
    if "--ngram-fallback" in flags:
        assert timings["speculative_fallback_draft_proposals"] > 0
        assert timings["verify_window_max_in_flight"] > 1


def test_plain_decoding_gives_the_same_tokens() -> None:
    plain, _ = generate("--method", "off")
    assert plain["timings"]["speculative_proposed_n"] == 0
    assert plain["timings"]["mean_acceptance_length"] == 1.0
    speculative, _ = generate("--method", "suffix")
    assert plain["token_ids"] == speculative["token_ids"]
