"""Tests for `manage.py test`. Workers can use the default database, which is not in memory; `other` is in memory."""
# ruff: noqa: PT027 - unittest runs it

import asyncio
import threading
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from unittest import mock

from asgiref.sync import sync_to_async
from django.apps import apps
from django.core import serializers
from django.core.exceptions import SynchronousOnlyOperation
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.db import DatabaseError, IntegrityError, connection, connections, transaction
from django.db.transaction import TransactionManagementError
from django.http import HttpResponse
from django.test import Client, TestCase, TransactionTestCase, override_settings
from django.test.utils import CaptureQueriesContext

from outboxq import ConfigurationError, DuplicateTask, InvalidCall, InvalidTarget, InvalidTransition
from outboxq.contrib.django import outbox, outboxes
from outboxq.contrib.django.models import ExecutionEvent, OutboxEntry, ScheduleTick, TaskExecution, TaskSubscription
from outboxq.database.tables import metadata
from outboxq.model.uuid7 import uuid7
from outboxq.webhooks import signed_headers
from shop import rounds, tasks
from shop.models import Booking, Order


def counts(using="default"):
    return tuple(model.objects.using(using).count() for model in (TaskExecution, ExecutionEvent, OutboxEntry))


def work(**options):
    """Run a worker in this process until nothing is due; return the tasks by their names."""
    tasks.seen.clear()
    assert outbox.worker(concurrency=1, **options).run(burst=True) == 0
    return {one.task_name.rpartition(".")[2]: one for one in TaskExecution.objects.all()}


class InsideATest(TestCase):
    """The same test twice: the rows of the first run are gone when the second run begins."""

    databases = frozenset({"default", "other"})

    def test_enqueued_tasks_exist_until_the_test_ends(self):
        assert counts() == (0, 0, 0)
        tasks.send.enqueue(1)
        with transaction.atomic():
            tasks.send.using("default", delay=60).enqueue(2)
        assert counts() == (2, 2, 2)

    test_and_gone_in_the_next = test_enqueued_tasks_exist_until_the_test_ends

    def test_an_error_raised_by_enqueue_does_not_break_the_block(self):
        tasks.send.using(idempotency_key="k").enqueue(1)
        for error, enqueue in (
            (InvalidCall, lambda: tasks.send.enqueue(1, 2)),
            (DuplicateTask, lambda: tasks.send.using(idempotency_key="k", on_conflict="raise").enqueue(1)),
        ):
            with transaction.atomic():
                Order.objects.create()
                with self.assertRaises(error):
                    enqueue()
                assert not connection.needs_rollback
        assert Order.objects.count() == 2

    def test_enqueueing_in_a_broken_block_is_refused(self):
        with transaction.atomic():
            transaction.set_rollback(True)
            with self.assertRaises(TransactionManagementError):
                tasks.send.enqueue(1)
            transaction.set_rollback(False)
        assert counts() == (0, 0, 0)

    def test_a_task_is_enqueued_only_in_its_database(self):
        assert outboxes["other"] is tasks.elsewhere.outbox
        tasks.elsewhere.enqueue()
        assert (counts(), counts("other")) == ((0, 0, 0), (1, 1, 1))
        with self.assertRaisesMessage(InvalidTarget, "declare it on outboxes['other']"):
            tasks.send.using("other").enqueue(1)
        with self.assertRaisesMessage(ConfigurationError, "nowhere"):
            outboxes["nowhere"]

    def test_an_in_memory_database_cannot_have_a_worker(self):
        tasks.elsewhere.enqueue()
        with self.assertRaisesMessage(ConfigurationError, "in-memory SQLite database"):
            outboxes["other"].worker()

    def test_enqueueing_creates_no_engine(self):
        with mock.patch("outboxq.contrib.django.django_outbox.engine_of") as engine_of:
            tasks.send.enqueue(1)
            outbox.emit("order.paid", {"id": 1})
            outbox.store.get(TaskExecution.objects.first().id, using="default")
        assert not engine_of.called

    def test_an_event_reaches_subscribers_stored_by_migrate(self):
        assert list(outbox.emit("order.paid", {"id": 1}).handles) == ["shop.tasks.count_order"]

    def test_a_transactional_task_within_the_test_transaction_uses_a_savepoint(self):
        store, integration = outbox.store, outbox.integration
        with self.assertRaises(ZeroDivisionError), integration.unit_of_work(store, within="default"):
            Order.objects.create()
            1 / 0  # noqa: B018
        with integration.unit_of_work(store, within=connection) as unit:
            Order.objects.create()
            assert unit.target == connection
            with self.assertRaisesMessage(InvalidTarget, "use the ORM"):
                unit.session  # noqa: B018
        assert Order.objects.count() == 1
        with (
            self.assertRaisesMessage(InvalidTarget, "pass the alias 'default'"),
            integration.unit_of_work(store, within="other"),
        ):
            raise AssertionError

    def test_models_of_outboxq_are_read_only(self):
        before = datetime.now(UTC) - timedelta(seconds=1)
        later = tasks.send.using(delay=60).enqueue(2)
        sooner = tasks.send.enqueue(1)
        row = TaskExecution.objects.get(pk=sooner.id)
        assert (row.status, row.queue, row.created_at.tzinfo) == ("Ready", "mail", UTC)
        assert before <= row.created_at == outbox.store.get(sooner.id, using="default").created_at
        assert TaskExecution.objects.filter(created_at__gt=before, created_at__lte=row.created_at).count() == 2
        due = OutboxEntry.objects.filter(available_at__gt=datetime.now(UTC))
        assert [one.task_execution_id for one in due] == [later.id]
        rows = TaskExecution.objects.filter(pk=row.pk)
        refusals = (row.save, row.delete, rows.delete, lambda: rows.update(queue="q"), lambda: rows.bulk_create([row]))
        for refused in refusals:
            with self.assertRaisesMessage(InvalidTransition, "outboxes[alias].store"):
                refused()

    def test_filters_by_time_range_match_stored_times(self):
        """SQLite compares times as text, so each time must be written in the same format."""
        handle = tasks.send.using(run_after=datetime(2030, 1, 1, 12, tzinfo=UTC)).enqueue(1)
        for first, last, found in ((11, 13, 1), (12, 12, 1), (13, 14, 0), (10, 11, 0)):
            times = [datetime(2030, 1, 1, hour, tzinfo=UTC) for hour in (first, last)]
            assert OutboxEntry.objects.filter(available_at__range=times, task_execution_id=handle.id).count() == found

    def test_a_serialized_row_with_a_time_in_its_primary_key_can_be_restored(self):
        """Django does this for `serialized_rollback`, and the times in composite keys are then strings."""
        tick = datetime(2030, 1, 1, 12, tzinfo=UTC)
        planted = ScheduleTick(schedule="hourly", tick=tick, task_execution_id=uuid7())
        planted.save_base(force_insert=True)
        text = serializers.serialize("json", ScheduleTick.objects.all())
        with connection.cursor() as cursor:
            cursor.execute("DELETE FROM schedule_ticks")
        for row in serializers.deserialize("json", text):
            row.save()
        assert ScheduleTick.objects.filter(tick=tick).count() == 1


