"""`verify`: each check finds its own corruption, repairs work in both directions, and writers cause no false alarms."""

from __future__ import annotations

import threading
from datetime import timedelta
from functools import partial
from uuid import uuid4

import pytest

from outboxq.errors import LeaseLost
from outboxq.model import EventType, Outcome, TaskStatus
from outboxq.store.verify import CHECKS
from outboxq.store.verify.batches import unreadable
from outboxq.store.verify.repairs import REPAIRS
from tests.contract import helpers
from tests.contract.corrupting import (
    LATER,
    NOW,
    abandoned,
    completed,
    completed_before,
    corrupt,
    failed,
    holding,
    insert_event,
    keyed,
    meanings,
    ready,
    released_twice,
    reset,
    running,
    running_before,
    running_keyed,
)

INSERT_ENTRY = (
    "INSERT INTO task_outbox (task_execution_id, queue, priority, position, available_at, created_at) VALUES "
    f"('{{id}}', 'default', 0, coalesce((SELECT position FROM task_executions WHERE id = '{{id}}'), 1), '{NOW}', '{NOW}')"
)
INSERT_LETTER = (
    "INSERT INTO dead_letters (task_execution_id, queue, task_name, failed_at) "
    f"VALUES ('{{id}}', 'default', 'tests.work', '{NOW}')"
)
TAKE_KEY = "INSERT INTO partition_claims VALUES ('default', '{}', '{{id}}', {})"
DIFFERENT = (
    "queue = 'other'",
    "priority = 1",
    "partition_key = 'k'",
    "position = 1000",
    "topic = 'order.paid'",
    f"expires_at = '{LATER}'",
)
DUE = f'{{{{"available_at": "{NOW}"}}}}'
TAKEN_BACK = "2030-01-01T12:01:01.000000+00:00"
ABANDONED = '{{"error": "ABANDONED: the lease expired again after 0 recoveries"}}'
DROPPED = {
    "claimed_twice+part_missing": "uq_execution_events_claim",
    "ended_twice+part_missing": "uq_execution_events_end",
}
LAST = "(SELECT max(sequence_num) FROM execution_events)"

