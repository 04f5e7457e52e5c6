"""`outrider chat`: turns, commands and refusals."""

import fake_engine

from outrider.errors import RequestError


def test_turns_build_a_conversation(outrider_command, script):
    script.pieces = ("yes",)
    ended = outrider_command("chat", "--system", "S", stdin="one\n\ntwo\n/clear\nthree\n/exit\nx\n")
    assert (ended.code, ended.out) == (0, "yes\nyes\nyes\n")
    system, user = {"role": "system", "content": "S"}, {"role": "user", "content": "one"}
    reply = {"role": "assistant", "content": "yes"}
    assert script.chats[0][0] == [system, user]
    assert script.chats[1][0] == [system, user, reply, {"role": "user", "content": "two"}]
    assert script.chats[2][0] == [system, {"role": "user", "content": "three"}]
    assert len(script.chats) == 3
    assert script.closed == 1


def test_interrupt_cuts_a_reply_short_and_goes_on(outrider_command, script):
    script.interrupt_after = 2
    ended = outrider_command("chat", stdin="one\ntwo\n")
    assert (ended.code, ended.out) == (0, "def f():\ndef f():\n")
    assert script.chats[1][0][1] == {"role": "assistant", "content": "def f():"}


def test_refused_turn_is_taken_back(outrider_command, script, monkeypatch):
    def refuse(self, messages, **options):
        if messages[-1]["content"] == "bad":
            raise RequestError("prompt of 99 tokens is longer than the context.")
        script.chats.append(list(messages))
        return [1]

    monkeypatch.setattr(fake_engine.Tokenizer, "encode_chat", refuse)
    ended = outrider_command("chat", stdin="bad\ngood\n")
    assert ended.code == 0
    assert "outrider: error: prompt of 99 tokens is longer than the context.\n" in ended.err
    assert script.chats == [[{"role": "user", "content": "good"}]]


def test_target_without_template_is_named(outrider_command, script):
    script.chat_template = False
    ended = outrider_command("chat", "--target", "plain", stdin="hi\n")
    assert (ended.code, ended.out) == (1, "")
    assert ended.err == (
        "outrider: error: target.path = 'plain' has no chat template: use a chat model, or "
        "`outrider generate` for plain prompts.\n"
    )
    assert script.closed == 1
