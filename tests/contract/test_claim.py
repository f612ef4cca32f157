"""Claims: which tasks are taken, in what order, once only, and with all their fields."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from contextlib import ExitStack
from datetime import timedelta
from itertools import chain
from uuid import uuid4

import pytest
from sqlalchemy.exc import DBAPIError, IntegrityError

from outboxq.errors import InvalidArgument
from outboxq.model import TaskStatus
from outboxq.model.uuid7 import uuid7
from tests import forked
from tests.conftest import Database
from tests.contract import helpers

MICROSECOND = timedelta(microseconds=1)


def ids(rows):
    return [row.id for row in rows]


def expected_order(database: Database, queues=None):
    """Return the ids of the due entries in the promised order: by priority, due time and age of the entry."""
    rows = database.rows("SELECT task_execution_id, queue, priority, available_at, id FROM task_outbox")
    now = database.clock.now if database.name == "postgresql" else database.clock.now.isoformat(timespec="microseconds")
    due = [row for row in rows if (queues is None or row[1] in queues) and row[3] <= now]
    return [str(row[0]).replace("-", "") for row in sorted(due, key=lambda row: (-row[2], row[3], row[4]))]


def test_a_claim_from_an_empty_queue_returns_and_writes_nothing(database):
    database.add(queue="elsewhere")
    before = helpers.everything(database)
    assert database.claim(5, queues=["default"]) == []
    assert helpers.everything(database) == before


@pytest.mark.parametrize("queues", [None, ["default"], ["default", "other"]])
def test_a_claim_takes_at_most_its_limit_in_order_of_due_times(database, queues):
    late = database.add(available_at=helpers.stale_by(database, 1))
    early = database.add(available_at=helpers.stale_by(database, 3))
    middle = database.add(available_at=helpers.stale_by(database, 2))
    assert ids(database.claim(2, queues=queues)) == [early.id, middle.id]
    assert ids(database.claim(2, queues=queues)) == [late.id]


def test_a_claim_has_all_fields_of_the_task(database):
    parent = uuid4()
    handle = database.add(
        task_name="mail.send",
        pipeline_execution_id=parent,
        args='{"to": 1}',
        headers='{"trace": "x"}',
        queue="mail",
        priority=7,
        max_attempts=4,
        lease=timedelta(seconds=30),
        timeout=timedelta(seconds=10),
    )
    (claim,) = database.claim()
    assert (claim.id, claim.pipeline_execution_id, claim.task_name) == (handle.id, parent, "mail.send")
    assert (claim.args, claim.headers, claim.queue, claim.priority) == ('{"to": 1}', '{"trace": "x"}', "mail", 7)
    assert (claim.attempt, claim.max_attempts, claim.recovery_attempts, claim.lease_token) == (1, 4, 0, 1)
    assert (claim.worker_id, claim.lease_seconds, claim.timeout_seconds) == (database.worker, 30, 10)
    assert claim.lease_expires_at == database.clock.now + timedelta(seconds=30)
    assert claim.created_at == claim.started_at == claim.first_started_at == database.clock.now


def test_a_claim_deletes_the_outbox_entry_and_records_the_worker_in_one_event(database):
    handle = database.add()
    database.clock.advance(5)
    (claim,) = database.claim()
    task = database.frozen.get(handle.id)
    assert database.rows("SELECT count(*) FROM task_outbox") == [(0,)]
    assert (task.status, task.worker_id, task.lease_token) == (TaskStatus.RUNNING, database.worker, 1)
    assert task.started_at == task.first_started_at == task.updated_at == database.clock.now
    assert task.lease_expires_at == claim.lease_expires_at
    created, event = database.frozen.history(handle.id)
    assert (created.event_type, event.event_type) == ("task_created", "task_claimed")
    assert (event.worker_id, event.lease_token, event.event_data) == (database.worker, 1, {"attempt": 1})
    assert (event.created_at, event.pipeline_execution_id) == (database.clock.now, handle.id)


def test_started_at_belongs_to_this_claim_and_first_started_at_to_the_first(database):
    first = helpers.claimed(database)
    database.frozen.release(first)
    database.clock.advance(60)
    (second,) = database.claim()
    assert (second.first_started_at, second.started_at) == (first.started_at, database.clock.now)


@pytest.mark.parametrize("queues", [None, ["default"], ["default", "other"]])
def test_an_error_while_the_event_is_inserted_undoes_the_claim(database, queues):
    database.add()
    before = helpers.everything(database)
    helpers.refuse_event(database, "task_claimed")
    with pytest.raises(IntegrityError):
        database.claim(queues=queues)
    assert helpers.everything(database) == before


def test_an_error_undoes_the_claim_even_if_the_caller_commits_the_rest(database):
    """A method is all or nothing in a caller's transaction too. (PostgreSQL then aborts that transaction.)"""
    database.add()
    before = helpers.everything(database)
    helpers.refuse_event(database, "task_claimed")
    with helpers.transaction(database) as connection:
        with pytest.raises(DBAPIError):
            database.claim(using=connection)
        connection.commit()
    assert helpers.everything(database) == before


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_claim_on_a_connection_of_the_caller_is_part_of_its_transaction(database, end):
    database.add()
    before = helpers.everything(database)
    with helpers.transaction(database) as connection:
        (claim,) = database.claim(using=connection)
        getattr(connection, end)()
    if end == "rollback":
        assert helpers.everything(database) == before
    else:
        database.frozen.complete(claim)


