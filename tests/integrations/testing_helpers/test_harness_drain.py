"""Real claims in a test's own transaction, which is rolled back and leaves nothing behind (see `connection`)."""

from __future__ import annotations

import logging
import threading
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import event, text
from sqlalchemy.exc import DBAPIError, NoResultFound
from sqlalchemy.orm import Session

from outboxq import (
    Cancel,
    ConfigurationError,
    EventType,
    InvalidArgument,
    InvalidTarget,
    Outbox,
    PayloadError,
    QueueNotFound,
    Retry,
    RetryPolicy,
    Snooze,
    TaskContext,
    UnknownTask,
)
from outboxq.model.running import Progress
from outboxq.testing import EndlessDrain, Harness, OutcomeDiscarded, TransactionEnded
from outboxq.worker.handler_log import LogKeeper
from tests.integrations.testing_helpers.shop import Order


@pytest.fixture
def harness(shop, connection):
    with Harness(shop.outbox, using=connection) as harness:
        yield harness


def names(ran):
    return [one.task_name for one in ran]


def state(session, number):
    return session.get(Order, number, populate_existing=True).state


@pytest.mark.parametrize("way", ["outbox", "harness"])
def test_the_queue_of_a_declared_task_is_known(shop, harness, way):
    store = shop.outbox.store if way == "outbox" else harness.store
    assert store.queues.limit("ledger", rate=(3, 60)).rate == (3, timedelta(minutes=1))
    with pytest.raises(QueueNotFound, match="did you mean 'ledger'"):
        store.queues.limit("leger", rate=(3, 60))


class TestDrain:
    def test_drain_runs_due_tasks_and_tasks_that_they_enqueue(self, shop, harness, session):
        session.add(Order(id=7))
        session.flush()
        shop.book.using(session).enqueue(7)

        ran = harness.drain()

        assert [(one.task_name, one.args, one.outcome, one.result) for one in ran] == [
            ("shop.book", {"order_id": 7}, EventType.COMPLETED, 7),
            ("shop.receipt", {"order_id": 7}, EventType.COMPLETED, "receipt 7"),
        ]
        assert state(session, 7) == "booked"
        assert [event.event_type for event in harness.store.history(ran[0].id)] == [
            EventType.CREATED,
            EventType.CLAIMED,
            EventType.COMPLETED,
        ]
        assert harness.drain() == []

    def test_drain_runs_tasks_in_the_thread_of_the_test(self, harness, session):
        seen = []

        @harness.app.task(name="where")
        def where() -> None:
            seen.append(threading.current_thread())

        where.using(session).enqueue()
        harness.drain()
        assert seen == [threading.current_thread()]

    def test_drain_can_be_limited_to_queues_and_a_number_of_tasks(self, shop, harness, session):
        shop.receipt.using(session).enqueue(1)
        shop.receipt.using(session).enqueue(2)
        shop.ship.using(session).enqueue(3)
        assert [one.args["order_id"] for one in harness.drain(queues=["mail"], limit=1)] == [1]
        assert [one.args["order_id"] for one in harness.drain(queues=["mail"])] == [2]

    def test_queue_settings_and_idempotency_keys_work_as_in_production(self, shop, harness, session):
        for order_id in (1, 2):
            shop.receipt.using(session, idempotency_key="once").enqueue(order_id)
        harness.assert_enqueued(shop.receipt, times=1)
        harness.store.queues.pause("mail", create=True)
        assert harness.drain() == []
        harness.store.queues.resume("mail")
        assert names(harness.drain()) == ["shop.receipt"]

        harness.store.queues.limit("mail", rate=(2, 60), create=True)
        for order_id in (3, 4, 5):
            shop.receipt.using(session).enqueue(order_id)
        assert len(harness.drain()) == 2
        harness.clock.advance(60)
        assert len(harness.drain()) == 1

    def test_tasks_of_a_key_keep_their_order_through_a_retry(self, harness, session):
        failing, seen = [True], []

        @harness.app.task(name="step", retry=RetryPolicy(max_attempts=2, wait=30))
        def step(number: int) -> None:
            if failing:
                raise ValueError(failing.pop())
            seen.append(number)

        for number in (1, 2):
            step.using(session, partition_key="k").enqueue(number)
        harness.drain(raises=False, until=60)
        assert seen == [1, 2]

    def test_an_endless_drain_is_an_error_that_names_the_task(self, harness, session):
        @harness.app.task(name="again")
        def again() -> None:
            again.using(session).enqueue()

        again.using(session).enqueue()
        harness.max_runs = 5
        with pytest.raises(EndlessDrain, match=r"ran 5 tasks, and again is still due. It ran: again \(5 times\)"):
            harness.drain()
        harness.max_runs = 8
        with pytest.raises(EndlessDrain, match="ran 8 tasks"):
            harness.drain(until=timedelta(days=1))

    def test_an_unknown_task_is_an_error(self, shop, harness, session):
        other = Outbox()  # uses the database's clock

        @other.task(name="elsewhere")
        def elsewhere() -> None: ...

        elsewhere.using(session).enqueue()
        with pytest.raises(UnknownTask, match="'elsewhere' is not registered.*registered: shop.book, shop.break_every"):
            harness.drain()
        [left] = harness.enqueued("elsewhere")
        assert left.status == "Ready"