CORRUPTIONS = [
    ("ready_without_entry", ready, ["DELETE FROM task_outbox"]),
    ("entry_without_ready", running, [INSERT_ENTRY]),
    ("entry_without_ready", completed, [INSERT_ENTRY]),
    ("entry_without_ready", None, [INSERT_ENTRY]),
    *(("entry_differs_from_task", ready, [f"UPDATE task_outbox SET {change}"]) for change in DIFFERENT),
    ("lease_differs_from_task", running, ["UPDATE task_leases SET queue = 'other'"]),
    ("failed_without_letter", failed, ["DELETE FROM dead_letters"]),
    ("failed_without_letter", abandoned, ["DELETE FROM dead_letters"]),
    ("letter_without_failed", ready, [INSERT_LETTER]),
    ("letter_without_failed", completed, [INSERT_LETTER]),
    ("letter_without_failed", None, [INSERT_LETTER]),
    ("claimed_key_without_task", keyed, [TAKE_KEY.format("k", "false")]),
    ("claimed_key_without_task", completed, [TAKE_KEY.format("k", "false")]),
    ("claimed_key_without_task", None, [TAKE_KEY.format("k", "true")]),
    ("claimed_key_without_task", running, [TAKE_KEY.format("k", "false")]),
    ("claimed_key_without_task", failed, [TAKE_KEY.format("k", "true")]),
    ("claimed_key_without_task+running_without_key", running_keyed, ["UPDATE partition_claims SET held = true"]),
    ("claimed_key_without_task+running_without_key", running_keyed, ["UPDATE partition_claims SET queue = 'other'"]),
    (
        "claimed_key_without_task+running_without_key",
        running_keyed,
        ["UPDATE partition_claims SET partition_key = 'other'"],
    ),
    ("claimed_key_without_task+failed_without_key", holding, ["UPDATE partition_claims SET held = false"]),
    ("running_without_key", running_keyed, ["DELETE FROM partition_claims"]),
    ("failed_without_key", holding, ["DELETE FROM partition_claims"]),
    (
        "key_running_twice+running_without_key+key_claimed_twice",
        running_before,
        ["UPDATE task_executions SET partition_key = 'k'"],
    ),
    (
        "key_claimed_twice",
        completed_before,
        ["UPDATE execution_events SET sequence_num = 1000000 WHERE event_type = 'task_completed'"],
    ),
    ("running_without_lease", running, ["DELETE FROM task_leases"]),
    (
        "lease_without_running",
        completed,
        [f"INSERT INTO task_leases VALUES ('{{id}}', 'default', 1, '{{id}}', '{NOW}', NULL, NULL, NULL)"],
    ),
    (
        "lease_without_running",
        None,
        [f"INSERT INTO task_leases VALUES ('{{id}}', 'default', 1, '{{id}}', '{NOW}', NULL, NULL, NULL)"],
    ),
    ("running_without_lease+lease_without_running", running, ["UPDATE task_leases SET worker_id = '{id}'"]),
    ("running_without_lease+lease_without_running", running, ["UPDATE task_leases SET lease_token = 2"]),
    ("status_differs_from_events", completed, ["UPDATE task_executions SET status = 'Cancelled'"]),
    ("status_differs_from_events", completed, ["UPDATE task_executions SET status = 'Failed'", INSERT_LETTER]),
    ("counters_differ_from_events", ready, ["UPDATE task_executions SET attempt = 2"]),
    ("counters_differ_from_events", reset, ["UPDATE task_executions SET attempt = 2"]),
    ("counters_differ_from_events", reset, ["UPDATE task_executions SET recovery_attempts = 0"]),
    ("counters_differ_from_events", completed, ["UPDATE task_executions SET recovery_attempts = 1"]),
    ("birth_not_recorded_once", ready, ["DELETE FROM execution_events"]),
    ("birth_not_recorded_once", ready, [insert_event("task_created", data=DUE)]),
    ("token_differs_from_claims", ready, ["UPDATE task_executions SET lease_token = 1"]),
    ("token_differs_from_claims", completed, ["UPDATE task_executions SET lease_token = 2"]),
    (
        "claimed_twice+part_missing",
        released_twice,
        [
            "DROP INDEX uq_execution_events_claim",
            "UPDATE execution_events SET lease_token = 1 WHERE event_type = 'task_claimed'",
            "UPDATE execution_events SET lease_token = NULL WHERE lease_token = 2",
        ],
    ),
    (
        "ended_twice+part_missing",
        released_twice,
        ["DROP INDEX uq_execution_events_end", insert_event("task_released", token=1, data=DUE)],
    ),
    ("end_without_claim", ready, [insert_event("task_released", token=7, data=DUE)]),
    ("end_without_claim", ready, [insert_event("task_cancel_requested", token=7)]),
    (
        "claim_left_open",
        released_twice,
        [f"UPDATE execution_events SET lease_token = NULL WHERE sequence_num = {LAST}"],
    ),
    ("claim_left_open", running, [insert_event("task_released", token=1, data=DUE, number=-1)]),
    (
        "life_after_end",
        completed,
        [
            insert_event("task_requeued", data=DUE),
            "UPDATE task_executions SET status = 'Ready', completed_at = NULL",
            INSERT_ENTRY,
        ],
    ),
    (
        "claimed_early",
        running,
        [f'UPDATE execution_events SET event_data = \'{{{{"available_at": "{LATER}"}}}}\' WHERE lease_token IS NULL'],
    ),
    ("claimed_early", running, ["UPDATE execution_events SET event_data = '{{}}' WHERE lease_token IS NULL"]),
    (
        "recovered_early",
        reset,
        [
            (
                f'UPDATE execution_events SET event_data = \'{{{{"available_at": "{TAKEN_BACK}", "lease_expires_at": "{LATER}", '
                '"recovery_attempts": 1}}\' '
                "WHERE event_type = 'task_reset'"
            )
        ],
    ),
    (
        "recovered_early",
        abandoned,
        [f"UPDATE execution_events SET event_data = '{ABANDONED}' WHERE event_type = 'task_abandoned'"],
    ),
    (
        "key_without_task",
        None,
        [
            (
                "INSERT INTO idempotency_keys (scope, key, task_execution_id, until_finished, created_at) VALUES "
                f"('tests.work', 'k', '{{id}}', false, '{NOW}')"
            )
        ],
    ),
]


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("names", "state", "statements"),
    [pytest.param(*case, id=f"{number}-{case[0]}") for number, case in enumerate(CORRUPTIONS)],
)
def test_a_corruption_is_named_and_repaired_if_the_repair_is_unambiguous(database, names, state, statements):
    task_id = corrupt(database, state, statements)
    before = helpers.everything(database)
    found = database.store.verify(repair=True)
    assert {violation.name for violation in found} == set(names.split("+"))
    for violation in found:
        examples = [DROPPED[names]] if violation.name == "part_missing" else [task_id]
        assert (violation.count, list(violation.examples)) == (1, examples)
        assert violation.meaning == meanings(database)[violation.name]
    if set(names.split("+")) <= set(REPAIRS):
        assert sum(violation.repaired for violation in found) >= 1
        assert database.store.verify() == []
    else:
        assert {violation.repaired for violation in found} == {0}
        assert helpers.everything(database) == before


