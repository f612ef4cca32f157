"""Tests of the admin through Django's test client. `test_django_admin.py` runs them once for each database."""

import json
import re
from datetime import timedelta
from html import unescape
from pathlib import Path
from types import ModuleType
from unittest import mock
from uuid import uuid4

from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.contrib.messages import get_messages
from django.db import connection, connections, transaction
from django.test import Client, TestCase, TransactionTestCase
from django.test.utils import CaptureQueriesContext, override_settings
from django.urls import include, path, resolve, reverse
from django.utils import timezone

from outboxq import migrations
from outboxq.contrib.django import admin as ours
from outboxq.contrib.django import outboxes
from outboxq.contrib.django.admin import AT_ONCE, NEWEST, TaskExecutionAdmin, local_time
from outboxq.contrib.django.dashboard import ENQUEUE, dashboard_urls, permission_of
from outboxq.contrib.django.models import TaskExecution
from outboxq.contrib.django.operations import bring_to
from outboxq.errors import ScheduleNotFound
from outboxq.model import EventType, NewTask, OnDeadLetter, Outcome
from outboxq.model.schedules import NewSchedule
from outboxq.model.uuid7 import uuid7
from outboxq.operating.verbs import VERBS
from tests.reuse import every_check_holds

LIST = "/admin/outboxq/taskexecution/"
LETTERS = "/admin/outboxq/deadletter/"
SCHEDULES = "/admin/outboxq/taskschedule/"
HOSTILE = "<script>alert('x')</script>"
INVISIBLE = "\u202egnp.exe\x1b[31m"
VIEWS = ("view_taskexecution", "view_deadletter", "view_taskschedule")


def page_of(key, list_page=LIST):
    return f"{list_page}{key}/change/"


def holds(connection):
    """Check every invariant with one prepared statement. Django's connections would plan it again, which takes 50 ms."""
    raw = connection.connection
    raw.prepare_threshold, before = 5, raw.prepare_threshold  # with None, nothing is prepared
    try:
        return every_check_holds(raw, timezone.now())
    finally:
        raw.prepare_threshold = before


class Case(TestCase):
    alias = "default"

    def setUp(self):
        self.store = outboxes[self.alias].store
        self.log_in(*VIEWS, "retry_taskexecution", "cancel_taskexecution", "discard_taskexecution")

    def tearDown(self):
        if connections[self.alias].vendor == "postgresql" and holds(connections[self.alias]):
            return
        broken = self.store.verify(using=self.alias)
        assert broken == [], broken

    def log_in(self, *permissions, **fields):
        user = User.objects.create_user(f"user-{uuid4()}", is_staff=True, **fields)
        found = Permission.objects.filter(codename__in=permissions)
        assert len(found) == len(permissions)
        user.user_permissions.set(found)
        self.user = user
        self.client.force_login(user)

    @property
    def by(self):
        return f"by {self.user.get_username()} in the admin"

    def add(self, **fields):
        task = NewTask(**{"id": uuid7(), "task_name": "shop.work", "args": "{}", **fields})
        return self.store.enqueue(task, using=self.alias).id

    def claim(self):
        (claim,) = self.store.claim_ready_task(1, worker_id=uuid4(), using=self.alias)
        return claim

    def claim_of(self, task_id):
        claim = self.claim()
        assert claim.id == task_id, "another task was ready first"
        return claim

    def running(self, **fields):
        return self.claim_of(self.add(**fields)).id

    def failed(self, error="ValueError: no", **fields):
        data = {"error": error, "exception": "builtins.ValueError", "traceback": "Traceback …"}
        claim = self.claim_of(self.add(**fields))
        outcome = Outcome(claim=claim, event_type=EventType.FAILED, error=error, data=data)
        self.store.finish([outcome], using=self.alias)
        return claim.id

    def status(self, task_id):
        return self.store.get(task_id, using=self.alias).status

    def last_event(self, task_id):
        return self.store.history(task_id, using=self.alias)[-1]

    def listed(self, query="", path=LIST):
        """The ids that the list shows, in the order of the list."""
        response = self.client.get(f"{path}{query}")
        assert response.status_code == 200, (response.status_code, response.headers.get("Location"))
        return [task.pk for task in response.context["cl"].result_list]

    def page(self, key, list_page=LIST):
        response = self.client.get(page_of(key, list_page))
        assert response.status_code == 200, response.status_code
        return response.content.decode()

    def take(self, action, *keys, path=LIST, query="", **more):
        """Run an action of a list; return the messages that the user sees."""
        given = {"action": action, "index": 0, "_selected_action": [str(one) for one in keys], **more}
        return self.told(self.client.post(f"{path}{query}", given))

    def told(self, response):
        assert response.status_code == 302, response.status_code
        self.client.cookies.pop("messages", None)
        return [str(message) for message in get_messages(response.wsgi_request)]


