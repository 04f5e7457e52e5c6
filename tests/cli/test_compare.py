"""`--compare`: equality first, then both speeds."""

import json


def test_equal_tokens_print_speeds_and_ratio(outrider_command, script):
    ended = outrider_command("generate", "hi", "--compare")
    assert (ended.code, ended.out) == (0, "def f(): 🙂\n")
    assert [line.split()[0] for line in ended.err.splitlines()] == [
        "plain:",
        "speculative:",
        "ratio:",
    ]
    assert "2.00x, the same 3 tokens" in ended.err
    assert "375.0 tokens/s" in ended.err


def test_both_runs_are_the_same_request_with_the_seed_that_was_drawn(outrider_command, script):
    outrider_command("generate", "hi", "--compare", "--max-tokens", "99", "--ignore-eos")
    warm_up, measured = script.calls[:2], script.calls[2:]
    assert [call["method"] for call in warm_up] == [None, "off"]
    assert {call["max_tokens"] for call in warm_up} == {16}
    assert [call["method"] for call in measured] == [None, "off"]
    assert [call["sampling"].seed for call in measured] == [None, 7]
    assert {call["max_tokens"] for call in measured} == {99}
    assert all(call["ignore_eos"] for call in measured)


def test_different_tokens_exit_with_3_and_name_the_place(outrider_command, script):
    script.plain_tokens = (0, 9, 2)
    ended = outrider_command("generate", "hi", "--compare")
    assert ended.code == 3
    assert "DIFFERENT:   token 1 is 1 with speculation and 9 without" in ended.err


def test_a_missing_token_is_a_difference(outrider_command, script):
    script.plain_tokens = (0, 1)
    ended = outrider_command("generate", "hi", "--compare", "--json")
    assert ended.code == 3
    assert "token 2 is 2 with speculation and absent without" in ended.err
    compared = json.loads(ended.out)["compare"]
    assert (compared["equal"], compared["first_difference"]) == (False, 2)
    assert compared["plain_timings"]["predicted_n"] == 2
