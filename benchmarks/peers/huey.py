"""Huey on PostgreSQL and on SQLite. By default, it stores no results of tasks that return None."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from huey import PostgresHuey, SqliteHuey

from benchmarks.peers.driver import Driver, began, main


class HueyDriver(Driver):
    settings = "one worker thread (more were slower), as it comes: WAL and synchronous=FULL on SQLite"

    def __init__(self, url: str) -> None:
        super().__init__(url)
        postgres = url.startswith("postgresql:")
        self._huey: Any = PostgresHuey("bench", dsn=url) if postgres else SqliteHuey("bench", filename=url)

        @self._huey.task(name="bench")
        def bench(number: int) -> None:
            began(number)

        self._bench = bench

    def enqueue(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._bench(number)

    def later(self, number: int, seconds: float) -> None:
        self._bench.schedule((number,), delay=seconds)

    def work(self) -> None:
        logging.disable(logging.WARNING)
        self._huey.create_consumer(workers=1, worker_type="thread").run()


if __name__ == "__main__":
    main(HueyDriver)