class Lists(Case):
    def test_the_list_shows_the_newest_tasks_first(self):
        later = self.add(delay=timedelta(days=2), priority=7)
        failed = self.failed(queue="mail", max_attempts=1)
        running = self.running()
        body = self.client.get(LIST).content.decode()
        assert self.listed() == [running, failed, later]
        for shown in ("Ready", "Failed", "Running", "mail", str(later)):
            assert f">{shown}<" in body, shown

    def test_the_task_and_its_status_are_the_first_columns(self):
        """A phone then shows them without scrolling."""
        self.add()
        columns = re.findall(r'<t[hd] class="field-(\w+)', self.client.get(LIST).content.decode())
        assert columns[:2] == ["task_name", "status"]

    def test_a_large_table_costs_no_more_queries_than_a_small_one(self):
        self.failed()
        self.running()
        for query in ("", "?status=Ready", "?status=Failed&queue=default", "?status=Completed", "?task_name=shop.work"):
            self.at_most(10, query)
        self.at_most(10, path=LETTERS)
        tasks = [NewTask(id=uuid7(), task_name=f"shop.t{n % 300}", args="{}", queue=f"q{n % 300}") for n in range(5000)]
        self.store.enqueue_many(tasks, using="default")
        with mock.patch.object(TaskExecutionAdmin, "list_per_page", 20):
            for query in ("", "?p=2", "?status=Ready&queue=q7", "?status=Completed", "?q=shop.t1"):
                self.at_most(10, query)
        response = self.client.get(LIST)
        assert [task.pk for task in response.context["cl"].result_list] == [task.id for task in tasks[:-101:-1]]
        assert response.context["cl"].result_count == 5002
        assert [len(spec.lookup_choices) for spec in response.context["cl"].filter_specs] == [5, 100, 100]

    def at_most(self, number, query="", path=LIST):
        with CaptureQueriesContext(connection) as asked:
            self.listed(query, path)
        assert len(asked) <= number, asked.captured_queries

    def test_lists_can_be_filtered(self):
        ready, failed = self.add(queue="mail", priority=-1), self.failed(task_name="shop.pay")
        completed, cancelled = self.running(queue="mail"), self.add()
        self.store.cancel(completed, force=True, using="default")
        self.store.cancel(cancelled, using="default")
        running = self.running(task_name="shop.run", priority=5)
        assert self.listed("?status=Ready") == [ready]
        assert self.listed("?status=Failed") == [failed]
        assert self.listed("?status=Running") == [running]
        assert self.listed("?status=Completed") == []
        assert self.listed("?status=Cancelled") == [cancelled, completed]
        assert self.listed("?queue=mail") == [completed, ready]
        assert self.listed("?queue=mail&status=Ready") == [ready]
        assert self.listed("?queue=mail&status=Failed") == []
        assert self.listed("?task_name=shop.pay") == [failed]
        assert self.listed("?task_name=shop.run&status=Failed") == []
        assert self.listed("?task_name=gone") == []
        assert self.listed("?task_name=shop.pay", LETTERS) == [failed]
        assert self.listed("?queue=mail", LETTERS) == []

    def test_an_invalid_query_does_not_cause_a_server_error(self):
        for path_ in (LIST, LETTERS):
            for query in ("?queue=a%00b", "?task_name=%00"):
                assert self.client.get(path_ + query).headers["Location"] == f"{path_}?e=1", query
            self.client.get(f"{path_}?q=%00")
        for address in (f"{LIST}?args__contains=secret", f"{LIST}?status__in=Ready", f"{LIST}?id__gt=0"):
            assert self.client.get(address).status_code == 400, address
        for address in (f"{LETTERS}?lost_key__contains=a", f"{SCHEDULES}?args__contains=secret"):
            assert self.client.get(address).status_code == 400, address

    def test_a_list_shows_only_the_newest_rows_overall_or_of_a_status(self):
        made = [self.failed(task_name=f"shop.t{n}") if n % 3 == 0 else self.add(priority=-n) for n in range(12)]
        failed, ready = made[::3], [one for n, one in enumerate(made) if n % 3]
        running = self.claim().id
        ready.remove(running)
        with mock.patch.object(ours, "NEWEST", 2):
            assert self.listed() == made[:-3:-1]
            assert self.listed("?status=Failed") == failed[:-3:-1]
            assert self.listed("?status=Ready") == ready[:-3:-1]
            assert self.listed("?status=Running") == [running]
            assert self.listed("?task_name=shop.t0") == []
            assert self.listed("?q=shop.t0") == []
            assert self.listed(f"?q={made[0]}") == [made[0]]
            assert self.listed(path=LETTERS) == failed[:-3:-1]
            assert self.listed(f"?q={made[0]}", LETTERS) == [made[0]]

    def test_no_statement_of_a_list_reads_an_entire_table_of_tasks(self):
        """Each statement is bounded by a limit, by another statement's lower bound, or by the keys on a page."""
        failed, _ = self.failed(), self.add(queue="mail")
        with mock.patch.object(ours, "NEWEST", 1):
            for address in (LIST, f"{LIST}?status=Failed", f"{LIST}?status=Ready&queue=mail", LETTERS):
                with CaptureQueriesContext(connection) as asked:
                    self.client.get(address)
                for one in asked.captured_queries:
                    if re.search(r'FROM "(task_executions|dead_letters|task_outbox)"', one["sql"]):
                        assert re.search(r">= |LIMIT ", one["sql"]), one["sql"]
        assert self.listed(path=LETTERS) == [failed]

    def test_tasks_can_be_searched(self):
        first, second = self.add(task_name="shop.mail.send"), self.add(task_name="shop.100%_sure")
        assert self.listed(f"?q={first}") == [first]
        assert self.listed(f"?q={first.hex}") == [first]
        assert self.listed("?q=shop.mail") == [first]
        assert self.listed("?q=mail") == []
        assert self.listed("?q=shop.100%25_") == [second]
        assert self.listed(f"?q={uuid4()}") == []


