"""Tasks that a worker has run, and their results.

The first cases follow those of Django's own tests/tasks (test_immediate_backend.py) and of django-tasks-db, by name.
Copyright (c) Django Software Foundation and individual contributors, and (c) Jake Howard and individual contributors,
both BSD 3-Clause licence; rewritten for this backend.
"""

import json
import sys
from contextlib import contextmanager
from datetime import timedelta
from unittest import mock
from uuid import UUID, uuid4

from django.db import transaction
from django.test import TransactionTestCase, override_settings
from django.utils import timezone
from elsewhere import jobs

from outboxq import DuplicateTask, InvalidCall, LeaseLost, PayloadError, RetryPolicy, Store
from outboxq.contrib.django import OutboxqBackend, outbox
from outboxq.contrib.django.compat import InvalidTask, TaskResultDoesNotExist, signals
from outboxq.contrib.django.models import TaskExecution
from outboxq.model import NewTask
from outboxq.model.uuid7 import uuid7
from parity import tasks
from parity.compat import LOGGER, default_task_backend, task
from parity.models import Order

OURS = "outboxq.contrib.django.OutboxqBackend"


def work(*results, **options):
    """Run the due tasks, and return the refreshed results."""
    assert outbox.worker(concurrency=1, notifications=False, **options).run(burst=True) == 0
    for result in results:
        result.refresh()
    return results


@contextmanager
def told():
    """Record the signals that are sent in the block: name, sender, status, and the error that is being handled."""
    found = []

    def receiver(signal, sender, task_result, **_):
        name = next(name for name in ("enqueued", "started", "finished") if getattr(signals, f"task_{name}") is signal)
        found.append((name, sender, str(task_result.status), sys.exc_info()[0]))

    sent = (signals.task_enqueued, signals.task_started, signals.task_finished)
    for signal in sent:
        signal.connect(receiver)
    try:
        yield found
    finally:
        for signal in sent:
            signal.disconnect(receiver)


