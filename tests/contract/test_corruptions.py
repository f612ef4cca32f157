"""`verify` reports each corruption of a row, the log or the schema that loses or freezes a task."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from outboxq.cli import main
from outboxq.model import EventType, NewTask, OnConflict, Outcome, TaskStatus
from outboxq.model.batches import BatchKind, BatchLink, NewBatch, OnFailed, new_batch_id
from outboxq.model.history import replay
from outboxq.model.relays import NewRelay
from outboxq.model.schedules import NewSchedule
from outboxq.model.subscriptions import NewEvent, Subscription
from outboxq.model.uuid7 import family
from outboxq.store import NewStep
from tests.contract import helpers, test_verify
from tests.contract.corrupting import LATER, NOW, completed, corrupt, failed, holding, keyed, meanings, ready, running
from tests.contract.test_events import Walk

LONG_AGO = "2020-01-01T00:00:00.000000+00:00"
NEVER = "9000-01-01T00:00:00.000000+00:00"
OTHER = uuid4().hex
BATCH = new_batch_id()


def with_idempotency_key(database):
    return database.add(idempotency_key="k").id


def unique_until_finished(database):
    return database.add(idempotency_key="k", unique_until_finished=True, partition_key="p").id


def unique_for_years(database):
    return database.add(idempotency_key="k", unique_for=timedelta(days=3650)).id


def two_of_a_key(database):
    first, _ = (database.add(partition_key="p").id for _ in range(2))
    return first


def retrying(database):
    claim = helpers.claimed(database)
    outcome = Outcome(claim=claim, event_type=EventType.RETRY_SCHEDULED, delay=timedelta(minutes=5), error="ouch")
    database.frozen.finish([outcome])
    return claim.id


def raised(database):
    claim = helpers.claimed(database)
    data = {"exception": "builtins.ValueError"}
    database.frozen.finish([Outcome(claim=claim, event_type=EventType.FAILED, error="ValueError", data=data)])
    return claim.id


def limited(database):
    database.frozen.queues.limit("default", rate=(10, 60), rate_per_key=(10, 60), create=True)
    return running(database)


def asked_to_stop(database):
    task_id = running(database)
    database.frozen.cancel(task_id)
    return task_id


def redriven(database):
    task_id = failed(database)
    database.frozen.redrive(task_id)
    return task_id


def stepped(database):
    """Create a running task that has completed one step."""
    claim = helpers.claimed(database)
    database.frozen.steps.complete(claim, NewStep(name="one", number=1, result="1"))
    return claim.id


def planted(database):
    """Create a tick that is due in a minute."""
    schedules = database.store.schedules  # uses the clock of `verify`
    schedules.put(NewSchedule(name="nightly", task_name="tests.work", rule="every 60"))
    return schedules.ticks("nightly")[0].task_id


def in_a_batch(database):
    database.frozen.batches.create(NewBatch(id=BATCH))
    task_id = database.add(pipeline_execution_id=BATCH).id
    database.frozen.batches.close(BATCH)
    return task_id


def dead_in_a_batch(database):
    """Create a dead letter that its batch waits for."""
    database.frozen.batches.create(NewBatch(id=BATCH, on_failed=OnFailed.WAIT))
    claim = helpers.claimed(database, pipeline_execution_id=BATCH)
    database.frozen.batches.close(BATCH)
    database.frozen.fail(claim, "x")
    return claim.id


def in_a_chain(database):
    """Create a chain of three tasks. Return the id of the first."""
    links = [
        NewTask(id=BatchLink(batch_id=BATCH, number=number).task_id, task_name="tests.work", args="{}")
        for number in (1, 2)
    ]
    database.frozen.batches.create(NewBatch(id=BATCH, kind=BatchKind.CHAIN, name="three", then=links))
    task_id = database.add(pipeline_execution_id=BATCH).id
    database.frozen.batches.close(BATCH)
    return task_id


@dataclass(frozen=True)
class Case:
    names: str
    """The broken invariants, joined by +."""
    state: object
    statements: dict[str, list[str]] | list[str]
    """The statements that break them, by database if they differ."""
    examples: tuple[str, ...] = ()
    """The reported examples, if they are not just the task."""
    count: int = 1
    repaired: bool = True

    def on(self, name):
        return self.statements if isinstance(self.statements, list) else self.statements.get(name)


EXCHANGED = [
    f"UPDATE {table} SET position = (SELECT min(position) + max(position) FROM task_executions WHERE partition_key = 'p') "
    "- position WHERE partition_key = 'p';"
    for table in ("task_outbox", "task_executions")
]
EQUAL = [
    f"UPDATE {table} SET position = (SELECT min(position) FROM task_executions WHERE partition_key = 'p') "
    "WHERE partition_key = 'p';"
    for table in ("task_outbox", "task_executions")
]
SET_BACK = {
    "sqlite": ["UPDATE sqlite_sequence SET seq = 1 WHERE name = 'task_outbox';"],
    "postgresql": ["ALTER SEQUENCE task_position RESTART"],
}
OF_OTHER_SCHEMA = "DO $$ BEGIN EXECUTE replace(pg_get_functiondef('outboxq_count_ends'::regproc), ' public.task_', ' tasks.task_'); END $$"
NO_COUNTER = {"sqlite": ["DELETE FROM sqlite_sequence WHERE name = 'task_outbox';"]}
OF_A_LETTER = (
    "queue = 'other'",
    "task_name = 'tests.other'",
    "topic = 'order.paid'",
    "partition_key = 'p'",
    "exception = 'builtins.KeyError'",
    "exception = NULL",
    f"failed_at = '{LATER}'",
)
NO_OBJECT = (
    "no JSON",
    "[]",
    "",
    "1",
    '"{{}}"',
    '{{"a": 1',
    '{{"a": "b}}',
    '{{"a": nothing}}',
    '{{"a": 1}}}}',
    '{{"a": 1}}x',
)
INDEXES = ("uq_execution_events_claim", "uq_execution_events_end", "ix_task_outbox_due", "ix_execution_events_other")


def relayed(database):
    """Create a relay to a broker, with a waiting event."""
    database.store.relays.declare([NewRelay(name="orders", topics=["order.*"])])
    database.store.subscriptions.replace([Subscription(topic="order.*", task_name="relay.orders", parameter=None)])
    database.store.emit(NewEvent(id=family(), topic="order.paid"))
    return ready(database)


def of_batch(names, state, assignment, *, repaired=True):
    """A case that changes the row of a batch or a chain."""
    return Case(names, state, [f"UPDATE task_batches SET {assignment};"], (str(BATCH),), repaired=repaired)


_COPIED = "pipeline_execution_id, task_execution_id, event_type, event_data, created_at"


def change(assignment, table="task_executions"):
    return [f"UPDATE {table} SET {assignment}"]


CASES = [
    Case("due_differs_from_events", ready, change(f"available_at = '{NEVER}'", "task_outbox")),
    Case("due_differs_from_events", retrying, change(f"available_at = '{NEVER}'", "task_outbox")),
    Case("due_differs_from_events", redriven, change(f"available_at = '{NEVER}'", "task_outbox")),
    Case("lease_ends_too_late", running, change(f"lease_expires_at = '{NEVER}'", "task_leases")),
    Case("events_without_task", ready, ["DELETE FROM task_outbox", "DELETE FROM task_executions"], repaired=False),
    Case("events_without_task", completed, ["DELETE FROM task_executions"], repaired=False),
    Case(
        "status_differs_from_events+claim_left_open",
        completed,
        ["DELETE FROM execution_events WHERE event_type = 'task_completed'"],
        repaired=False,
    ),
    Case("position_differs_from_events", two_of_a_key, EXCHANGED, count=2),
    Case("position_differs_from_events+position_taken_twice", two_of_a_key, EQUAL),
    Case("positions_set_back", two_of_a_key, SET_BACK, ("task_position", "task_outbox")),
    Case("positions_set_back", two_of_a_key, NO_COUNTER, ("task_outbox",)),
    Case(
        "worker_differs_from_claim",
        running,
        [*change(f"worker_id = '{OTHER}'"), *change(f"worker_id = '{OTHER}'", "task_leases")],
    ),
    Case(
        "status_contradicts_row+worker_differs_from_claim+running_without_lease+lease_without_running",
        running,
        change("worker_id = NULL"),
    ),
    Case("key_differs_from_birth+key_lost", with_idempotency_key, change("key = 'other'", "idempotency_keys")),
    Case("key_differs_from_birth+key_lost", with_idempotency_key, change("scope = 'other'", "idempotency_keys")),
    *(
        Case("key_expiry_differs_from_birth", unique_for_years, change(f"expires_at = {moment}", "idempotency_keys"))
        for moment in ("NULL", f"'{NEVER}'", f"'{LONG_AGO}'")
    ),
    Case(
        "key_expiry_differs_from_birth", with_idempotency_key, change(f"expires_at = '{LONG_AGO}'", "idempotency_keys")
    ),
    *(
        Case("key_lost", state, ["DELETE FROM idempotency_keys"])
        for state in (with_idempotency_key, unique_until_finished, unique_for_years)
    ),
    *(Case("args_not_an_object", ready, change(f"args = '{args}'"), repaired=False) for args in NO_OBJECT),
    Case(
        "pipeline_differs_from_events",
        completed,
        change(f"pipeline_execution_id = '{OTHER}'", "execution_events"),
        repaired=False,
    ),
    Case("pipeline_differs_from_events", completed, change(f"pipeline_execution_id = '{OTHER}'"), repaired=False),
    Case("batch_counts_differ", in_a_batch, ["UPDATE task_batches SET size = 2;"], (str(BATCH),)),
    of_batch("batch_counts_differ", dead_in_a_batch, "failed = 0"),
    of_batch("batch_stage_differs", in_a_chain, "stage = stage + 1"),
    *(
        of_batch("batch_differs_from_events", in_a_chain, one)
        for one in ("kind = 'batch'", "name = NULL", "on_failed = 'cancel'")
    ),
    *(
        of_batch("batch_unreadable", in_a_chain, f"then_tasks = {text}", repaired=False)
        for text in ("NULL", "'forged'", "'1'", "'[1, 2]'", """'[{{"id": "1"}}, {{"id": "2"}}]'""", "'[]'")
    ),
    of_batch("batch_cancel_contradicts", in_a_chain, "runs_then = false", repaired=False),
    of_batch("batch_not_closed", in_a_batch, "closed = false", repaired=False),
    of_batch("batch_completed_early", in_a_batch, f"completed_at = '{LONG_AGO}'", repaired=False),
    of_batch("batch_ahead_of_time", in_a_chain, f"updated_at = '{NEVER}'"),
    Case("batch_lost", in_a_chain, ["DELETE FROM task_batches;"], (str(BATCH),), repaired=False),
    *(
        Case(
            "schedule_unreadable",
            planted,
            [f"UPDATE task_schedules SET {assignment};"],
            ("nightly",),
            repaired=False,
        )
        for assignment in (
            "rule = 'forged'",
            "tz = 'Mars/Base'",
            "args = 'forged'",
            "rule = '99 * * * *'",
            "args = '[]'",
        )
    ),
    *(
        Case("headers_not_an_object", ready, change(f"headers = '{text}'"), repaired=False)
        for text in ("forged", "[]", "", '{{"a": "b')
    ),
    Case(
        "planted_by_a_clock_ahead",
        planted,
        change(f"planted_until = '{NEVER}';", "task_schedules"),
        ("nightly",),
        repaired=False,
    ),
    Case("tick_without_task", None, [f"INSERT INTO schedule_ticks VALUES ('nightly', '{NOW}', '{{id}}')"]),
    Case("tick_differs_from_task", planted, change(f"tick = '{LONG_AGO}'", "schedule_ticks"), repaired=False),
    Case("tick_differs_from_task", planted, change("schedule = 'another'", "schedule_ticks"), repaired=False),
    Case("tick_differs_from_task", planted, change("headers = NULL"), repaired=False),
    Case("task_without_tick", planted, ["DELETE FROM schedule_ticks"], repaired=False),
    Case(
        "planted_beyond_planted_until",
        planted,
        [f"UPDATE task_schedules SET planted_until = '{LONG_AGO}';"],
        ("nightly",),
        repaired=False,
    ),
    Case("step_without_task", None, [f"INSERT INTO task_steps VALUES ('{{id}}', 'one', 1, 1, NULL, NULL, '{NOW}')"]),
    Case("step_not_recorded+step_lost", stepped, change("name = 'other'", "task_steps"), repaired=False),
    Case("step_lost", stepped, ["DELETE FROM task_steps"], repaired=False),
    Case("step_without_claim", stepped, change("lease_token = 2", "task_steps"), repaired=False),
    Case("step_not_json", stepped, change("result = 'forged'", "task_steps"), repaired=False),
    Case(
        "step_not_recorded",
        stepped,
        ["DELETE FROM execution_events WHERE event_type = 'step_completed'"],
        repaired=False,
    ),
    Case(
        "step_completed_twice",
        stepped,
        [
            f"INSERT INTO execution_events ({_COPIED}) SELECT {_COPIED} FROM execution_events WHERE event_type = 'step_completed'"
        ],
        repaired=False,
    ),
    Case(
        "step_outside_claim",
        stepped,
        ["UPDATE execution_events SET sequence_num = -1 WHERE event_type = 'step_completed'"],
        repaired=False,
    ),
    Case("result_not_json", completed, change("result = 'forged'"), repaired=False),
    Case("end_differs_from_events", completed, change(f"completed_at = '{LATER}'")),
    Case("end_differs_from_events+letter_differs_from_task", failed, change(f"completed_at = '{LATER}'")),
    *(
        Case("retry_differs_from_events", state, change(f"retry_at = '{LATER}'"))
        for state in (ready, retrying, running, completed)
    ),
    Case("retry_differs_from_events", retrying, change("retry_at = NULL")),
    *(
        Case("error_differs_from_events", state, change("last_error = 'forged'"))
        for state in (ready, retrying, failed, completed)
    ),
    Case("error_differs_from_events", retrying, change("last_error = NULL")),
    Case("cancel_not_recorded", running, change(f"cancel_requested_at = '{LATER}'"), repaired=False),
    Case("cancel_not_recorded", asked_to_stop, change(f"cancel_requested_at = '{LATER}'"), repaired=False),
    Case("cancel_forgotten", asked_to_stop, change("cancel_requested_at = NULL")),
    *(Case("lease_too_long", state, change("lease_seconds = 1e12"), repaired=False) for state in (ready, running)),
    Case("lease_too_long", ready, change("timeout_seconds = 1e12"), repaired=False),
    *(
        Case("task_out_of_bounds", state, change("created_at = '9500-01-01T00:00:00.000000+00:00'"), repaired=False)
        for state in (ready, running)
    ),
    Case(
        "entry_out_of_bounds",
        ready,
        change("priority = 101") + change("priority = 101", "task_outbox"),
        repaired=False,
    ),
    *(Case("letter_differs_from_task", raised, change(one, "dead_letters")) for one in OF_A_LETTER),
    Case("status_contradicts_row", ready, change(f"worker_id = '{OTHER}'"), repaired=False),
    Case("status_contradicts_row", completed, change(f"worker_id = '{OTHER}'"), repaired=False),
    *(
        Case("status_contradicts_row", state, change(f"completed_at = '{LATER}'"), repaired=False)
        for state in (ready, running)
    ),
    Case("status_contradicts_row+end_differs_from_events", completed, change("completed_at = NULL")),
    Case("hold_without_key", ready, change("on_dead_letter = 'hold'")),
    Case("hold_without_key", failed, change("on_dead_letter = 'hold'")),
    Case("failed_without_letter", holding, ["DELETE FROM dead_letters"]),
    Case(
        "claimed_key_without_task",
        keyed,
        ["INSERT INTO partition_claims VALUES ('default', 'k', '{id}', true)"],
    ),
    Case("rate_full_too_late", limited, [f"UPDATE queue_settings SET rate_full_at = '{NEVER}';"], ("default",)),
    *(
        Case("rate_incomplete", limited, [f"UPDATE queue_settings SET {half} = NULL;"], ("default",), repaired=False)
        for half in ("rate_limit", "rate_seconds")
    ),
    *(
        Case(
            "key_rate_incomplete", limited, [f"UPDATE queue_settings SET {half} = NULL;"], ("default",), repaired=False
        )
        for half in ("key_rate_limit", "key_rate_seconds")
    ),
    *(
        Case("part_missing", ready, {"postgresql": [text]}, ("task_outbox_notify",), repaired=False)
        for text in (
            "DROP TRIGGER task_outbox_notify ON task_outbox",
            "ALTER TABLE task_outbox DISABLE TRIGGER task_outbox_notify",
        )
    ),
    *(Case("part_missing", ready, [f"DROP INDEX {name}"], (name,), repaired=False) for name in INDEXES),
    Case(
        "part_missing",
        ready,
        {"postgresql": ["ALTER TABLE task_outbox DROP CONSTRAINT uq_task_outbox_task_execution_id"]},
        ("uq_task_outbox_task_execution_id",),
        repaired=False,
    ),
    Case(
        "part_missing",
        ready,
        {"postgresql": ["ALTER TABLE execution_events DROP CONSTRAINT pk_execution_events"]},
        ("primary key of execution_events",),
        repaired=False,
    ),
    Case("function_of_other_schema", ready, {"postgresql": [OF_OTHER_SCHEMA]}, ("outboxq_count_ends",), repaired=False),
    Case("status_differs_from_events", completed, change("status = 'Cancelled'"), repaired=False),
    Case(
        "message_without_relay+topic_without_relay+shard_without_relay",
        relayed,
        ["DELETE FROM relays;"],
        ("orders", "relay.orders"),
        repaired=False,
    ),
    Case("shard_missing", relayed, ["DELETE FROM relay_shards;"], ("orders",), repaired=False),
    Case("shard_without_relay", relayed, ["UPDATE relay_shards SET shard = -1;"], ("orders",), repaired=False),
    Case(
        "shard_lease_ends_too_late",
        relayed,
        [f"UPDATE relay_shards SET lease_expires_at = '{NEVER}';"],
        ("orders",),
    ),
    Case("relay_waits_too_long", relayed, [f"UPDATE relays SET next_try_at = '{NEVER}';"], ("orders",)),
    Case(
        "shard_lease_without_worker",
        relayed,
        [f"UPDATE relay_shards SET worker_id = '{OTHER}';"],
        ("orders",),
        repaired=False,
    ),
]
ON_BOTH = [
    (name, number, case) for number, case in enumerate(CASES) for name in ("sqlite", "postgresql") if case.on(name)
]

ALIKE: dict[object, list[int]] = {}
for number, case in enumerate(CASES):
    ALIKE.setdefault((case.names, case.state), []).append(number)
REPEATED = {number for alike in ALIKE.values() for number in alike[3:] if CASES[number].names != "part_missing"}
"""The cases that run only with `--full`: after three with the same violation in the same state, others differ only in the value."""


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("name", "case"),
    [
        pytest.param(
            name, case, id=f"{name}-{number}-{case.names}", marks=[pytest.mark.full] if number in REPEATED else []
        )
        for name, number, case in ON_BOTH
    ],
)
def test_a_corruption_is_reported_and_repaired_if_that_needs_no_guess(request, name, case):
    database = request.getfixturevalue(name)
    task_id = corrupt(database, case.state, case.on(name))
    before = helpers.everything(database)
    found = database.store.verify(repair=True)
    assert {violation.name for violation in found} == set(case.names.split("+"))
    for violation in found:
        assert violation.count == (case.count if violation.name != "position_taken_twice" else 1)
        assert violation.meaning == meanings(database)[violation.name]
        if case.examples:
            assert {str(one) for one in violation.examples} <= set(case.examples)
        elif "position" not in case.names:
            assert list(violation.examples) == [task_id]
    if case.repaired:
        assert sum(violation.repaired for violation in found) >= 1
        assert database.store.verify() == []
    else:
        assert {violation.repaired for violation in found} == {0}
        assert helpers.everything(database) == before


def test_every_invariant_has_a_corruption(database):
    named = {name for case in CASES for name in case.names.split("+")}
    named |= {name for names, *_ in test_verify.CORRUPTIONS for name in names.split("+")}
    assert named == set(meanings(database))


# -- after a repair ---------------------------------------------------------------------------------------------------


def test_exchanged_positions_are_restored(database):
    first = corrupt(database, two_of_a_key, EXCHANGED)
    database.frozen.verify(repair=True)
    assert [claim.id for claim in database.claim(2)] == [first]


def test_a_repair_restores_the_due_time_of_the_last_event(database):
    claim_id = corrupt(database, retrying, change(f"available_at = '{NEVER}'", "task_outbox"))
    database.frozen.verify(repair=True)
    assert database.frozen.next_available_at() == database.clock.now + timedelta(minutes=5)
    database.clock.advance(300)
    assert [claim.id for claim in database.claim()] == [claim_id]


@pytest.mark.parametrize("own", [None, 10])
def test_a_lease_that_never_ends_is_repaired_to_its_original_length(database, own):
    database.corrupted = True
    database.add()
    (claim,) = database.claim(lease=own)
    database.run(f"UPDATE task_leases SET lease_expires_at = '{NEVER}'")
    assert [violation.name for violation in database.frozen.verify(repair=True)] == ["lease_ends_too_late"]
    expires_at = database.frozen.get(claim.id).lease_expires_at
    assert expires_at == database.clock.now + timedelta(seconds=own or 60)


def test_a_long_lease_chosen_by_the_claim_is_not_a_violation(database):
    database.add()
    assert len(database.claim(lease=timedelta(days=40))) == 1
    assert database.store.verify() == []


def test_a_clock_that_was_set_back_causes_no_violation(database):
    database.frozen.queues.limit("default", rate=(10, 60), rate_per_key=(10, 60), create=True)
    claim = helpers.claimed(database)
    database.frozen.heartbeat([claim])
    database.clock.advance(timedelta(days=-2))
    assert database.frozen.verify() == []


def test_a_worker_whose_task_was_taken_away_can_end_the_task_after_the_repair(database):
    database.corrupted = True
    claim = helpers.claimed(database)
    for table in ("task_executions", "task_leases"):
        database.run(f"UPDATE {table} SET worker_id = '{OTHER}'")
    database.frozen.verify(repair=True)
    database.frozen.complete(claim)
    assert database.frozen.verify() == []


def test_a_running_task_without_a_claim_and_a_worker_does_not_stop_the_repair(database):
    """A repair would have to guess its worker."""
    task_id = corrupt(
        database,
        running,
        ["DELETE FROM execution_events WHERE event_type = 'task_claimed'", *change("worker_id = NULL")],
    )
    repaired = {violation.name: violation.repaired for violation in database.frozen.verify(repair=True)}
    assert repaired["running_without_lease"] == 0
    assert database.frozen.get(task_id).worker_id is None


def test_new_positions_follow_the_largest_after_a_repair(database):
    database.corrupted = True
    two_of_a_key(database)
    for statement in SET_BACK[database.name]:
        database.run(statement.rstrip(";"))
    database.frozen.verify(repair=True)
    third = database.add(partition_key="p").id
    tasks = {row[0]: row[1] for row in database.rows("SELECT id, position FROM task_executions")}
    assert tasks[third.hex if database.name == "sqlite" else third] == max(tasks.values())
    assert len(set(tasks.values())) == 3


def test_a_restored_idempotency_key_refuses_the_second_request(database):
    first = corrupt(database, unique_until_finished, ["DELETE FROM idempotency_keys"])
    database.frozen.verify(repair=True)
    again = database.add(idempotency_key="k", unique_until_finished=True, partition_key="p")
    assert (again.id, again.created) == (first, False)
    (row,) = database.rows("SELECT until_finished, expires_at FROM idempotency_keys")
    assert (bool(row[0]), row[1]) == (True, None)


def test_a_key_taken_by_another_task_is_returned(database):
    database.corrupted = True
    first, other = with_idempotency_key(database), database.add().id
    database.run(f"UPDATE idempotency_keys SET task_execution_id = '{other.hex}'")
    assert [violation.name for violation in database.frozen.verify(repair=True)] == ["key_lost"]
    assert database.frozen.verify() == []
    assert database.add(idempotency_key="k").id == first


def test_a_key_assigned_to_a_task_with_another_key_is_returned_to_its_task(database):
    """The other task asked for a key as well, but for a different one."""
    database.corrupted = True
    first, other = with_idempotency_key(database), database.add(idempotency_key="its own").id
    database.run(f"UPDATE idempotency_keys SET task_execution_id = '{other.hex}' WHERE key = 'k'")
    found = {violation.name: list(violation.examples) for violation in database.frozen.verify()}
    assert found == {"key_differs_from_birth": [other], "key_lost": [first]}
    database.frozen.verify(repair=True)
    assert database.frozen.verify() == []
    assert database.add(idempotency_key="k").id == first


# -- no false alarms --------------------------------------------------------------------------------------------------


FREE_AGAIN = [{"unique_for": timedelta(minutes=1)}, {"unique_until_finished": True}]


@pytest.mark.parametrize("options", FREE_AGAIN, ids=["for a time", "until finished"])
def test_a_freed_key_that_was_reused_or_deleted_is_not_a_violation(database, options):
    first = helpers.claimed(database, idempotency_key="k", **options)
    database.frozen.fail(first, "x")
    database.clock.advance(61)
    second = database.add(idempotency_key="k", **options)
    assert second.created
    takes_back = "unique_until_finished" in options
    database.frozen.redrive(first.id, take_key_back=takes_back)
    assert database.frozen.verify() == []
    claims = {claim.id: claim for claim in database.claim(2)}
    database.frozen.complete(claims[second.id])
    database.frozen.release(claims[first.id])
    database.clock.advance(61)
    assert database.frozen.prune(timedelta(0)) == 1
    assert database.rows("SELECT count(*) FROM idempotency_keys") == [(int(takes_back),)]
    assert database.frozen.get(first.id).status is TaskStatus.READY
    assert database.frozen.verify() == []


def test_a_task_that_is_given_a_partition_key_keeps_its_position(database):
    first = database.add(idempotency_key="k")
    for key in ("p", None, "q"):
        replaced = database.add(idempotency_key="k", partition_key=key, on_conflict=OnConflict.REPLACE)
        assert (replaced.id, replaced.replaced) == (first.id, True)
        assert database.frozen.verify() == []
    database.corrupted = True
    for table in ("task_executions", "task_outbox"):
        database.run(f"UPDATE {table} SET position = position + 1000")
    names = {violation.name for violation in database.store.verify()}
    assert names == {"position_differs_from_events", "positions_set_back"}


def test_task_created_contains_position_and_idempotency_key_only_if_set(database):
    plain = database.add()
    both = database.add(partition_key="p", idempotency_key="k", unique_for=timedelta(seconds=9))
    until = database.add(idempotency_key="l", unique_until_finished=True)
    said = [dict(database.frozen.history(handle.id)[0].event_data) for handle in (plain, both, until)]
    assert set(said[0]) == {"available_at"}
    assert set(said[1]) == {"available_at", "position", "idempotency_key", "unique_until"}
    assert said[1]["position"] == database.frozen.get(both.id).position
    assert datetime.fromisoformat(said[1]["unique_until"]) == database.clock.now + timedelta(seconds=9)
    assert said[2].keys() - {"available_at"} == {"idempotency_key", "unique_until_finished"}


ODD_ARGUMENTS = (
    {},
    {"a": [1, 2.5, -3e-7, True, None, {"b": {"c": []}}], "d": "}{][\\\"'", "é🎈": "\u2028\n\t"},
    {"deep": [[[[[[[[[[]]]]]]]]]]},
    {"%s": "%(x)s :now ? $1"},
)


@pytest.mark.parametrize("arguments", ODD_ARGUMENTS, ids=range(len(ODD_ARGUMENTS)))
@pytest.mark.parametrize("indent", [None, 2])
def test_unusual_arguments_cause_no_violation(database, arguments, indent):
    text = json.dumps(arguments, indent=indent, ensure_ascii=indent is None)
    database.add(args=text)
    (claim,) = database.claim()
    database.frozen.complete(claim, text)
    database.add(args=text)
    assert database.store.verify() == []


def test_events_are_pruned_together_with_their_task(database):
    done = completed(database)
    database.clock.advance(10)
    database.frozen.prune(timedelta(0))
    assert database.frozen.history(done) == []
    assert database.frozen.verify() == []


# -- the replay -------------------------------------------------------------------------------------------------------

FOLDED = {
    "status_differs_from_events",
    "worker_differs_from_claim",
    "end_differs_from_events",
    "due_differs_from_events",
    "counters_differ_from_events",
    "error_differs_from_events",
}
FORGED = datetime(2031, 1, 1, 1, 1, 1, 1, tzinfo=UTC).isoformat()


def forge(walk):
    """Change some columns of some rows, within what the tables' own constraints allow."""
    database, dice = walk.database, walk.dice
    for task in walk.tasks.values():
        assignments = ["attempt = 77", "recovery_attempts = 77", "last_error = 'forged'"]
        if task.status == "Running":
            assignments.append(f"worker_id = '{OTHER}'")
        if task.status == "Completed":
            assignments.append("status = 'Cancelled'")
        if task.status in ("Completed", "Failed", "Cancelled"):
            assignments.append(f"completed_at = '{FORGED}'")
        for assignment in dice.sample(assignments, dice.choice([0, 0, 1, 2])):
            database.run(f"UPDATE task_executions SET {assignment} WHERE id = '{task.id.hex}'")
        if task.status == "Ready" and dice.random() < 0.3:
            database.run(f"UPDATE task_outbox SET available_at = '{FORGED}' WHERE task_execution_id = '{task.id.hex}'")


