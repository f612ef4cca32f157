"""The requirements of Django's tests for any backend, applied to ours.

The cases follow those of Django's own tests/tasks (test_tasks.py, test_dummy_backend.py, test_custom_backend.py) by
name. Copyright (c) Django Software Foundation and individual contributors, BSD 3-Clause licence; rewritten for this
backend.
"""

import copy
import dataclasses
import pickle
from datetime import datetime, timedelta
from importlib.metadata import version
from unittest import mock

from django.db import connection, transaction
from django.test import SimpleTestCase, TestCase, override_settings
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from django.utils.module_loading import import_string

from outboxq import InvalidCall
from outboxq.contrib.django import OutboxqBackend, outbox
from outboxq.contrib.django.compat import (
    InvalidTask,
    InvalidTaskBackend,
    Task,
    TaskResultDoesNotExist,
    TaskResultStatus,
    signals,
    task_backends,
)
from outboxq.testing import OutboxTests
from parity import tasks
from parity.compat import IMMEDIATE, LOGGER, default_task_backend, task

OURS = "outboxq.contrib.django.OutboxqBackend"
MISSING = "01900000-0000-7000-8000-000000000000"


def waiting():
    return sum(queue.due for queue in outbox.store.stats(using="default"))


@override_settings(
    TASKS={
        "default": {"BACKEND": OURS, "QUEUES": ["default", "queue_1"]},
        "any": {"BACKEND": OURS, "QUEUES": []},
        "immediate": {"BACKEND": IMMEDIATE, "QUEUES": []},
        "missing": {"BACKEND": "does.not.exist"},
    }
)
class TaskCases(TestCase):
    def test_using_correct_backend(self):
        self.assertEqual(default_task_backend, task_backends["default"])
        self.assertIsInstance(task_backends["default"], OutboxqBackend)
        self.assertEqual(default_task_backend.alias, "default")
        self.assertEqual(default_task_backend.options, {})

    def test_task_decorator(self):
        for declared in (tasks.noop_task, tasks.noop_task_async, tasks.noop_task_from_bare_decorator):
            self.assertIsInstance(declared, Task)

    def test_enqueue_task(self):
        for one in (tasks.noop_task, tasks.noop_task_async):
            with self.subTest(one.name):
                self.check_enqueued(one, one.enqueue(1, two=3), [1], {"two": 3})
        self.assertEqual(waiting(), 2)

    async def test_enqueue_task_async(self):
        for one in (tasks.noop_task, tasks.noop_task_async):
            with self.subTest(one.name):
                self.check_enqueued(one, await one.aenqueue(), [], {})

    def check_enqueued(self, one, result, args, kwargs):
        self.assertEqual(result.status, TaskResultStatus.READY)
        self.assertIs(result.is_finished, False)
        self.assertIsNotNone(result.enqueued_at)
        for moment in (result.started_at, result.last_attempted_at, result.finished_at):
            self.assertIsNone(moment)
        with self.assertRaisesMessage(ValueError, "Task has not finished yet"):
            _ = result.return_value
        self.assertEqual(result.task, one)
        self.assertEqual((result.args, result.kwargs), (args, kwargs))
        self.assertEqual((result.attempts, result.errors, result.backend), (0, [], "default"))
        self.assertLessEqual(len(result.id), 64)

    def test_enqueue_with_invalid_argument(self):
        with self.assertRaisesMessage(TypeError, "Unsupported type"):
            tasks.noop_task.enqueue(datetime.now())
        self.assertEqual(waiting(), 0)

    async def test_aenqueue_with_invalid_argument(self):
        with self.assertRaisesMessage(TypeError, "Unsupported type"):
            await tasks.noop_task.aenqueue(datetime.now())

    def test_using(self):
        due = timezone.now()
        changes = {"priority": (1, 0), "queue_name": ("queue_1", "default"), "run_after": (due, None)}
        for name, (other, before) in changes.items():
            with self.subTest(name):
                self.assertEqual(getattr(tasks.noop_task.using(**{name: other}), name), other)
                self.assertEqual(getattr(tasks.noop_task, name), before)
        chained = tasks.noop_task.using(run_after=due).using(priority=10)
        self.assertEqual((chained.run_after, chained.priority), (due, 10))
        again = tasks.noop_task.using()
        self.assertEqual(again, tasks.noop_task)
        self.assertIsNot(again, tasks.noop_task)

    def test_using_unknown_backend(self):
        with self.assertRaisesMessage(InvalidTaskBackend, "The connection 'unknown' doesn't exist."):
            tasks.noop_task.using(backend="unknown")
        with self.assertRaisesMessage(InvalidTaskBackend, "Could not find backend 'does.not.exist': No module"):
            tasks.noop_task.using(backend="missing")

    async def test_refresh_result(self):
        result = await tasks.noop_task.aenqueue()
        original = dataclasses.asdict(result)
        await result.arefresh()
        self.assertEqual(dataclasses.asdict(result), original)

    def test_refresh_result_sync(self):
        result = tasks.noop_task.enqueue()
        original = dataclasses.asdict(result)
        result.refresh()
        self.assertEqual(dataclasses.asdict(result), original)
        if int(version("tenacity").partition(".")[0]) >= 9:  # tenacity 8 keeps thread-locals, which cannot be copied
            dataclasses.asdict(tasks.third_time_lucky.enqueue())  # contains a retry policy

    def test_naive_datetime(self):
        with self.assertRaisesMessage(InvalidTask, "run_after must be an aware datetime."):
            tasks.noop_task.using(run_after=datetime.now())

    def test_invalid_priority(self):
        for priority in (-101, 101, 3.1):
            with self.assertRaisesMessage(InvalidTask, "priority must be a whole number between -100 and 100."):
                tasks.noop_task.using(priority=priority)
        for priority in (100, -100, 0, 3.0):
            tasks.noop_task.using(priority=priority).enqueue()
        self.assertEqual(waiting(), 4)

    def test_unknown_queue_name(self):
        with self.assertRaisesMessage(InvalidTask, "Queue 'queue-2' is not valid for backend."):
            tasks.noop_task.using(queue_name="queue-2")
        self.assertEqual(
            tasks.noop_task.using(queue_name="queue-2", backend="any").enqueue().task.queue_name, "queue-2"
        )

    async def test_call(self):
        self.assertEqual(await tasks.calculate_meaning_of_life.acall(), 42)
        self.assertIsNone(await tasks.noop_task_async.acall())

    def test_call_sync(self):
        self.assertEqual(tasks.calculate_meaning_of_life.call(), 42)
        self.assertIsNone(tasks.noop_task_async.call())

    def test_get_result(self):
        due = timezone.now() + timedelta(hours=10)
        for one in (
            tasks.noop_task,
            tasks.noop_task.using(run_after=due, priority=3, queue_name="queue_1", backend="any"),
        ):
            result = one.enqueue("a", b={"c": [1.5, None, True]})
            self.assertEqual(tasks.noop_task.get_result(result.id), result)
            self.assertEqual(default_task_backend.get_result(result.id), result)

    async def test_get_result_async(self):
        result = await default_task_backend.aenqueue(tasks.noop_task, (), {})
        self.assertEqual(await tasks.noop_task.aget_result(result.id), result)

    async def test_get_missing_result(self):
        for missing in ("123", MISSING):
            with self.assertRaises(TaskResultDoesNotExist):
                await default_task_backend.aget_result(missing)
            with self.assertRaises(TaskResultDoesNotExist):
                await tasks.noop_task.aget_result(missing)

    def test_get_incorrect_result(self):
        result = default_task_backend.enqueue(tasks.noop_task_async, (), {})
        with self.assertRaisesMessage(Exception, "Task does not match") as caught:
            tasks.noop_task.get_result(result.id)
        self.assertEqual(type(caught.exception).__name__, "TaskResultMismatch")

    def test_invalid_function(self):
        for function in (any, self.test_invalid_function):
            with self.assertRaisesMessage(InvalidTask, "Task function must be defined at a module level."):
                task()(function)

    def test_get_backend(self):
        self.assertIsInstance(tasks.noop_task.get_backend(), OutboxqBackend)
        elsewhere = tasks.noop_task.using(backend="immediate")
        self.assertNotIsInstance(elsewhere.get_backend(), OutboxqBackend)
        self.assertEqual(elsewhere.enqueue().status, TaskResultStatus.SUCCESSFUL)

    def test_name(self):
        self.assertEqual(tasks.noop_task_async.name, "noop_task_async")
        self.assertEqual(tasks.noop_task.module_path, "parity.tasks.noop_task")
        self.assertIs(import_string(tasks.noop_task.module_path), tasks.noop_task)

    def test_pickle_task(self):
        for one in (tasks.noop_task, tasks.third_time_lucky.using(priority=3, partition_key="a")):
            self.assertEqual(pickle.loads(pickle.dumps(one)), one)
            self.assertEqual(copy.deepcopy(one), one)

    def test_pickle_task_result(self):
        result = tasks.third_time_lucky.enqueue()
        self.assertEqual(pickle.loads(pickle.dumps(result)), result)

    @override_settings(TASKS={"other": {"BACKEND": OURS}})
    def test_no_backends(self):
        with self.assertRaises(InvalidTaskBackend):
            tasks.noop_task.enqueue()

    def test_takes_context_without_taking_context(self):
        with self.assertRaisesMessage(InvalidTask, "does not have a first argument of 'context'"):
            task(takes_context=True)(tasks.calculate_meaning_of_life.func)

    def test_run_after_in_decorator(self):
        from outboxq.contrib.django import backend

        with self.assertRaisesMessage(TypeError, "run_after"):
            backend.task(run_after=timezone.now())(tasks.calculate_meaning_of_life.func)


