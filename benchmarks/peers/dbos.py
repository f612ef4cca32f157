"""DBOS, with one durable workflow in a queue for each task."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from dbos import DBOS, DBOSClient, DBOSConfig, EnqueueOptions

from benchmarks.peers.driver import Driver, began, main


class DbosDriver(Driver):
    settings = "a queue without limits, its defaults, admin server off; the client enqueues"

    def __init__(self, url: str) -> None:
        super().__init__(url)
        address = url if url.startswith("postgresql:") else f"sqlite:///{url}"
        self._config: DBOSConfig = {
            "name": "bench",
            "system_database_url": address,
            "run_admin_server": False,
            "log_level": "ERROR",
        }
        self._client: DBOSClient | None = None

    def _launch(self) -> None:
        DBOS(config=self._config)

        @DBOS.workflow(name="bench")
        def bench(number: int) -> None:
            began(number)

        DBOS.launch()
        DBOS.register_queue("bench")

    def setup(self) -> None:
        self._launch()
        DBOS.destroy()

    def enqueue(self, numbers: Iterable[int]) -> None:
        if self._client is None:
            self._client = DBOSClient(system_database_url=self._config["system_database_url"])
        options: EnqueueOptions = {"workflow_name": "bench", "queue_name": "bench"}
        for number in numbers:
            self._client.enqueue(options, number)

    def work(self) -> None:
        self._launch()
        threading.Event().wait()


if __name__ == "__main__":
    main(DbosDriver)
