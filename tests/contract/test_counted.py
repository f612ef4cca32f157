"""A change affects only the tasks that its question counted, and none that were enqueued, redriven or released meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from uuid import UUID

import pytest
from sqlalchemy import text

from outboxq.errors import InvalidArgument
from outboxq.model import EventType, NewTask, Outcome, TaskStatus
from outboxq.model.uuid7 import uuid7
from outboxq.store import Count, Snapshot
from tests.contract import helpers
from tests.contract.test_cli_questions import on_terminal
from tests.waiting import until

READY, RUNNING, CANCELLED = TaskStatus.READY, TaskStatus.RUNNING, TaskStatus.CANCELLED


def failed(database, **fields) -> object:
    claim = helpers.claimed(database, **fields)
    database.frozen.fail(claim, "no")
    return claim.id


def made_at(later: timedelta) -> UUID:
    """Return an id from a producer whose clock is ahead by this much."""
    return UUID(int=uuid7().int + (int(later.total_seconds() * 1000) << 80))


def statuses(database, *ids) -> list[TaskStatus]:
    return [database.frozen.get(one).status for one in ids]


def test_a_task_whose_transaction_commits_after_the_count_is_not_cancelled(database):
    counted = [database.add().id for _ in range(3)]
    behind = made_at(-timedelta(days=9))  # its producer's clock is behind
    with helpers.transaction(database) as late:
        late_one = database.frozen.enqueue(NewTask(id=behind, task_name="tests.work", args="{}"), using=late).id
        count = database.frozen.count_tasks()
        late.commit()
    assert count == Count(number=3)
    assert database.frozen.cancel_all(snapshot=count.snapshot) == 3
    assert statuses(database, late_one, *counted) == [READY, *[CANCELLED] * 3]


@pytest.mark.parametrize("is_listed", [True, False], ids=["listed", "unlisted"])
def test_a_task_of_an_open_transaction_is_kept_even_if_the_transaction_is_not_the_newest(postgresql, is_listed: bool):
    """PostgreSQL lists an open transaction only if a newer one has ended. A transaction with a higher id is open too."""
    database = postgresql
    with helpers.transaction(database) as older, helpers.transaction(database) as newer:
        older.execute(text("SELECT pg_current_xact_id()"))
        late = database.frozen.enqueue(NewTask(id=uuid7(), task_name="tests.work", args="{}"), using=newer).id
        counted = database.frozen.enqueue(NewTask(id=uuid7(), task_name="tests.work", args="{}"), using=older).id
        older.commit()
        others = [database.add().id] if is_listed else []
        count = database.frozen.count_tasks()
        newer.commit()
    assert count.number == database.frozen.cancel_all(snapshot=count.snapshot) == 1 + len(others)
    assert statuses(database, counted, late) == [CANCELLED, READY]


def test_a_task_whose_producer_has_a_fast_clock_is_cancelled_if_it_was_counted(database):
    ahead = made_at(timedelta(days=9))
    counted = database.add(id=ahead).id
    count = database.frozen.count_tasks()
    later = database.add().id
    assert count.number == database.frozen.cancel_all(snapshot=count.snapshot) == 1
    assert statuses(database, counted, later) == [CANCELLED, READY]


def test_a_dead_letter_that_is_redriven_after_the_count_is_not_cancelled(database):
    letter = failed(database)
    count = database.frozen.count_tasks()
    database.frozen.redrive(letter)
    assert count.number == database.frozen.cancel_all(snapshot=count.snapshot) == 0
    assert statuses(database, letter) == [READY]


def test_a_waiting_task_that_is_claimed_after_the_count_is_still_changed(database):
    database.add()
    count = database.frozen.count_tasks()
    database.claim()
    assert count.number == database.frozen.cancel_all(snapshot=count.snapshot) == 1


def claim_one(database, _: object) -> None:
    database.claim()


def give_back(database, claim) -> None:
    database.frozen.finish([Outcome(claim=claim, event_type=EventType.RETRY_SCHEDULED, error="again")])


@pytest.mark.parametrize(("status", "change"), [(READY, give_back), (RUNNING, claim_one)], ids=["ready", "running"])
def test_a_task_that_has_the_wanted_status_only_since_the_count_is_not_cancelled(database, status, change: Callable):
    claim = helpers.claimed(database) if status is READY else database.add()
    count = database.frozen.count_tasks(status=status)
    assert count.number == 0
    change(database, claim)
    assert statuses(database, claim.id) == [status]
    assert database.frozen.cancel_all(status=status, force=True, snapshot=count.snapshot) == 0
    assert database.frozen.count_tasks(status=status, snapshot=count.snapshot) == Count(number=0)
    assert database.frozen.cancel_all(status=status, force=True) == 1


def test_a_task_that_was_asked_to_stop_before_is_not_counted(database):
    helpers.claimed(database)
    assert database.frozen.cancel_all() == 1
    assert database.frozen.count_tasks() == Count(number=0)
    assert database.frozen.count_tasks(force=True) == Count(number=1)


@pytest.mark.parametrize("verb", ["redrive_all", "discard_all"])
def test_tasks_that_fail_or_fail_again_after_the_count_are_not_changed(database, verb):
    letters = database.frozen.dead_letters
    counted, again = failed(database), failed(database)
    claim = helpers.claimed(database)
    with helpers.transaction(database) as late:
        database.frozen.fail(claim, "no", using=late)
        count = letters.count()
        late.commit()
    database.frozen.redrive(again)
    (second,) = database.claim()
    database.frozen.fail(second, "no")
    assert count == Count(number=2)
    assert letters.count(snapshot=count.snapshot) == Count(number=1)
    group = letters.groups().groups[0].id
    assert letters.count(snapshot=count.snapshot, group=group) == Count(number=1)
    assert getattr(letters, verb)(snapshot=count.snapshot) == 1
    assert {one.id for one in letters.list()} == {again, claim.id}
    assert statuses(database, counted) != [TaskStatus.FAILED]


def test_the_events_of_a_restored_dump_are_in_every_snapshot(postgresql):
    """Their transaction ids come from another server."""
    database = postgresql
    tasks = [database.add().id for _ in range(3)]
    database.run("UPDATE execution_events SET xact_id = '4000000000000'::xid8")
    count = database.frozen.count_tasks()
    assert count.number == database.frozen.cancel_all(snapshot=count.snapshot) == 3
    assert statuses(database, *tasks) == [CANCELLED] * 3


def test_a_snapshot_can_be_stored():
    for one in (Snapshot(head=7), Snapshot(head=0, open=frozenset({12, 9}), begun=range(20, 23))):
        assert Snapshot.parse(str(one)) == one
    for wrong in ("", "7", "x:", "7:1,", "7:-1", f"{10**19}:", "7:٣"):
        with pytest.raises(InvalidArgument, match="is not a snapshot"):
            Snapshot.parse(wrong)


# -- while a producer runs


@contextmanager
def enqueueing(database, **fields) -> Iterator[list[object]]:
    """Let another thread enqueue one task after another. Yields their ids."""
    made: list[object] = []
    stop = threading.Event()

    def produce() -> None:
        while not stop.wait(0.02):
            made.append(database.add(database.store, **fields).id)

    producer = threading.Thread(target=produce)
    producer.start()
    try:
        yield made
    finally:
        stop.set()
        producer.join()


def dead_letters_of(database, number: int) -> list[object]:
    ids = [database.add(database.store, queue="mail").id for _ in range(number)]
    claims = database.claim(number, store=database.store, queues=["mail"])
    database.store.finish([Outcome(claim=one, event_type=EventType.FAILED, error="no") for one in claims])
    return ids


def test_cancel_changes_only_the_counted_tasks_while_others_are_enqueued(database):
    for _ in range(30):
        database.add(database.store, queue="mail", delay=timedelta(hours=1))
    with enqueueing(database, queue="mail", delay=timedelta(hours=1)) as made:

        def when_more_came(_: object) -> None:
            seen = len(made)
            until(lambda: len(made) > seen + 20)

        answers = [("will be cancelled", when_more_came), ("[y/N] ", "y\n")]
        code, said = on_terminal(database, "task", "cancel", "--queue", "mail", answers=answers)
    asked = int(said.split("in the queue 'mail': ")[1].split(" will be")[0])
    gone = database.store.tasks(status=CANCELLED, limit=10_000)
    assert (code, len(gone)) == (0, asked), said
    assert f"{asked} cancelled or asked to stop\n" in said


def test_cancel_reports_how_many_tasks_had_ended_meanwhile(database):
    tasks = [database.add(database.store, queue="mail", delay=timedelta(hours=1)).id for _ in range(5)]

    def two_end(_: object) -> None:
        for one in tasks[:2]:
            database.store.cancel(one)

    answers = [("will be cancelled", two_end), ("[y/N] ", "y\n")]
    code, said = on_terminal(database, "task", "cancel", "--queue", "mail", answers=answers)
    sentence = "3 of 5 cancelled or asked to stop; 2 had ended or been changed in the meantime"
    assert (code, f"{sentence}\n" in said) == (0, True), said


def test_redrive_reports_how_many_tasks_were_left_out(database):
    letters = dead_letters_of(database, 4)

    def one_goes(_: object) -> None:
        database.store.discard(letters[0])

    answers = [("will be redriven", one_goes), ("[y/N] ", "y\n")]
    code, said = on_terminal(database, "failed", "redrive", "--queue", "mail", answers=answers)
    assert (code, "3 of 4 redriven; 1 had been redriven or discarded in the meantime, or " in said) == (0, True), said


def test_prune_deletes_only_tasks_that_were_old_at_the_count(database):
    """A task that becomes old enough while the person reads the question was not counted."""
    database.add(database.store)
    database.store.complete(database.claim(store=database.store)[0])

    def another_ends(_: object) -> None:
        database.add(database.store)
        database.store.complete(database.claim(store=database.store)[0])

    answers = [("will be deleted", another_ends), ("[y/N] ", "y\n")]
    code, said = on_terminal(database, "prune", "--older-than", "0s", answers=answers)
    assert (code, "1 task was deleted" in said) == (0, True), said
    assert len(database.store.tasks()) == 1


def test_prune_refuses_a_time_without_a_zone(database):
    with pytest.raises(InvalidArgument, match="older_than"):
        database.frozen.prune(database.clock.now.replace(tzinfo=None))
