"""A server on this machine as a peer."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count

import pytest

from outrider.bench.legs import UNKNOWN, Refusal
from outrider.bench.peers import PeerTarget, make


class Handler(BaseHTTPRequestHandler):
    """Streams `max_tokens` parts; refuses prompts that begin with 0."""

    asked: dict

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked = {"path": self.path, **body}
        if body["prompt"][0] == 0:
            self.send_error(400, "no such token")
            return
        self.send_response(200)
        self.end_headers()
        parts = [{"choices": [{"text": "x"}]}] * body["max_tokens"]
        usage = {"choices": [], "usage": {"completion_tokens": body["max_tokens"]}}
        for part in [*parts, usage]:
            self.wfile.write(f"data: {json.dumps(part)}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n")

    def log_message(self, *words):
        pass


@pytest.fixture
def server():
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as served:
        thread = threading.Thread(target=served.serve_forever, args=(0.01,))
        thread.start()
        yield served
        served.shutdown()
        thread.join()


@pytest.fixture
def peer(server, tmp_path):
    target = PeerTarget(target=tmp_path, draft=None, dtype="float32", device="cpu")
    return make(f"http://127.0.0.1:{server.server_port}/", target)[0]


def test_a_server_is_timed_behind_its_first_token(peer, server):
    ticks = count()
    leg = peer.run([5, 6], 7, lambda: float(next(ticks)))
    assert leg.tokens == (UNKNOWN,) * 7
    assert (leg.timed, leg.ms) == (6, 6000.0)
    assert server.asked["path"] == "/v1/completions"
    assert (server.asked["prompt"], server.asked["temperature"]) == ([5, 6], 0)
    assert server.asked["ignore_eos"] is True


def test_what_the_server_says_is_its_refusal(peer):
    with pytest.raises(Refusal, match=r"400 .*no such token"):
        peer.run([0], 7, lambda: 0.0)


def test_no_server_is_a_refusal(tmp_path):
    target = PeerTarget(target=tmp_path, draft=None, dtype="float32", device="cpu")
    with pytest.raises(Refusal, match="no answer"):
        make("http://127.0.0.1:9", target)[0].run([1], 4, lambda: 0.0)
