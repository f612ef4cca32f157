"""A row that got past the CHECKs harms only itself: its neighbours are claimed, run and recovered, and every command works."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, NamedTuple
from uuid import UUID, uuid4

import pytest
from click.testing import CliRunner
from sqlalchemy import event
from sqlalchemy.exc import IntegrityError

from outboxq import Outbox
from outboxq.cli import main
from outboxq.model import EventType, Outcome, TaskStatus
from outboxq.store import Reason, Store
from outboxq.worker.leases import Leases
from outboxq.worker.upkeep.recovery import Recovery
from tests.contract.planting import plant

HEALTHY = 30


class Place(NamedTuple):
    """A database with an outbox and a task."""

    database: Any
    outbox: Outbox
    work: Any
    store: Store


EXECUTION, ENTRY = "task_executions", "task_outbox"

ROWS = {
    "endless lease": (EXECUTION, "lease_seconds = {inf}"),
    "lease of 1e308": (EXECUTION, "lease_seconds = 1e308"),
    "lease of 1e12": (EXECUTION, "lease_seconds = 1e12"),
    "negative lease": (EXECUTION, "lease_seconds = -1e300"),
    "endless timeout": (EXECUTION, "timeout_seconds = {inf}"),
    "last token": (EXECUTION, "lease_token = 9223372036854775807"),
    "last attempt": (EXECUTION, "attempt = 2147483647"),
    "created never": (EXECUTION, "created_at = 'infinity'"),
    "created before time": (EXECUTION, "created_at = '-infinity'"),
    "started never": (EXECUTION, "first_started_at = 'infinity'"),
    "expires never": (EXECUTION, "expires_at = 'infinity'"),
    "due before time": (ENTRY, "available_at = '-infinity'"),
    "due never": (ENTRY, "available_at = 'infinity'"),
    "empty key": (ENTRY, "partition_key = ''"),
    "empty queue": (ENTRY, "queue = ''"),
    "priority out of range": (ENTRY, "priority = 20000"),
}
OF_POSTGRESQL = {
    "lease that is no number": (EXECUTION, "lease_seconds = 'NaN'"),
    "created before Christ": (EXECUTION, "created_at = '0044-03-15 12:00:00+00 BC'"),
    "created in 12000": (EXECUTION, "created_at = '12000-01-01 00:00:00+00'"),
}
OF_SQLITE = {
    "created at no time": (EXECUTION, "created_at = ''"),
    "created in words": (EXECUTION, "created_at = 'never'"),
    "created in month 99": (EXECUTION, "created_at = '9999-99-99Tzz'"),
    "lease in words": (EXECUTION, "lease_seconds = 'long'"),
    "timeout in words": (EXECUTION, "timeout_seconds = 'long'"),
    "due without offset": (ENTRY, "available_at = '2999-01-01 00:00:00'"),
    "due at no time": (ENTRY, "available_at = ''"),
    "pipeline that is no id": (EXECUTION, "pipeline_execution_id = 'no hex'"),
}
ROWS_OF = {"sqlite": ROWS | OF_SQLITE, "postgresql": ROWS | OF_POSTGRESQL}
CASES = [
    pytest.param(database, {name: row}, id=f"{database}-{name}", marks=pytest.mark.full)
    for database, rows in ROWS_OF.items()
    for name, row in rows.items()
] + [pytest.param(database, rows, id=f"{database}-all") for database, rows in ROWS_OF.items()]


OTHERWISE_NAMED = ("timeout_seconds", "lease_seconds")
"""Columns whose violations have separate checks."""
UNUSABLE = ("lease_seconds", "timeout_seconds", "created_at", "first_started_at", "pipeline_execution_id")
"""Columns whose hostile values no worker can use, so that the task fails."""


@pytest.fixture
def place(request, monkeypatch):
    monkeypatch.setattr("outboxq.store.checks._EXAMPLES", 1000)
    database = request.getfixturevalue(request.param)
    database.corrupted = True
    outbox = Outbox(database.engine)
    return Place(database=database, outbox=outbox, work=outbox.task(name="work")(lambda: None), store=outbox.store)


def enqueue(place, times=HEALTHY):
    return [handle.id for handle in place.work.using(place.outbox).enqueue_many([()] * times)]


def hostile_row(place, table, change):
    (task_id,) = enqueue(place, 1)
    key = "id" if table == EXECUTION else "task_execution_id"
    infinity = "9e999" if place.database.name == "sqlite" else "'Infinity'"
    plant(place.database, f"UPDATE {table} SET {change.format(inf=infinity)} WHERE {key} = '{task_id.hex}'")
    return task_id


def command(place, *arguments):
    url = place.database.engine.url.render_as_string(hide_password=False)
    return CliRunner().invoke(main, [*arguments, "--url", url])


def assert_all_go_on(place, *task_ids):
    """Check that nothing that reads the tables raises an error."""
    store = place.store
    store.verify()
    store.look_ahead()
    store.log.tail()
    for task_id in task_ids:
        store.history(task_id)
        store.get(task_id)
    for arguments in (
        ("task", "list"),
        *(("task", what, str(task_id)) for task_id in task_ids for what in ("show", "explain")),
        ("status",),
        ("failed", "list"),
        ("verify",),
        ("prune", "--yes", "--older-than", "1d"),
    ):
        result = command(place, *arguments)
        assert result.exception is None or isinstance(result.exception, SystemExit), (arguments, result.exception)


@pytest.mark.timeout(120)  # a worker that claims nothing would run forever
@pytest.mark.parametrize(("place", "rows"), CASES, indirect=["place"])
def test_the_healthy_neighbours_of_hostile_rows_are_completed(place, rows):
    healthy, hostile = enqueue(place, HEALTHY // 2), {}
    for table, change in rows.values():
        hostile[hostile_row(place, table, change)] = table, change
        healthy += enqueue(place, 2)
    healthy += enqueue(place, HEALTHY // 2)
    place.outbox.worker(concurrency=4, notifications=False).run(burst=True)
    assert {place.store.get(one).status for one in healthy} == {TaskStatus.COMPLETED}
    assert {place.store.get(one).lease_token for one in healthy} == {1}
    assert_all_go_on(place, *hostile)
    waiting = {str(UUID(str(row[0]))) for row in place.database.rows("SELECT task_execution_id FROM task_outbox")}
    named = {
        str(example) for one in place.store.verify() if one.name.endswith("out_of_bounds") for example in one.examples
    }
    for task_id, (table, change) in hostile.items():
        if change.partition(" ")[0] not in OTHERWISE_NAMED and (table == EXECUTION or str(task_id) in waiting):
            assert str(task_id) in named, change
        if change.startswith(UNUSABLE):
            assert place.store.get(task_id).status is TaskStatus.FAILED, change
            assert "UnusableRow" in place.store.get(task_id).last_error, change


EVENTS = {"no JSON": "event_data = 'gar{bage'", "a list": "event_data = '[1]'"}
OF_POSTGRESQL_EVENTS = {"never": "created_at = 'infinity'", "before time": "created_at = '-infinity'"}


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("place", "change"),
    [
        pytest.param(database, change, id=f"{database}-{name}")
        for database, events in {"sqlite": EVENTS, "postgresql": EVENTS | OF_POSTGRESQL_EVENTS}.items()
        for name, change in events.items()
    ],
    indirect=["place"],
)
def test_a_hostile_event_does_not_prevent_reading_the_others(place, change):
    task_id, other = enqueue(place, 2)
    plant(place.database, f"UPDATE execution_events SET {change} WHERE task_execution_id = '{task_id.hex}'")
    assert [event.event_type for event in place.store.history(task_id)] == [EventType.CREATED]
    events, _ = place.store.log.tail()
    assert {event.task_execution_id for event in events} == {task_id, other}
    place.store.verify()
    assert_all_go_on(place, task_id)
    place.outbox.worker(concurrency=4, notifications=False).run(burst=True)
    assert {place.store.get(one).status for one in (task_id, other)} == {TaskStatus.COMPLETED}


LEASES = {
    "ended before time": ("task_leases", "lease_expires_at = '-infinity'"),
    "endless lease": (EXECUTION, "lease_seconds = {inf}"),
    "last token": (EXECUTION, "lease_token = 9223372036854775807"),
    "expires never": (EXECUTION, "expires_at = 'infinity'"),
    "created never": (EXECUTION, "created_at = 'infinity'"),
}


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("place", "table", "change"),
    [
        pytest.param(database, *row, id=f"{database}-{name}")
        for database in ("sqlite", "postgresql")
        for name, row in LEASES.items()
    ],
    indirect=["place"],
)
def test_the_tasks_of_a_dead_worker_are_recovered_despite_a_hostile_lease(place, table, change):
    frozen, clock = place.database.frozen, place.database.clock
    hostile, *healthy = [place.database.add(frozen).id for _ in range(HEALTHY + 1)]
    assert len(frozen.claim_ready_task(HEALTHY + 1, worker_id=uuid4())) == HEALTHY + 1
    key = "id" if table == EXECUTION else "task_execution_id"
    infinity = "9e999" if place.database.name == "sqlite" else "'Infinity'"
    plant(place.database, f"UPDATE {table} SET {change.format(inf=infinity)} WHERE {key} = '{hostile.hex}'")
    frozen.outlasting_leases()
    told, listed = frozen.explain(hostile), frozen.outlooks([frozen.get(hostile)])[hostile]
    assert (told.reason is Reason.INCONSISTENT) is (listed.reason is Reason.INCONSISTENT)
    clock.advance(timedelta(hours=1))
    assert {lease.id for lease in frozen.expired_leases().leases} == {hostile, *healthy}
    seen = frozen.expired_leases().leases
    recovery = Recovery(
        frozen,
        Leases(frozen),
        every=timedelta(seconds=1),
        prove_writable=lambda: None,
        on_recovery=lambda: None,
    )
    assert set(healthy) <= {one.id for one in recovery._recover(seen)}
    assert {frozen.get(one).status for one in healthy} == {TaskStatus.READY}
    frozen.outlasting_leases()
    assert set(healthy) <= {claim.id for claim in frozen.claim_ready_task(1000, worker_id=uuid4())}


NO_TEXT, BLOB = "CAST(X'31ff' AS TEXT)", "X'31ff'"
TEXTS = {
    EXECUTION: ("task_name", "queue", "topic", "partition_key", "args", "headers"),
    ENTRY: ("queue", "partition_key", "topic"),
}
NO_TEXTS = [
    (table, column, value) for table, columns in TEXTS.items() for column in columns for value in (NO_TEXT, BLOB)
]
NO_NUMBERS = [
    *((EXECUTION, column, BLOB) for column in ("attempt", "recovery_attempts", "expires_at", "pipeline_execution_id")),
    (ENTRY, "priority", "'high'"),
    (ENTRY, "task_execution_id", NO_TEXT),
    (ENTRY, "task_execution_id", BLOB),
]


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_invalid_text_does_not_hide_the_other_rows_from_an_engine_with_listeners(place):
    """Tracing listens to statements, which then take SQLAlchemy's cursor."""
    event.listen(place.database.engine, "before_cursor_execute", lambda *_: None)
    ids = {place.work.using(place.outbox).enqueue().id for _ in range(3)}
    plant(place.database, f"UPDATE {EXECUTION} SET task_name = {NO_TEXT} WHERE id = '{min(ids).hex}'")
    assert {task.id for task in place.store.tasks()} == ids


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("table", "column", "value", "keyed"),
    [
        # In CI, one of a column's two values is that of a task with a key, and the other one that of a task without a key.
        pytest.param(*row, keyed, marks=[pytest.mark.full] if (number + number // 2 + keyed) % 2 else [])
        for number, row in enumerate(NO_TEXTS + NO_NUMBERS)
        for keyed in (False, True)
    ],
)
def test_the_neighbours_of_a_row_with_a_value_of_another_type_are_claimed_and_listed(
    place, table, column, value, keyed
):
    """SQLite stores any value in any column, and text that is not UTF-8."""
    names = [f"key {n}" if keyed else None for n in range(7)]
    first, *healthy = [place.work.using(place.outbox, partition_key=name).enqueue().id for name in names]
    key = "id" if table == EXECUTION else "task_execution_id"
    plant(place.database, f"UPDATE {table} SET {column} = {value} WHERE {key} = '{first.hex}'")
    claims = [claim for _ in range(5) for claim in place.store.claim_ready_task(4, worker_id=place.database.worker)]
    assert {claim.id for claim in claims} >= set(healthy)
    place.store.finish([Outcome(claim=one, event_type=EventType.COMPLETED) for one in claims if one.id in healthy])
    assert {place.store.get(one).status for one in healthy} == {TaskStatus.COMPLETED}
    assert {task.id for task in place.store.tasks()} == {first, *healthy}
    place.store.get(first)
    place.store.history(first)
    place.store.verify()


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("table", "column"), [(table, column) for table, columns in TEXTS.items() for column in columns]
)
def test_text_columns_refuse_blobs(place, table, column):
    enqueue(place, 1)
    with pytest.raises(IntegrityError, match=f"ck_{table}_{column}"):
        place.database.run(f"UPDATE {table} SET {column} = {BLOB}")