EVENT = b'{"specversion": "1.0", "id": "e1", "source": "erp", "type": "billing.paid", "data": 7}'


def post_webhook(body, *, signed=None, **options):
    """Post a webhook without a CSRF token, as another program does; return the response's status."""
    headers = signed_headers("m1", body if signed is None else signed, tasks.erp.secret)
    client = Client(enforce_csrf_checks=True, **options)
    return client.post("/hooks/erp/", body, content_type="application/json", headers=headers).status_code


class Webhooks(TestCase):
    def test_a_signed_webhook_becomes_one_task(self):
        assert [post_webhook(EVENT), post_webhook(EVENT)] == [204, 204]
        assert [row.task_name for row in TaskExecution.objects.all()] == ["shop.tasks.bill"]

    test_and_its_rows_are_gone_in_the_next = test_a_signed_webhook_becomes_one_task

    def test_invalid_webhooks_are_refused(self):
        assert post_webhook(EVENT + b" ", signed=EVENT) == 401
        assert post_webhook(b"x" * 1001) == 413
        assert self.client.get("/hooks/erp/").status_code == 405
        assert counts() == (0, 0, 0)

    def test_an_unreadable_webhook_is_kept(self):
        assert [post_webhook(b"{]"), post_webhook(b"{]")] == [204, 204]
        assert [row.task_name for row in TaskExecution.objects.all()] == ["outboxq.unreadable_message"]


def answer_outside(*arguments, **options):
    assert not connection.in_atomic_block
    assert counts() == (1, 1, 1)
    return HttpResponse(*arguments, **options)