class BackendCases(TestCase):
    def test_enqueue_logs(self):
        with self.assertLogs(LOGGER, level="DEBUG") as logs:
            result = tasks.noop_task.enqueue()
        self.assertEqual(len(logs.output), 1)
        self.assertIn("enqueued", logs.output[0])
        self.assertIn(result.id, logs.output[0])

    def test_enqueued_signal(self):
        told = []
        signals.task_enqueued.connect(receiver := lambda sender, task_result, **_: told.append((sender, task_result)))
        self.addCleanup(signals.task_enqueued.disconnect, receiver)
        self.assertEqual([(OutboxqBackend, tasks.noop_task.enqueue())], told)

    def test_validate_disallowed_async_task(self):
        with (
            mock.patch.multiple(default_task_backend, supports_async_task=False),
            self.assertRaisesMessage(InvalidTask, "Backend does not support async"),
        ):
            default_task_backend.validate_task(tasks.noop_task_async)

    def test_validate_on_enqueue(self):
        queued = tasks.noop_task.using(queue_name="mail")
        with (
            override_settings(TASKS={"default": {"BACKEND": OURS}}),
            self.assertRaisesMessage(InvalidTask, "Queue 'mail' is not valid for backend"),
        ):
            queued.enqueue()

    async def test_validate_on_aenqueue(self):
        queued = tasks.noop_task.using(queue_name="mail")
        with (
            override_settings(TASKS={"default": {"BACKEND": OURS}}),
            self.assertRaisesMessage(InvalidTask, "Queue 'mail' is not valid for backend"),
        ):
            await queued.aenqueue()

    def test_enqueue_joins_the_transaction(self):
        with self.assertRaises(KeyError), transaction.atomic():
            lost = tasks.noop_task.enqueue()
            raise KeyError
        with self.assertRaises(TaskResultDoesNotExist):
            default_task_backend.get_result(lost.id)
        with transaction.atomic():
            kept = tasks.noop_task.enqueue()
        self.assertEqual(default_task_backend.get_result(kept.id), kept)
        self.assertEqual(waiting(), 1)

    def test_naive_times(self):
        with override_settings(USE_TZ=False):
            due = datetime(2090, 1, 2, 3, 4, 5)
            result = tasks.noop_task.using(run_after=due).enqueue()
            self.assertTrue(timezone.is_naive(result.enqueued_at))
            again = default_task_backend.get_result(result.id)
            self.assertEqual((again, again.task.run_after), (result, due))


