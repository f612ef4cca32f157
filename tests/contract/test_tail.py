"""The tail contains each committed event once, and each task's events in order, however late a transaction commits."""

from __future__ import annotations

import random
import threading
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from uuid import uuid4

import pytest

from outboxq.errors import InvalidArgument
from outboxq.model import EventType, NewTask, Outcome
from outboxq.model.uuid7 import uuid7
from outboxq.store import TailCursor
from tests.contract import helpers
from tests.waiting import until

UNROUTED = (
    "INSERT INTO execution_events (pipeline_execution_id, event_type, event_data, created_at) VALUES "
    "('00000000000000000000000000000000', 'event_unrouted', '{}', '2030-01-01T12:00:00.000000+00:00')"
)


def new(**fields):
    return NewTask(**{"id": uuid7(), "task_name": "tests.work", "args": "{}", **fields})


class Reader:
    """A reader that follows the log and stores its cursor as text, as an application would."""

    def __init__(self, database, limit=1000):
        self.store, self.limit, self.stored, self.seen = database.store, limit, None, []

    def read(self):
        cursor = None if self.stored is None else TailCursor.parse(self.stored)
        events, cursor = self.store.log.tail(cursor, limit=self.limit)
        assert len(events) <= self.limit
        self.stored = str(cursor)
        self.seen += events
        return events

    def read_all(self):
        while self.read():
            pass
        return self.seen


def numbers(events):
    return [event.sequence_num for event in events]


def committed(database):
    return [number for (number,) in database.rows("SELECT sequence_num FROM execution_events ORDER BY sequence_num")]


@contextmanager
def writing(database):
    """A write transaction of an application. On SQLite, it is the only one."""
    with helpers.transaction(database) as connection:
        yield connection


@pytest.mark.parametrize("limit", [1, 2, 1000])
def test_an_old_log_is_read_from_its_beginning_page_by_page(database, limit):
    for _ in range(3):
        database.frozen.complete(helpers.claimed(database))
    database.run(UNROUTED)
    reader = Reader(database, limit)
    events = reader.read_all()
    assert numbers(events) == committed(database)
    assert len(events) == 10
    assert (events[-1].event_type, events[-1].task_execution_id) == (EventType.UNROUTED, None)
    task_id = events[0].task_execution_id
    assert [event for event in events if event.task_execution_id == task_id] == database.frozen.history(task_id)
    assert reader.read() == []
    database.add()
    assert [event.event_type for event in reader.read()] == [EventType.CREATED]


def test_an_empty_log_returns_a_cursor_for_the_next_read(database):
    events, cursor = database.store.log.tail()
    assert events == []
    database.add()
    events, cursor = database.store.log.tail(cursor)
    assert len(events) == 1
    assert database.store.log.tail(cursor)[0] == []


def test_tail_from_now_returns_only_later_events(database):
    database.add()
    cursor = database.store.log.tail_from_now()
    assert database.store.log.tail(cursor)[0] == []
    handle = database.add()
    assert [event.task_execution_id for event in database.store.log.tail(cursor)[0]] == [handle.id]


def test_uncommitted_events_are_not_read(database):
    reader = Reader(database)
    with writing(database) as connection:
        database.frozen.enqueue(new(), using=connection)
        assert reader.read() == []
        connection.rollback()
    assert reader.read_all() == []
    database.add()
    assert numbers(reader.read()) == committed(database)


@pytest.mark.parametrize("ends", ["commit", "rollback"])
def test_an_event_with_an_early_number_and_a_late_commit_is_not_skipped(postgresql, ends):
    """The first transaction draws numbers, the second commits higher ones, and the reader reads before the first ends."""
    reader = Reader(postgresql)
    with writing(postgresql) as first:
        late = postgresql.frozen.enqueue(new(), using=first)
        postgresql.add()
        assert reader.read() == reader.read() == []  # a lower number may still come
        postgresql.add()
        assert reader.read() == []
        first.commit() if ends == "commit" else first.rollback()
    assert numbers(reader.read_all()) == committed(postgresql)
    assert (late.id in [event.task_execution_id for event in reader.seen]) == (ends == "commit")


def test_events_before_an_open_gap_are_read(postgresql):
    reader = Reader(postgresql)
    before = postgresql.add()
    with writing(postgresql) as first:
        postgresql.frozen.enqueue(new(), using=first)
        postgresql.add()
        assert [event.task_execution_id for event in reader.read()] == [before.id]
        assert reader.read() == []


def test_a_long_transaction_without_events_does_not_delay_the_tail(postgresql):
    with writing(postgresql) as long:
        long.exec_driver_sql("SELECT pg_current_xact_id()")
        reader = Reader(postgresql)
        for _ in range(3):
            handle = postgresql.add()
            assert [event.task_execution_id for event in reader.read()] == [handle.id]


def test_a_gap_left_by_a_rollback_is_skipped_once_older_transactions_have_ended(postgresql):
    reader = Reader(postgresql)
    with ExitStack() as stack:
        beside = stack.enter_context(writing(postgresql))
        beside.exec_driver_sql("SELECT pg_current_xact_id()")
        with writing(postgresql) as gone:
            postgresql.frozen.enqueue(new(), using=gone)
            gone.rollback()
        postgresql.add()
        assert reader.read() == reader.read() == []  # the reader cannot exclude that `beside` drew the number
        later = stack.enter_context(writing(postgresql))
        later.exec_driver_sql("SELECT pg_current_xact_id()")
        assert reader.read() == []
        beside.commit()
        assert numbers(reader.read()) == committed(postgresql)  # `later` began after the mark