class TestFailures:
    def test_errors_are_raised_unchanged_with_a_note_and_recorded_as_in_production(self, shop, harness, session):
        shop.ship.using(session).enqueue(404)
        with pytest.raises(Exception, match="No row was found") as raised:
            harness.drain()
        assert raised.value.__notes__ == ["in task shop.ship(order_id=404), attempt 1: task_retry_scheduled"]
        assert raised.traceback[-2].name != "drain"  # the traceback contains the handler's own frames
        assert any(frame.name == "ship" for frame in raised.traceback)
        [task] = harness.enqueued(shop.ship)
        assert (task.status, task.attempt) == ("Ready", 2)

    def test_several_errors_are_raised_together_after_all_tasks_have_run(self, shop, harness, session):
        session.add(Order(id=1))
        session.flush()
        for order_id in (404, 1, 405):
            shop.ship.using(session).enqueue(order_id)
        with pytest.raises(ExceptionGroup, match="2 tasks failed") as raised:
            harness.drain()
        assert ["404" in error.__notes__[0] for error in raised.value.exceptions] == [True, False]
        assert state(session, 1) == "shipped"

    def test_several_failed_attempts_of_a_task_raise_one_error(self, shop, harness, session):
        shop.ship.using(session).enqueue(404)
        with pytest.raises(NoResultFound) as raised:
            harness.drain(until=3600)
        assert raised.value.__notes__ == ["in task shop.ship(order_id=404), attempt 2: task_failed"]

        shop.ship.using(session).enqueue(404)
        shop.ship.using(session).enqueue(405)
        with pytest.raises(ExceptionGroup, match=r"^2 tasks failed") as group:
            harness.drain(until=3600)
        assert len(group.value.exceptions) == 2

    def test_errors_can_be_left_to_the_retries(self, shop, harness, session):
        shop.ship.using(session).enqueue(404)
        assert [one.outcome for one in harness.drain(raises=False)] == [EventType.RETRY_SCHEDULED]
        assert harness.drain(raises=False) == []
        harness.clock.advance(59)
        assert harness.drain(raises=False) == []
        harness.clock.advance(1)
        [ran] = harness.drain(raises=False)
        assert (ran.attempt, ran.outcome, type(ran.error).__name__) == (2, EventType.FAILED, "NoResultFound")
        [letter] = harness.store.dead_letters.list()
        assert letter.id == ran.id

    def test_a_database_error_leaves_the_transaction_of_the_test_usable(self, shop, harness, session):
        session.add(Order(id=7))
        session.flush()
        shop.break_everything.using(session).enqueue(7)
        shop.receipt.using(session).enqueue(7)
        with pytest.raises(DBAPIError, match="there_is_no_such_table"):
            harness.drain()
        assert state(session, 7) == "new"
        assert [task.status for task in harness.enqueued()] == ["Failed", "Completed"]

    def test_a_suppressed_database_error_does_not_fail_the_task(self, harness, connection, session):
        @harness.app.task(name="swallow")
        def swallow() -> str:
            connection.execute(text("INSERT INTO test_orders (id, state) VALUES (1, 'new')"))
            try:
                connection.execute(text("SELECT * FROM there_is_no_such_table"))
            except DBAPIError:
                return "done"
            return "what?"

        swallow.using(session).enqueue()
        assert [one.result for one in harness.drain()] == ["done"]
        assert [task.status for task in harness.enqueued()] == ["Completed"]

    def test_writes_committed_by_a_failing_handler_are_kept(self, harness, session, sessions):
        @harness.app.task(name="half", retry=RetryPolicy.never())
        def half() -> None:
            with sessions() as own:
                own.add(Order(id=1))
                own.commit()
                own.add(Order(id=2))
                own.flush()
                raise ValueError("half-way")

        half.using(session).enqueue()
        with pytest.raises(ValueError, match="half-way"):
            harness.drain()
        assert [order.id for order in session.query(Order)] == [1]

    def test_a_failed_transactional_task_rolls_back_all_writes(self, harness, session):
        @harness.app.task(name="book", transactional=True, retry=RetryPolicy.never())
        def book(ctx: TaskContext) -> None:
            ctx.session.add(Order(id=1))
            ctx.session.commit()
            raise ValueError("no")

        book.using(session).enqueue()
        with pytest.raises(ValueError, match="no"):
            harness.drain()
        assert session.query(Order).all() == []

    def test_a_result_that_is_not_json_is_a_failure(self, harness, session):
        @harness.app.task(name="odd")
        def odd() -> object:
            return object()

        odd.using(session).enqueue()
        with pytest.raises(PayloadError, match="odd: result: object is not JSON"):
            harness.drain()

    def test_a_lease_lost_during_the_run_is_a_failure(self, harness, session):
        @harness.app.task(name="fenced")
        def fenced(ctx: TaskContext) -> None:
            harness.store.schedule_retry(ctx.task_id, harness.clock() + timedelta(hours=1), 2)

        fenced.using(session).enqueue()
        with pytest.raises(OutcomeDiscarded, match="the task lost its lease"):
            harness.drain()
        [task] = harness.enqueued()
        assert (task.status, task.attempt) == ("Ready", 2)

    def test_cancel_snooze_and_retry_are_not_failures(self, harness, session):
        @harness.app.task(name="ask")
        def ask(what: str) -> None:
            raise {
                "cancel": Cancel("gone"),
                "snooze": Snooze(30),
                "retry": Retry(at=datetime.now(UTC) + timedelta(hours=1)),
            }[what]

        for what in ("cancel", "snooze", "retry"):
            ask.using(session).enqueue(what)
        assert [one.outcome.value for one in harness.drain()] == [
            "task_cancelled",
            "task_snoozed",
            "task_retry_scheduled",
        ]

    def test_a_keyboard_interrupt_ends_the_drain(self, harness, session):
        @harness.app.task(name="stop")
        def stop() -> None:
            raise KeyboardInterrupt

        stop.using(session).enqueue()
        stop.using(session).enqueue()
        with pytest.raises(KeyboardInterrupt):
            harness.drain()
        assert [task.status for task in harness.enqueued()] == ["Ready", "Ready"]
        assert [task.attempt for task in harness.enqueued()] == [2, 1]

    def test_a_handler_that_ends_the_transaction_of_the_test_causes_an_error(self, database):
        outbox = Outbox()
        with database.host_engine().connect() as connection, Harness(outbox, using=connection) as harness:

            @outbox.task(name="careless")
            def careless() -> None:
                connection.rollback()

            careless.using(connection).enqueue()
            with pytest.raises(TransactionEnded, match='join_transaction_mode="create_savepoint"'):
                harness.drain()

    def test_a_session_shared_with_handlers_must_be_committed_before_the_drain(self, harness, session):
        @harness.app.task(name="shared")
        def shared(order_id: int) -> None:
            session.add(Order(id=order_id))
            session.commit()
            session.add(Order(id=99))
            session.rollback()

        shared.using(session).enqueue(1)
        session.commit()
        shared.using(session).enqueue(2)
        session.commit()
        assert [one.outcome for one in harness.drain()] == [EventType.COMPLETED] * 2
        assert [order.id for order in session.query(Order)] == [1, 2]
        shared.using(session).enqueue(3)
        with pytest.raises(TransactionEnded, match="commit that session before drain"):
            harness.drain()

    def test_a_session_that_is_never_closed_loses_only_uncommitted_writes(self, harness, session, sessions):
        left = []

        @harness.app.task(name="leak")
        def leak() -> None:
            left.append(own := sessions())
            own.add(Order(id=1))
            own.flush()

        leak.using(session).enqueue()
        assert [one.outcome for one in harness.drain()] == [EventType.COMPLETED]
        assert session.query(Order).all() == []


