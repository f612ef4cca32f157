"""Chancy with its asyncio executor."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta

from chancy import Chancy, Job, Queue, Worker, job

from benchmarks.peers.driver import Driver, began, main


@job(queue="bench")
async def bench(*, number: int) -> None:
    began(number)


class ChancyDriver(Driver):
    settings = "its asyncio executor, a queue of 1000 slots, eager polling, its default plugins"

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._runner = asyncio.Runner()
        log = logging.getLogger("bench.chancy")
        log.setLevel(logging.ERROR)
        self._app = Chancy(url, log=log)

    def setup(self) -> None:
        self._runner.run(self._setup())

    async def _setup(self) -> None:
        await self._app.migrate()
        await self._app.declare(
            Queue("bench", concurrency=1000, executor=Chancy.Executor.Async, eager_polling=True), upsert=True
        )

    def enqueue(self, numbers: Iterable[int]) -> None:
        self._runner.run(self._enqueue(numbers))

    async def _enqueue(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            await self._app.push(self._job(number))

    def bulk(self, numbers: Sequence[int]) -> None:
        self._runner.run(self._bulk(numbers))

    async def _bulk(self, numbers: Sequence[int]) -> None:
        async for _ in self._app.push_many([self._job(number) for number in numbers]):
            pass

    def later(self, number: int, seconds: float) -> None:
        due = datetime.now(UTC) + timedelta(seconds=seconds)
        self._runner.run(self._app.push(self._job(number).with_scheduled_at(due)))

    def _job(self, number: int) -> Job:
        return Job.from_func(bench, queue="bench", kwargs={"number": number})

    def work(self) -> None:
        self._runner.run(self._work())

    async def _work(self) -> None:
        async with Worker(self._app) as worker:
            await worker.wait_for_shutdown()


if __name__ == "__main__":
    # Chancy finds a job by its module's name, which would be __main__ here.
    from benchmarks.peers import chancy

    main(chancy.ChancyDriver)