def test_a_mark_is_kept_until_it_has_passed(postgresql):
    """If each read set a new mark, overlapping transactions would block the reader forever."""
    reader, rounds = Reader(postgresql), 0
    with ExitStack() as stack:
        open_now = stack.enter_context(writing(postgresql))
        open_now.exec_driver_sql("SELECT pg_current_xact_id()")
        while not reader.read():
            with writing(postgresql) as gone:
                postgresql.frozen.enqueue(new(), using=gone)
                gone.rollback()
            postgresql.add()
            following = stack.enter_context(writing(postgresql))
            following.exec_driver_sql("SELECT pg_current_xact_id()")
            open_now.commit()
            open_now, rounds = following, rounds + 1
            assert rounds < 5


def test_a_mark_covers_transactions_beyond_its_snapshot(postgresql):
    """A snapshot covers ids up to the last ended transaction. A later transaction may have drawn a number."""
    reader = Reader(postgresql)
    with ExitStack() as stack:
        oldest, middle, newest = (stack.enter_context(writing(postgresql)) for _ in range(3))
        for connection in (oldest, middle):
            connection.exec_driver_sql("SELECT pg_current_xact_id()")
        late = postgresql.frozen.enqueue(new(), using=newest)
        postgresql.frozen.enqueue(new(), using=oldest)
        oldest.commit()
        assert reader.read() == []
        middle.commit()
        assert reader.read() == []
        newest.commit()
    assert reader.read_all()[0].task_execution_id == late.id
    assert numbers(reader.seen) == committed(postgresql)


def test_a_gap_larger_than_a_page_does_not_stop_the_tail(postgresql):
    reader = Reader(postgresql, limit=3)
    with writing(postgresql) as first:
        postgresql.frozen.enqueue_many([new() for _ in range(10)], using=first)
        for _ in range(10):
            postgresql.add()
        assert reader.read() == []
        first.commit()
    assert numbers(reader.read_all()) == committed(postgresql)
    assert len(reader.seen) == 20


def test_events_of_a_task_keep_their_order_even_if_an_older_transaction_wrote_the_last(postgresql):
    """In the order of transaction ids, the task would be cancelled before it was created."""
    reader = Reader(postgresql)
    with writing(postgresql) as old:
        old.exec_driver_sql("SELECT pg_current_xact_id()")
        handle = postgresql.add()
        postgresql.frozen.cancel(handle.id, using=old)
        old.commit()
    kinds = [event.event_type for event in reader.read_all() if event.task_execution_id == handle.id]
    assert kinds == [EventType.CREATED, EventType.CANCELLED]


def test_pruned_events_are_skipped(database):
    reader = Reader(database, limit=2)
    claim = helpers.claimed(database)
    database.frozen.complete(claim)
    database.clock.advance(timedelta(days=2))
    database.frozen.prune(timedelta(days=1))
    handle = database.add()
    assert [event.task_execution_id for event in reader.read_all()] == [handle.id]
    assert TailCursor.parse(reader.stored).sequence_num == committed(database)[-1]


def test_a_cursor_can_be_stored_as_text_and_parsed(database):
    database.add()
    _, cursor = database.store.log.tail()
    assert TailCursor.parse(str(cursor)) == cursor
    odd = TailCursor(sequence_num=1, settled=2, mark_xact=3, mark_sequence=4)
    assert TailCursor.parse(str(odd)) == odd


@pytest.mark.parametrize("text", ["", "1", "1.2.3", "1.2.3.4.5", "1.2.3.-4", "1.2.3.x", "1.2.3.²", None])
def test_text_that_is_not_a_cursor_is_refused(text):
    with pytest.raises(InvalidArgument, match="is not a position in the log"):
        TailCursor.parse(text)


def test_an_invalid_limit_or_cursor_is_refused(database):
    for limit in (0, -1, 1.0, True):
        with pytest.raises(InvalidArgument, match="limit"):
            database.store.log.tail(limit=limit)
    with pytest.raises(InvalidArgument, match="TailCursor.parse"):
        database.store.log.tail("1.2.3.4")


def test_every_event_is_read_once_despite_overlapping_writers_and_rollbacks(database):
    over, dice = threading.Event(), random.Random(7)
    seeds = [dice.random() for _ in range(4)]

    def write(seed):
        own, worker = random.Random(seed), uuid4()
        for _ in range(6):
            with helpers.transaction(database) as connection:
                for _ in range(own.randint(1, 3)):
                    database.store.enqueue_many([new() for _ in range(own.randint(1, 3))], using=connection)
                    over.wait(own.random() * 0.004)
                for claim in database.store.claim_ready_task(2, worker_id=worker, using=connection):
                    database.store.finish([Outcome(claim=claim, event_type=EventType.RELEASED)], using=connection)
                over.wait(own.random() * 0.004)
                connection.rollback() if own.random() < 0.3 else connection.commit()

    def follow(limit):
        reader = Reader(database, limit)
        while not over.is_set():
            reader.read()
        until(lambda: reader.read_all() and numbers(reader.seen) == committed(database))
        return reader.seen

    def write_all():
        try:
            return helpers.at_once(*(lambda seed=seed: write(seed) for seed in seeds))
        finally:
            over.set()

    written, *read = helpers.at_once(write_all, lambda: follow(1000), lambda: follow(3))
    assert written == [None] * 4
    for events in read:
        assert numbers(events) == committed(database)