def test_a_task_is_claimable_at_its_due_time_and_not_a_microsecond_before(database):
    handle = database.add(available_at=database.clock.now + timedelta(seconds=10))
    database.clock.advance(timedelta(seconds=10) - MICROSECOND)
    assert database.claim() == []
    database.clock.advance(MICROSECOND)
    assert ids(database.claim()) == [handle.id]


def test_a_task_waits_since_it_was_created_and_became_due(database):
    created, due = database.clock.now, database.clock.now + timedelta(seconds=10)
    database.add(available_at=due)
    database.add(available_at=created - timedelta(days=9))
    database.clock.advance(timedelta(seconds=10))
    assert [claim.waits_since for claim in database.claim(2)] == [created, due]


def test_a_delay_counts_from_the_clock_of_the_database(database):
    handle = database.add(delay=timedelta(seconds=10, microseconds=7))
    database.clock.advance(timedelta(seconds=10, microseconds=6))
    assert database.claim() == []
    database.clock.advance(MICROSECOND)
    assert ids(database.claim()) == [handle.id]


@pytest.mark.parametrize("fraction", [0, 1, 499_999, 500_000, 999_499, 999_500, 999_999])
def test_sums_of_times_are_exact_to_the_microsecond(database, fraction):
    """SQLite's strftime('%s') rounds to milliseconds. Half a millisecond before a full second, it is a second ahead."""
    database.clock.now = database.clock.now.replace(microsecond=fraction)
    handle = database.add(lease=timedelta(seconds=60))
    (claim,) = database.claim()
    assert claim.id == handle.id
    assert claim.lease_expires_at == database.clock.now + timedelta(seconds=60)


def test_due_times_depend_only_on_the_injected_clock(database):
    handle = database.add()  # due at noon in 2030
    assert database.claim(store=database.store) == []
    assert ids(database.claim()) == [handle.id]


def test_tasks_with_equal_due_times_are_claimed_in_order_of_entry(database):
    # The clock stands still and the ids run backwards, so only the order of the entries is left.
    handles = [database.add(id=one) for one in reversed([uuid7() for _ in range(20)])]
    assert ids(database.claim(20)) == ids(handles)


def test_a_higher_priority_is_claimed_first_regardless_of_age(database):
    low = database.add(priority=-100, available_at=helpers.stale_by(database, 100))
    normal = database.add(available_at=helpers.stale_by(database, 10))
    high = database.add(priority=100)
    assert ids(database.claim(2)) == [high.id, normal.id]
    assert ids(database.claim(2)) == [low.id]


@pytest.mark.parametrize("queues", [None, ["default"], ["default", "other"]])
def test_a_due_task_is_found_behind_future_tasks_of_a_higher_priority(database, queues):
    for _ in range(30):
        database.add(priority=9, delay=timedelta(hours=1))
    handle = database.add(priority=-9)
    assert ids(database.claim(3, queues=queues)) == [handle.id]


@pytest.mark.in_turn
@pytest.mark.parametrize("limit", [1, 7, 500])
@pytest.mark.parametrize("queues", [None, ["a"], ["b", "a"], ["a", "b", "c", "none"]])
def test_queues_are_merged_exactly_by_priority_due_time_and_entry(database, queues, limit):
    dice = random.Random(f"{queues}{limit}")
    for _ in range(60):
        database.add(
            queue=dice.choice("abc"),
            priority=dice.choice([-5, 0, 0, 3]),
            available_at=database.clock.now + timedelta(seconds=dice.randint(-5, 2)),
        )
    wanted = expected_order(database, queues)
    got = []
    while batch := database.claim(limit, queues=queues):
        assert len(batch) == min(limit, len(wanted) - len(got))
        got += [claim.id.hex for claim in batch]
    assert got == wanted


def test_a_queue_named_twice_counts_once(database):
    handles = [database.add() for _ in range(3)]
    assert ids(database.claim(3, queues=["default", "default"])) == ids(handles)


def test_no_queue_named_means_every_queue(database):
    handles = [database.add(queue=name) for name in ["z", "a", "Ünïcode 'quoted\"; --", "a" * 200]]
    assert ids(database.claim(9)) == ids(handles)