@pytest.mark.parametrize("made", ["enqueue", "retry", "schedule_retry", "recover"])
def test_a_lost_entry_is_restored_with_the_due_time_of_the_last_event(database, made):
    due = database.clock.now + timedelta(hours=2, microseconds=7)
    if made == "enqueue":
        task_id = database.add(available_at=due, queue="mail", priority=5).id
    else:
        claim = helpers.claimed(database, queue="mail", priority=5)
        task_id = claim.id
        if made == "retry":
            database.frozen.finish([Outcome(claim=claim, event_type=EventType.RETRY_SCHEDULED, available_at=due)])
        elif made == "schedule_retry":
            database.frozen.schedule_retry(task_id, due, 2)
        else:
            helpers.recovered(database, claim)
            due = database.clock.now
    columns = "task_execution_id, queue, priority, position, available_at"
    before = database.rows(f"SELECT {columns} FROM task_outbox")
    database.clock.advance(10)
    database.run("DELETE FROM task_outbox")
    (violation,) = database.frozen.verify(repair=True)
    assert (violation.name, violation.repaired) == ("ready_without_entry", 1)
    assert database.rows(f"SELECT {columns} FROM task_outbox") == before
    database.clock.now = due
    assert [claim.id for claim in database.claim()] == [task_id]


def test_a_cancel_request_after_the_last_transition_does_not_hide_the_due_time(database):
    """The last event that changed the status says when the task is due, even if other events follow it."""
    handle = database.add(delay=timedelta(hours=1))
    database.run(insert_event("task_cancel_requested").format(id=handle.id.hex))
    database.run("DELETE FROM task_outbox")
    database.frozen.verify(repair=True)
    assert database.frozen.next_available_at() == database.clock.now + timedelta(hours=1)


def test_a_running_task_without_a_lease_is_found_by_the_next_recovery(database):
    claim = helpers.claimed(database)
    database.run("DELETE FROM task_leases")
    database.frozen.verify(repair=True)
    database.clock.advance(timedelta(microseconds=1))
    (task,) = database.frozen.recover()
    assert (task.id, task.status, task.recovery_attempts) == (claim.id, TaskStatus.READY, 1)
    with pytest.raises(LeaseLost):
        database.frozen.complete(claim)


def test_a_violation_counts_all_rows_and_lists_five_examples(database):
    handles = [database.add() for _ in range(8)]
    database.run("DELETE FROM task_outbox")
    (violation,) = database.store.verify()
    assert (violation.count, len(violation.examples)) == (8, 5)
    assert set(violation.examples) <= {handle.id for handle in handles}
    (repaired,) = database.store.verify(repair=True)
    assert repaired.repaired == 8