class HelpedCases(OutboxTests, TestCase):
    """outboxq.testing works with these tasks as with others."""

    def test_drain(self):
        result, failing = tasks.echo.enqueue(1, two=3), tasks.never_lucky.enqueue()
        self.harness.assert_enqueued(tasks.echo, 1, two=3)
        self.harness.assert_enqueued("parity.tasks.echo", 1, two=3)
        self.harness.refute_enqueued(tasks.echo, 2)
        self.harness.refute_enqueued(tasks.noop_task)
        ran = self.harness.drain(raises=False)
        self.assertEqual(ran[0].args, {"args": (1,), "kwargs": {"two": 3}})
        for one in (result, failing):
            one.refresh()
        self.assertEqual((result.status, result.return_value), ("SUCCESSFUL", [[1], {"two": 3}]))
        self.assertEqual((failing.status, failing.attempts), ("FAILED", 3))

    def test_named_arguments_are_matched(self):
        tasks.check_context.enqueue(5)
        (found,) = self.harness.assert_enqueued(tasks.check_context, attempt=5)
        self.assertEqual(found.args, {"attempt": 5})
        with self.assertRaisesRegex(InvalidCall, "its parameters are: attempt"):
            self.harness.refute_enqueued(tasks.check_context, another=5)

    def test_run(self):
        self.assertEqual(self.harness.run(tasks.echo, 1, two=3).result, [[1], {"two": 3}])
        self.harness.refute_enqueued()

    def test_inline(self):
        with self.harness.inline():
            self.assertEqual(tasks.calculate_meaning_of_life.enqueue().return_value, 42)


