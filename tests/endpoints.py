"""Another program's HTTP endpoint, in a thread. It records requests and gives the answers that a test chooses."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

CERTIFICATE = Path(__file__).parent / "endpoint.pem"
"""A key, and its certificate for localhost, 127.0.0.1 and crm.example. Only these tests trust it."""
LOCAL = ("127.0.0.0/8", "::1/128")


@dataclass(frozen=True, kw_only=True, slots=True)
class Arrival:
    """A request that the endpoint received."""

    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass
class Endpoint:
    """The requests that arrived, and the answers to give: a status and headers for each request in turn, then 204."""

    port: int = 0
    scheme: str = "http"
    arrivals: list[Arrival] = field(default_factory=list)
    answers: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    on_request: Callable[[Any], None] = lambda _: None
    """Called with the handler of each request, before it answers."""
    answer: Callable[[Arrival], int] | None = None
    """A function that returns the status for each request. If None, `answers` is used."""

    def url(self, path: str = "/hooks", host: str = "localhost") -> str:
        return f"{self.scheme}://{host}:{self.port}{path}"


def trusting() -> ssl.SSLContext:
    """Return TLS settings that accept the certificate."""
    return ssl.create_default_context(cafile=str(CERTIFICATE))


@contextmanager
def endpoint(*answers: tuple[int, dict[str, str]], tls: bool = False, port: int = 0) -> Iterator[Endpoint]:
    """Serve an endpoint on the loopback interface. Port 0 means any free port."""
    made = Endpoint(scheme="https" if tls else "http", answers=list(answers))

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            arrival = Arrival(path=self.path, headers=headers, body=body)
            made.arrivals.append(arrival)
            made.on_request(self)
            status, more = (204, {}) if made.answer is None else (made.answer(arrival), {})
            if made.answers:
                status, more = made.answers.pop(0)
            self.send_response(status)
            for name, value in {"content-length": "0", **more}.items():
                self.send_header(name, value)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            """Ignore errors, because the client may have disconnected."""

    with Server(("127.0.0.1", port), Handler) as server:
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(CERTIFICATE)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        made.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield made
        finally:
            server.shutdown()
            thread.join()
