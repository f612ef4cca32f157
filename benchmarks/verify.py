"""Time each check of `verify` as the log grows: `python -m benchmarks.verify`, or `nox -s bench_verify -- --on sqlite`.

Two databases are filled in bulk with tasks of every kind: finished tasks with and without keys, dead letters, retries,
running tasks, steps, batches, ticks, one task that was claimed very often, and one that was replaced very often. One
database has four times as many events as the other. The growth is the time on the large database divided by that on the
small one: 4 for linear growth, 16 for quadratic growth. A check that takes longer than `--limit` seconds is stopped.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Engine

from benchmarks.bench import SERVER
from benchmarks.past import COUNTED, tidy
from outboxq import migrations
from outboxq.database.dialects import Begin
from outboxq.database.engine import make_engine
from outboxq.store import Store
from outboxq.store.verify import CHECKS
from tests import postgres

TIMES = 4
_BASE = 1735689600
"""The beginning of 2025, in seconds since 1970."""
_WORDS = {
    "postgresql": {
        "series": "generate_series(1, {rows}) AS made (n)",
        "id": "CAST('0190000000007{kind:03x}8000' || lpad(to_hex({n}), 12, '0') AS uuid)",
        "batch": "CAST('8190000000008{kind:03x}8000' || lpad(to_hex({n}), 12, '0') AS uuid)",
        "at": "(to_timestamp({base}) + ({n}) * interval '1 second')",
        "text": "to_char((to_timestamp({base}) + ({n}) * interval '1 second') AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US+00:00')",
        "flag": "({n})",
    },
    "sqlite": {
        "series": "(WITH RECURSIVE made (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM made WHERE n < {rows}) SELECT n FROM made) AS made",
        "id": "printf('0190000000007{kind:03x}8000%012x', {n})",
        "batch": "printf('8190000000008{kind:03x}8000%012x', {n})",
        "at": "(strftime('%Y-%m-%dT%H:%M:%S', {base} + ({n}), 'unixepoch') || '.000000+00:00')",
        "text": "(strftime('%Y-%m-%dT%H:%M:%S', {base} + ({n}), 'unixepoch') || '.000000+00:00')",
        "flag": "({n})",
    },
}
_WORKER = 0xFFF
_EVENT_COLUMNS = "pipeline_execution_id, task_execution_id, event_type, event_data, worker_id, lease_token, created_at"


@dataclass(kw_only=True)
class Filler:
    """Writes tasks of every kind without the library, but exactly as the library does, so that `verify` finds no fault."""

    engine: Engine
    events: int
    """The approximate number of events."""

    def __post_init__(self) -> None:
        self.words = _WORDS[self.engine.dialect.name]
        self.worker = self.id(0, kind=_WORKER)
        self.kinds = 0

    def fill(self) -> None:
        """Fill the tables in one transaction, and collect the database's statistics."""
        with self.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            self.run = (
                connection.connection.dbapi_connection.execute
            )  # the driver's own method, to which % has no meaning
            self.run("BEGIN")
            self._finished(self.events // 4)
            self._failed(self.events // 300)
            self._retrying(self.events // 100)
            self._waiting(self.events // 50)
            self._running(max(10, self.events // 10_000))
            self._stepped(max(1, self.events // 1000), steps=20)
            self._snoozed(self.events // 40)
            self._replaced(self.events // 50)
            self._batches(self.events // 1000, members=10)
            self._ticks(max(1, self.events // 10_000), self.events // 200)
            for statement in COUNTED[self.engine.dialect.name].split(";"):
                self.run(statement)
            self.run("COMMIT")
        tidy(self.engine)

    def id(self, n: object, *, kind: int, of: str = "id") -> str:
        return self.words[of].format(kind=kind, n=n)

    def at(self, n: object) -> str:
        return self.words["at"].format(base=_BASE, n=n)

    def text(self, n: object) -> str:
        return self.words["text"].format(base=_BASE, n=n)

    def series(self, rows: int) -> str:
        return self.words["series"].format(rows=rows)

    def insert(self, table: str, rows: int, values: Mapping[str, object]) -> None:
        """Write a row for each n from 1 to `rows`. The values are SQL expressions that may contain n."""
        self.run(
            f"INSERT INTO {table} ({', '.join(values)}) SELECT {', '.join(map(str, values.values()))} FROM {self.series(rows)}"
        )

    def tasks(self, rows: int, status: str, **values: object) -> str:
        """Write `rows` tasks of a new kind, and return the SQL expression for the id of task n."""
        self.kinds += 1
        given = {
            "id": self.id("n", kind=self.kinds),
            "pipeline_execution_id": self.id("n", kind=self.kinds),
            "task_name": "'bench.verified'",
            "queue": "'bench'",
            "position": f"n + {self.kinds} * CAST(10000000000 AS bigint)",
            "priority": 0,
            "args": "'{}'",
            "status": f"'{status}'",
            "attempt": 1,
            "recovery_attempts": 0,
            "lease_seconds": 60,
            "lease_token": 0,
            "on_dead_letter": "'release'",
            "created_at": self.at("n"),
            "updated_at": self.at("n"),
            **values,
        }
        self.insert("task_executions", rows, given)
        if status == "Ready":
            same = ("queue", "priority", "position", "created_at")
            due = {"task_execution_id": given["id"], "available_at": self.at("n"), **{one: given[one] for one in same}}
            if "partition_key" in values:
                due["partition_key"] = values["partition_key"]
            self.insert("task_outbox", rows, due)
        return str(given["id"])

    def log(self, rows: int, task: str, *events: tuple[str, str, object, object], pipeline: str = "") -> None:
        """Write these events for each task n, in this order. An event has a type, data, a worker and a lease token."""
        numbers = " UNION ALL ".join(f"SELECT {number} AS k" for number in range(len(events)))
        cells = [
            f"CASE k {' '.join(f'WHEN {number} THEN {event[cell]}' for number, event in enumerate(events))} END"
            for cell in range(4)
        ]
        kind, data, worker, token = cells
        worker, token = (f"CAST({cell} AS {to})" for cell, to in ((worker, self._uuid), (token, "bigint")))
        self.run(
            f"INSERT INTO execution_events ({_EVENT_COLUMNS}) SELECT {pipeline or task}, {task}, {kind}, {data}, {worker}, {token}, "
            f"{self.at('n + k')} FROM {self.series(rows)} CROSS JOIN ({numbers}) AS kinds ORDER BY n, k"
        )

    @property
    def _uuid(self) -> str:
        return "uuid" if self.engine.dialect.name == "postgresql" else "text"

    def created(self, more: str = "''") -> tuple[str, str, object, object]:
        return (
            "'task_created'",
            f"""'{{"available_at": "' || {self.text("n")} || '"' || {more} || '}}'""",
            "NULL",
            "NULL",
        )

    def claimed(self, token: object = 1) -> tuple[str, str, object, object]:
        return ("'task_claimed'", """'{"attempt": 1}'""", self.worker, token)

    def ended(self, kind: str, data: str = "NULL", token: object = 1) -> tuple[str, str, object, object]:
        return (f"'{kind}'", data, self.worker, token)

    def _finished(self, rows: int) -> None:
        key = "CASE WHEN n % 10 = 0 THEN 'key ' || (n % 5000) END"
        place = """CASE WHEN n % 10 = 0 THEN ', "position": ' || (n + 10000000000) ELSE '' END"""
        task = self.tasks(rows, "Completed", lease_token=1, completed_at=self.at("n + 2"), partition_key=key)
        self.log(rows, task, self.created(place), self.claimed(), self.ended("task_completed"))

    def _failed(self, rows: int) -> None:
        task = self.tasks(rows, "Failed", lease_token=1, completed_at=self.at("n + 2"), last_error="'ValueError'")
        data = """'{"error": "ValueError", "exception": "builtins.ValueError"}'"""
        self.log(rows, task, self.created(), self.claimed(), self.ended("task_failed", data))
        letter = {
            "task_execution_id": task,
            "queue": "'bench'",
            "task_name": "'bench.verified'",
            "exception": "'builtins.ValueError'",
            "failed_at": self.at("n + 2"),
        }
        self.insert("dead_letters", rows, letter)

    def _retrying(self, rows: int) -> None:
        due = self.at("n")
        task = self.tasks(rows, "Ready", lease_token=1, attempt=2, retry_at=due, last_error="'OSError'")
        data = f"""'{{"available_at": "' || {self.text("n")} || '", "attempt": 2, "error": "OSError"}}'"""
        self.log(rows, task, self.created(), self.claimed(), self.ended("task_retry_scheduled", data))

    def _waiting(self, rows: int) -> None:
        """Write waiting tasks that have a partition key and an idempotency key."""
        place = f"n + {self.kinds + 1} * CAST(10000000000 AS bigint)"
        task = self.tasks(rows, "Ready", partition_key="'waiting ' || (n % 1000)")
        keys = """', "idempotency_key": "' || n || '", "unique_until_finished": true'"""
        self.log(rows, task, self.created(f"""', "position": ' || ({place}) || {keys}"""))
        self._key(rows, task, "CAST(n AS text)")

    def _key(self, rows: int, task: str, key: str) -> None:
        values = {
            "scope": "'bench.verified'",
            "key": key,
            "task_execution_id": task,
            "until_finished": "true",
            "created_at": self.at("n"),
        }
        self.insert("idempotency_keys", rows, values)

    def _running(self, rows: int) -> None:
        task = self.tasks(rows, "Running", lease_token=1, worker_id=self.worker)
        self.log(rows, task, self.created(), self.claimed())
        lease = {
            "task_execution_id": task,
            "queue": "'bench'",
            "lease_token": 1,
            "worker_id": self.worker,
            "lease_expires_at": self.at("n"),
        }
        self.insert("task_leases", rows, lease)

    def _stepped(self, rows: int, steps: int) -> None:
        task = self.tasks(rows, "Completed", lease_token=1, completed_at=self.at(f"n + {steps + 2}"))
        done = [self._step_completed(number) for number in range(1, steps + 1)]
        self.log(rows, task, self.created(), self.claimed(), *done, self.ended("task_completed"))
        for number in range(1, steps + 1):
            self._step(rows, task, number)

    def _step_completed(self, number: object) -> tuple[str, str, object, object]:
        data = f"""'{{"step": "step ' || {number} || '", "number": ' || {number} || ', "ms": 1}}'"""
        return ("'step_completed'", data, self.worker, "NULL")

    def _step(self, rows: int, task: str, number: object, token: object = 1) -> None:
        values = {
            "task_execution_id": task,
            "name": f"'step ' || {number}",
            "number": number,
            "lease_token": token,
            "result": "'1'",
            "created_at": self.at("n"),
        }
        self.insert("task_steps", rows, values)

    def _snoozed(self, claims: int) -> None:
        """Write one task that was claimed `claims` times, and completed a step in each of the first 1 000 claims."""
        task = self.tasks(1, "Ready", lease_token=claims).replace("to_hex(n)", "to_hex(1)").replace(", n)", ", 1)")
        self.log(1, task, self.created())
        data = f"""'{{"available_at": "' || {self.text(1)} || '"}}'"""
        begin, again = self.claimed("n"), self.ended("task_snoozed", data, "n")
        self.log(min(claims, 1000), task, begin, self._step_completed("n"), again)
        if claims > 1000:
            later = [(kind, said, worker, "n + 1000") for kind, said, worker, _ in (begin, again)]
            self.log(claims - 1000, task, *later)
        self._step(min(claims, 1000), task, "n", "n")

    def _replaced(self, times: int) -> None:
        """Write one task that was replaced `times` times."""
        task = self.tasks(1, "Ready").replace("to_hex(n)", "to_hex(1)").replace(", n)", ", 1)")
        self.log(1, task, self.created("""', "idempotency_key": "replaced", "unique_until_finished": true'"""))
        self.log(
            times, task, ("'task_replaced'", f"""'{{"available_at": "' || {self.text(1)} || '"}}'""", "NULL", "NULL")
        )
        self._key(1, task, "'replaced'")

    def _batches(self, batches: int, members: int) -> None:
        """Write unfinished batches. Half of the tasks in each have ended."""
        rows = batches * members
        batch = self.id(f"n % {batches} + 1", kind=1, of="batch")
        half = rows // 2
        task = self.tasks(half, "Completed", lease_token=1, completed_at=self.at("n + 2"), pipeline_execution_id=batch)
        self.log(half, task, self.created(), self.claimed(), self.ended("task_completed"), pipeline=batch)
        task = self.tasks(rows - half, "Ready", pipeline_execution_id=batch)
        self.log(rows - half, task, self.created(), pipeline=batch)
        done = members // 2
        values = {
            "id": self.id("n", kind=1, of="batch"),
            "kind": "'batch'",
            "on_failed": "'continue'",
            "size": members,
            "completed": done,
            "failed": 0,
            "cancelled": 0,
            "closed": "true",
            "stage": 0,
            "runs_then": "true",
            "created_at": self.at("n"),
            "updated_at": self.at("n"),
        }
        self.insert("task_batches", batches, values)
        self.run(
            f"INSERT INTO execution_events ({_EVENT_COLUMNS}) SELECT {values['id']}, NULL, 'batch_created', "
            f"""'{{"kind": "batch", "on_failed": "continue"}}', NULL, NULL, {self.at("n")} FROM {self.series(batches)}"""
        )

    def _ticks(self, schedules: int, ticks: int) -> None:
        name = f"'schedule ' || (n % {schedules})"
        headers = f"""'{{"outboxq-schedule": "' || {name} || '", "outboxq-tick": "' || {self.text("60 * n")} || '"}}'"""
        task = self.tasks(ticks, "Completed", lease_token=1, completed_at=self.at("n + 2"), headers=headers)
        self.log(ticks, task, self.created(), self.claimed(), self.ended("task_completed"))
        self.insert("schedule_ticks", ticks, {"schedule": name, "tick": self.at("60 * n"), "task_execution_id": task})
        values = {
            "name": name,
            "task_name": "'bench.verified'",
            "args": "'{}'",
            "queue": "'bench'",
            "priority": 0,
            "lease_seconds": 60,
            "on_dead_letter": "'release'",
            "rule": "'every 60'",
            "tz": "'UTC'",
            "overlap": "'allow'",
            "catch_up": "'latest'",
            "catch_up_limit": 100,
            "starts_at": self.at(0),
            "planted_until": self.at(60 * ticks),
            "created_at": self.at(0),
            "updated_at": self.at(0),
        }
        self.insert("task_schedules", schedules, values)


@dataclass(frozen=True, kw_only=True)
class Timed:
    """The seconds of each check; infinity for a check that was stopped."""

    checks: Mapping[str, float]
    events: int
    letters: int


def main() -> int:
    given = arguments()
    with tempfile.TemporaryDirectory() as folder:
        found = [measured(given, folder, rows) for rows in (given.events // TIMES, given.events)]
    print(report(given.on, *found))
    return 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.verify", description=__doc__)
    parser.add_argument("--on", choices=sorted(_WORDS), default="postgresql")
    parser.add_argument(
        "--events",
        type=int,
        default=1_000_000,
        help="approximate number of events; the small database has a quarter of them",
    )
    parser.add_argument("--limit", type=float, default=60, help="number of seconds after which a check is stopped")
    return parser.parse_args()


def measured(given: argparse.Namespace, folder: str, events: int) -> Timed:
    if given.on == "postgresql":
        cluster = postgres.start(prefer="own", durable=True, settings=SERVER)
        url = cluster.create_database()
    else:
        url = f"sqlite:///{folder}/{events}.db"
    migrations.upgrade(url)
    engine = make_engine(url)
    try:
        Filler(engine=engine, events=events).fill()
        with engine.connect() as connection:
            counts = [
                connection.exec_driver_sql(f"SELECT count(*) FROM {table}").scalar_one()
                for table in ("execution_events", "dead_letters")
            ]
        checks = {name: seconds(Store(engine), name, given.limit) for name in CHECKS}
        return Timed(checks=checks, events=counts[0], letters=counts[1])
    finally:
        engine.dispose()
        if given.on == "postgresql":
            cluster.stop()


def seconds(store: Store, name: str, limit: float) -> float:
    """Return the seconds of a check, which must not find a fault; infinity if it took longer than `limit`."""
    with store.transaction(Begin.SNAPSHOT) as target:
        values = store.values(target)
        began = time.perf_counter()
        with contextlib.suppress(_Stopped), stopped_after(limit, store, target):
            check = CHECKS[name]
            judge = check.is_broken
            if rows := [row for row in target.run(check.broken, values) if judge is None or judge(row)]:
                raise SystemExit(f"{name} finds {len(rows)} in a database without a fault: {rows[:3]}")
            return time.perf_counter() - began
    return float("inf")


class _Stopped(Exception):
    """The check took too long."""


@contextlib.contextmanager
def stopped_after(limit: float, store: Store, target: Any) -> Iterator[None]:
    raw = target.connection.connection.dbapi_connection
    stop: Callable[[], object] = raw.interrupt if store.dialect.name == "sqlite" else raw.cancel
    ends = time.monotonic() + limit
    timer = threading.Timer(limit, stop)
    timer.start()
    try:
        yield
    except Exception as error:
        if time.monotonic() < ends:
            raise
        raise _Stopped from error
    finally:
        timer.cancel()


def report(kind: str, small: Timed, large: Timed) -> str:
    lines = [
        f"{kind}; {small.letters:,} dead letters among {small.events:,} events, and {large.letters:,} among {large.events:,}",
        f"| check | {small.events:,} events | {large.events:,} events | growth |\n|---|---|---|---|",
    ]
    rows = {name: (small.checks[name], large.checks[name]) for name in CHECKS}
    total = tuple(sum(one[column] for one in rows.values()) for column in (0, 1))
    for name, (few, many) in [*sorted(rows.items(), key=lambda one: -one[1][1]), ("all", total)]:
        lines.append(f"| {name} | {few * 1000:,.0f} ms | {many * 1000:,.0f} ms | {many / few:.1f} |")
    return "\n".join(lines).replace("inf ms", "stopped")


if __name__ == "__main__":
    sys.exit(main())
