"""Measure whole pages of the dashboard, as a WSGI server requests them. `benchmarks.dashboard` fills the tables."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Iterator
from datetime import timedelta
from urllib.parse import quote
from uuid import UUID

from sqlalchemy import Engine, event
from werkzeug.test import Client

from outboxq import Outbox
from outboxq.model import TaskStatus
from outboxq.store import Store
from outboxq.web import application

GOAL_MS, GOAL_STATEMENTS = 50.0, 5
_PAUSE = 0.012
"""Seconds between two requests. A tab sends a request every 5 s, and ten tabs do not send theirs at the same moment."""


def measure_pages(engine: Engine, worker: UUID, rounds: int) -> int:
    """Print a table of all pages, and return the number of pages that miss their goal. The check for changes is not counted,
    because all pages share it."""
    outbox = Outbox(engine)
    client = Client(application(outbox, allow_actions=True, show_arguments=True, authorize=lambda _: "write"))
    sent: list[str] = []

    def see(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if not statement.startswith(("BEGIN", "COMMIT", "ROLLBACK", "SET")):
            sent.append(statement)

    event.listen(outbox.store.bound_engine, "before_cursor_execute", see)
    outbox.store.change_mark()
    mark = sent[-1]
    gc.collect()
    gc.freeze()  # as `outboxq web` does
    print("| page | statements | ms, median | ms, 95th percentile | |\n|---|---|---|---|---|")
    missed = 0
    for path in _paths(outbox.store, worker):
        took, most = [], 0
        for number in range(-2, rounds):  # the first requests look up which tables exist
            sent.clear()
            began = time.perf_counter()
            # The URL differs each time, so that the response does not come from the cache.
            answer = client.get(path if "?action=" in path else f"{path}{'&' if '?' in path else '?'}round={number}")
            if number >= 0:
                took.append((time.perf_counter() - began) * 1000)
                most = max(most, sum(one != mark for one in sent))
            assert answer.status_code == 200, f"{path}: {answer.status}"
            time.sleep(_PAUSE)
        took.sort()
        late = took[int(len(took) * 0.95)]
        misses = late > GOAL_MS or most > GOAL_STATEMENTS
        missed += misses
        said = "misses its goal" if misses else ""
        print(f"| {path} | {most} | {statistics.median(took):.1f} | {late:.1f} | {said} |", flush=True)
    return missed


def _paths(store: Store, worker: UUID) -> Iterator[str]:
    """Return the paths of all pages. A large page occurs once for each filter that uses a different index."""
    yield from ("/", "/?range=24h", "/?range=7d", "/queues", "/queue?name=bench", "/queue?name=keyed&range=24h")
    yield "/tasks"
    for state in TaskStatus:
        yield f"/tasks?state={state.lower()}"
    yield from ("/tasks?state=ready&queue=rare", "/tasks?task=bench.past", "/tasks?key=k7")
    for status, queue in ((TaskStatus.READY, "bench"), (TaskStatus.READY, "keyed"), (TaskStatus.RUNNING, None)):
        yield f"/tasks/{store.tasks(status=status, queue=queue, limit=1)[0].id}"
    yield f"/tasks/{store.tasks(status=TaskStatus.FAILED, limit=1)[0].id}"
    yield f"/tasks/{store.tasks(until=store.now() - timedelta(days=15), limit=1)[0].id}"
    yield "/failures"
    yield f"/failures/{quote(str(store.dead_letters.groups(limit=1).groups[0].id))}"
    yield from ("/bulk?action=redrive&queue=past", "/bulk?action=cancel&queue=bench")
    yield from ("/workers", f"/workers/{worker}", "/schedules", "/schedule?name=schedule1", "/system")