def differing(database, task_id):
    """Return the invariants that are broken according to the task's rows and the replay of its events."""
    row, replayed = database.store.get(task_id), replay(database.store.history(task_id))
    due = database.rows(f"SELECT available_at FROM task_outbox WHERE task_execution_id = '{task_id.hex}'")
    moment = due[0][0] if due else None
    moment = datetime.fromisoformat(moment) if isinstance(moment, str) else moment
    agree = {
        "status_differs_from_events": row.status is replayed.status,
        "worker_differs_from_claim": row.worker_id == replayed.worker_id,
        "end_differs_from_events": row.completed_at == replayed.completed_at,
        "due_differs_from_events": moment == replayed.available_at,
        "counters_differ_from_events": (row.attempt, row.recovery_attempts, row.lease_token)
        == (replayed.attempt, replayed.recovery_attempts, replayed.lease_token),
        "error_differs_from_events": row.last_error == replayed.last_error,
    }
    return {name for name, agrees in agree.items() if not agrees}


@pytest.mark.parametrize("seed", range(3))
def test_verify_finds_the_same_violations_as_the_fold(database, seed, monkeypatch):
    monkeypatch.setattr("outboxq.store.verify._EXAMPLES", 1000)
    walk = Walk(database, seed)
    for _ in range(60):
        walk.step()
    assert database.store.verify() == []
    assert not any(differing(database, task_id) for task_id in walk.tasks)
    database.corrupted = True
    forge(walk)
    named = {(violation.name, one) for violation in database.store.verify() for one in violation.examples}
    expected = {(name, task_id) for task_id in walk.tasks for name in differing(database, task_id)}
    assert {(name, task_id) for name, task_id in named if name in FOLDED} == expected
    assert len({name for name, _ in expected}) >= 3


def test_an_error_given_only_for_the_row_is_also_stored_in_the_event(database):
    claim = helpers.claimed(database)
    database.frozen.finish([Outcome(claim=claim, event_type=EventType.RETRY_SCHEDULED, error="ouch")])
    assert database.frozen.history(claim.id)[-1].event_data["error"] == "ouch"


# -- output -----------------------------------------------------------------------------------------------------------


def test_the_command_prints_the_name_meaning_and_an_example_of_each_violation(database, capsys):
    task_id = corrupt(database, ready, change(f"available_at = '{NEVER}'", "task_outbox"))
    database.run("DROP INDEX ix_task_outbox_due")
    with pytest.raises(SystemExit) as exit_:
        main(["verify", "--url", database.url])
    assert exit_.value.code == 1
    said = capsys.readouterr().out.splitlines()
    expected = {"due_differs_from_events": str(task_id), "part_missing": "ix_task_outbox_due"}
    assert sorted(said) == sorted(
        f"1 × {name}: {meanings(database)[name]} ({example})" for name, example in expected.items()
    )
