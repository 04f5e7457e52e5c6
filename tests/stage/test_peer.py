"""Who is at the other end of a socket: the same version, target and key, or nobody."""

import json
import socket
import threading
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from outrider.errors import StageError, StageLost
from outrider.stage import peer
from outrider.stage.peer import HELLO, MAGIC, MOST_HELLO, Hello, Tls, answer, call, listen

FRONT = Hello(name="stage 0 of 2", version="1.0", target="abc", key="secret")
BACK = replace(FRONT, name="stage 1 of 2")
KEYS = Tls.load(str(Path(__file__).parent / "keys"))


def meet(caller=FRONT, called=BACK, tls=(None, None), before=lambda address: None, seconds=1.0):
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
            found["called"] = answer(listener, called, seconds, tls[1])
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


def said(text):
    raw = text if isinstance(text, bytes) else json.dumps(text).encode()
    return HELLO.pack(MAGIC, len(raw)) + raw


NONCE = {"nonce": "0" * 32}
FIELDS = {"name": "stage 0 of 2", "version": "1.0", "target": "abc"}
PROOF = "0" * 64
STRANGE = {
    "nothing": b"",
    "another protocol": b"GET / HTTP/1.1\r\n\r\n",
    "too long": HELLO.pack(MAGIC, 1 << 31),
    "no fields": said({}),
    "a list": said([]),
    "a number": said(b"1"),
    "a long number": said(b"1" * MOST_HELLO),
    "brackets": said(b"[" * MOST_HELLO),
    "no text": said(b"\xff\xfe\xff"),
    "half a pair": said({"nonce": "\ud800"}),
    "a nonce that is none": said({"nonce": 1}),
    "more fields": said({**NONCE, "more": "x"}),
    "a key in the open": said({**FIELDS, "key": "secret"}),
    "a key of other letters": said({**FIELDS, "key": "schlüssel"}),
    "no proof": said(NONCE) + said(FIELDS),
    "a wrong proof": said(NONCE) + said({**FIELDS, "proof": PROOF}),
    "a proof of other letters": said(NONCE) + said({**FIELDS, "proof": "ü" * 64}),
    "half a pair as proof": said(NONCE) + said({**FIELDS, "proof": "\udfff"}),
    "a proof that is no text": said(NONCE) + said({**FIELDS, "proof": [PROOF]}),
    "brackets as proof": said(NONCE) + said(b"[" * MOST_HELLO),
    "more than a proof": said(NONCE) + said({**FIELDS, "proof": PROOF, "more": "x"}),
}


@pytest.mark.parametrize("name", STRANGE)
def test_strangers_are_hung_up_on_and_the_right_one_still_gets_in(name):
    def stranger(address):
        with socket.create_connection(address) as end:
            end.sendall(STRANGE[name])

    check_joined(meet(before=stranger))


def test_silent_callers_keep_nobody_waiting():
    """Each of them may take its five seconds, but not in turn."""
    with ExitStack() as silent:

        def stranger(address):
            for _ in range(4):
                silent.enter_context(socket.create_connection(address))

        check_joined(meet(before=stranger, seconds=4.0))


def test_more_callers_than_are_greeted_at_once(monkeypatch):
    monkeypatch.setattr(peer, "MOST_CALLERS", 3)
    with ExitStack() as silent:

        def stranger(address):
            for _ in range(10):
                silent.enter_context(socket.create_connection(address))

        check_joined(meet(before=stranger, seconds=4.0))


def drip(end, stop):
    """A hello that never ends, a byte at a time, until it is hung up on."""
    with suppress(OSError), end:
        end.sendall(HELLO.pack(MAGIC, MOST_HELLO))
        while not stop.wait(0.02):
            end.sendall(b" ")


@pytest.fixture
def dripping():
    """Starts threads that drip into connections; they are gone afterwards."""
    stop, threads = threading.Event(), []

    def start(end):
        threads.append(threading.Thread(target=drip, args=(end, stop)))
        threads[-1].start()
        return threads[-1]

    yield start
    stop.set()
    for thread in threads:
        thread.join()


