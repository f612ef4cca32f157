"""A Sentry server on loopback that keeps the items it receives."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from sentry_sdk.envelope import Envelope


class Endpoint(ThreadingHTTPServer):
    """The server; `dsn` is its address for `sentry_sdk.init()`."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.items: list[tuple[str, Any]] = []
        self.dsn = f"http://key@127.0.0.1:{self.server_address[1]}/1"

    def of(self, kind: str) -> list[Any]:
        return [payload for found, payload in list(self.items) if found == kind]


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        for item in Envelope.deserialize(body).items:
            self.server.items.append((item.type, item.payload.json))  # type: ignore[attr-defined]
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: object) -> None: ...


@contextmanager
def listening() -> Iterator[Endpoint]:
    """Run a server until the block ends."""
    server = Endpoint()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