class Pages(Case):
    def test_the_page_of_a_task_shows_its_state_and_why_it_is_not_running(self):
        blocker = self.failed(partition_key="k", on_dead_letter=OnDeadLetter.HOLD, error="ValueError: 1 < 2")
        task_id = self.add(partition_key="k", args='{"order": 5, "note": "ü"}')
        body = self.page(task_id)
        for shown in (str(task_id), f"is held by the dead letter {blocker}", "&quot;order&quot;: 5", "ü"):
            assert shown in body, shown
        assert "ValueError: 1 &lt; 2" in self.page(blocker)
        done = self.claim_of(self.add())
        self.store.finish([Outcome(claim=done, event_type=EventType.COMPLETED, result='["a", 7]')], using="default")
        assert re.search(r"<pre [^>]*>\[\n +&quot;a&quot;,\n +7\n\]</pre>", self.page(done.id))

    def test_the_page_of_a_dead_letter_shows_its_error(self):
        task_id = self.failed(error="ValueError: 1 < 2\nsecond line", queue="mail", partition_key="k")
        assert "ValueError: 1 &lt; 2<" in self.client.get(LETTERS).content.decode()
        body = self.page(task_id, LETTERS)
        for shown in (str(task_id), "1 &lt; 2<br>second line", "builtins.ValueError", ">mail<", ">k<"):
            assert shown in body, shown

    def test_hostile_texts_of_tasks_are_shown_escaped(self):
        text = HOSTILE + INVISIBLE
        args = json.dumps({HOSTILE: [HOSTILE, INVISIBLE]})
        same = {"task_name": text, "queue": text, "partition_key": text}
        discarded, letter = (self.failed(**same, args=args, error=text) for _ in range(2))
        self.add(**same)
        self.log_in(is_superuser=True)
        self.take("discard", discarded, path=LETTERS)
        lists = (LIST, f"{LIST}?queue={HOSTILE}", f"{LIST}?q={HOSTILE}", LETTERS)
        for address in (*lists, page_of(discarded), page_of(letter, LETTERS), f"{LIST}{discarded}/history/", "/admin/"):
            body = self.client.get(address).content.decode()
            assert "<script>alert" not in body, address
            assert "alert(&#x27;x&#x27;)" in body, address
            if address in (LIST, LETTERS, page_of(discarded), page_of(letter, LETTERS)):
                assert "\\x1b[31m" in body, address
                assert "\\u202egnp" in body, address

    def test_secrets_are_not_shown(self):
        args = {
            "user": {"Password": "geheim", "names": [{"api_key": "geheim"}]},
            "auth_token": "geheim",
            "sort_key": "seen",
        }
        task_id = self.add(args=json.dumps(args))
        body = self.page(task_id)
        assert "geheim" not in body
        assert body.count("********") == 3
        assert "seen" in body
        with mock.patch.object(TaskExecutionAdmin, "hidden", None):
            assert self.page(task_id).count("geheim") == 3
        with mock.patch.object(TaskExecutionAdmin, "show_arguments", False):
            body = self.page(task_id)
        assert "seen" not in body
        assert "sort_key" not in body

    def test_times_are_in_the_active_time_zone_and_name_it(self):
        task_id = self.add(delay=timedelta(days=1), expires_in=timedelta(days=2))
        letter = self.failed()
        created = TaskExecution.objects.get(pk=task_id).created_at
        for name, short in (("Asia/Tokyo", "JST"), ("America/Sao_Paulo", "-03")):
            with timezone.override(name):
                shown = local_time(created)
            assert shown.endswith(short)
            assert created.strftime("%H:%M") not in shown
            with override_settings(TIME_ZONE=name):
                for address in (LIST, page_of(task_id)):
                    assert shown in self.client.get(address).content.decode(), address
                for address in (LETTERS, page_of(letter, LETTERS)):
                    assert re.search(rf"\d\d:\d\d {short}", self.client.get(address).content.decode()), address

    def test_a_long_text_is_cut(self):
        body = self.page(self.add(args=json.dumps({"x": "y" * 50_000})))
        assert len(body) < 60_000
        assert "more characters" in body

    def test_a_missing_row_redirects_to_the_index(self):
        for address in (page_of(uuid4()), page_of("x"), page_of(uuid4(), LETTERS), page_of("none", SCHEDULES)):
            assert self.client.get(address).headers["Location"] == "/admin/", address

    def test_arguments_that_are_not_json_are_not_shown(self):
        task_id = self.add(args="{")
        assert "(cannot be read: JSONDecodeError)" in self.page(task_id)
        with connections[self.alias].cursor() as cursor:
            cursor.execute("UPDATE task_executions SET args = '{}'")

    def test_no_form_changes_a_row(self):
        ready, failed = self.add(delay=timedelta(days=1)), self.failed()
        self.store.schedules.put(NewSchedule(name="nightly", task_name="shop.work", rule="0 2 * * *"), using="default")
        for key, list_page in ((ready, LIST), (failed, LETTERS), ("nightly", SCHEDULES)):
            assert 'name="_save"' not in self.page(key, list_page)
        self.log_in(is_superuser=True)
        for key, list_page in ((ready, LIST), (failed, LETTERS), ("nightly", SCHEDULES)):
            for address in (page_of(key, list_page), f"{list_page}add/", f"{list_page}{key}/delete/"):
                assert self.client.post(address, {"post": "yes", "rule": "0 0 * * *"}).status_code == 403, address
        assert [self.status(one) for one in (ready, failed)] == ["Ready", "Failed"]
        assert self.store.schedules.get("nightly", using="default").rule == "0 2 * * *"


