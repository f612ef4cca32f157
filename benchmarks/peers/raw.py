"""The hand-written SQL of `benchmarks/raw.py` on outboxq's tables, through psycopg only."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import psycopg

from benchmarks import raw
from benchmarks.peers.driver import BATCH, Driver, began, main
from outboxq import migrations
from outboxq.model.uuid7 import uuid7

EXECUTIONS = "id pipeline_execution_id task_name queue position priority args status attempt recovery_attempts lease_seconds lease_token on_dead_letter created_at updated_at"
EVENTS = "pipeline_execution_id task_execution_id event_type event_data created_at"
ENTRIES = "task_execution_id queue priority position available_at created_at"


class RawDriver(Driver):
    settings = (
        f"psycopg, autocommit; completion of {BATCH} and claim of the next {BATCH} sent in one pipeline and committed together, "
        "on one connection; bulk is COPY into the three tables"
    )

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._open: psycopg.Connection[Any] | None = None
        self._worker = uuid4()

    @property
    def _connection(self) -> psycopg.Connection[Any]:
        self._open = self._open or psycopg.connect(self.url, autocommit=True)
        return self._open

    def setup(self) -> None:
        migrations.upgrade(self.url.replace("postgresql:", "postgresql+psycopg:"))

    def enqueue(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._connection.execute(raw.ENQUEUE_ONE, {"id": uuid7(), "number": number})

    def bulk(self, numbers: Sequence[int]) -> None:
        now = datetime.now(UTC).isoformat()
        with self._connection.transaction():
            drawn = self._connection.execute(
                "SELECT nextval('task_position') FROM generate_series(1, %s)", [len(numbers)]
            )
            rows = [(str(uuid7()), position, number) for (position,), number in zip(drawn, numbers, strict=True)]
            self._copy(
                "task_executions",
                EXECUTIONS,
                (
                    f'{id}\t{id}\tbench\tbench\t{position}\t0\t{{"number":{number}}}\tReady\t1\t0\t60\t0\trelease\t{now}\t{now}\n'
                    for id, position, number in rows  # noqa: A001
                ),
            )
            born = f'{{"available_at": "{now}"}}'
            self._copy("execution_events", EVENTS, (f"{id}\t{id}\ttask_created\t{born}\t{now}\n" for id, *_ in rows))  # noqa: A001
            self._copy(
                "task_outbox",
                ENTRIES,
                (f"{id}\tbench\t0\t{position}\t{now}\t{now}\n" for id, position, _ in rows),  # noqa: A001
            )

    def _copy(self, table: str, columns: str, lines: Iterable[str]) -> None:
        statement = f"COPY {table} ({columns.replace(' ', ', ')}) FROM STDIN"
        with self._connection.cursor() as cursor, cursor.copy(statement.encode()) as copy:
            copy.write("".join(lines))

    def prepare(self) -> None:
        self._connection.execute("SELECT 1")

    def work(self) -> None:
        with psycopg.connect(self.url, autocommit=True) as ears:
            ears.execute("LISTEN task_ready")
            self._connection.execute("INSERT INTO sleeping_workers VALUES (%s, '', 'infinity')", [self._worker])
            while True:
                self._drain()
                for _ in ears.notifies(timeout=1, stop_after=1):
                    pass

    def _drain(self) -> None:
        """Run tasks until none is left."""
        mine = {"limit": BATCH, "worker": self._worker}
        claims = self._connection.execute(raw.CLAIM, mine).fetchall()
        while claims:
            ids: list[UUID] = []
            for identity, _token, _name, args, _attempt in claims:
                began(json.loads(args)["number"])
                ids.append(identity)
            with self._connection.pipeline():
                self._connection.execute(raw.COMPLETE, {"ids": ids, "worker": self._worker})
                claimed = self._connection.execute(raw.CLAIM, mine)
                claims = claimed.fetchall()


if __name__ == "__main__":
    main(RawDriver)
