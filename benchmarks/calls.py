"""The calls whose cost may grow with the tables, as an application or a worker makes them, and the same calls by hand."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID, uuid4

from benchmarks import raw
from benchmarks.counted import Counter, Counts
from benchmarks.place import Place, completed, new, timed
from benchmarks.queues import OUTBOXQ, RAW
from outboxq.model import Claim
from outboxq.model.uuid7 import uuid7
from outboxq.store import Store

BATCH = 100
WARM = 6
"""The number of initial rounds that are not counted, because psycopg prepares a statement at its fifth execution."""
SLOW = 3
"""The number of times to make a call that may read many rows."""


def times(place: Place, *, waiting: bool, rounds: int) -> dict[str, list[float]]:
    """Return the milliseconds of each call in a separate transaction, including the commit."""
    found: dict[str, list[float]] = {}

    def run(name: str, call: Callable[[Any], Any]) -> Any:
        seconds, answer = timed(lambda: call(None))
        found.setdefault(name, []).append(seconds * 1000)
        return answer

    turns(place, run, rounds, found.clear)
    looks(place, run, waiting)
    return found


def costs(place: Place, *, waiting: bool, rounds: int) -> dict[tuple[str, str], Counts]:
    """Return the pages that each call reads and the WAL that it writes, and the same for the calls by hand."""
    with Counter(place) as counter:
        turns(place, counter.count, rounds, counter.counts.clear)
        looks(place, counter.count, waiting)
        ours = {(OUTBOXQ, name): counts for name, counts in counter.counts.items()}
        counter.counts = {}
        hands = by_hand(counter)
        for turn in range(WARM + rounds):
            if turn == WARM:
                counter.counts.clear()
            next(hands)
        return ours | {(RAW, name): counts for name, counts in counter.counts.items()}


def turns(
    place: Place, run: Callable[[str, Callable[[Any], Any]], Any], rounds: int, forget: Callable[[], None]
) -> None:
    """Make one call of each kind in every round. Each round ends as many tasks as it enqueues."""
    store, worker, ids = place.store, uuid4(), someone(place)
    for turn in range(WARM + rounds):
        if turn == WARM:
            forget()
        run("enqueue 1", lambda using: store.enqueue(new(), using=using))
        run(f"enqueue {BATCH}", lambda using: store.enqueue_many([new() for _ in range(BATCH)], using=using))
        for many, queues in ((1, ["bench"]), (BATCH, ["bench"] if turn % 2 else None)):
            name = f"claim {many}" if queues else f"claim {many}, any queue"
            claims: list[Claim] = run(
                name, lambda using, m=many, q=queues: store.claim_ready_task(m, worker_id=worker, queues=q, using=using)
            )
            assert len(claims) == many
            outcomes = [completed(claim) for claim in claims]
            run(f"complete {many}", lambda using, o=outcomes: store.finish(o, using=using))
        one = next(ids)
        run("get", lambda using, i=one: store.get(i, using=using))
        run("history", lambda using, i=one: store.history(i, using=using))


def looks(place: Place, run: Callable[[str, Callable[[Any], Any]], Any], waiting: bool) -> None:
    store: Store = place.store
    last = store.enqueue(new()).id
    for _ in range(SLOW):
        run("stats", lambda using: store.stats(using=using))
        if waiting:
            run("explain, of the last", lambda using: store.explain(last, using=using))
    [claim] = store.claim_ready_task(1, worker_id=uuid4(), queues=["bench"])
    store.finish([completed(claim)])


def someone(place: Place) -> Iterator[UUID]:
    """Return the ids of tasks from random times in the past."""
    low, high = (UUID(str(place.scalar(END.format(order)))).int for order in ("ASC", "DESC"))
    while True:
        between = UUID(int=random.randint(low, high))
        written = between if place.kind == "postgresql" else between.hex
        yield UUID(str(place.scalar(BEFORE.format(written))))


def by_hand(counter: Counter) -> Iterator[None]:
    worker = uuid4()

    def run(name: str, sql: str, values: dict[str, Any]) -> list[Any]:
        found: list[Any] = counter.count(name, lambda using: fetched(using.exec_driver_sql(sql, values)))
        return found

    while True:
        run("enqueue 1", raw.ENQUEUE_ONE, {"number": 1, "id": uuid7()})
        rows = raw.ENQUEUE_ONE.replace("(SELECT %(id)s::uuid AS id)", "(SELECT unnest(%(ids)s::uuid[]) AS id)")
        run(f"enqueue {BATCH}", rows, {"number": 1, "ids": [uuid7() for _ in range(BATCH)]})
        for many in (1, BATCH):
            claimed = run(f"claim {many}", raw.CLAIM, {"limit": many, "worker": worker})
            assert len(claimed) == many
            ids = [row[0] for row in claimed]
            run(f"complete {many}", raw.COMPLETE, {"ids": ids, "worker": worker})
        yield


def fetched(found: Any) -> list[Any]:
    return list(found.all()) if found.returns_rows else []


END = "SELECT id FROM task_executions ORDER BY id {} LIMIT 1"
BEFORE = "SELECT id FROM task_executions WHERE id <= '{}' ORDER BY id DESC LIMIT 1"