class Actions(Case):
    def test_a_dead_letter_is_redriven(self):
        task_id = self.failed()
        told = f"Task {task_id} was redriven from the first attempt, due now."
        assert self.take("redrive", task_id, path=LETTERS) == [told]
        assert self.status(task_id) == "Ready"
        assert self.last_event(task_id).event_type is EventType.REQUEUED
        (entry,) = LogEntry.objects.all()
        assert (entry.user, entry.object_id) == (self.user, str(task_id))
        assert "was redriven" in self.client.get(f"{LIST}{task_id}/history/").content.decode()

    def test_a_delayed_task_is_made_due_now(self):
        task_id = self.add(delay=timedelta(days=1))
        assert self.take("run_now", task_id) == [f"Task {task_id} is due now."]
        [again] = self.take("run_now", task_id)
        assert again.startswith(f"Task {task_id} was already due: no live worker ")
        assert self.claim().id == task_id

    def test_the_history_of_a_task_names_the_user(self):
        failed, ready = self.failed(), self.add()
        self.take("cancel", ready)
        self.take("discard", failed, path=LETTERS)
        for task_id in (ready, failed):
            assert self.status(task_id) == "Cancelled"
            assert self.last_event(task_id).event_data["reason"] == self.by

    def test_a_running_task_is_asked_to_stop_and_then_cancelled(self):
        task_id = self.running()
        assert "was asked to stop" in self.take("cancel", task_id)[0]
        assert self.status(task_id) == "Running"
        assert self.last_event(task_id).event_type is EventType.CANCEL_REQUESTED
        assert "was cancelled" in self.take("cancel_now", task_id)[0]
        assert self.status(task_id) == "Cancelled"

    def test_a_refusal_by_the_store_is_shown_as_a_message(self):
        running, failed = self.running(), self.failed()
        assert self.take("run_now", failed) == [f"Task {failed} is Failed and cannot be rescheduled."]
        assert self.take("cancel", failed) == [f"Task {failed} is Failed and cannot be cancelled."]
        assert self.take("cancel", uuid4()) == ["The task no longer exists."]
        assert self.take("redrive", running, path=LETTERS) == ["The dead letter no longer exists."]
        for path_ in (LIST, LETTERS):
            assert self.take("cancel" if path_ == LIST else "redrive", "x", path=path_) == [
                "The selection contains no valid row, so nothing was changed."
            ]
        assert self.take("delete_selected", running) == ["No action selected."]
        assert not LogEntry.objects.all()

    def test_the_reason_of_an_action_is_recorded(self):
        first, second, third = (self.failed() for _ in range(3))
        assert '<input type="text" name="reason" maxlength="500"' in self.client.get(LETTERS).content.decode()
        self.take("redrive", first, second, path=LETTERS, reason=f"  {HOSTILE}\u202e  ")
        self.take("discard", third, path=LETTERS, reason="x" * 501)
        recorded = {one.target: one.reason for one in self.store.actions.list(using="default")}
        reasons = dict.fromkeys(map(str, (first, second)), f"{HOSTILE}\u202e")
        assert recorded == {**reasons, str(third): "x" * 500}
        assert self.last_event(first).event_data["reason"] == f"{HOSTILE}\u202e ({self.by})"
        self.take("run_now", self.add(delay=timedelta(days=2)), reason=" ")
        assert self.store.actions.list(using="default")[0].reason is None

    def test_a_schedule_is_paused_with_a_reason(self):
        new = NewSchedule(name="nightly", task_name="shop.work", rule="every 3600", tz="UTC", args="{}")
        self.store.schedules.put(new, using="default")
        self.log_in("view_taskschedule", "change_taskschedule")
        self.take("pause", "nightly", path=SCHEDULES, reason="stock-taking")
        paused = self.store.schedules.get("nightly", using="default")
        assert paused.pause_reason == f"stock-taking ({self.by})"

    def test_a_dead_letter_whose_key_belongs_to_another_task_is_not_redriven(self):
        same = {"idempotency_key": "order 7", "unique_until_finished": True}
        failed, other = self.failed(**same), self.add(**same)
        assert other != failed
        (told,) = self.take("redrive", failed, path=LETTERS)
        assert str(other) in told
        assert self.status(failed) == "Failed"
        assert not LogEntry.objects.all()

    def test_refusals_among_many_are_summarized(self):
        failed, ready = [self.failed() for _ in range(12)], [self.add() for _ in range(3)]
        told = self.take("cancel", *failed, *ready)
        assert told[0] == "3 of 15 tasks were cancelled."
        assert len([one for one in told if "is Failed and cannot be cancelled" in one]) == 10
        assert told[-1] == "2 others were refused too."
        assert len(LogEntry.objects.all()) == 3

    def test_an_action_affects_the_ticked_rows_even_if_the_list_has_changed(self):
        task_id = self.add()
        self.claim()
        (told,) = self.take("cancel", task_id, query="?status=Ready")
        assert told == f"Task {task_id} was asked to stop, and will run until the handler ends."

    def test_an_action_can_affect_all_rows_of_the_list(self):
        failed, other = [self.failed() for _ in range(3)], self.failed(queue="mail")
        told = self.take("redrive", failed[0], path=LETTERS, query="?queue=default", select_across=1)
        assert told == ["3 of 3 dead letters were redriven from the first attempt, due now."]
        assert self.status(other) == "Failed"

    def test_a_request_changes_a_limited_number_of_rows(self):
        failed = [self.failed() for _ in range(3)]
        with mock.patch.object(ours, "AT_ONCE", 2):
            told = self.take("discard", *failed, path=LETTERS)
        assert told == [
            "2 of 2 dead letters were discarded.",
            "Only the first 2 dead letters were changed; repeat the action for the others.",
        ]
        assert sorted(self.status(one) for one in failed) == ["Cancelled", "Cancelled", "Failed"]

    def test_an_action_needs_the_token_of_its_form(self):
        task_id = self.add()
        strict = Client(enforce_csrf_checks=True)
        strict.force_login(self.user)
        given = {"action": "cancel", "index": 0, "_selected_action": [str(task_id)]}
        assert strict.post(LIST, given).status_code == 403
        assert strict.get(LIST, given).status_code in {302, 400}
        assert self.status(task_id) == "Ready"
        (token,) = set(re.findall(r'name="csrfmiddlewaretoken" value="(\w+)"', strict.get(LIST).content.decode()))
        strict.post(LIST, {**given, "csrfmiddlewaretoken": token})
        assert self.status(task_id) == "Cancelled"


