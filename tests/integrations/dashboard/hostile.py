"""Rows with texts that attack a page: HTML and scripts, terminal escapes, invisible characters, other writing
directions, names of 200 characters, huge JSON, numbers that JavaScript would change, and empty names.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from outboxq import Outbox
from outboxq.model import Claim, EventType, NewTask, OnDeadLetter, Outcome, TaskStatus
from outboxq.model.histograms import BUCKETS, AttemptCounts
from outboxq.model.running import Progress
from outboxq.model.schedules import NewSchedule
from outboxq.store import QueueSample, Store, TaskMetric
from tests.contract.planting import run_or_plant
from tests.integrations.dashboard.filling import BIG, Clock, Filling
from tests.integrations.dashboard.shop import id_at

MARK = "pwned"
"""The global variable that a script sets if it runs."""
SCRIPTS = (
    f"<script>window.{MARK}=1</script>",
    f'"><img src=x onerror="window.{MARK}=1">',
    f"'onmouseover='window.{MARK}=1' autofocus onfocus='window.{MARK}=1",
    f"javascript:window.{MARK}=1//",
    f"</title></textarea></style></script><svg/onload=window.{MARK}=1>",
    f"{{{{ window.{MARK}=1 }}}}{{% raise %}}${{window.{MARK}=1}}",
    f"<a href=javascript:window.{MARK}=1 hx-on:load=window.{MARK}=1 hx-get=/>x</a>",
)
CONTROLS = (
    "\x1b[31mred\x1b]0;title\x07\x9b2J",
    "\u202egpj.exe\u202c \u2066left\u2069 \u200f\u061c",
    "zero\u200b\u200c\u200d\ufeffwidth \u2060 \u00ad soft",
    "line\r\nSet-Cookie: a=b\u2028\u2029end\x85",
    "\ue000 private \U000e0041 tag \ufff9",
)
LONG = ("W" * 200, "a" * 99 + " " + "b" * 100, "漢" * 200, "🏴‍☠️" * 50, "a\u0301\u0302\u0303\u0304" * 40, ("x." * 100))
PATHS = (
    "..",
    "../../etc/passwd",
    "/",
    "a/b//c",
    "?a=b&c#d",
    "%2e%2e%2f%00",
    " ",
    "a b",
    ".",
    "\\",
    "+",
    "~",
    "null",
    "None",
)
NAMES = (*SCRIPTS, *CONTROLS, *LONG, *PATHS)
"""Names of queues, tasks, keys, topics, schedules and workers: 1 to 200 characters that the store accepts."""
INVISIBLE = "[\\u0000-\\u0008\\u000b-\\u001f\\u007f-\\u009f\\u00ad\\u061c\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u206f\\ufeff\\ufff9-\\ufffb\\ue000-\\uf8ff]"
"""Characters that no page may have in its text or attributes, as a regular expression for JavaScript and Python."""


def arguments(number: int) -> str:
    """The arguments of one task as JSON; every fiftieth is huge."""
    text = NAMES[number % len(NAMES)]
    value: dict[str, Any] = {
        text: text,
        "password": "hunter2",
        "big": BIG,
        "digits": int("9" * 60),
        "nul": "a\0b",
        "nested": {"a": [{"b": [text, None, True, 1e308]}]},
    }
    if number % 50 == 0:
        value["huge"] = ["x" * 1000] * 60
        value["deep"] = json.loads("[" * 60 + "]" * 60)
        value["wide"] = "w" * 30_000
    return json.dumps(value, ensure_ascii=number % 2 == 0)


@dataclass
class Hostile(Filling):
    """The written rows, and the ids of tasks without names."""

    nameless: list[UUID] = field(default_factory=list)


def fill(database: Any, rows: int) -> Hostile:
    """Fill the empty tables of a test's `Database` with this many tasks, a fifth of each kind."""
    now = datetime.now(UTC)
    clock = Clock(now - timedelta(hours=1))
    store = Store(database.engine, clock=clock)
    found = Hostile(outbox=Outbox(database.engine), now=now)
    found.workers = dict.fromkeys(("old", "new"), uuid4()) | {"new": uuid4()}
    for name in ("old", "new"):
        _register(store, found.workers[name], NAMES[len(name)])
    for number, ids in enumerate(_batches(store, clock, rows)):
        worker = found.workers["old"] if number % 2 else found.workers["new"]
        claims = store.claim_ready_task(len(ids) * 4 // 5, worker_id=worker)
        _end(store, claims, found, number)
        found.tasks |= {f"{number}": ids[0]}
    _others(store, clock, found)
    database.corrupted = True  # empty names violate a rule of `verify`
    found.nameless = _without_names(database, store)
    clock.now = now
    for worker in found.workers.values():
        store.workers.seen(worker)
    return found


def _register(store: Store, worker: UUID, label: str) -> None:
    queues = [name for name in NAMES if name != " "]
    store.workers.register(
        worker, label=label, queues=queues, concurrency=4, task_names=NAMES, unknown_tasks=[(NAMES[0], NAMES[1])]
    )
    store.workers.describe(worker, host=label, pid=2**31 - 1, version=NAMES[7], release=NAMES[2], busy=2**31 - 1)


def _batches(store: Store, clock: Clock, rows: int) -> Iterator[list[UUID]]:
    size, total = 500, 0
    while total < rows:
        clock.now += timedelta(seconds=3000) / (rows // size + 1)
        tasks = [_task(total + one, clock.now) for one in range(min(size, rows - total))]
        total += len(tasks)
        yield [handle.id for handle in store.enqueue_many(tasks)]


def _task(number: int, at: datetime) -> NewTask:
    name = NAMES[number % len(NAMES)]
    keyed = number % 7 == 0
    return NewTask(
        id=id_at(at),
        task_name=name,
        queue=NAMES[(number // 3) % len(NAMES)],
        topic=NAMES[(number // 5) % len(NAMES)] if number % 5 == 0 else None,
        partition_key=NAMES[(number // 2) % len(NAMES)] if keyed else None,
        on_dead_letter=OnDeadLetter.HOLD if keyed else OnDeadLetter.RELEASE,
        args=arguments(number),
        headers=json.dumps({name: name, "traceparent": name}),
        priority=number % 201 - 100,
        max_attempts=2**31 - 2 if number % 11 == 0 else None,
        lease=timedelta(days=1),
    )


def _end(store: Store, claims: list[Claim], found: Hostile, batch: int) -> None:
    """Complete, fail, retry and cancel claimed tasks; leave some of them running."""
    outcomes = []
    for number, claim in enumerate(claims):
        text = NAMES[number % len(NAMES)]
        error = f"{text}: {text * 20}"
        failure = {
            "error": error,
            "data": {
                "error": error,
                "exception": text,
                "traceback": f"Traceback\n{error}\n" * 30,
                "progress": {"fraction": 0.5, "note": text},
                "log": [{"at": "2026-11-23T03:00:00+00:00", "level": text, "logger": text, "text": error}] * 3,
                "log_omitted": BIG,
            },
        }
        kind = number % 5
        if kind == 0 and batch == 0 and number < 100:
            found.running.append(claim)
        elif kind in {0, 1}:
            outcomes.append(Outcome(claim=claim, event_type=EventType.COMPLETED, result=arguments(number)))
        elif kind == 2:
            outcomes.append(Outcome(claim=claim, event_type=EventType.FAILED, **failure))
        elif kind == 3:
            later = {"event_type": EventType.RETRY_SCHEDULED, "delay": timedelta(days=2)}
            outcomes.append(Outcome(claim=claim, **later, **failure))
        else:
            outcomes.append(Outcome(claim=claim, event_type=EventType.CANCELLED, data={"reason": text}))
    assert not store.finish(outcomes)
    notes = {
        claim.id: Progress(fraction=1 / 3, note=NAMES[place % len(NAMES)]) for place, claim in enumerate(found.running)
    }
    store.heartbeat(found.running, progress=notes)


def _others(store: Store, clock: Clock, found: Hostile) -> None:
    """Write queues, schedules, samples and metrics with each of `NAMES`."""
    for number, name in enumerate(NAMES):
        if number % 3 == 0:
            store.queues.pause(name, create=True)
        store.queues.limit(name, concurrency=2**31 - 1, rate=(2**31 - 1, timedelta(days=3650)), create=True)
        rule = "0 0 29 2 1" if number % 2 else "every 86400"
        store.schedules.put(NewSchedule(name=name[:191], task_name=name, rule=rule, args=arguments(number), queue=name))
        if number % 4 == 0:
            store.schedules.pause(name[:191], reason=name)
    for minutes in (30, 20, 10, 0):
        clock.now = found.now - timedelta(minutes=minutes)
        store.samples.record(
            [QueueSample(queue=name, due=BIG, delayed=0, running=2, failed=BIG, exact=False) for name in NAMES]
        )
        counts = {"completed": 2**31 - 1, "retried": 1, "failed": 2**31 - 1, "wait_seconds": 1e300, "run_seconds": 0.0}
        histogram = [0] * (BUCKETS - 1) + [2**31 - 1]
        store.metrics.record(
            [
                TaskMetric(
                    id=id_at(clock.now),
                    queue=name,
                    task_name=name,
                    counts=AttemptCounts(wait=histogram, run=histogram, **counts),
                )
                for name in NAMES
            ],
            worker_id=found.workers["old"],
        )


def _without_names(database: Any, store: Store) -> list[UUID]:
    """Empty the name of one waiting task and the queue of another, as foreign SQL could despite every CHECK."""
    waiting = store.tasks(status=TaskStatus.READY, limit=2)
    for task, column in zip(waiting, ("task_name", "queue"), strict=True):
        task_id = task.id if database.name == "postgresql" else task.id.hex
        run_or_plant(database, f"UPDATE task_executions SET {column} = '' WHERE id = '{task_id}'")
        if column == "queue":
            run_or_plant(database, f"UPDATE task_outbox SET queue = '' WHERE task_execution_id = '{task_id}'")
    return [task.id for task in waiting]