class CostCases(TestCase):
    def test_statements(self):
        tasks.noop_task.enqueue()  # the first enqueue reads the list of tables
        with CaptureQueriesContext(connection) as enqueueing:
            result = tasks.noop_task.enqueue()
        with CaptureQueriesContext(connection) as asking:
            result.refresh()
        expected = {"postgresql": (2, 1), "sqlite": (6, 1)}[connection.vendor]
        self.assertEqual((len(enqueueing), len(asking)), expected, enqueueing.captured_queries)


class CheckCases(SimpleTestCase):
    databases = frozenset({"default"})

    def check(self, **params):
        with override_settings(TASKS={"default": {"BACKEND": OURS, **params}}):
            return {message.id for message in default_task_backend.check()}

    def test_check(self):
        self.assertEqual(self.check(), set())

    def test_app_missing(self):
        with override_settings(INSTALLED_APPS=["parity"]):
            (message,) = default_task_backend.check()
        self.assertEqual(message.id, "outboxq.E101")
        self.assertIn("outboxq.contrib.django", message.hint)

    def test_database(self):
        self.assertEqual(self.check(OPTIONS={"database": "nowhere"}), {"outboxq.E102"})

    def test_queues(self):
        self.assertEqual(self.check(QUEUES=["x" * 201]), {"outboxq.E103"})

    def test_options(self):
        for params, said in (
            ({"OPTIONS": {"databse": "default"}}, "unknown OPTIONS: databse"),
            ({"OPTIONS": {"lease": "long"}}, "lease takes a timedelta or seconds"),
            ({"OPTIONS": {"timeout": -1}}, "timeout of"),
            ({"OPTIONS": {"retry": 3}}, "not a retry policy"),
            ({"OPTIONS": {"modules": "elsewhere"}}, "['elsewhere']"),
            ({"QUEUES": "mail"}, "['mail']"),
        ):
            with self.subTest(said), self.assertRaisesMessage(InvalidTaskBackend, said):
                self.check(**params)
