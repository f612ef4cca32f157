"""Django's own test classes with a fresh test database, in a separate process: `python django_child.py SETTINGS`."""
# ruff: noqa: E402, PT027, RUF012 - settings come before models, and these are unittest's classes

from __future__ import annotations

import json
import sys
import unittest
import warnings
from uuid import UUID

warnings.simplefilter("error")

import django
from django.conf import settings

settings.configure(
    DATABASES={"default": json.loads(sys.argv[1])},
    INSTALLED_APPS=["django.contrib.contenttypes", "outboxq.contrib.django"],
    USE_TZ=True,
)
django.setup()

from django.contrib.contenttypes.models import ContentType as Row
from django.db import IntegrityError, connection, transaction
from django.test import TestCase, TransactionTestCase
from django.test.runner import DiscoverRunner

from outboxq import ConfigurationError, InvalidTarget, RetryPolicy, TaskNotFound
from outboxq.contrib.django import DjangoOutbox, outbox
from outboxq.testing import OutboxTests


def write(name):
    Row.objects.create(app_label="shop", model=name)


@outbox.task(name="shop.plain", retry=RetryPolicy(max_attempts=2, wait=60))
def plain(name: str) -> None:
    write(name)


@outbox.task(name="shop.joined", transactional=True, retry=RetryPolicy(max_attempts=2, wait=60))
def joined(name: str) -> None:
    write(name)
    plain.enqueue(f"{name} again")
    if name == "bad":
        raise ValueError(name)


def names():
    return sorted(Row.objects.filter(app_label="shop").values_list("model", flat=True))


class Common(OutboxTests):
    def test_tasks_run_on_the_connection_of_django(self):
        assert names() == []
        self.harness.refute_enqueued()
        with transaction.atomic():
            plain.using(delay=60).enqueue("later")
            joined.enqueue("one")
        self.harness.assert_enqueued(joined, "one", times=1)
        assert [ran.task_name for ran in self.harness.drain()] == ["shop.joined", "shop.plain"]
        self.harness.clock.advance(60)
        assert [ran.args["name"] for ran in self.harness.drain()] == ["later"]
        assert names() == ["later", "one", "one again"]

    def test_a_rolled_back_block_leaves_no_tasks(self):
        with self.assertRaises(ZeroDivisionError), transaction.atomic():
            plain.enqueue("one")
            raise ZeroDivisionError
        self.harness.refute_enqueued(plain)
        plain.enqueue("two")
        assert len(self.harness.drain()) == 1

    def test_errors_are_raised_and_leave_the_connection_usable(self):
        write("one")
        plain.enqueue("one")
        plain.enqueue("two")
        with self.assertRaises(IntegrityError):
            self.harness.drain()
        joined.enqueue("bad")
        with self.assertRaises(ValueError) as raised:
            self.harness.drain()
        assert "in task shop.joined(name='bad'), attempt 1" in raised.exception.__notes__[0]
        assert names() == ["one", "two"]
        self.harness.refute_enqueued(plain, "bad again")
        Row.objects.filter(model="one").delete()
        ran = self.harness.drain(until=60, raises=False)
        assert [(one.args["name"], one.attempt, one.outcome.value) for one in ran] == [
            ("one", 2, "task_completed"),
            ("bad", 2, "task_failed"),
        ]

    def test_inline(self):
        with self.harness.inline(), transaction.atomic():
            joined.enqueue("one")
            assert names() == ["one", "one again"]
        with self.harness.inline(), self.assertRaises(ValueError), transaction.atomic():
            joined.enqueue("bad")

    def test_results(self):
        handle = plain.enqueue("one")
        with self.assertRaisesRegex(TimeoutError, "in a test, only drain"):
            handle.result(timeout=5)
        self.harness.drain()
        assert handle.result(timeout=5) is None
        with self.assertRaisesRegex(TaskNotFound, "there is no task"):
            outbox.result(UUID(int=1), timeout=5)

    def test_separate_transactions_of_the_outbox_work(self):
        handle = plain.using(outbox).enqueue("one")
        outbox.store.cancel(handle.id)
        self.harness.assert_enqueued(plain, "one", status="Cancelled")
        assert self.harness.run(joined, "two").result is None
        assert names() == ["two"]
        assert outbox.store.verify() == []

    def test_a_task_of_another_database_is_refused(self):
        @DjangoOutbox("billing").task(name="billing.send_invoice")
        def send_invoice() -> None: ...

        said = "billing.send_invoice belongs to the outbox of the database 'billing', but this harness tests the outbox of 'default'"
        with self.assertRaisesRegex(ConfigurationError, said):
            self.harness.refute_enqueued(send_invoice)


class WithoutAHarness(TestCase):
    def test_a_worker_beside_the_transaction_of_a_test_is_refused(self):
        plain.enqueue("unseen")
        in_memory = connection.vendor == "sqlite" and connection.is_in_memory_db()
        refusal = (ConfigurationError, "in-memory") if in_memory else (InvalidTarget, "run them with `with Harness")
        with self.assertRaisesRegex(*refusal):
            outbox.worker().run(burst=True)


class InATestCase(Common, TestCase):
    pass


class InATransactionTestCase(Common, TransactionTestCase):
    available_apps = ["django.contrib.contenttypes", "outboxq.contrib.django"]


runner = DiscoverRunner(verbosity=0, interactive=False)
runner.setup_test_environment()
databases = runner.setup_databases()
try:
    suite = unittest.TestSuite(
        map(unittest.defaultTestLoader.loadTestsFromTestCase, [WithoutAHarness, InATestCase, InATransactionTestCase])
    )
    result = unittest.TextTestRunner(verbosity=0).run(suite)
    with connection.cursor() as cursor:
        for table in ("task_executions", "task_outbox", "execution_events"):
            cursor.execute(f"SELECT count(*) FROM {table}")
            assert cursor.fetchone() == (0,), table
finally:
    runner.teardown_databases(databases)
print(result.testsRun, "run")
sys.exit(not result.wasSuccessful())
