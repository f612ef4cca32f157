"""The dashboard behind waitress on loopback, as `outboxq web` serves it.

`python -m tests.integrations.dashboard.serving` fills a new SQLite file and serves it for a browser. `--help` lists the
options.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
from contextlib import suppress
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

from waitress import wasyncore
from waitress.server import create_server

from outboxq import migrations
from outboxq.database.engine import make_engine


class Site:
    """A WSGI application, served by a thread on a free port of 127.0.0.1 until it is closed."""

    def __init__(self, application: Any, *, port: int = 0, threads: int = 4) -> None:
        self._sockets: dict[int, Any] = {}
        self._server = create_server(application, host="127.0.0.1", port=port, threads=threads, map=self._sockets)
        self.port: int = self._server.effective_port  # type: ignore[union-attr]
        self.url = f"http://127.0.0.1:{self.port}"
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._serve, name=f"site-{self.port}", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while not self._stopping.is_set():
            wasyncore.loop(timeout=30, map=self._sockets, count=1, use_poll=True)
        self._server.task_dispatcher.shutdown()
        wasyncore.close_all(self._sockets)

    def close(self) -> None:
        if self._stopping.is_set():
            return
        self._stopping.set()
        with suppress(OSError):  # the thread has already noticed, and has closed everything
            self._server.pull_trigger()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def main() -> None:
    """Fill an empty database, and serve its dashboard until Ctrl-C."""
    from outboxq.web import application
    from tests.integrations.dashboard.filling import fill

    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--url", help="an empty database; default: a new SQLite file")
    options.add_argument("--port", type=int, default=8601)
    options.add_argument("--read-only", action="store_true", help="allow no actions")
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        url = given.url or f"sqlite:///{directory}/{uuid4()}.db"
        migrations.upgrade(url)
        filling = fill(make_engine(url))
        with Site(
            application(filling.outbox, allow_actions=not given.read_only, show_arguments=True), port=given.port
        ) as site:
            print(
                f"{url}\n{site.url}",
                *(f"{site.url}/tasks/{one}  {name}" for name, one in filling.tasks.items()),
                sep="\n",
            )
            forever = threading.Event()
            while not forever.wait(15):
                filling.beat()


if __name__ == "__main__":
    main()
