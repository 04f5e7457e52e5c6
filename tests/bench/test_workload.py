"""Workloads by name and from files, and what is refused."""

import json
import random

import pytest

from outrider import demo
from outrider.bench import workload
from outrider.bench.workload import coincidence, copied_share, refuse_random
from outrider.errors import RequestError


def write(path, *rows):
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n", encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("name", [*demo.workloads(), "mixed", "long-context"])
def test_shipped_workloads_load(name):
    loaded = workload.load(name)
    assert loaded.name == name
    assert len(loaded.prompts) >= 4
    assert len(loaded.version) == 12
    assert all(prompt.text for prompt in loaded.prompts)


def test_the_mix_takes_from_each_kind_in_turn():
    taken = workload.load("mixed").first(8)
    kinds = [prompt.category for prompt in taken.prompts]
    assert kinds[:4] == list(demo.workloads())
    assert kinds[4:] == kinds[:4]


def test_long_context_is_longer_than_what_it_is_made_of():
    code = max(len(prompt.text) for prompt in workload.load("code").prompts)
    assert min(len(prompt.text) for prompt in workload.load("long-context").prompts) > code


def test_published_forms_are_read(tmp_path):
    file = write(
        tmp_path / "mine.jsonl",
        {"question_id": 81, "category": "writing", "turns": ["One.", "Two."]},
        {"task_id": "HumanEval/0", "prompt": "def f():"},
        {"id": "own", "prompt": "text", "expected": "text"},
    )
    prompts = workload.load(file).prompts
    assert [(p.id, p.text, p.category) for p in prompts] == [
        ("81", "One.", "writing"),
        ("HumanEval/0", "def f():", "mine.jsonl"),
        ("own", "text", "mine.jsonl"),
    ]


def test_the_version_follows_the_texts(tmp_path):
    one = workload.load(write(tmp_path / "a.jsonl", {"id": 1, "prompt": "x"}))
    same = workload.load(write(tmp_path / "b.jsonl", {"id": 1, "prompt": "x"}))
    other = workload.load(write(tmp_path / "c.jsonl", {"id": 1, "prompt": "y"}))
    assert one.version == same.version != other.version


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("{", "line 1 is not JSON"),
        ('{"text": "x"}', "line 1 has no text under 'prompt' or 'turns' .found text."),
        ('{"turns": []}', "has no text"),
        ('{"prompt": [1, 2]}', "has no text"),
        ("[1]", "found no object"),
    ],
)
def test_other_files_are_refused(tmp_path, text, message):
    file = tmp_path / "bad.jsonl"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(RequestError, match=message):
        workload.load(str(file))


def test_unknown_and_random_names_are_refused():
    with pytest.raises(RequestError, match=r"neither a shipped workload \(mixed, code"):
        workload.load("cod")
    with pytest.raises(RequestError, match="says nothing about text"):
        workload.load("random")


def test_random_tokens_are_told_from_text():
    draw = random.Random(0).randrange
    noise = [[draw(2048) for _ in range(80)] for _ in range(8)]
    assert coincidence(noise, 2048)[0] == pytest.approx(1.0, abs=0.5)
    with pytest.raises(RequestError, match="looks like random tokens"):
        refuse_random([], noise, 2048, "noise.jsonl")
    texts = [prompt.text for prompt in workload.load("prose").prompts]
    prose = [list(text.encode()) for text in texts]
    assert coincidence(prose, 256)[0] > 10
    refuse_random(texts, prose, 256, "prose")


def test_random_tokens_written_out_as_text_are_told_by_their_half_characters():
    draw = random.Random(0).randrange
    noise = [bytes(draw(256) for _ in range(80)).decode(errors="replace") for _ in range(8)]
    with pytest.raises(RequestError, match="written out as text"):
        refuse_random(noise, [[1, 2, 3]], 2048, "noise.jsonl")


def test_a_few_tokens_are_not_judged():
    refuse_random(["tiny"], [[1, 2, 3]], 2048, "tiny")


def test_copied_share_counts_what_a_lookup_could_have_known():
    assert copied_share(list(range(10)), list(range(10)), gram=4) == 0.7
    assert copied_share(list(range(10)), list(range(20, 30)), gram=4) == 0.0
    assert copied_share([], [1, 2] * 5, gram=2) == 0.7
    assert copied_share([1], [], gram=4) == 0.0
