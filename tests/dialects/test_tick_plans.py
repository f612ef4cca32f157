"""Schedules with many past ticks: changes and queries read only the ticks that they need."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from sqlalchemy import event

from outboxq.database.dialects import Begin, dialect_for
from outboxq.model.schedules import NewSchedule
from tests.conftest import NOON

TICKS = 5_000
_NUMBERS = f"WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {TICKS})"
_ID = {
    "postgresql": "('01800000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid",
    "sqlite": "'01800000000070008000' || printf('%012x', n)",
}
_TICK = {
    "postgresql": "'2030-01-01T12:00:00Z'::timestamptz - n * interval '1 minute'",
    "sqlite": "strftime('%Y-%m-%dT%H:%M:%S.000000+00:00', '2030-01-01 12:00:00', '-' || n || ' minutes')",
}

CALLS = {
    "pause": lambda schedules, using: schedules.pause("minutes", using=using),
    "change": lambda schedules, using: schedules.put(minutes(priority=1), using=using),
    "remove": lambda schedules, using: schedules.remove("minutes", using=using),
    "ticks": lambda schedules, using: schedules.ticks("minutes", 10, using=using),
    "runs": lambda schedules, using: schedules.runs(["minutes", "hours"], 10, using=using),
    "backfill": lambda schedules, using: schedules.backfill(
        "minutes", NOON - timedelta(minutes=20), NOON - timedelta(minutes=10), using=using
    ),
}


def minutes(**fields):
    return NewSchedule(
        name="minutes", task_name="tests.work", rule="every 60", jitter=timedelta(minutes=2), starts_at=NOON, **fields
    )


@pytest.fixture
def long_ago(database):
    """A schedule with 5,000 past ticks and one future tick."""
    database.corrupted = True  # the ticks' tasks have no events
    database.frozen.schedules.put(minutes())
    identity, tick = _ID[database.name], _TICK[database.name]
    stamp = "'2029-01-01T00:00:00.000000+00:00'"
    database.run(
        "INSERT INTO task_executions (id, pipeline_execution_id, task_name, queue, position, priority, args, status, attempt, "
        "recovery_attempts, lease_seconds, lease_token, on_dead_letter, first_started_at, created_at, updated_at, completed_at) "
        f"{_NUMBERS} SELECT {identity}, {identity}, 'tests.work', 'default', n, 0, '{{}}', 'Completed', 1, 0, 60, 1, 'release', "
        f"{stamp}, {stamp}, {stamp}, {stamp} FROM numbers"
    )
    database.run(f"INSERT INTO schedule_ticks {_NUMBERS} SELECT 'minutes', {tick}, {identity} FROM numbers")
    if database.name == "postgresql":
        with database.engine.connect() as connection:
            connection.exec_driver_sql("COMMIT")
            connection.exec_driver_sql("ANALYZE")
    return database


def captured(database, call):
    """Return the statements of a call, with their parameters. The call is rolled back."""
    seen = []
    with database.engine.connect() as connection:
        connection.exec_driver_sql(dialect_for(database.name).begin[Begin.WRITE])
        database.frozen.schedules.list(using=connection)
        note = lambda _c, _cursor, sql, values, *_: seen.append((sql, dict(values)))  # noqa: E731
        event.listen(database.engine, "before_cursor_execute", note)
        try:
            call(database.frozen.schedules, connection)
        finally:
            event.remove(database.engine, "before_cursor_execute", note)
            connection.exec_driver_sql("ROLLBACK")
    return [(sql, values) for sql, values in seen if not sql.startswith(("SAVEPOINT", "RELEASE"))]


def test_a_call_reads_only_the_ticks_it_needs(long_ago):
    for name, call in CALLS.items():
        statements = captured(long_ago, call)
        assert any("schedule_ticks" in sql for sql, _ in statements), name
        for sql, values in statements:
            with long_ago.engine.connect() as connection:
                connection.exec_driver_sql(dialect_for(long_ago.name).begin[Begin.WRITE])
                if long_ago.name == "sqlite":
                    plan = [row[3] for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {sql}", values)]
                    assert [line for line in plan if re.match(r"SCAN (schedule_ticks|task_executions)", line)] == [], (
                        sql
                    )
                else:
                    rows = connection.exec_driver_sql(f"EXPLAIN (ANALYZE, BUFFERS) {sql}", values)
                    plan = "\n".join(row[0] for row in rows)
                    assert max(map(int, re.findall(r"shared hit=(\d+)", plan)), default=0) < 150, (
                        f"{name}: {sql}\n{plan}"
                    )
                connection.exec_driver_sql("ROLLBACK")


def test_pruning_deletes_the_ticks_of_its_tasks_by_index(long_ago):
    """Pruning takes one additional statement for 50 tasks, and none if a schema has no ticks."""
    [(sql, values)] = [
        one
        for one in captured(
            long_ago, lambda _, using: long_ago.frozen.prune(timedelta(0), batch=50, stop=once(), using=using)
        )
        if "DELETE FROM schedule_ticks" in one[0]
    ]
    with long_ago.engine.connect() as connection:
        explain = "EXPLAIN QUERY PLAN" if long_ago.name == "sqlite" else "EXPLAIN"
        plan = "\n".join(map(str, connection.exec_driver_sql(f"{explain} {sql}", values)))
    assert "ix_schedule_ticks_task_execution_id" in plan


def once():
    """Return a `stop` function that stops before the second batch."""
    asked = iter((False,))
    return lambda: next(asked, True)