class TestClock:
    def test_the_clock_controls_delays_due_times_and_expiry(self, shop, harness, session):
        shop.receipt.using(session, delay=60).enqueue(1)
        shop.receipt.using(session, run_after=harness.clock() + timedelta(hours=1)).enqueue(2)
        shop.receipt.using(session, delay=10, expires=20).enqueue(3)
        assert harness.drain() == []
        harness.clock.advance(60)
        assert [one.args["order_id"] for one in harness.drain()] == [1]
        harness.clock.set(harness.clock() + timedelta(hours=1))
        assert [one.args["order_id"] for one in harness.drain()] == [2]
        assert [task.status for task in harness.enqueued(shop.receipt, 3)] == ["Cancelled"]

    def test_the_clock_also_applies_to_later_enqueues(self, shop, harness, session):
        harness.clock.set(datetime(2040, 2, 29, 12, tzinfo=UTC))
        shop.receipt.using(session, delay=60).enqueue(1)
        [task] = harness.enqueued()
        assert task.available_at == datetime(2040, 2, 29, 12, 1, tzinfo=UTC)

    def test_the_clock_stands_still_so_that_no_retry_runs_by_itself(self, harness, session):
        @harness.app.task(name="fails", retry=RetryPolicy(max_attempts=9, wait=0.000_001))
        def fails() -> None:
            raise ValueError

        fails.using(session).enqueue()
        for _ in range(2):
            ran = harness.drain(raises=False)
        assert ran == []
        assert len(harness.drain(raises=False, until=1)) == 8

    def test_a_due_time_of_now_in_the_application_is_due_in_the_harness(self, shop, harness, session):
        shop.receipt.using(session, run_after=datetime.now(UTC)).enqueue(1)
        harness.app.emit("order.paid", {"id": 2}, using=session, run_after=datetime.now(UTC))
        shop.receipt.using(session, run_after=datetime.now(UTC) + timedelta(minutes=5)).enqueue(3)
        assert len(harness.drain()) == 2

    def test_the_clock_controls_leases(self, shop, harness, session):
        from uuid import uuid4

        shop.receipt.using(session).enqueue(1)
        [claim] = harness.store.claim_ready_task(1, worker_id=uuid4(), lease=30)
        assert harness.drain() == []
        harness.clock.advance(31)
        assert names(harness.drain()) == ["shop.receipt"]
        assert EventType.RESET in [event.event_type for event in harness.store.history(claim.id)]

    def test_until_moves_the_clock_from_one_due_time_to_the_next(self, shop, harness, session):
        began = harness.clock()
        shop.ship.using(session).enqueue(404)
        shop.receipt.using(session, delay=timedelta(minutes=30)).enqueue(1)
        shop.receipt.using(session, delay=timedelta(hours=2)).enqueue(2)
        ran = harness.drain(until=timedelta(hours=1), raises=False)
        assert [(one.task_name, one.attempt) for one in ran] == [
            ("shop.ship", 1),
            ("shop.ship", 2),
            ("shop.receipt", 1),
        ]
        assert timedelta(hours=1) <= harness.clock() - began < timedelta(hours=1, minutes=1)
        assert len(harness.drain(until=harness.clock() + timedelta(hours=1))) == 1

    def test_the_clock_refuses_invalid_times(self, harness):
        with pytest.raises(InvalidArgument, match="naive"):
            harness.clock.set(datetime(2030, 1, 1))  # noqa: DTZ001
        with pytest.raises(InvalidArgument, match=r"use set\(\) to move it back"):
            harness.clock.advance(-1)
        with pytest.raises(InvalidArgument, match="naive"):
            harness.drain(until=datetime(2030, 1, 1))  # noqa: DTZ001
        harness.clock.advance(1000)
        harness.clock.reset()
        assert abs(harness.clock() - datetime.now(UTC)) < timedelta(seconds=30)


