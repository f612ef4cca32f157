"""PgQueuer with asyncpg and uvloop, as its documentation recommends."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from datetime import timedelta

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.models import Job
from pgqueuer.queries import Queries

from benchmarks.peers.driver import BATCH, Driver, began, main


class PgQueuerDriver(Driver):
    settings = (
        f"asyncpg, uvloop, batch_size={BATCH} (its default is 10), its autovacuum settings applied, durable tables"
    )

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self._queries: Queries | None = None

    def setup(self) -> None:
        self._runner.run(self._setup())

    async def _setup(self) -> None:
        queries = await self._connected()
        await queries.install()
        await queries.optimize_autovacuum()

    async def _connected(self) -> Queries:
        if self._queries is None:
            self._queries = Queries.from_asyncpg_connection(await asyncpg.connect(self.url))
        return self._queries

    def enqueue(self, numbers: Iterable[int]) -> None:
        self._runner.run(self._enqueue(numbers))

    async def _enqueue(self, numbers: Iterable[int]) -> None:
        queries = await self._connected()
        for number in numbers:
            await queries.enqueue("bench", b"%d" % number)

    def bulk(self, numbers: Sequence[int]) -> None:
        self._runner.run(self._bulk(numbers))

    async def _bulk(self, numbers: Sequence[int]) -> None:
        queries = await self._connected()
        await queries.enqueue(["bench"] * len(numbers), [b"%d" % number for number in numbers], [0] * len(numbers))

    def later(self, number: int, seconds: float) -> None:
        self._runner.run(self._later(number, seconds))

    async def _later(self, number: int, seconds: float) -> None:
        queries = await self._connected()
        await queries.enqueue("bench", b"%d" % number, execute_after=timedelta(seconds=seconds))

    def work(self) -> None:
        self._runner.run(self._work())

    async def _work(self) -> None:
        queue = PgQueuer.from_asyncpg_connection(await asyncpg.connect(self.url))

        @queue.entrypoint("bench")
        async def bench(job: Job) -> None:
            began(int(job.payload or b"0"))

        await queue.run(batch_size=BATCH)


if __name__ == "__main__":
    main(PgQueuerDriver)