@pytest.mark.parametrize("state", ["Completed", "Failed", "Cancelled", "Running", "missing"])
def test_a_stale_entry_is_deleted_and_not_run(database, state):
    if state == "missing":
        task_id = uuid4()
    else:
        claim = helpers.claimed(database)
        task_id = claim.id
        if state == "Completed":
            database.frozen.complete(claim)
        elif state == "Failed":
            database.frozen.fail(claim, "no")
        elif state == "Cancelled":
            database.frozen.cancel(claim.id, force=True)
    before = helpers.everything(database)
    database.run(
        "INSERT INTO task_outbox (task_execution_id, queue, priority, position, available_at, created_at) VALUES "
        f"('{task_id.hex}', 'default', 50, 1, '2029-01-01T00:00:00.000000+00:00', '2029-01-01T00:00:00.000000+00:00')"
    )
    handle = database.add()
    assert ids(database.claim(5)) == [handle.id]
    assert database.rows("SELECT count(*) FROM task_outbox") == [(0,)]
    after = helpers.everything(database)
    for table in ("task_executions", "task_leases", "execution_events"):
        assert [row for row in before[table] if row not in after[table]] == []
    assert len(after["execution_events"]) == len(before["execution_events"]) + 2


def test_the_lease_of_the_worker_replaces_the_lease_of_the_task(database):
    database.add(lease=timedelta(seconds=60))
    (claim,) = database.claim(lease=timedelta(seconds=5, microseconds=250))
    assert claim.lease_expires_at == database.clock.now + timedelta(seconds=5, microseconds=250)
    assert database.frozen.get(claim.id).lease_expires_at == claim.lease_expires_at


def test_a_claim_contains_the_length_of_a_lease_chosen_by_the_worker(database):
    """A heartbeat is due every quarter of the lease. With the task's 60 s, a lease of 5 s would expire long before."""
    database.add(lease=timedelta(seconds=60))
    (claim,) = database.claim(lease=timedelta(seconds=5))
    assert claim.lease_expires_at - claim.started_at == timedelta(seconds=claim.lease_seconds)


@pytest.mark.parametrize("limit", [0, -1, True, False, 1.5, "3", None])
def test_a_limit_that_is_not_a_positive_whole_number_is_refused(database, limit):
    database.add()
    before = helpers.everything(database)
    with pytest.raises(InvalidArgument):
        database.claim(limit)
    assert helpers.everything(database) == before


@pytest.mark.parametrize(
    "options",
    [
        {"queues": []},
        {"queues": "mail"},  # would be read as the queues m, a, i and l
        {"lease": timedelta(0)},
        {"lease": timedelta(seconds=-1)},
        {"worker_id": "worker-1"},
        {"worker_id": None},
    ],
)
def test_other_invalid_arguments_are_refused(database, options):
    with pytest.raises(InvalidArgument):
        database.claim(**options)


def test_many_threads_claim_every_task_exactly_once(database):
    handles = [database.add(store=database.store, priority=number % 3) for number in range(200)]

    def work():
        worker, got = uuid4(), []
        while batch := database.claim(7, store=database.store, worker_id=worker):
            got += ids(batch)
        return got

    shares = helpers.at_once(*[work] * 5)
    assert all(isinstance(share, list) for share in shares), shares
    assert sorted(chain.from_iterable(shares)) == sorted(ids(handles))
    assert database.counts() == (200, 400, 0)


PROCESS = """
import json, sys, uuid
from outboxq.database.engine import make_engine
from outboxq.store import Store
store, worker, got = Store(make_engine(sys.argv[1])), uuid.uuid4(), []
print("ready", flush=True)
sys.stdin.readline()
while batch := store.claim_ready_task(3, worker_id=worker):
    got += [claim.id.hex for claim in batch]
    store.complete(batch[0])
print(json.dumps(got))
"""


def test_many_processes_claim_every_task_exactly_once(database):
    handles = [database.add(store=database.store) for _ in range(120)]
    command = [sys.executable, "-c", PROCESS, database.url]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with ExitStack() as stack:
        processes = [stack.enter_context(forked.Popen(command, **pipes)) for _ in range(3)]
        for process in processes:
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            process.stdin.write("go\n")
            process.stdin.flush()
        shares = [json.loads(process.communicate(timeout=240)[0]) for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert sorted(chain.from_iterable(shares)) == sorted(handle.id.hex for handle in handles)


def test_claims_during_enqueues_and_completions_lose_and_duplicate_nothing(database):
    tasks, workers = 40, 3

    def enqueue():
        return [database.add(store=database.store, queue="ab"[number % 2]).id for number in range(tasks)]

    def work():
        worker, got = uuid4(), []
        while database.rows("SELECT count(*) FROM task_executions WHERE status = 'Completed'") != [(2 * tasks,)]:
            for claim in database.claim(4, store=database.store, worker_id=worker):
                database.store.complete(claim)
                got.append(claim.id)
        return got

    first, second, *shares = helpers.at_once(enqueue, enqueue, *[work] * workers)
    assert all(isinstance(share, list) for share in shares), shares
    assert sorted(chain.from_iterable(shares)) == sorted(first + second)