class TestInline:
    def test_inline_runs_a_task_when_it_is_enqueued(self, shop, harness, session):
        session.add(Order(id=7))
        with harness.inline():
            shop.book.using(session).enqueue(7)
            assert state(session, 7) == "booked"
        assert [task.status for task in harness.enqueued()] == ["Completed", "Completed"]
        shop.book.using(session).enqueue(7)
        assert len(harness.enqueued(status="Ready")) == 1

    def test_inline_raises_errors_at_the_enqueue(self, shop, harness, session):
        with harness.inline(), pytest.raises(Exception, match="No row was found"):
            shop.ship.using(session).enqueue(404)

    def test_inline_runs_the_tasks_of_an_event(self, shop, harness, session):
        with harness.inline():
            shop.outbox.emit("order.paid", {"id": 7}, using=session)
        assert [(task.args, task.status) for task in harness.enqueued(topic="order.paid")] == [
            ({"payload": {"id": 7}}, "Completed")
        ]

    def test_inline_does_not_run_a_delayed_task(self, shop, harness, session):
        with harness.inline():
            shop.receipt.using(session, delay=60).enqueue(1)
        assert [task.status for task in harness.enqueued()] == ["Ready"]


class TestRun:
    def test_run_passes_arguments_through_json_without_enqueueing(self, harness, session):
        @harness.app.task(name="both", transactional=True)
        def both(ctx: TaskContext, day: datetime, pair: tuple[int, int]) -> list[object]:
            ctx.session.add(Order(id=1))
            return [ctx.attempt, ctx.task_name, day.year, pair]

        ran = harness.run(both, datetime(2030, 1, 1, tzinfo=UTC), pair=(1, 2))
        assert (ran.outcome, ran.result) == (EventType.COMPLETED, [1, "both", 2030, [1, 2]])
        assert [order.id for order in session.query(Order)] == [1]
        harness.refute_enqueued()

    def test_a_scheduled_task_has_the_time_of_the_clock_as_its_tick(self, harness, session):
        harness.clock.set(datetime(2030, 1, 1, 12, tzinfo=UTC))

        @harness.app.periodic("0 2 * * *", tz="Europe/Berlin", name="nightly")
        @harness.app.periodic("0 3 * * *", name="also")
        @harness.app.task(name="scheduled")
        def scheduled(ctx: TaskContext) -> list[object]:
            return [ctx.schedule, ctx.tick]

        assert harness.run(scheduled).result == ["also", "2030-01-01T12:00:00+00:00"]

    def test_a_failure_is_raised_and_rolled_back(self, harness, session):
        @harness.app.task(name="fails", transactional=True)
        def fails(ctx: TaskContext) -> None:
            ctx.connection.execute(text("INSERT INTO test_orders (id, state) VALUES (1, 'new')"))
            raise ValueError("no")

        with pytest.raises(ValueError, match="no"):
            harness.run(fails)
        assert session.query(Order).all() == []

    @pytest.mark.parametrize("transactional", [False, True], ids=["plain", "transactional"])
    def test_a_run_contains_the_progress_and_log_of_its_handler(self, harness, session, caplog, transactional):
        caplog.set_level(logging.INFO)

        @harness.app.task(name="talks", transactional=transactional)
        def talks(ctx: TaskContext) -> None:
            logging.getLogger("shop").info("%s of %s", 12, 30)
            ctx.progress(12 / 30, "12 of 30")

        ran = harness.run(talks)
        assert (ran.progress, [line.text for line in ran.log]) == (
            Progress(fraction=0.4, note="12 of 30"),
            ["12 of 30"],
        )
        task_id = talks.using(session).enqueue().id
        (ran,) = harness.drain()
        assert (str(ran.progress), [line.level for line in ran.log]) == ("40 %: 12 of 30", ["INFO"])
        (attempt,) = harness.store.attempts(task_id)
        assert (attempt.progress, attempt.log) == (ran.progress, ran.log)
        assert not any(isinstance(one, LogKeeper) for one in logging.getLogger().handlers)

    def test_an_outcome_requested_by_the_handler_is_returned(self, harness):
        @harness.app.task(name="later")
        def later() -> None:
            raise Snooze(10)

        assert harness.run(later).outcome is EventType.SNOOZED


