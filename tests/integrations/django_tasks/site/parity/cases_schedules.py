"""Schedules of `django.tasks`, and schedules of outboxq's own tasks in a Django project."""

from datetime import timedelta

from django.test import TestCase

from outboxq import ConfigurationError, InvalidCall
from outboxq.contrib.django import DjangoOutbox, outbox
from outboxq.testing import Harness
from parity.compat import task
from parity.models import Order
from parity.tasks import echo, noop_task, scheduled


class ScheduleTests(TestCase):
    def test_migrate_stores_the_schedules_that_tasks_declare(self):
        stored = outbox.schedules.get("parity.tasks.scheduled")
        self.assertEqual((stored.rule, stored.tz, stored.queue), ("30 2 * * *", "Europe/Berlin", "mail"))

    def test_a_tick_runs_a_django_task(self):
        with Harness(outbox) as harness:
            ran = harness.advance(timedelta(days=1))
        self.assertIn((scheduled.module_path, {"number": 7}), [(one.task_name, one.args) for one in ran])
        self.assertEqual(Order.objects.get().number, 7)

    def test_a_schedule_is_put_in_the_current_transaction(self):
        put = outbox.schedules.put("mine", echo, every=60, args=(1, "two"))
        self.assertEqual(put.task_name, echo.module_path)
        with Harness(outbox) as harness:
            ran = [one for one in harness.advance(120) if one.task_name == echo.module_path]
        self.assertEqual([one.result for one in ran], [[[1, "two"], {}]] * 2)

    def test_arguments_must_match_the_task(self):
        with self.assertRaisesMessage(InvalidCall, "missing a required argument"):
            outbox.schedules.put("mine", scheduled, "@daily")

    def test_a_task_of_another_backend_is_refused(self):
        other = DjangoOutbox()
        other.alias = "other"
        with self.assertRaisesMessage(ConfigurationError, "does not use this outbox"):
            other.task_of(noop_task)

    def test_a_function_is_not_a_task(self):
        with self.assertRaisesMessage(ConfigurationError, "is not a task"):
            outbox.periodic("@daily")(task)