def test_an_unreadable_row_does_not_hide_other_violations(database):
    """Every check runs, even if the previous one fails."""
    change = "UPDATE execution_events SET event_data = 'gar{{bage'"
    corrupt(database, ready, [change])
    lost, letter = (database.add().id for _ in range(2))
    for statement, task_id in (
        ("DELETE FROM task_outbox WHERE task_execution_id = '{id}'", lost),
        (INSERT_LETTER, letter),
    ):
        database.run(statement.format(id=task_id.hex))
    told = []
    found = database.store.verify(on_progress=lambda done, every: told.append((done, every)))
    assert sum("could not be checked" in one.meaning for one in found) >= 1
    examples = {one.name: list(one.examples) for one in found if one.examples}
    assert examples == {"ready_without_entry": [lost], "letter_without_failed": [letter]}
    assert told == [(done, len(CHECKS)) for done in range(1, len(CHECKS) + 1)]


def test_an_unreadable_row_does_not_prevent_other_repairs(database):
    """The due time of a lost entry is in an event. The transaction of the caller goes on."""
    lost = corrupt(database, ready, ["DELETE FROM task_outbox", "UPDATE execution_events SET event_data = 'gar{{bage'"])
    letter = database.add().id
    database.run(INSERT_LETTER.format(id=letter.hex))
    with database.host_engine().connect() as connection, connection.begin():
        within = database.store.verify(repair=True, using=connection)
        connection.rollback()
    for found in (within, database.store.verify(repair=True)):
        repaired = {one.name: (list(one.examples), one.repaired) for one in found if one.examples}
        assert repaired == {"ready_without_entry": ([lost], 0), "letter_without_failed": ([letter], 1)}
        (meaning,) = [one.meaning for one in found if one.name == "ready_without_entry"]
        assert "; it could not be repaired, because the database cannot read a row: " in meaning
    assert {one.name for one in database.store.verify() if one.examples} == {"ready_without_entry"}


def test_verify_without_repair_writes_nothing(database):
    running(database)
    corrupt(database, ready, ["DELETE FROM task_outbox"])
    before = helpers.everything(database)
    (violation,) = database.store.verify()
    assert (violation.name, violation.repaired) == ("ready_without_entry", 0)
    assert helpers.everything(database) == before


def test_verify_during_writes_reports_no_false_alarms(database):
    over, rounds = threading.Event(), [0, 0]

    def write(writer):
        worker = uuid4()
        try:
            while not over.is_set():
                for _ in range(3):
                    database.add(
                        store=database.store, lease=timedelta(milliseconds=1 if rounds[writer] % 3 else 60_000)
                    )
                claims = database.claim(3, store=database.store, worker_id=worker)
                database.store.heartbeat(claims)
                kinds = [EventType.COMPLETED, EventType.RETRY_SCHEDULED, EventType.FAILED]
                database.store.finish(
                    [Outcome(claim=claim, event_type=kind) for claim, kind in zip(claims, kinds, strict=False)]
                )
                database.store.recover()
                rounds[writer] += 1
        finally:
            over.set()

    def verify():
        try:
            found = []
            while not over.is_set() and (len(found) < 6 or min(rounds) < 3):
                found.append(database.store.verify())
            return found
        finally:
            over.set()

    found, *failed = helpers.at_once(verify, partial(write, 0), partial(write, 1))
    assert failed == [None, None]
    assert len(found) >= 6
    assert not any(found)


def test_repair_during_writes_repairs_nothing(database):
    over, rounds = threading.Event(), [0, 0]

    def write(writer):
        worker = uuid4()
        try:
            while not over.is_set():
                database.add(store=database.store)
                for claim in database.claim(2, store=database.store, worker_id=worker):
                    database.store.complete(claim)
                rounds[writer] += 1
        finally:
            over.set()

    def repair():
        found, passes = [], 0
        try:
            while not over.is_set() and (passes < 3 or min(rounds) < 3):
                for repair in REPAIRS.values():
                    found += database.store.run(
                        lambda target, repair=repair: target.run(
                            repair, {**database.store.values(target), **unreadable(target, [])}
                        )
                    )
                passes += 1
            return found, passes
        finally:
            over.set()

    (found, passes), *failed = helpers.at_once(repair, partial(write, 0), partial(write, 1))
    assert failed == [None, None]
    assert found == []
    assert passes >= 3