def test_a_caller_that_drips_is_hung_up_on(monkeypatch, dripping):
    monkeypatch.setattr(peer, "PATIENCE_S", 0.3)
    with listen("127.0.0.1") as listener:
        thread, looked = dripping(socket.create_connection(listener.getsockname())), []

        def look():
            looked.append(thread.is_alive())
            if not thread.is_alive():
                raise StageError("it was hung up on")

        with pytest.raises(StageError, match="it was hung up on"):
            answer(listener, BACK, 20.0, None, look)
    assert looked[0]


def test_joining_ends_in_time_whoever_drips(dripping):
    with listen("127.0.0.1") as listener:
        thread = dripping(socket.create_connection(listener.getsockname()))
        with pytest.raises(StageLost, match=r"stage 1 of 2 was called by nobody for 0\.5 s"):
            answer(listener, BACK, 0.5, None)
        thread.join(20.0)
        assert not thread.is_alive()


def test_a_port_that_is_closed_meanwhile_ends_the_wait():
    with listen("127.0.0.1") as listener, pytest.raises(StageLost, match="stage 1 of 2 waits no l"):
        answer(listener, BACK, 20.0, None, listener.close)


@pytest.mark.parametrize("name", ["nothing", "another protocol", "brackets", "no text", "no proof"])
def test_a_listener_that_talks_nonsense_is_nobody(name):
    with listen("127.0.0.1") as listener:

        def talk():
            with listener.accept()[0] as end:
                end.sendall(STRANGE[name])
                end.recv(1000)

        thread = threading.Thread(target=talk)
        thread.start()
        with pytest.raises(StageLost, match="stage 0 of 2 reaches nobody at"):
            call(listener.getsockname(), FRONT, 20.0, None)
        thread.join()


def test_a_listener_that_drips_is_given_up(dripping):
    with listen("127.0.0.1") as listener:
        thread = threading.Thread(target=lambda: dripping(listener.accept()[0]))
        thread.start()
        with pytest.raises(StageLost, match=r"it took too long|timed out"):
            call(listener.getsockname(), FRONT, 0.5, None)
        thread.join()


class Tap:
    """Stands between two sides and keeps what passes, by direction."""

    def __init__(self, address):
        self.passed = [b"", b""]
        self._listener = listen("127.0.0.1")
        self.address = self._listener.getsockname()
        self._thread = threading.Thread(target=self._run, args=(address,))
        self._thread.start()

    def _run(self, address):
        with (
            self._listener,
            self._listener.accept()[0] as near,
            socket.create_connection(address) as far,
        ):
            back = threading.Thread(target=self._pump, args=(far, near, 1))
            back.start()
            self._pump(near, far, 0)
            back.join()

    def _pump(self, source, sink, number):
        while data := source.recv(4096):
            self.passed[number] += data
            sink.sendall(data)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    def join(self):
        self._thread.join()


def test_no_key_is_said_and_what_was_said_opens_nothing_again():
    key = "3f9a0c41d2"
    taps = []

    with listen("127.0.0.1") as listener:
        found = {}

        def dial():
            tap = Tap(listener.getsockname())
            taps.append(tap)
            found["caller"] = call(tap.address, replace(FRONT, key=key), 5.0, None)

        thread = threading.Thread(target=dial)
        thread.start()
        found["called"] = answer(listener, replace(BACK, key=key), 5.0, None)
        thread.join()
        check_joined((found["caller"], found["called"]))
        taps[0].join()
        there, back = taps[0].passed
        assert b"stage 0 of 2" in there
        assert b"stage 1 of 2" in back
        assert key.encode() not in there + back
        with socket.create_connection(listener.getsockname()) as again:
            again.sendall(there)
            with pytest.raises(StageLost, match="was called by nobody"):
                answer(listener, replace(BACK, key=key), 1.0, None)


def test_one_sides_proof_is_not_the_others():
    """A listener without the key gives the caller's own words back to it."""
    with listen("127.0.0.1") as listener:

        def echo():
            with listener.accept()[0] as end, suppress(OSError):
                while data := end.recv(4096):
                    end.sendall(data)

        thread = threading.Thread(target=echo)
        thread.start()
        with pytest.raises(StageLost, match="it has another key"):
            call(listener.getsockname(), FRONT, 5.0, None)
        thread.join()


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