class WorkerCases(TransactionTestCase):
    def check_times(self, result):
        self.assertLessEqual(result.enqueued_at, result.started_at)
        self.assertLessEqual(result.started_at, result.last_attempted_at)
        self.assertLessEqual(result.last_attempted_at, result.finished_at)
        self.assertIs(result.is_finished, True)

    def test_run_enqueued_task(self):
        enqueued = [one.enqueue(1, two=3) for one in (tasks.noop_task, tasks.noop_task_async)]
        life = tasks.calculate_meaning_of_life.enqueue()
        spoken = tasks.echo.enqueue((1, 2.5), None, a={"b": "c"}, d=b"bytes")
        for result in work(*enqueued, life, spoken):
            self.check_times(result)
            self.assertEqual((result.status, result.attempts, result.errors), ("SUCCESSFUL", 1, []))
            self.assertEqual(result, default_task_backend.get_result(result.id))
        self.assertEqual(life.return_value, 42)
        self.assertIsNone(enqueued[0].return_value)
        self.assertEqual(spoken.return_value, [[[1, 2.5], None], {"a": {"b": "c"}, "d": "bytes"}])
        self.assertEqual(spoken.kwargs, {"a": {"b": "c"}, "d": "bytes"})

    def test_catches_exception(self):
        for one, kind, said in (
            (tasks.failing_task_value_error, ValueError, "ValueError: This Task failed due to ValueError\n"),
            (tasks.failing_task_system_exit, SystemExit, "SystemExit: This Task failed due to SystemExit\n"),
            (tasks.exit_task, SystemExit, "SystemExit: 1\n"),
            (tasks.complex_exception, ValueError, 'ValueError(ValueError("This task failed"))'),
            (tasks.complex_return_value, TypeError, "Unsupported type"),
            # KeyboardInterrupt ends Django's backend. In a worker, it only fails the task.
            (tasks.failing_task_keyboard_interrupt, KeyboardInterrupt, "KeyboardInterrupt: This Task failed"),
        ):
            with self.subTest(one.name), self.assertLogs(LOGGER, level="ERROR") as logs:
                (result,) = work(one.enqueue())
                self.check_times(result)
                self.assertEqual((result.status, result.attempts, result._return_value), ("FAILED", 1, None))
                (error,) = result.errors
                self.assertIs(error.exception_class, kind)
                self.assertIn(said, error.traceback)
                self.assertIn(said.rstrip("\n"), logs.output[0])
                with self.assertRaisesMessage(ValueError, "Task failed"):
                    _ = result.return_value

    def test_logs_and_signals(self):
        with self.assertLogs(LOGGER, level="DEBUG") as logs, told() as heard:
            (done,) = work(tasks.noop_task.enqueue())
            (failed,) = work(tasks.failing_task_value_error.enqueue())
        states = ("enqueued", "state=RUNNING", "state=SUCCESSFUL", "enqueued", "state=RUNNING", "state=FAILED")
        for output, state, result in zip(logs.output, states, [done] * 3 + [failed] * 3, strict=True):
            self.assertIn(state, output)
            self.assertIn(result.id, output)
        self.assertNotIn("None", "".join(logs.output[:3]))
        self.assertIn("ValueError: This Task failed", logs.output[-1])
        self.assertEqual(
            heard,
            [
                ("enqueued", OutboxqBackend, "READY", None),
                ("started", OutboxqBackend, "RUNNING", None),
                ("finished", OutboxqBackend, "SUCCESSFUL", None),
                ("enqueued", OutboxqBackend, "READY", None),
                ("started", OutboxqBackend, "RUNNING", None),
                ("finished", OutboxqBackend, "FAILED", ValueError),
            ],
        )

    def test_takes_context(self):
        named, first = work(tasks.get_task_id.enqueue(), tasks.check_context.enqueue(1))
        self.assertEqual(named.return_value, named.id)
        self.assertEqual(first.return_value, first.worker_ids)

    def test_run_after_priority_and_queue(self):
        later = tasks.noop_task.using(run_after=timezone.now() + timedelta(hours=10)).enqueue()
        low = tasks.noop_task.using(priority=-5).enqueue()
        high = tasks.noop_task.using(priority=5).enqueue()
        mail = tasks.noop_task.using(queue_name="mail").enqueue()
        work(later, low, high, mail, queues=["default", "queue-1"])
        self.assertEqual(
            [one.status for one in (later, low, high, mail)], ["READY", "SUCCESSFUL", "SUCCESSFUL", "READY"]
        )
        self.assertLess(high.started_at, low.started_at)
        work(mail, later)
        self.assertEqual((mail.status, later.status), ("SUCCESSFUL", "READY"))

    def test_max_tasks(self):
        results = work(*[tasks.noop_task.enqueue() for _ in range(5)], max_tasks=2)
        self.assertEqual(sorted(one.status for one in results), ["READY"] * 3 + ["SUCCESSFUL"] * 2)

    def test_async_tasks_can_use_the_orm(self):
        (result,) = work(tasks.async_order.enqueue(7))
        self.assertEqual(result.return_value, 7)
        self.assertEqual(Order.objects.get().number, 7)

    def test_only_django_tasks_are_found_by_their_path(self):
        """A row cannot make the worker call or even import anything else."""
        paths = [
            "subprocess.check_output",
            "parity.tasks.not_a_task",
            "parity.tasks.another_name",
            "parity.tasks.disguised",
            "parity.tasks.Order",
            "parity.tasks.missing",
            "parity.missing.task",
            "this.task",
            "elsewhere",
            "parity.tasks.noop_task.func",
        ]
        for path in paths:
            self.write(path)
        with self.assertLogs("outboxq.worker", level="WARNING") as logs:
            (listed,) = work(jobs.listed.enqueue())
        self.assertEqual(listed.return_value, "from a module that is no app")
        self.assertNotIn("this", sys.modules)
        for path in paths:
            self.assertIn(repr(path), "".join(logs.output))
        self.assertEqual(sum(queue.delayed for queue in outbox.store.stats()), len(paths))  # until a worker knows them

    def write(self, path, **fields):
        args = json.dumps({"args": [], "kwargs": {}, "backend": "default"})
        return str(outbox.store.enqueue(NewTask(id=uuid7(), task_name=path, args=args, **fields)).id)

    def test_the_result_of_a_deleted_task_can_be_read(self):
        result = default_task_backend.get_result(self.write("parity.tasks.gone", queue="gone", priority=3))
        self.assertEqual((result.status, result.task.module_path), ("READY", "parity.tasks.gone"))
        self.assertEqual((result.task.queue_name, result.task.priority, result.task.name), ("gone", 3, "gone"))
        with self.assertRaisesMessage(LookupError, "the task parity.tasks.gone no longer exists"):
            result.task.call()
        result.refresh()

    def test_a_task_that_no_worker_would_find_is_refused(self):
        for one in (task()(work), task()(tasks.RetryPolicy.never.__func__)):
            with self.subTest(one.module_path), self.assertRaisesMessage(InvalidTask, "no worker would find"):
                one.enqueue()
        with override_settings(TASKS={"default": {"BACKEND": OURS}}), self.assertRaisesMessage(InvalidTask, "OPTIONS["):
            jobs.listed.enqueue()
        self.assertEqual(outbox.store.stats(), [])

    def test_calls_with_invalid_arguments_are_refused(self):
        for one, args in ((tasks.calculate_meaning_of_life, [1]), (tasks.get_task_id, ["context"]), (tasks.book, [])):
            with self.subTest(one.name), self.assertRaises(InvalidCall):
                one.enqueue(*args)
        for value in (float("nan"), {1: "a"}, "\x00", "x" * 300_000):
            with self.subTest(repr(value)[:20]), self.assertRaises(PayloadError):
                tasks.echo.enqueue(value)
        self.assertEqual(outbox.store.stats(), [])

    def test_annotations_are_not_checked(self):
        """Django's contract is that arguments are JSON, and tasks of third parties are written for that."""
        self.assertEqual(work(tasks.annotated.enqueue("7"))[0].return_value, "str")

    def test_a_row_written_by_another_program_runs(self):
        args = '{"args": [1], "kwargs": {"two": 2}}'
        handle = outbox.store.enqueue(NewTask(id=uuid7(), task_name="parity.tasks.echo", args=args))
        (result,) = work(default_task_backend.get_result(str(handle.id)))
        self.assertEqual((result.return_value, result.backend), ([[1], {"two": 2}], "default"))

    def test_other_tasks_have_no_result(self):
        other = outbox.store.enqueue(NewTask(id=uuid7(), task_name="other", args='{"order": 1}'))
        with self.assertRaises(TaskResultDoesNotExist):
            default_task_backend.get_result(str(other.id))

    def test_tasks_enqueued_under_other_settings_still_run(self):
        """After QUEUES has changed, the task still runs and its result can be read."""
        mail = tasks.noop_task.using(queue_name="mail").enqueue()
        with override_settings(TASKS={"default": {"BACKEND": OURS, "QUEUES": ["other"]}}):
            self.assertEqual(default_task_backend.get_result(mail.id).task.queue_name, "mail")
            self.assertEqual(work(mail)[0].status, "SUCCESSFUL")


