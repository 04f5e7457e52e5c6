"""Who is at the other end of a socket: the same version, target and key, or nobody."""

import socket
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from outrider.errors import StageError, StageLost
from outrider.stage.peer import HELLO, MAGIC, Hello, Tls, answer, call, listen

FRONT = Hello(name="stage 0 of 2", version="1.0", target="abc", key="secret")
BACK = replace(FRONT, name="stage 1 of 2")
KEYS = Tls.load(str(Path(__file__).parent / "keys"))


def meet(caller=FRONT, called=BACK, tls=(None, None), before=lambda address: None):
    """Both ends of a connection, or the error of each side in its place."""
    found = {}

    def dial(address):
        before(address)
        try:
            found["caller"] = call(address, caller, 5.0, tls[0])
        except StageError as error:
            found["caller"] = error

    with listen("127.0.0.1") as listener:
        thread = threading.Thread(target=dial, args=(listener.getsockname(),))
        thread.start()
        try:
            found["called"] = answer(listener, called, 1.0, tls[1])
        except StageError as error:
            found["called"] = error
        thread.join()
    return found["caller"], found["called"]


def check_joined(ends):
    caller, called = ends
    with caller, called:
        caller.sendall(b"rows")
        assert called.recv(4) == b"rows"


def test_two_of_a_kind_are_joined():
    check_joined(meet())


@pytest.mark.parametrize(("field", "other"), [("version", "2.0"), ("target", "def")])
def test_both_sides_refuse_what_differs_and_name_both(field, other):
    caller, called = meet(called=replace(BACK, **{field: other}))
    mine = getattr(FRONT, field)
    assert f"stage 0 of 2 has {field} {mine} and stage 1 of 2 has {field} {other}" in str(caller)
    assert f"stage 1 of 2 has {field} {other} and stage 0 of 2 has {field} {mine}" in str(called)


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"GET / HTTP/1.1\r\n\r\n",
        HELLO.pack(MAGIC, 1 << 31),
        HELLO.pack(MAGIC, 2) + b"{}",
        HELLO.pack(MAGIC, 2) + b"[]",
    ],
)
def test_strangers_are_hung_up_on_and_the_right_one_still_gets_in(said):
    def stranger(address):
        with socket.create_connection(address) as end:
            end.sendall(said)

    check_joined(meet(before=stranger))


def test_another_key_is_a_stranger_to_both():
    caller, called = meet(caller=replace(FRONT, key="guess"))
    assert isinstance(called, StageLost)
    assert "was called by nobody" in str(called)
    assert "reaches nobody" in str(caller)


def test_a_stranger_is_not_told_the_key():
    heard = []

    def stranger(address):
        with socket.create_connection(address) as end:
            end.sendall(HELLO.pack(MAGIC, 2) + b"{}")
            heard.append(end.recv(1000))

    check_joined(meet(before=stranger))
    assert heard == [b""]


def test_nobody_listens():
    with listen("127.0.0.1") as listener:
        address = listener.getsockname()
    with pytest.raises(StageLost, match="stage 0 of 2 reaches nobody at 127"):
        call(address, FRONT, 1.0, None)


def test_certificates_of_one_authority_are_joined():
    ends = meet(tls=(KEYS, KEYS))
    assert ends[0].version() == "TLSv1.3"
    check_joined(ends)


def test_certificates_that_are_not_there(tmp_path):
    with pytest.raises(StageError, match=r"has no ca\.pem, cert\.pem and key\.pem that belong"):
        Tls.load(str(tmp_path))


@pytest.mark.parametrize("tls", [(None, KEYS), (KEYS, None)])
def test_one_side_alone_does_not_get_in(tls):
    caller, called = meet(tls=tls)
    assert isinstance(caller, StageError)
    assert isinstance(called, StageLost)