class BeforeMigrate(Case):
    def test_without_tables_each_page_names_the_command_that_creates_them(self):
        task_id = self.add()
        with transaction.atomic(), mock.patch.object(self.store, "_current", False):
            bring_to("base", connection, migrations.downgrade)
            for address in (LIST, LETTERS, SCHEDULES, page_of(task_id), f"{LIST}{task_id}/history/"):
                answer = self.client.get(address)
                assert answer.status_code == 503, address
                assert answer.content.decode().endswith("run: manage.py migrate.\n"), answer.content
            transaction.set_rollback(True)
        assert self.client.get(LIST).status_code == 200


class OutsideATransaction(TransactionTestCase):
    """Django runs requests without a transaction, unless ATOMIC_REQUESTS is set. In a TestCase, they are in one."""

    def test_a_change_that_cannot_be_logged_is_not_made(self):
        user = User.objects.create_superuser("root")
        self.client.force_login(user)
        store = outboxes["default"].store
        with transaction.atomic():
            task_id = store.enqueue(NewTask(id=uuid7(), task_name="shop.work", args="{}"), using="default").id
            nightly = NewSchedule(name="nightly", task_name="shop.report", rule="30 4 * * *", tz="Europe/Berlin")
            store.schedules.put(nightly, using="default")
        schedules = (SCHEDULES, page_of("nightly", SCHEDULES))
        for address in (LIST, f"{LIST}?status=Ready", page_of(task_id), LETTERS, *schedules):
            assert self.client.get(address).status_code == 200, address
        cancel = {"action": "cancel", "index": 0, "_selected_action": [str(task_id)]}
        full = mock.patch.object(TaskExecutionAdmin, "log_change", side_effect=RuntimeError("the log is full"))
        with full, self.assertRaisesMessage(RuntimeError, "the log is full"):
            self.client.post(LIST, cancel)
        assert TaskExecution.objects.get(pk=task_id).status == "Ready"
        assert self.client.post(LIST, cancel).status_code == 302
        assert TaskExecution.objects.get(pk=task_id).status == "Cancelled"
        self.client.post(SCHEDULES, {"action": "pause", "index": 0, "_selected_action": ["nightly"]})
        with transaction.atomic():
            assert store.schedules.get("nightly", using="default").paused_at is not None