class ExtraCases(TransactionTestCase):
    def test_a_task_runs_once_unless_it_declares_retries(self):
        with told() as heard:
            once, thrice, lucky = work(
                tasks.failing_task_value_error.enqueue(), tasks.never_lucky.enqueue(), tasks.third_time_lucky.enqueue()
            )
        self.assertEqual(
            [(one.status, one.attempts, len(one.errors)) for one in (once, thrice, lucky)],
            [("FAILED", 1, 1), ("FAILED", 3, 3), ("SUCCESSFUL", 3, 2)],
        )
        self.assertEqual(lucky.return_value, 3)
        self.assertIn("attempt 2 of 1 before", lucky.errors[1].traceback)
        self.assertEqual([name for name, *_ in heard].count("started"), 7)
        finished = [(status, error) for name, _, status, error in heard if name == "finished"]
        self.assertCountEqual(finished, [("FAILED", ValueError), ("FAILED", LookupError), ("SUCCESSFUL", None)])

    def test_options_can_set_defaults_for_all_tasks(self):
        options = {"retry": RetryPolicy(max_attempts=2, wait=0), "lease": 300}
        with override_settings(TASKS={"default": {"BACKEND": OURS, "OPTIONS": options}}):
            result, stated = tasks.failing_task_value_error.enqueue(), tasks.never_lucky.enqueue()
            self.assertEqual(self.row(result).lease_seconds, 300)
            self.assertEqual([one.attempts for one in work(result, stated)], [2, 3])

    def row(self, result):
        return outbox.store.get(UUID(result.id))

    def test_declared_options(self):
        row = self.row(
            tasks.declared.using(partition_key="a", expires=60, max_attempts=4, headers={"a": "b"}).enqueue()
        )
        self.assertEqual((row.queue, row.priority, row.lease_seconds, row.timeout_seconds), ("mail", 7, 300, 20))
        self.assertEqual((row.partition_key, row.on_dead_letter, row.max_attempts), ("a", "hold", 4))
        self.assertEqual(row.headers, '{"a":"b"}')
        self.assertIsNotNone(row.expires_at)
        delayed = tasks.declared.using(delay=3600).enqueue()
        work(delayed)
        self.assertEqual(delayed.status, "READY")

    def test_invalid_options_are_refused(self):
        for options in (
            {"delay": -1},
            {"partition_key": ""},
            {"max_attempts": 0},
            {"unique_for": 5},
            {"headers": {"outboxq-a": "b"}},
            {"on_conflict": "x"},
            {"on_conflict": "skip", "idempotency_key": "a"},
            {"delay": 5, "run_after": timezone.now()},
        ):
            with self.subTest(options), self.assertRaises(InvalidTask):
                tasks.declared.using(**options)
        with self.assertRaises(TypeError):
            tasks.declared.using(unheard_of=1)

    def test_idempotency_key(self):
        once = tasks.declared.using(idempotency_key="order-1")
        with told() as heard:
            first, again = once.enqueue(), once.enqueue()
        self.assertEqual((again.id, again.status, len(heard)), (first.id, "READY", 1))
        work(first)
        self.assertEqual(once.enqueue().return_value, "declared")
        with self.assertRaises(DuplicateTask):
            once.using(on_conflict="raise").enqueue()

    def test_transactional(self):
        """The ORM's writes, the enqueued task and the completion are committed together, or not at all."""
        booked, lost = work(tasks.book.enqueue(1), tasks.book.enqueue(2, fails=True))
        self.assertEqual(
            (booked.status, booked.return_value, lost.status, lost.attempts), ("SUCCESSFUL", 1, "FAILED", 3)
        )
        self.assertEqual([one.number for one in Order.objects.all()], [1])
        self.assertEqual(TaskExecution.objects.filter(task_name="parity.tasks.noop_task").count(), 1)

    def test_a_cancel_is_a_failure(self):
        waiting, agreed = tasks.noop_task.using(delay=60).enqueue(), tasks.gives_up.enqueue()
        outbox.store.cancel(UUID(waiting.id), reason="sold out")
        work(waiting, agreed)
        self.assertEqual([(one.status, one.attempts) for one in (waiting, agreed)], [("FAILED", 0), ("FAILED", 1)])
        self.assertEqual(waiting.errors[0].exception_class.__name__, "Cancel")
        self.assertIn("sold out", waiting.errors[0].traceback)
        self.assertIn("nobody wants it", agreed.errors[0].traceback)

    def test_snoozed_and_redriven(self):
        with mock.patch("outboxq.worker.executor.SHORTEST_SNOOZE", timedelta(0)):
            (snoozed,) = work(tasks.snoozes.enqueue())
        self.assertEqual((snoozed.status, snoozed.attempts, snoozed.return_value), ("SUCCESSFUL", 1, 1))
        (failed,) = work(tasks.failing_task_value_error.enqueue())
        outbox.store.redrive(UUID(failed.id))
        failed.refresh()
        self.assertEqual((failed.status, failed.attempts, len(failed.errors)), ("READY", 1, 1))
        work(failed)
        self.assertEqual((failed.status, failed.attempts, len(failed.errors)), ("FAILED", 2, 2))

    def test_lost_attempts_do_not_count(self):
        """The lost attempt does not count, neither in the result nor in the task itself."""
        now = timezone.now()
        past = Store(outbox.store.bound_engine, clock=lambda: now - timedelta(hours=1))
        result = tasks.check_context.using(run_after=now - timedelta(hours=2)).enqueue(1)
        past.claim_ready_task(1, worker_id=uuid4())
        result.refresh()
        self.assertEqual((result.status, result.attempts), ("RUNNING", 1))
        outbox.store.recover()
        result.refresh()
        self.assertEqual((result.status, result.attempts, result.errors), ("READY", 0, []))
        work(result)
        self.assertEqual((result.status, result.attempts, result.errors), ("SUCCESSFUL", 1, []))
        self.assertEqual(result.return_value, result.worker_ids)
        self.assertLess(result.started_at, result.last_attempted_at)

        abandoned = tasks.noop_task.using(run_after=now - timedelta(hours=2)).enqueue()
        past.claim_ready_task(1, worker_id=uuid4())
        outbox.store.recover(max_recoveries=0)
        abandoned.refresh()
        self.assertEqual((abandoned.status, abandoned.attempts), ("FAILED", 1))
        self.assertIs(abandoned.errors[0].exception_class, LeaseLost)
        self.assertIn("ABANDONED", abandoned.errors[0].traceback)

    def test_tasks_are_known_to_operators_before_they_run(self):
        """A worker reports which tasks it knows, including those that it has not yet run."""
        self.assertIn("parity.tasks.declared", [one.name for one in outbox.tasks])
        self.assertIn("elsewhere.jobs.listed", [one.name for one in outbox.tasks])

    def test_a_failing_signal_receiver_does_not_affect_the_task(self):

        def fail(**_):
            raise RuntimeError("receiver")

        for signal in (signals.task_started, signals.task_finished):
            signal.connect(fail)
            self.addCleanup(signal.disconnect, fail)
        with self.assertLogs("django.dispatch", level="ERROR"):
            (result,) = work(tasks.noop_task.enqueue())
        self.assertEqual((result.status, result.errors), ("SUCCESSFUL", []))

    def test_a_task_is_rolled_back_with_its_block(self):
        with self.assertRaises(KeyError), transaction.atomic():
            Order.objects.create(number=1)
            tasks.noop_task.enqueue()
            raise KeyError
        work()
        self.assertEqual((Order.objects.count(), outbox.store.stats()), (0, []))
