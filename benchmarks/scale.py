"""Count the pages that claims read as dead entries, queues and priorities grow: `python -m benchmarks.scale`, or `nox -s bench_scale`.

The first table contains the pages of outboxq's tables and indexes that PostgreSQL reads, and the commands that are sent.
Both are counts, which do not depend on other processes. Each figure is the median of several calls on a worker's
connection. "front look" is a check from the front, which reads the most pages. The rows are:

* dead entries, which an old snapshot keeps: for a worker on all queues, on one queue, on two queues, or with a limited
  queue;
* queues, with tasks without keys, with keys, or with limits;
* priorities in one queue.

The second table contains figures for each task: claims and ends of a hundred tasks, with an old snapshot or a history that
is partitioned by month; an enqueue while other tasks are waiting; the deletion of finished tasks; and `verify`. The third
table contains the number of tasks that a worker prefetches, by the size of their arguments. `tests/dialects/test_scale.py`
checks the small sizes.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy as sa
from sqlalchemy import Engine, create_engine

from benchmarks.bench import SERVER
from benchmarks.past import Past, tidy
from outboxq import Outbox, migrations
from outboxq.database.engine import make_engine
from outboxq.model import Claim, EventType, NewTask, Outcome
from outboxq.model.periods import Every
from outboxq.model.uuid7 import uuid7
from outboxq.store import ClaimCursor, Store
from outboxq.store.claims.claim import Claiming
from tests import postgres

_FETCHED = """
SELECT coalesce(sum(pg_stat_get_blocks_fetched(oid)), 0) FROM pg_class
WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'i')
"""
DEAD = """
INSERT INTO task_outbox (task_execution_id, queue, priority, position, available_at, created_at)
SELECT gen_random_uuid(), :queue, 0, nextval('task_position'), moment, moment
FROM (SELECT clock_timestamp() - interval '10 s' + number * interval '1 us' AS moment FROM generate_series(1, :number) AS number) AS made
"""
_WAIT = timedelta(minutes=1)
Counts = dict[str, tuple[float, float]]
NAMES = ("claim", "empty claim", "announce", "look", "front look")


def main() -> int:
    given = _arguments()
    cluster = postgres.start(prefer="own", settings=SERVER)
    print("| what grows | " + " | ".join(NAMES) + " |\n|" + "---|" * (1 + len(NAMES)))
    for label, case in _cases(given.quick):
        found = case(cluster.create_database())
        cells = [f"{found[name][0]:,.0f} ({found[name][1]:.0f})" for name in NAMES]
        print(f"| {label} | " + " | ".join(cells) + " |", flush=True)
    print("\n| call | what grows | pages | commands |\n|---|---|---|---|")
    for label, measured in _calls(given.quick):
        for name, (pages, commands) in measured(cluster.create_database()).items():
            print(f"| {name} | {label} | {pages:,.1f} | {commands:.3f} |", flush=True)
    print("\n| size of the arguments | tasks that a worker claims at once | MB of arguments |\n|---|---|---|")
    for size in (100, 200_000) if given.quick else (100, 10_000, 100_000, 250_000):
        most = claimed_ahead(cluster.create_database(), size)
        print(f"| {size:,} bytes | {most:,} | {most * size / 2**20:.1f} |", flush=True)
    return 0


@dataclass(kw_only=True)
class Claimer:
    """The claims and checks of a worker, whose pages and commands are counted."""

    url: str
    queues: Sequence[str] | None = None
    cursor: ClaimCursor = field(default_factory=ClaimCursor)

    def __post_init__(self) -> None:
        migrations.upgrade(self.url)
        self.engine: Engine = make_engine(self.url)
        # There is only one connection, because PostgreSQL counts pages on the connection that read them.
        self.store = Store(
            create_engine(self.engine.url, pool_size=1, max_overflow=0, isolation_level="AUTOCOMMIT")
        ).reserved(threading.Event())
        self.worker = uuid4()
        self.counts: dict[str, list[tuple[float, float]]] = {}

    def enqueue(self, number: int, **options: Any) -> None:
        for start in range(0, number, 1000):
            self.add([{} for _ in range(start, min(start + 1000, number))], **options)

    def add(self, tasks: Sequence[dict[str, Any]], **options: Any) -> None:
        """Enqueue these tasks in the order given."""
        new = [NewTask(**{"id": uuid7(), "task_name": "bench", "args": "{}", **options, **one}) for one in tasks]
        Store(self.engine).enqueue_many(new)

    def claim(self, limit: int = 1) -> int:
        claims = self.take(limit)
        self.end(claims)
        return len(claims)

    def take(self, limit: int) -> list[Claim]:
        return self.store.claim_ready_task(limit, worker_id=self.worker, queues=self.queues, cursor=self.cursor)

    def end(self, claims: Sequence[Claim]) -> None:
        if claims:
            self.store.finish([Outcome(claim=claim, event_type=EventType.COMPLETED) for claim in claims])

    def close(self) -> None:
        self.store.bound_engine.dispose()
        self.engine.dispose()

    def count(self, name: str, call: Callable[[], Any]) -> Any:
        commands = _Commands(self.store)
        before = self._fetched()
        with commands.counted():
            found = call()
        self.counts.setdefault(name, []).append((self._fetched() - before, commands.number))
        return found

    def middle(self) -> dict[str, tuple[float, float]]:
        return {
            name: (statistics.median(one for one, _ in found), statistics.median(one for _, one in found))
            for name, found in self.counts.items()
        }

    def measure(self, times: int = 9) -> dict[str, tuple[float, float]]:
        """Count claims of one task from a backlog, then claims that find nothing, and the statements with which a worker falls
        asleep."""
        sleeping, floors = self.store.sleeping_workers, self.cursor.floors
        for _ in range(3):
            self.claim()
        claims: list[Claim] = []
        for _ in range(times):
            claims += self.count("claim", lambda: self.take(1))
        self.end(claims)
        while self.claim(1000):
            pass
        horizon = sleeping.horizon()
        for _ in range(2):  # the first statement is planned
            sleeping.announce(self.worker, self.queues, _WAIT, session=1)
            sleeping.look(horizon, self.queues, None, floors)
        for _ in range(times):
            self.count("empty claim", self.claim)
            self.count("announce", lambda: sleeping.announce(self.worker, self.queues, _WAIT, session=1))
            self.count("look", lambda: sleeping.look(horizon, self.queues, None, floors))
        time.sleep(1.1)
        self.count("front look", lambda: sleeping.look(horizon, self.queues))
        return self.middle()

    def _fetched(self) -> float:
        with self.store.bound_engine.connect() as connection:
            connection.exec_driver_sql("SELECT pg_stat_force_next_flush()")
            connection.exec_driver_sql("SELECT 1")
            return float(connection.exec_driver_sql(_FETCHED).scalar_one())


class _Commands:
    """Counts the commands that a store sends."""

    def __init__(self, store: Store) -> None:
        self._dialect, self.number = type(store.dialect), 0

    @contextmanager
    def counted(self) -> Iterator[None]:
        dialect, begin, fetch = self._dialect, self._dialect.execute_begin, self._dialect.fetch

        def begins(own: Any, raw: Any, text: str, execute: Any) -> None:
            self.number += 1 + text.count(";") + text.startswith("BEGIN")  # includes the COMMIT
            begin(own, raw, text, execute)

        def fetches(own: Any, *arguments: Any, **options: Any) -> Any:
            self.number += 1
            return fetch(own, *arguments, **options)

        dialect.execute_begin, dialect.fetch = begins, fetches  # type: ignore[assignment,method-assign]
        try:
            yield
        finally:
            dialect.execute_begin, dialect.fetch = begin, fetch  # type: ignore[assignment,method-assign]


def under_snapshot(
    url: str, dead: int, queues: Sequence[str] | None, *, limited: bool = False
) -> dict[str, tuple[float, float]]:
    with (
        closing(Claimer(url=url, queues=queues)) as claimer,
        claimer.engine.connect().execution_options(isolation_level="REPEATABLE READ") as old,
    ):
        old.exec_driver_sql("SELECT 1")
        if limited:
            claimer.store.queues.limit("default", concurrency=1_000, create=True)
        bury(claimer, dead, queues or ["default"])
        claimer.add([{"queue": queue} for _ in range(30) for queue in queues or ["default"]])
        return claimer.measure()


def bury(claimer: Claimer, number: int, queues: Sequence[str]) -> None:
    """Create this number of dead entries, divided among the queues."""
    for queue in queues:
        with claimer.engine.begin() as connection:
            connection.execute(sa.text(DEAD), {"queue": queue, "number": number // len(queues)})
        with claimer.engine.begin() as connection:
            connection.execute(sa.text("DELETE FROM task_outbox WHERE queue = :queue"), {"queue": queue})
            connection.exec_driver_sql("SELECT pg_stat_force_next_flush()")


def many_queues(url: str, number: int, kind: str) -> dict[str, tuple[float, float]]:
    names = [f"queue-{place:05}" for place in range(number)]
    with closing(Claimer(url=url)) as claimer:
        for start in range(0, number, 500):
            of = names[start : start + 500]
            claimer.add(
                [
                    {"queue": queue, "partition_key": f"{place}" if kind == "keyed" else None}
                    for queue in of
                    for place in range(max(2, 20 // number))
                ]
            )
        if kind == "limited":
            for queue in names:
                claimer.store.queues.limit(queue, concurrency=5, create=True)
        return claimer.measure(3)


def priorities(url: str, number: int) -> dict[str, tuple[float, float]]:
    with closing(Claimer(url=url)) as claimer:
        claimer.add([{"priority": 100 - place % number} for place in range(400)])
        return claimer.measure()


def in_batches(
    url: str, *, dead: int = 0, queues: Sequence[str] | None = None, past: int = 0, every: Every | None = None
) -> Counts:
    """Count the pages and commands for each task, in claims and ends of 1 and of 100 tasks, and those of a look-up. The
    tables contain `dead` dead entries and `past` finished tasks.
    """
    with (
        closing(Claimer(url=url, queues=queues)) as claimer,
        claimer.engine.connect().execution_options(isolation_level="REPEATABLE READ") as old,
    ):
        if past:
            Past.of_months(past).write(claimer.engine)
            tidy(claimer.engine)
        if every:
            migrations.partition(url, every=every)
        if dead:
            old.exec_driver_sql("SELECT 1")
            bury(claimer, dead, queues or ["default"])
        claimer.enqueue(1_500)
        for limit in (1, 100):
            for _ in range(6):  # the first statements are planned
                claimer.claim(limit)
            for _ in range(5):
                claims = claimer.count(f"claim {limit}", lambda limit=limit: claimer.take(limit))
                claimer.count("look-up", lambda claims=claims: claimer.store.get(claims[0].id))
                claimer.count(f"end {limit}", lambda claims=claims: claimer.end(claims))
        return {
            name: (pages / 100, commands / 100) if name.endswith("100") else (pages, commands)
            for name, (pages, commands) in claimer.middle().items()
        }


def verified(url: str, past: int) -> tuple[float, float]:
    """Count the pages and commands of `verify` for each of `past` finished tasks."""
    with closing(Claimer(url=url)) as claimer:
        Past.of_months(past).write(claimer.engine)
        tidy(claimer.engine)
        assert claimer.count("verify", claimer.store.verify) == []
        pages, commands = claimer.middle()["verify"]
        return pages / past, commands / past


def enqueued(url: str, waiting: int) -> tuple[float, float]:
    """Count the pages and commands of an enqueue of one task while `waiting` tasks are waiting."""
    with closing(Claimer(url=url)) as claimer:
        claimer.enqueue(waiting)
        for _ in range(9):
            new = NewTask(id=uuid7(), task_name="bench", args="{}")
            claimer.count("enqueue", lambda new=new: claimer.store.enqueue(new))
        return claimer.middle()["enqueue"]


def pruned(url: str, number: int, batch: int) -> tuple[float, float]:
    """Count the pages and commands for each task in a prune of `number` tasks."""
    with closing(Claimer(url=url)) as claimer:
        claimer.enqueue(number)
        while claimer.claim(1_000):
            pass
        time.sleep(0.001)  # ensures that all tasks have ended before the time of the prune
        deleted = claimer.count("prune", lambda: claimer.store.prune(timedelta(0), batch=batch, pause=0))
        assert deleted == number
        pages, commands = claimer.middle()["prune"]
        return pages / number, commands / number


def claimed_ahead(url: str, size: int, number: int = 1_500) -> int:
    """Return the largest number of tasks with arguments of this size that a worker with one thread claims at once, if only
    their number and their size limit the claim (`prefetch=1_000`).
    """
    outbox, found = Outbox(url), [0]
    outbox.upgrade()

    def work(words: str) -> None:
        """Do nothing."""

    task, claim = outbox.task(work, name="work"), Claiming.claim_ready_task

    def noting(*arguments: Any, **options: Any) -> Any:
        claims = claim(*arguments, **options)
        found[0] = max(found[0], len(claims))
        return claims

    several = min(number, max(2, 2**25 // size))  # at most 32 MB, which is twice the limit for waiting tasks
    task.using(outbox).enqueue_many([{"words": "x" * size} for _ in range(several)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Store, "claim_ready_task", noting)
        outbox.worker(concurrency=1, prefetch=1_000).run(burst=True)
    outbox.store.bound_engine.dispose()
    return found[0]


def _cases(quick: bool) -> Iterator[tuple[str, Callable[[str], dict[str, tuple[float, float]]]]]:
    for dead in (0, 20_000) if quick else (0, 20_000, 100_000):
        for label, queues in (("all queues", None), ("one", ["default"]), ("two", ["default", "mail"])):
            yield (
                f"{dead:,} dead entries, {label}",
                lambda url, dead=dead, queues=queues: under_snapshot(url, dead, queues),
            )
        yield (
            f"{dead:,} dead entries, a limited queue",
            lambda url, dead=dead: under_snapshot(url, dead, None, limited=True),
        )
    for number in (1, 100) if quick else (1, 100, 1_000, 5_000):
        for kind in ("plain", "keyed", "limited"):
            yield f"{number:,} queues, {kind}", lambda url, number=number, kind=kind: many_queues(url, number, kind)
    for number in (1, 20) if quick else (1, 20, 200):
        yield f"{number} priorities", lambda url, number=number: priorities(url, number)


def _calls(quick: bool) -> Iterator[tuple[str, Callable[[str], Counts]]]:
    for dead in (0, 20_000) if quick else (0, 100_000):
        for label, queues in (("all queues", None), ("one", ["default"])):
            yield (
                f"{dead:,} dead entries, {label}",
                lambda url, dead=dead, queues=queues: in_batches(url, dead=dead, queues=queues),
            )
    past = 1_000 if quick else 100_000
    for label, every in (("plain", None), ("in months", Every.MONTH)):
        yield f"{past:,} past tasks, {label}", lambda url, every=every: in_batches(url, past=past, every=every)
    for waiting in (0, 1_000) if quick else (0, 10_000, 100_000):
        yield f"{waiting:,} waiting tasks", lambda url, waiting=waiting: {"enqueue 1": enqueued(url, waiting)}
    for number in (1_000,) if quick else (1_000, 10_000):
        for batch in (50, 2_000):
            yield (
                f"{number:,} old tasks",
                lambda url, number=number, batch=batch: {f"prune 1, batch={batch}": pruned(url, number, batch)},
            )
    for past in (1_000, 10_000) if quick else (10_000, 1_000_000):
        yield f"{past:,} past tasks", lambda url, past=past: {"verify 1": verified(url, past)}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="measure only the small sizes, in half a minute")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
