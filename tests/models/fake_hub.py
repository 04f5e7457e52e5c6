"""A hub on this machine, in a thread, that speaks enough of the protocol for the real client."""

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "0" * 39 + "1"


@contextmanager
def serve(files: Mapping[str, bytes], refuse: str | None = None) -> Iterator[tuple[str, list[str]]]:
    """Serve one repository, or refuse all with an error code; yields address and requests seen."""
    seen: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            seen.append(f"{self.command} {self.path}")
            if refuse is not None:
                self._answer(403 if refuse == "GatedRepo" else 404, b"{}", {"X-Error-Code": refuse})
            elif "/tree/" in self.path:
                self._answer(200, json.dumps(_tree(files)).encode())
            elif self.path.startswith("/api/"):
                self._answer(200, json.dumps(_info(files)).encode())
            else:
                body = files[self.path.rpartition("/")[2]]
                headers = {"ETag": f'"{_digest(body)}"', "X-Repo-Commit": COMMIT}
                self._answer(200, body, headers)

        def _answer(self, code: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
            self.send_response(code)
            for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", seen
    finally:
        server.shutdown()
        server.server_close()


def _digest(body: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(body) + body).hexdigest()


def _tree(files: Mapping[str, bytes]) -> list[dict]:
    return [
        {"type": "file", "path": name, "size": len(body), "oid": _digest(body)}
        for name, body in files.items()
    ]


def _info(files: Mapping[str, bytes]) -> dict:
    return {"id": "org/name", "sha": COMMIT, "siblings": [{"rfilename": name} for name in files]}