class Permissions(Case):
    def test_an_anonymous_user_is_redirected_to_login(self):
        task_id = self.add()
        given = {"action": "cancel", "index": 0, "_selected_action": [str(task_id)]}
        for address in (LIST, page_of(task_id), LETTERS, SCHEDULES):
            assert Client().get(address).headers["Location"].startswith("/admin/login/"), address
        assert Client().post(LIST, given).headers["Location"].startswith("/admin/login/")
        assert self.status(task_id) == "Ready"

    def test_staff_without_a_view_permission_can_neither_read_nor_act(self):
        task_id, failed = self.add(delay=timedelta(days=1)), self.failed()
        for permissions in ((), ("cancel_taskexecution", "retry_taskexecution", "discard_taskexecution")):
            self.log_in(*permissions)
            for address in (LIST, page_of(task_id), f"{LIST}{task_id}/history/", LETTERS, page_of(failed, LETTERS)):
                assert self.client.get(address).status_code == 403, address
            assert self.client.get(SCHEDULES).status_code == 403
            for action, key, path_ in (("cancel", task_id, LIST), ("redrive", failed, LETTERS)):
                given = {"action": action, "index": 0, "_selected_action": [str(key)]}
                assert self.client.post(path_, given).status_code == 403
            assert LIST not in self.client.get("/admin/").content.decode()
        assert [self.status(one) for one in (task_id, failed)] == ["Ready", "Failed"]

    def test_each_list_has_a_separate_view_permission(self):
        failed = self.failed()
        for permission, seen in zip(VIEWS, (LIST, LETTERS, SCHEDULES), strict=True):
            self.log_in(permission)
            assert {one: self.client.get(one).status_code for one in (LIST, LETTERS, SCHEDULES)} == {
                one: 200 if one == seen else 403 for one in (LIST, LETTERS, SCHEDULES)
            }
        assert self.status(failed) == "Failed"

    def test_view_permissions_allow_no_actions(self):
        ready, failed = self.add(delay=timedelta(days=1)), self.failed()
        self.log_in(*VIEWS)
        for path_, key, verbs in (
            (LIST, ready, TaskExecutionAdmin.verbs),
            (LETTERS, failed, ours.DeadLetterAdmin.verbs),
        ):
            assert 'name="action"' not in self.client.get(path_).content.decode()
            for verb in verbs:
                self.client.post(path_, {"action": verb.key, "index": 0, "_selected_action": [str(key)]})
        assert [self.status(one) for one in (ready, failed)] == ["Ready", "Failed"]
        assert not LogEntry.objects.all()

    def test_each_action_requires_a_separate_permission(self):
        ready, failed = self.add(delay=timedelta(days=1)), self.failed()
        self.log_in(*VIEWS, "retry_taskexecution")
        assert self.take("cancel", ready) == ["No action selected."]
        assert self.take("cancel_now", ready) == ["No action selected."]
        assert self.take("discard", failed, path=LETTERS) == ["No action selected."]
        assert "is due now" in self.take("run_now", ready)[0]
        self.log_in(*VIEWS, "cancel_taskexecution")
        assert self.take("run_now", ready) == ["No action selected."]
        for action in ("redrive", "discard"):
            self.client.post(LETTERS, {"action": action, "index": 0, "_selected_action": [str(failed)]})
        assert self.status(failed) == "Failed"
        assert "was cancelled" in self.take("cancel", ready)[0]
        self.log_in(*VIEWS, "discard_taskexecution")
        assert self.take("redrive", failed, path=LETTERS) == ["No action selected."]
        assert "was discarded" in self.take("discard", failed, path=LETTERS)[0]