class CommittedWebhooks(TransactionTestCase):
    def test_the_task_is_committed_before_the_answer(self):
        with (
            mock.patch.dict(connection.settings_dict, {"ATOMIC_REQUESTS": True}),
            override_settings(MIDDLEWARE=["django.middleware.csrf.CsrfViewMiddleware"]),
            mock.patch("outboxq.contrib.django.webhooks.HttpResponse", side_effect=answer_outside),
        ):
            assert post_webhook(EVENT) == 204
        work()
        assert tasks.seen == [7]

    def test_a_database_error_does_not_accept_the_webhook(self):
        with mock.patch("outboxq.store.messages.inbox.enqueue_many", side_effect=DatabaseError("gone")):
            assert post_webhook(EVENT, raise_request_exception=False) == 500
        assert counts() == (0, 0, 0)
        assert post_webhook(EVENT) == 204
        assert counts()[0] == 1


class Committed(TransactionTestCase):
    """Real commits by real workers. `flush` cleans up after each test."""

    def setUp(self):
        for table in metadata.sorted_tables:  # the flush after the previous test left nothing
            if table.name != "task_subscriptions":
                with connection.cursor() as cursor:
                    cursor.execute(f"SELECT count(*) FROM {table.name}")
                    assert cursor.fetchone() == (0,), table.name
        assert TaskSubscription.objects.count() == 1
        with transaction.atomic():
            outbox.store.ensure_current_on_django()

    test_flush = test_is_followed_by_another = lambda self: self.fill()

    def fill(self):
        """Write a row to every table of outboxq."""
        store, worker = outbox.store, uuid7()
        with transaction.atomic():
            options = {"queue": "full", "partition_key": "p", "idempotency_key": "k"}
            first = tasks.send.using(**options).enqueue(1)
            tasks.send.using(delay=60).enqueue(1)
            (claim,) = store.claim_ready_task(1, worker_id=worker, queues=["full"], using="default")
            store.queues.pause("mail", using="default", create=True)
        outbox.worker(queues=["nothing"]).run(burst=True)
        with transaction.atomic():
            store.cancel(first.id, force=True, using="default")
            failing = tasks.send.enqueue(1)
            store.queues.resume("mail", using="default")
        assert claim.id == first.id
        assert failing.created

    def test_outside_a_block_a_task_is_committed_immediately(self):
        with CaptureQueriesContext(connection) as queries:
            handle = tasks.send.enqueue(1)
        assert not connection.in_atomic_block
        assert outbox.store.get(handle.id).task_name == "shop.tasks.send"  # read on another connection
        if connection.vendor == "sqlite":
            assert queries[0]["sql"] == "BEGIN IMMEDIATE"

    def test_a_task_is_rolled_back_together_with_its_block(self):
        with self.assertRaises(ZeroDivisionError), transaction.atomic():
            Order.objects.create()
            tasks.send.enqueue(1)
            1 / 0  # noqa: B018
        assert (counts(), Order.objects.count()) == ((0, 0, 0), 0)

    def test_a_savepoint_rolls_back_only_its_tasks(self):
        with transaction.atomic():
            kept = tasks.send.enqueue(1)
            with self.assertRaises(ZeroDivisionError), transaction.atomic():
                tasks.send.enqueue(2)
                1 / 0  # noqa: B018
        assert counts() == (1, 1, 1)
        assert TaskExecution.objects.get().id == kept.id

    def test_a_caught_error_rolls_back_the_whole_block_unless_it_occurs_in_a_nested_block(self):
        Order.objects.create(pk=1)
        with transaction.atomic():
            tasks.send.enqueue(1)
            with suppress(IntegrityError):
                Order.objects.create(pk=1)
            with self.assertRaises(TransactionManagementError):
                tasks.send.enqueue(2)
        assert counts() == (0, 0, 0)
        with transaction.atomic():
            tasks.send.enqueue(1)
            with suppress(IntegrityError), transaction.atomic():
                Order.objects.create(pk=1)
            tasks.send.enqueue(2)
        assert counts() == (2, 2, 2)

    def test_without_autocommit_a_task_exists_only_after_the_commit(self):
        transaction.set_autocommit(False)
        try:
            tasks.send.enqueue(1)
            transaction.rollback()
            tasks.send.enqueue(2)
            transaction.commit()
        finally:
            transaction.set_autocommit(True)
        assert counts() == (1, 1, 1)

    def test_a_request_is_one_transaction(self):
        with mock.patch.dict(connection.settings_dict, {"ATOMIC_REQUESTS": True}):
            with self.assertRaisesMessage(ValueError, "refused"):
                self.client.get("/place/-1/")
            assert (counts(), Order.objects.count()) == ((0, 0, 0), 0)
            task = self.client.get("/place/7/").json()["task"]
        assert (str(TaskExecution.objects.get().id), Order.objects.count()) == (task, 1)

    async def test_an_async_view_enqueues_in_a_thread(self):
        await self.async_client.get("/async/1/")
        assert await sync_to_async(counts)() == (1, 1, 1)
        with self.assertRaises(SynchronousOnlyOperation):
            await self.async_client.get("/async/-1/")

    def test_a_worker_runs_committed_tasks(self):
        tasks.send.enqueue(1)
        outbox.emit("order.paid", {"id": 2})
        done = work()
        assert (done["send"].status, done["send"].result) == ("Completed", '"sent 1"')
        assert sorted(map(str, tasks.seen)) == ["1", "{'id': 2}"]
        assert outbox.store.verify() == []

    def test_a_task_sees_the_row_it_was_enqueued_with(self):
        """A short run of `rounds.py`, which a campaign runs for longer."""
        found = rounds.run(200, delay=0.002)
        assert found == {"refused": 66, "seen": 134, "missed": 0, "of refused": 0}

    def test_a_transactional_task_is_committed_with_its_writes(self):
        for then in ("return", "raise", "cancel", "savepoint"):
            tasks.book.enqueue(len(then), then=then)
        with self.assertLogs("outboxq.worker"):
            work()
        assert set(Booking.objects.values_list("order", flat=True)) == {len("return"), len("savepoint")}
        assert sorted(tasks.seen) == [len("return"), len("savepoint")]
        found = dict(TaskExecution.objects.filter(task_name="shop.tasks.book").values_list("args", "status"))
        assert sorted(found.values()) == ["Cancelled", "Completed", "Completed", "Failed"]
        assert outbox.store.verify() == []

    def test_a_transactional_task_refuses_the_connection_of_another_thread(self):
        for how in ("handler", "write", "enqueue"):
            tasks.book_in_a_coroutine.enqueue(how)
        with self.assertLogs("outboxq.worker"):
            work()
        asyncio.run(sync_to_async(connections.close_all)())  # open connections would keep the database in use
        found = TaskExecution.objects.order_by("id").values_list("status", "last_error")
        assert [status for status, _ in found] == ["Completed", "Failed", "Failed"], list(found)
        assert ["connection of another thread" in (error or "") for _, error in found] == [False, True, False], list(
            found
        )
        assert list(Booking.objects.values_list("order", flat=True)) == [1]

    def test_a_transaction_abandoned_by_another_thread_leaves_nothing(self):
        with self.assertRaises(DatabaseError), outbox.integration.unit_of_work(outbox.store) as unit:
            Booking.objects.create(order=1)
            another = threading.Thread(target=unit.abandon)
            another.start()
            another.join()
            Booking.objects.create(order=2)  # on SQLite, this would be committed separately
            raise DatabaseError
        Booking.objects.create(order=3)
        assert list(Booking.objects.values_list("order", flat=True)) == [3]

    def test_a_transactional_step_is_committed_with_its_writes(self):
        tasks.fulfil.enqueue(7)
        with self.assertLogs("outboxq.worker"):
            done = work()
        assert (done["fulfil"].status, done["fulfil"].result, done["fulfil"].attempt) == ("Completed", "7", 2)
        assert list(Booking.objects.values_list("order", flat=True)) == [7]
        assert tasks.seen == [7, 7]  # "count" ran once, and "book" enqueued `send`
        assert [step.name for step in outbox.store.steps.list(done["fulfil"].id)] == ["count", "book"]
        assert outbox.store.verify() == []

    def test_a_failing_on_commit_callback_does_not_change_the_outcome(self):
        for then in ("callback", "exit"):
            tasks.book.enqueue(1, then=then)
        with self.assertLogs("outboxq.worker", "ERROR") as logs:
            work()
        assert ["on_commit callback failed after its task was committed" in said for said in logs.output] == [True] * 2
        assert [record.task for record in logs.records] == ["shop.tasks.book"] * 2
        found = TaskExecution.objects.filter(task_name="shop.tasks.book").values_list("status", "last_error")
        assert list(found) == [("Completed", None)] * 2

    def test_a_transactional_task_that_leaves_a_block_open_fails(self):
        tasks.book.enqueue(1, then="open")
        with self.assertLogs("outboxq.worker", "ERROR"):
            done = work()
        assert "left an atomic() block open" in done["book"].last_error
        assert (done["book"].status, Booking.objects.count(), len(done)) == ("Failed", 0, 1)

    def test_a_transaction_left_open_does_not_affect_a_later_task(self):
        tasks.leave_open.enqueue()
        tasks.use_connection.enqueue(7)
        with self.assertLogs("outboxq.worker", "ERROR") as logs:
            work()
        assert "left a transaction open on the database 'default'" in logs.output[0]
        assert (logs.records[0].task, logs.records[0].attempt) == ("shop.tasks.leave_open", 1)
        assert list(Order.objects.values_list("number", flat=True)) == [7]

    def test_the_next_task_does_not_get_a_connection_that_broke_unnoticed(self):
        with mock.patch.dict(connection.settings_dict, {"CONN_MAX_AGE": None}):
            for _ in range(2):
                tasks.lose_connection.enqueue()
                tasks.use_connection.enqueue()
            work()
        assert set(TaskExecution.objects.values_list("status", "attempt")) == {("Completed", 1)}

    def test_a_transactional_task_also_commits_without_autocommit(self):
        with mock.patch.dict(connection.settings_dict, {"AUTOCOMMIT": False}):
            with transaction.atomic():
                tasks.book.enqueue(1)
            done = work()
        assert (done["book"].status, Booking.objects.count()) == ("Completed", 1)

    def test_without_autocommit_no_task_commits_leftovers_of_an_earlier_one(self):
        with mock.patch.dict(connection.settings_dict, {"AUTOCOMMIT": False, "CONN_MAX_AGE": None}):
            with transaction.atomic():
                tasks.order_without_autocommit.enqueue(1, "raise")
                tasks.order_without_autocommit.enqueue(2, "commit")
            with self.assertLogs("outboxq.worker", "ERROR"):
                work()
        assert list(Order.objects.values_list("number", flat=True)) == [2]

    def test_a_django_task_has_no_sqlalchemy_session(self):
        tasks.reach_for_sqlalchemy.enqueue()
        with self.assertLogs("outboxq.worker", "ERROR"):
            done = work()
        assert "use the ORM" in done["reach_for_sqlalchemy"].last_error

    def test_a_separate_write_in_a_transactional_task_does_not_deadlock(self):
        tasks.write_apart.enqueue()
        if connection.vendor == "postgresql":
            done = work()
            assert (done["write_apart"].status, done["write_apart"].last_error) == ("Completed", None)
            return
        with self.assertLogs("outboxq.worker", "ERROR"):
            done = work()
        assert "call using(ctx)" in done["write_apart"].last_error

    def test_a_transactional_task_that_touches_no_table_completes(self):
        tasks.touch_nothing.enqueue()
        assert work()["touch_nothing"].status == "Completed"

    def test_on_postgresql_an_external_error_does_not_use_an_attempt(self):
        if connection.vendor == "sqlite":
            return  # SQLite has no server that could fail
        tasks.lose_server.enqueue()
        tasks.meet_deadlock.enqueue()
        with self.assertLogs("outboxq.worker", "WARNING") as logs:
            done = work()
        assert "its transaction was interrupted" in "".join(logs.output)
        for name in ("lose_server", "meet_deadlock"):
            assert (done[name].status, done[name].attempt, done[name].last_error) == ("Ready", 1, None), done[
                name
            ].last_error
        assert Booking.objects.count() == 0

    def test_on_sqlite_a_manual_commit_fails_the_task(self):
        if connection.vendor == "postgresql":
            return  # psycopg begins another transaction itself, which looks like the first
        tasks.commit_by_hand.enqueue()
        with self.assertLogs("outboxq.worker", "ERROR"):
            done = work()
        assert "the handler of this task ended the transaction" in done["commit_by_hand"].last_error

    def test_on_sqlite_a_unit_of_work_begins_as_a_writer(self):
        with CaptureQueriesContext(connection) as queries, outbox.integration.unit_of_work(outbox.store):
            Order.objects.count()
        begun = [one["sql"] for one in queries if one["sql"].startswith("BEGIN")]
        assert begun[:1] == ["BEGIN IMMEDIATE" if connection.vendor == "sqlite" else "BEGIN"]
        assert getattr(connection, "transaction_mode", None) in {None, "IMMEDIATE"}

    def test_a_unit_of_work_within_another_transaction_is_refused(self):
        with (
            transaction.atomic(),
            self.assertRaisesMessage(RuntimeError, "durable"),
            outbox.integration.unit_of_work(outbox.store),
        ):
            raise AssertionError

    def test_the_next_task_does_not_get_a_broken_connection(self):
        for _ in range(3):
            tasks.open_connection.enqueue()
            tasks.use_connection.enqueue()
        assert outbox.worker(concurrency=1, queues=["connections"]).run(burst=True) == 0
        assert set(TaskExecution.objects.values_list("status", "attempt")) == {("Completed", 1)}

    def test_a_changed_database_name_creates_another_store(self):
        before = outbox.store
        assert outbox.store is before
        with mock.patch.dict(connection.settings_dict, {"NAME": "another"}):
            assert outbox.store is not before

    def test_a_connection_not_from_django_is_accepted_for_the_same_database(self):
        """A Session's connection beside Django's ORM, to the same database."""
        before = outbox.store.bound_engine
        with before.connect() as foreign, foreign.begin():
            foreign.exec_driver_sql("BEGIN IMMEDIATE" if connection.vendor == "sqlite" else "BEGIN")
            tasks.send.using(foreign.connection.dbapi_connection).enqueue(1)
            foreign.exec_driver_sql("ROLLBACK")
        assert counts() == (0, 0, 0)

    def test_using_the_outbox_commits_separately(self):
        tasks.send.using(outbox).enqueue(1)
        assert counts() == (1, 1, 1)

    @override_settings(OUTBOXQ={"SCHEME": 1})
    def test_an_unknown_setting_is_refused(self):
        with self.assertRaisesMessage(ConfigurationError, "SCHEME"):
            type(outbox)("default")

    @override_settings(OUTBOXQ={"SOURCE": "shop"})
    def test_the_settings_name_the_source_of_relays(self):
        named = type(outbox)("default")
        task = named.relay("*", to=SimpleNamespace(send=print), name="crm")
        assert (named.source, task.name) == ("shop", "relay.crm")

    @override_settings(OUTBOXQ={"HOOKS": ["shop.hooks.Noting", "shop.hooks.made"]})
    def test_hooks_named_in_the_settings_run(self):
        from shop import hooks

        hooks.notes.clear()
        assert outbox.hooks is not None
        with transaction.atomic():
            tasks.book.enqueue(1)
        assert hooks.notes == ["sends book"] * 2
        assert set(work()) == {"book", "send"}
        assert hooks.notes[2:] == [
            *["handles True"] * 2,
            *["sends send"] * 2,
            *["ends task_completed with 1 bookings"] * 2,
            *["handles True"] * 2,
            *["ends task_completed with 1 bookings"] * 2,
        ]

    def test_all_databases_have_the_same_hooks(self):
        with override_settings(OUTBOXQ={"HOOKS": ["shop.hooks.Noting"]}):
            [one], [other] = (outboxes[alias].hooks for alias in ("default", "other"))
            assert one is other
        assert outbox.hooks is None

    def test_a_path_that_is_not_a_hook_is_refused(self):
        for path, said in (("shop.hooks.broken", "neither a hook nor"), ("shop.nowhere.Hook", "cannot be imported")):
            with override_settings(OUTBOXQ={"HOOKS": [path]}):
                with self.assertRaisesMessage(ConfigurationError, said):
                    tasks.send.enqueue(1)
                with self.assertRaisesMessage(SystemCheckError, said):
                    call_command("check")
        with override_settings(OUTBOXQ={"HOOKS": "shop.hooks.made"}), self.assertRaises(ConfigurationError):
            tasks.send.enqueue(1)
        assert counts() == (0, 0, 0)

    def test_the_models_match_the_tables_of_outboxq(self):
        ours = {model._meta.db_table: model for model in apps.get_app_config("outboxq").get_models()}
        assert ours.keys() == metadata.tables.keys()
        for name, table in metadata.tables.items():
            fields = {field.column: field for field in ours[name]._meta.fields if field.column}
            assert fields.keys() == set(table.columns.keys()) - {"xact_id"}  # Django has no such type
            assert {n for n, f in fields.items() if f.null} == {c.key for c in table.columns if c.nullable} - {
                "xact_id"
            }
            keys = {field.column for field in ours[name]._meta.pk_fields}
            assert keys == {column.key for column in table.primary_key}
            unique = {n for n, f in fields.items() if f.unique and not f.primary_key}
            assert unique == {
                column.key
                for one in table.constraints
                if type(one).__name__ == "UniqueConstraint"
                for column in one.columns
            }
