"""Tasks in every state, and ways to corrupt one of them."""

from __future__ import annotations

from uuid import uuid4

from outboxq.model import EventType, NewTask, OnDeadLetter, Outcome
from outboxq.model.uuid7 import uuid7
from outboxq.store.verify import CHECKS
from tests.contract import helpers
from tests.contract.planting import run_or_plant

LATER = "2030-06-01T00:00:00.000000+00:00"
NOW = "2030-01-01T12:00:00.000000+00:00"


def ready(database):
    return database.add().id


def running(database):
    return helpers.claimed(database).id


def completed(database):
    claim = helpers.claimed(database)
    database.frozen.complete(claim)
    return claim.id


def released_twice(database):
    claim = helpers.claimed(database)
    database.frozen.release(claim)
    (claim,) = database.claim()
    database.frozen.release(claim)
    return claim.id


def reset(database):
    claim = helpers.claimed(database)
    helpers.recovered(database, claim)
    return claim.id


def abandoned(database):
    claim = helpers.claimed(database)
    database.clock.advance(61)
    database.frozen.recover(max_recoveries=0)
    return claim.id


def failed(database):
    claim = helpers.claimed(database)
    database.frozen.fail(claim, "x")
    return claim.id


def keyed(database):
    return database.add(partition_key="k").id


def running_keyed(database):
    return helpers.claimed(database, partition_key="k").id


def holding(database):
    claim = helpers.claimed(database, partition_key="k", on_dead_letter=OnDeadLetter.HOLD)
    database.frozen.fail(claim, "x")
    return claim.id


def running_before(database):
    task_id = running(database)
    running_keyed(database)
    return task_id


def completed_before(database):
    first, second = (database.add(partition_key="k").id for _ in range(2))
    for task_id in (first, second):
        (claim,) = database.claim(2)
        assert claim.id == task_id
        database.frozen.complete(claim)
    return first


def insert_event(kind, token="NULL", data="{{}}", number=None):
    columns, values = ("sequence_num, ", f"{number}, ") if number is not None else ("", "")
    return (
        f"INSERT INTO execution_events ({columns}pipeline_execution_id, task_execution_id, event_type, event_data, "
        f"lease_token, created_at) VALUES ({values}'{{id}}', '{{id}}', '{kind}', '{data}', {token}, '{NOW}')"
    )


def only_this_task(statement):
    """Return a condition that limits an UPDATE or DELETE to the task. One that ends with a semicolon needs none."""
    if not statement.startswith(("UPDATE", "DELETE")) or statement.endswith(";"):
        return ""
    key = "id" if "task_executions" in statement.split()[:3] else "task_execution_id"
    return f" {'AND' if 'WHERE' in statement else 'WHERE'} {key} = '{{id}}'"


def corrupt(database, state, statements):
    database.corrupted = True
    healthy = [NewTask(id=uuid7(), task_name="tests.work", args="{}") for _ in range(2)]
    database.frozen.enqueue_many(healthy)
    outcomes = [Outcome(claim=claim, event_type=EventType.COMPLETED) for claim in database.claim(2)]
    database.frozen.finish(outcomes)
    task_id = state(database) if state else uuid4()
    database.assert_sound()
    for statement in statements:
        run_or_plant(database, (statement + only_this_task(statement)).format(id=task_id.hex))
    return task_id


def meanings(database):
    """Return every invariant with the meaning of its violation."""
    found = {}
    for name, check in CHECKS.items():
        found |= {name: check.meaning, **check.also}
    return found