class Schedules(Case):
    def setUp(self):
        super().setUp()
        self.log_in("view_taskschedule", "change_taskschedule")

    def put(self, name="nightly", **fields):
        given = {"task_name": "shop.report", "rule": "30 4 * * *", "tz": "Europe/Berlin", **fields}
        return self.store.schedules.put(NewSchedule(name=name, **given), using="default")

    def get(self, name="nightly"):
        return self.store.schedules.get(name, using="default")

    def take(self, action, *names):
        return super().take(action, *names, path=SCHEDULES)

    def test_the_list_shows_the_rule_and_next_tick_of_each_schedule(self):
        self.put()
        self.put("odd", args='{"a": 1}')
        self.store.schedules.pause("odd", using="default")
        with connection.cursor() as cursor:
            cursor.execute("UPDATE task_schedules SET tz = 'Moon/Base' WHERE name = 'odd'")
        with override_settings(TIME_ZONE="America/New_York"):
            body = self.client.get(SCHEDULES).content.decode()
        assert body.count("At 04:30 every day (Europe/Berlin)") == 1
        assert re.search(r"22:30:00 E[SD]T|23:30:00 E[SD]T", body), "the next tick, in Django's time zone"
        assert "cannot be read by this process" in body
        assert "paused since" in body
        with connection.cursor() as cursor:
            cursor.execute("UPDATE task_schedules SET tz = 'UTC' WHERE name = 'odd'")

    def test_the_number_of_queries_does_not_depend_on_the_number_of_schedules(self):
        def queries():
            with CaptureQueriesContext(connection) as asked:
                self.client.get(SCHEDULES)
            return len(asked)

        self.put()
        one = queries()
        for number in range(9):
            self.put(f"nightly{number}")
        assert queries() == one

    def test_a_schedule_planted_by_a_fast_clock_is_marked_in_the_list_and_on_its_page(self):
        self.put(rule="every 3600")
        with connection.cursor() as cursor:
            cursor.execute("UPDATE task_schedules SET planted_until = '8000-01-01T00:00:00.000000+00:00'")
        for body in (self.client.get(SCHEDULES).content.decode(), self.page("nightly", SCHEDULES)):
            assert "planted by a clock that was running fast" in body
        self.put(rule="every 3600")
        assert "planted by a clock that was running fast" not in self.page("nightly", SCHEDULES)

    def test_the_page_shows_the_rule_and_not_the_arguments(self):
        self.put(grace=timedelta(minutes=90), args='{"iban": "DE02"}')
        body = self.page("nightly", SCHEDULES)
        for words in ("At 04:30 every day (Europe/Berlin)", "30 4 * * *", "5400.0", "open", "shop.report"):
            assert words in body, words
        assert re.search(r"next tick:.*?\d{4}-\d\d-\d\d \d\d:\d\d:\d\d C[SD]T", body, re.DOTALL | re.IGNORECASE)
        assert "iban" not in body

    def test_the_page_of_a_paused_schedule_shows_why(self):
        self.put()
        (told,) = self.take("pause", "nightly")
        assert told.startswith("The schedule 'nightly' is paused")
        assert self.get().pause_reason == self.by
        assert self.by in self.page("nightly", SCHEDULES)
        (told,) = self.take("resume", "nightly")
        assert told.startswith("The schedule 'nightly' has been resumed")
        assert self.get().paused_at is None
        assert [entry.object_repr for entry in LogEntry.objects.all()] == ["nightly", "nightly"]

    def test_a_schedule_that_is_already_paused_is_not_paused_again(self):
        self.put()
        self.store.schedules.pause("nightly", reason="moving (by ben)", using="default")
        assert self.take("pause", "nightly") == ["The schedule 'nightly' was already paused: moving (by ben)."]
        assert not LogEntry.objects.exists()
        assert self.store.actions.list(using="default") == []

    def test_a_triggered_schedule_enqueues_a_task_each_time(self):
        self.put()
        self.put("weekly")
        told = self.take("trigger", "nightly", "weekly")
        tasks = self.store.tasks(using="default")
        assert {str(task.id) for task in tasks} == {re.search(r"task (\S+) was enqueued", one)[1] for one in told}
        assert len(tasks) == 2

    def test_a_deleted_schedule_does_not_prevent_actions_on_others(self):
        self.put()
        self.put("weekly")
        real = type(self.store.schedules).pause

        def pause(schedules, name, **options):
            if name == "nightly":
                raise ScheduleNotFound("there is no schedule 'nightly'")
            return real(schedules, name, **options)

        with mock.patch.object(type(self.store.schedules), "pause", pause):
            told = self.take("pause", "nightly", "weekly")
        assert "There is no schedule 'nightly'." in told
        assert self.get("weekly").paused_at is not None

    def test_an_unknown_time_zone_does_not_prevent_actions_on_others(self):
        self.put()
        self.put("weekly")
        self.take("pause", "nightly", "weekly")
        with connection.cursor() as cursor:
            cursor.execute("UPDATE task_schedules SET tz = 'Moon/Base' WHERE name = 'nightly'")
        resumed, unknown = self.take("resume", "nightly", "weekly")
        assert unknown.startswith("There is no time zone 'Moon/Base'")
        assert resumed.startswith("The schedule 'weekly' has been resumed")
        assert self.get().paused_at is not None
        with connection.cursor() as cursor:
            cursor.execute("UPDATE task_schedules SET tz = 'UTC' WHERE name = 'nightly'")

    def test_text_that_redact_removes_is_not_shown(self):
        self.log_in(*VIEWS)
        task_id = self.failed(args='{"note": "no"}')
        for page in (LETTERS, page_of(task_id), page_of(task_id, LETTERS)):
            assert "ValueError: no" in self.client.get(page).content.decode(), page
        with (
            mock.patch.object(ours.TaskExecutionAdmin, "redact", lambda text: text.replace("no", "(removed)")),
            mock.patch.object(ours.DeadLetterAdmin, "redact", lambda text: text.replace("no", "(removed)")),
        ):
            for page in (LETTERS, page_of(task_id), page_of(task_id, LETTERS)):
                body = self.client.get(page).content.decode()
                assert ("ValueError: no" in body, "ValueError: (removed)" in body) == (False, True), page
            assert '"(removed)te": "(removed)"' in unescape(self.client.get(page_of(task_id)).content.decode())

    def test_the_permission_for_each_verb_exists(self):
        for permission in (ENQUEUE, *map(permission_of, VERBS)):
            codename = permission.removeprefix("outboxq.")
            assert Permission.objects.filter(codename=codename).count() == 1, codename

    def test_a_user_who_may_only_view_schedules_cannot_change_them(self):
        self.put()
        self.log_in("view_taskschedule")
        assert "At 04:30 every day" in self.page("nightly", SCHEDULES)
        for action in ("pause", "resume", "trigger"):
            self.client.post(SCHEDULES, {"action": action, "index": 0, "_selected_action": ["nightly"]})
        assert (self.get().paused_at, self.store.tasks(using="default")) == (None, [])

    def test_hostile_names_are_shown_escaped(self):
        self.put(HOSTILE + "\u202e", task_name=HOSTILE)
        body = self.client.get(SCHEDULES).content.decode()
        assert HOSTILE not in body
        assert "alert(&#x27;x&#x27;)&lt;/script&gt;\\u202e" in body
        self.take("pause", HOSTILE + "\u202e")
        assert HOSTILE not in self.client.get(SCHEDULES).content.decode()