class TestTheOutbox:
    """Within a harness, a separate transaction of the outbox is part of the test's transaction."""

    def test_separate_transactions_are_part_of_the_test_transaction(self, shop, harness):
        handle = shop.receipt.using(shop.outbox).enqueue(1)
        assert shop.outbox.store.get(handle.id).status == "Ready"
        shop.outbox.store.cancel(handle.id)
        assert [task.status for task in harness.enqueued()] == ["Cancelled"]
        assert shop.outbox.store.verify() == []

    def test_emit_finds_subscribers_that_no_worker_has_stored(self, shop, harness):
        harness.emit("order.paid", {"id": 7})
        [ran] = harness.drain()
        assert (ran.task_name, ran.result) == ("shop.notify", 7)

        @shop.outbox.task(name="shop.late", subscribe="order.paid")
        def late(payload: dict[str, int]) -> None: ...

        harness.emit("order.paid", {"id": 8})
        assert sorted(names(harness.drain())) == ["shop.late", "shop.notify"]

    def test_enqueueing_without_using_is_refused_as_in_production(self, shop, harness):
        with pytest.raises(InvalidTarget, match=r"using\(session\)"):
            shop.receipt.enqueue(1)

    def test_a_worker_cannot_run_in_a_harness(self, shop, harness):
        with pytest.raises(ConfigurationError, match=r"drain\(\)"):
            shop.outbox.worker().run(burst=True)

    def test_the_outbox_is_restored(self, shop, connection):
        own = shop.outbox.store
        with Harness(shop.outbox, using=connection) as harness:
            assert shop.outbox.store is harness.store
            assert type(shop.outbox) is Outbox
            with pytest.raises(ConfigurationError, match="in use"):
                harness.__enter__()
        assert shop.outbox.store is own
        assert own.clock is None
        with pytest.raises(ConfigurationError, match="with Harness"):
            harness.drain()

    def test_the_outbox_is_restored_if_the_harness_cannot_start(self, shop, connection):
        kind = type(shop.outbox)
        with pytest.raises(InvalidTarget, match="pass a SQLAlchemy Session"):
            Harness(shop.outbox, using=object()).__enter__()
        event.listen(connection, "before_cursor_execute", fail_once := _Once())
        with pytest.raises(ZeroDivisionError):
            Harness(shop.outbox, using=connection).__enter__()
        assert fail_once.done
        assert type(shop.outbox) is kind

    def test_enqueueing_in_another_database_is_refused(self, shop, harness, tmp_path):
        import sqlite3

        from outboxq import migrations

        migrations.upgrade(f"sqlite:///{tmp_path}/other.db")
        other = sqlite3.connect(tmp_path / "other.db")
        with pytest.raises(InvalidTarget, match="but the test's transaction is in"):
            shop.receipt.using(other).enqueue(1)
        other.rollback()
        other.close()

    def test_a_drain_works_within_savepoints_of_the_test(self, shop, harness, connection, session):
        with connection.begin_nested() as inner:
            shop.receipt.using(connection).enqueue(1)
            assert len(harness.drain()) == 1
            inner.rollback()
        harness.refute_enqueued()
        shop.receipt.using(session).enqueue(2)
        assert len(harness.drain()) == 1


class _Once:
    done = False

    def __call__(self, *_: object) -> None:
        if not self.done:
            self.done = True
            raise ZeroDivisionError


def test_drain_flushes_the_session_and_then_expires_its_objects(shop, connection):
    with Session(connection, join_transaction_mode="create_savepoint") as mine:
        order = Order(id=7)
        mine.add(order)
        with Harness(shop.outbox, using=mine) as harness:
            shop.ship.using(mine).enqueue(7)
            harness.drain()
            assert order.state == "shipped"
            shop.book.using(mine).enqueue(7)
            order.state = "new"
            harness.drain()
            assert order.state == "booked"


def test_a_test_can_commit_after_a_transactional_task_has_failed(database):
    """Only the handler may not commit the transaction that its savepoint is part of."""
    outbox = Outbox(database.host_engine())

    @outbox.task(name="fails", transactional=True, retry=RetryPolicy.never())
    def fails() -> None:
        raise ZeroDivisionError

    with database.host_engine().connect() as connection:
        with Harness(outbox, using=connection) as harness:
            handle = fails.using(connection).enqueue()
            assert [one.outcome for one in harness.drain(raises=False)] == [EventType.FAILED]
        connection.commit()
    assert outbox.store.get(handle.id).status == "Failed"
