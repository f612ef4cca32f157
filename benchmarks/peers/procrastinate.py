"""Procrastinate with asynchronous tasks, through psycopg's connection pool."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from procrastinate import App, PsycopgConnector

from benchmarks.peers.driver import Driver, began, main


class ProcrastinateDriver(Driver):
    settings = "asynchronous tasks, concurrency=30, listen_notify, a pool of up to 20 connections"

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._runner = asyncio.Runner()
        self._app = App(connector=PsycopgConnector(conninfo=url, min_size=1, max_size=20))
        self._open = False

        @self._app.task(queue="bench", name="bench")
        async def bench(number: int) -> None:
            began(number)

        self._bench = bench

    async def _opened(self) -> None:
        if not self._open:
            await self._app.open_async()
            self._open = True

    def setup(self) -> None:
        self._runner.run(self._setup())

    async def _setup(self) -> None:
        await self._opened()
        await self._app.schema_manager.apply_schema_async()

    def enqueue(self, numbers: Iterable[int]) -> None:
        self._runner.run(self._enqueue(numbers))

    async def _enqueue(self, numbers: Iterable[int]) -> None:
        await self._opened()
        for number in numbers:
            await self._bench.defer_async(number=number)

    def bulk(self, numbers: Sequence[int]) -> None:
        self._runner.run(self._bulk(numbers))

    async def _bulk(self, numbers: Sequence[int]) -> None:
        await self._opened()
        await self._bench.batch_defer_async(*({"number": number} for number in numbers))

    def later(self, number: int, seconds: float) -> None:
        self._runner.run(self._later(number, seconds))

    async def _later(self, number: int, seconds: float) -> None:
        await self._opened()
        await self._bench.configure(schedule_in={"milliseconds": round(seconds * 1000)}).defer_async(number=number)

    def work(self) -> None:
        self._runner.run(self._work())

    async def _work(self) -> None:
        await self._opened()
        await self._app.run_worker_async(queues=["bench"], concurrency=30)


if __name__ == "__main__":
    main(ProcrastinateDriver)