class Dashboard(Case):
    def links(self, address):
        return re.findall(r'<li><a href="([^"]*)">Dashboard</a></li>', self.client.get(address).content.decode())

    def test_each_page_links_to_the_corresponding_dashboard_page(self):
        failed = self.failed()
        schedule = NewSchedule(name="a/b & c", task_name="shop.work", rule="0 2 * * *")
        self.store.schedules.put(schedule, using="default")
        pages = {
            LIST: "tasks",
            page_of(failed): f"tasks/{failed}",
            LETTERS: "failures",
            page_of(failed, LETTERS): f"tasks/{failed}",
            SCHEDULES: "schedules",
            reverse("admin:outboxq_taskschedule_change", args=("a_2Fb _26 c",)): "schedule?name=a%2Fb+%26+c",
        }
        assert {one: self.links(one) for one in pages} == {one: [f"/outboxq/{page}"] for one, page in pages.items()}
        views = {resolve(f"/outboxq/{page.partition('?')[0]}").func for page in pages.values()}
        assert views == {resolve("/outboxq/").func}

    def test_there_is_no_link_if_the_dashboard_is_not_mounted(self):
        failed = self.failed()
        urls = ModuleType("urls_without_a_dashboard")
        urls.urlpatterns = [path("admin/", admin.site.urls)]
        with override_settings(ROOT_URLCONF=urls):
            for address in (LIST, page_of(failed), LETTERS, page_of(failed, LETTERS), SCHEDULES):
                assert self.links(address) == [], address
        urls.urlpatterns = [path("admin/", admin.site.urls), path("<slug:shop>/tasks/", include(dashboard_urls()))]
        with override_settings(ROOT_URLCONF=urls):
            assert self.links(LIST) == [], "the address of this dashboard depends on the shop"

    def test_a_user_who_may_not_see_the_dashboard_gets_no_link(self):
        failed = self.failed()
        self.log_in("view_deadletter", "view_taskschedule")
        for address in (LETTERS, page_of(failed, LETTERS), SCHEDULES):
            assert self.links(address) == [], address


class OtherDatabase(Case):
    databases = frozenset({"default", "other"})
    alias = "other"

    def test_the_admin_of_another_outbox_uses_the_database_of_that_outbox(self):
        here = NewTask(id=uuid7(), task_name="shop.here", args="{}")
        outboxes["default"].store.enqueue(here, using="default")
        task_id = self.failed(args='{"a": "shown"}')
        tasks, letters = "/other/outboxq/taskexecution/", "/other/outboxq/deadletter/"
        assert self.listed(path=tasks) == [task_id]
        assert self.listed("?status=Failed&queue=default", path=tasks) == [task_id]
        assert self.listed(path=letters) == [task_id]
        assert self.listed() == [here.id]
        assert "ValueError: no" in self.client.get(letters).content.decode()
        body = self.page(task_id, tasks)
        assert "shown" not in body
        assert ">Dashboard</a>" not in body, "only the default database's dashboard is mounted"
        assert "was redriven" in self.take("redrive", task_id, path=letters)[0]
        assert self.status(task_id) == "Ready"
        assert len(LogEntry.objects.using("default").all()) == 1

    def test_the_dashboard_of_another_outbox_has_its_alias_as_its_title(self):
        def title(*address, **options):
            urls = ModuleType("urls_of_a_dashboard")
            urls.urlpatterns = [path("tasks/", include(dashboard_urls(*address, **options)))]
            with override_settings(ROOT_URLCONF=urls):  # a database in memory has only one page
                return re.search("<title>(.*)</title>", self.client.get("/tasks/queues").content.decode())[1]

        assert title().count(" – ") == 1
        assert title("other").endswith(" – other – outboxq")
        assert title("other", title="archive").endswith(" – archive – outboxq")


class Documented(Case):
    """The code, permissions and actions in docs/django-admin.md are correct."""

    PAGE = (Path(__file__).parents[4] / "docs" / "django-admin.md").read_text()

    def test_the_documented_class_replaces_the_default_one(self):
        (code,) = re.findall(r"^```python\n(.*?)^```$", self.PAGE, re.DOTALL | re.MULTILINE)
        before = admin.site._registry[TaskExecution]
        urls = ModuleType("urls_of_the_page")
        try:
            exec(compile(code, "docs/django-admin.md", "exec"), {"__name__": "shop.admin"})
            urls.urlpatterns = [path("admin/", admin.site.urls)]
        finally:
            admin.site._registry[TaskExecution] = before
        task_id = self.add(args='{"iban": "geheim", "api_key": "seen"}')
        with override_settings(ROOT_URLCONF=urls):
            body = self.page(task_id)
        assert "geheim" not in body
        assert "seen" in body

    def test_the_documented_lists_permissions_and_actions_exist(self):
        named = set(re.findall(r"`outboxq\.(\w+_\w+)`", self.PAGE))
        own = Permission.objects.filter(content_type__app_label="outboxq", codename__in=named)
        assert named == {one.codename for one in own}
        body = self.client.get("/admin/").content.decode()
        lists = [one for model, one in admin.site._registry.items() if model._meta.app_label == "outboxq"]
        assert len(lists) == 3
        for one in lists:
            title = one.opts.verbose_name_plural.capitalize()
            assert f"**{title}**" in self.PAGE
            assert f"{title}</a>" in body
            for verb in one.verbs:
                (line,) = [line for line in self.PAGE.splitlines() if line.startswith(f"| {verb.label} | {title} |")]
                assert line.endswith(f"| `{permission_of(verb)}` |")
        assert f"{NEWEST:,}" in self.PAGE
        assert f"{AT_ONCE:,}" in self.PAGE
