"""Connections that ask slowly, never, or too many at once; a real server on a loopback port."""

import json
import socket
import time
from contextlib import ExitStack, closing
from urllib.parse import urlsplit

import httpx
import pytest

from tests.server.world import listening, running

HEAD = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n"
HANG = 30
"""Seconds after which a connection counts as never closed."""


@pytest.fixture
def address(hybrid):
    config = {"header_seconds": 1.0}
    with running(hybrid.stage("log", 8), config=config) as world, listening(world) as found:
        yield found


def connect(address):
    parts = urlsplit(address)
    return closing(socket.create_connection((parts.hostname, parts.port), timeout=HANG))


def rest(sock):
    """All that the server still sends; returns once it has closed, and fails where it does not."""
    found = b""
    try:
        while part := sock.recv(65536):
            found += part
    except ConnectionError:
        pass
    return found


def answer(sock):
    """One answer with its body, of a connection that stays open."""
    found = b""
    while b"\r\n\r\n" not in found:
        found += more(sock)
    head, _, body = found.partition(b"\r\n\r\n")
    size = next(
        int(line[15:]) for line in head.lower().split(b"\r\n") if line[:15] == b"content-length:"
    )
    while len(body) < size:
        body += more(sock)
    return head


def more(sock):
    part = sock.recv(65536)
    assert part, "the server closed"
    return part


def error(found):
    head, _, body = found.partition(b"\r\n\r\n")
    return head.split(b"\r\n")[0], json.loads(body)["error"]


@pytest.mark.parametrize("sent", [HEAD, HEAD + b"X: ", b"G"])
def test_half_a_head_is_closed(address, sent):
    with connect(address) as sock:
        sock.sendall(sent)
        line, told = error(rest(sock))
        assert line == b"HTTP/1.1 408 Request Timeout"
        assert told["code"] == "header_timeout"
        assert "within 1 s (server.header_seconds)" in told["message"]


def test_a_silent_connection_is_closed_without_a_word(address):
    with connect(address) as sock:
        assert rest(sock) == b""


def drip(sock):
    """Send a header byte by byte until the server has closed; whether it did."""
    deadline = time.monotonic() + HANG
    while time.monotonic() < deadline:
        try:
            sock.sendall(b"x")
            time.sleep(0.05)
        except OSError:
            return True
    return False


def test_single_bytes_do_not_keep_it_open(address):
    with connect(address) as sock:
        sock.sendall(HEAD + b"X: ")
        assert drip(sock)


def test_a_later_request_has_the_same_time(address):
    """On a connection that is kept: one that stops halfway, and one that drips."""
    for ends in (lambda sock: b"header_timeout" in rest(sock), drip):
        with connect(address) as sock:
            for _ in range(3):
                sock.sendall(HEAD + b"\r\n")
                assert answer(sock).startswith(b"HTTP/1.1 200")
            sock.sendall(HEAD + b"X: ")
            assert ends(sock)


def test_a_kept_connection_may_be_silent_between_requests(address):
    with connect(address) as sock:
        for _ in range(2):
            sock.sendall(HEAD + b"\r\n")
            assert answer(sock).startswith(b"HTTP/1.1 200")
            time.sleep(2.0)
        sock.sendall(HEAD + b"\r\n")
        assert answer(sock).startswith(b"HTTP/1.1 200")


def test_a_body_that_drips_after_its_answer_is_closed(address):
    with connect(address) as sock:
        sock.sendall(HEAD.replace(b"GET", b"PUT") + b"Content-Length: 100000\r\n\r\n")
        assert answer(sock).startswith(b"HTTP/1.1 405")
        assert drip(sock)


def test_a_request_at_work_outlives_the_time_for_headers(hybrid):
    with running(hybrid.stage("log", 8), config={"header_seconds": 0.5}) as world:
        poll = world.stage.run_batch
        world.stage.run_batch = lambda: (time.sleep(0.1), poll())[1]
        body = {"prompt": "a", "max_tokens": 12, "ignore_eos": True}
        body["speculative"] = {"max_draft_tokens": 0}
        with listening(world) as address:
            found = httpx.post(f"{address}/v1/completions", json=body, timeout=HANG)
        assert found.status_code == 200
        assert found.json()["usage"]["completion_tokens"] == 12


def test_hundreds_of_half_heads_are_all_closed(hybrid):
    with (
        running(hybrid.stage("log", 8), config={"header_seconds": 2.0}) as world,
        listening(world) as address,
        ExitStack() as stack,
    ):
        socks = []
        for _ in range(300):
            socks.append(stack.enter_context(connect(address)))
            socks[-1].sendall(HEAD)
        assert all(b"header_timeout" in rest(sock) for sock in socks)
        assert httpx.get(f"{address}/health").status_code == 200


def test_more_connections_than_allowed_are_refused_and_places_come_back(hybrid):
    with (
        running(hybrid.stage("log", 8), config={"max_connections": 8}) as world,
        listening(world) as address,
    ):
        with ExitStack() as stack:
            socks = [stack.enter_context(connect(address)) for _ in range(8)]
            for sock in socks:
                sock.sendall(HEAD + b"\r\n")
                assert answer(sock).startswith(b"HTTP/1.1 200")
            with connect(address) as another:
                line, told = error(rest(another))
                assert line == b"HTTP/1.1 503 Service Unavailable"
                assert told["code"] == "too_many_connections"
                assert "8 connections are open (server.max_connections)" in told["message"]
            socks[0].sendall(HEAD + b"\r\n")
            assert answer(socks[0]).startswith(b"HTTP/1.1 200"), "those that are in stay in"
        deadline = time.monotonic() + HANG
        while not lets_in(address):
            assert time.monotonic() < deadline, "no place came back"


def test_a_client_that_takes_nothing_of_its_answer_is_hung_up_on(hybrid):
    """Its answer, megabytes of it, is memory that nobody else can have."""
    body = {"prompt": [[5] * 400] * 48, "echo": True, "logprobs": 20, "max_tokens": 0}
    data = json.dumps(body).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(data)}\r\n\r\n".encode()
    with (
        running(
            hybrid.stage("log", 8), config={"send_seconds": 0.5, "max_connections": 1}
        ) as world,
        listening(world) as address,
    ):
        size = len(httpx.post(f"{address}/v1/completions", json=body, timeout=HANG).content)
        assert size > 8 << 20, "more than the sockets hold"
        with connect(address) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.sendall(head + data)
            deadline = time.monotonic() + HANG
            while not lets_in(address):  # There is no other place.
                assert time.monotonic() < deadline, "it is still waited for"
                time.sleep(0.1)


def lets_in(address):
    try:
        return httpx.get(f"{address}/health").status_code == 200
    except httpx.TransportError:  # Closed before the request was sent.
        return False


@pytest.mark.parametrize(
    "sent", [b"nonsense\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", HEAD + b"Host: other\r\n\r\n"]
)
def test_what_is_no_http_is_answered_in_form(address, sent):
    with connect(address) as sock:
        sock.sendall(sent)
        line, told = error(rest(sock))
        assert line == b"HTTP/1.1 400 Bad Request"
        assert told["code"] == "invalid_request"
