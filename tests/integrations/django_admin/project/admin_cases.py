"""The admin, asked as a browser would ask it. Run by `test_django_admin.py`, once for each database."""

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from unittest import mock
from uuid import UUID, uuid4

from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.contrib.messages import get_messages
from django.db import connection, connections, transaction
from django.test import Client, TestCase, TransactionTestCase
from django.test.utils import CaptureQueriesContext, override_settings
from django.urls import path, reverse
from django.utils import timezone

from outboxq.contrib.django import outboxes
from outboxq.contrib.django.admin import TaskExecutionAdmin
from outboxq.contrib.django.admin_actions import _AT_ONCE, ACTIONS
from outboxq.contrib.django.admin_list import LOOK, TaskList, first_id
from outboxq.contrib.django.admin_queues import in_words
from outboxq.contrib.django.admin_texts import local_time, localized
from outboxq.contrib.django.models import TaskExecution
from outboxq.errors import ScheduleNotFound
from outboxq.model import UNKNOWN_TASK, EventType, NewTask, OnDeadLetter, Outcome, TaskStatus
from outboxq.model.schedules import CatchUp, NewSchedule, Overlap
from outboxq.model.uuid7 import uuid7
from outboxq.worker.executor import released
from tests.reuse import every_check_holds

LIST = "/admin/outboxq/taskexecution/"
QUEUES = "/admin/outboxq/queuesettings/"
SCHEDULES = "/admin/outboxq/taskschedule/"
HOSTILE = "<script>alert('x')</script>"


def page_of(task_id):
    return f"{LIST}{task_id}/change/"


def holds(connection):
    """Every invariant, by one statement that stays prepared: Django's connections plan each anew, which takes 50 ms."""
    raw = connection.connection
    raw.prepare_threshold, before = 5, raw.prepare_threshold  # None: not even what asks for it is prepared
    try:
        return every_check_holds(raw, timezone.now())
    finally:
        raw.prepare_threshold = before


class Case(TestCase):
    alias = "default"

    def setUp(self):
        self.store = outboxes[self.alias].store
        self.log_in("view_taskexecution", "retry_taskexecution", "cancel_taskexecution", "discard_taskexecution")

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

    def add(self, **fields):
        task = NewTask(**{"id": uuid7(), "task_name": "shop.work", "args": "{}", **fields})
        return self.store.enqueue(task, using=self.alias).id

    def claim(self):
        (claim,) = self.store.claim_ready_task(1, worker_id=uuid4(), using=self.alias)
        return claim

    def claim_of(self, task_id):
        claim = self.claim()
        assert claim.id == task_id, "another was ready before it"
        return claim

    def running(self, **fields):
        task_id = self.add(**fields)
        assert self.claim().id == task_id
        return task_id

    def failed(self, error="ValueError: no", traceback="Traceback …", **fields):
        task_id = self.add(**fields)
        data = {"error": error, "exception": "builtins.ValueError", "traceback": traceback}
        line = {"at": "2026-11-23T03:00:00+00:00", "level": "INFO", "logger": "shop", "text": f"logged {error}"}
        data |= {"log": [line], "log_omitted": 3, "progress": {"fraction": 0.4, "note": error}}
        claim = self.claim()
        assert claim.id == task_id, "another was ready before it"
        outcome = Outcome(claim=claim, event_type=EventType.FAILED, error=error, data=data)
        self.store.finish([outcome], using=self.alias)
        return task_id

    def status(self, task_id):
        return self.store.get(task_id, using=self.alias).status

    def last_event(self, task_id):
        return self.store.history(task_id, using=self.alias)[-1]

    def listed(self, query="", path=LIST):
        """The ids that the list shows, in its order."""
        response = self.client.get(f"{path}{query}")
        assert response.status_code == 200, (response.status_code, response.headers.get("Location"))
        return [task.pk for task in response.context["cl"].result_list]

    def tick(self, action, *task_ids, query="", **more):
        """Run an action of the list; returns what the user is told."""
        given = {"action": action, "index": 0, "_selected_action": [str(one) for one in task_ids], **more}
        return self.told(self.client.post(f"{LIST}{query}", given))

    def push(self, action, task_id):
        """Push a button on a task's page."""
        return self.told(self.client.post(f"{LIST}{task_id}/act/{action}/"))

    def told(self, response):
        assert response.status_code == 302, response.status_code
        self.client.cookies.pop("messages", None)
        return [str(message) for message in get_messages(response.wsgi_request)]


class Failures(Case):
    def group(self, count):
        (found,) = [one for one in self.store.dead_letters.groups(using=self.alias).groups if one.count == count]
        return found

    def test_dead_letters_are_grouped_and_a_group_is_redriven_after_a_question(self):
        mine = [self.failed(error=f"ValueError: order {number}") for number in (7, 8)]
        other = self.failed(error=f"OSError: {HOSTILE}")
        page = self.client.get(f"{LIST}failures/").content.decode()
        assert "ValueError: order …" in page
        assert HOSTILE not in page
        assert f"{LIST}failures/" in self.client.get(LIST).content.decode()
        act = f"{LIST}failures/{self.group(2).id}/redrive/"
        asked = self.client.post(act)
        assert asked.context["title"] == "Redrive 2 dead letters?"
        assert {self.status(one) for one in mine} == {TaskStatus.FAILED}
        later = self.failed(error="ValueError: order 9")
        assert self.told(self.client.post(act, {"snapshot": asked.context["snapshot"]})) == [
            "2 dead letters were redriven."
        ]
        assert {self.status(one) for one in mine} == {TaskStatus.READY}
        assert {self.status(one) for one in (other, later)} == {TaskStatus.FAILED}
        assert self.last_event(mine[0]).event_data["reason"] == f"by {self.user.get_username()} in the admin"

    def test_a_group_needs_the_permissions_of_its_actions(self):
        self.failed()
        group = self.group(1)
        self.log_in("view_taskexecution", "discard_taskexecution")
        page = self.client.get(f"{LIST}failures/").content.decode()
        assert "Discard …" in page
        assert "Redrive …" not in page
        assert self.client.post(f"{LIST}failures/{group.id}/redrive/").status_code == 403
        assert self.client.get(f"{LIST}failures/{group.id}/discard/").status_code == 405
        assert self.client.post(f"{LIST}failures/{group.id}/delete/").status_code == 404
        assert self.client.post(f"{LIST}failures/none/discard/").status_code == 404
        self.log_in("view_queuesettings")
        assert self.client.get(f"{LIST}failures/").status_code == 403


class Lists(Case):
    def test_the_list_shows_each_task_with_its_state(self):
        later = self.add(delay=timedelta(days=2), priority=7)
        failed = self.failed(queue="mail", max_attempts=1)
        running = self.running()
        body = self.client.get(LIST).content.decode()
        assert self.listed() == [running, failed, later]
        for shown in ("outboxq-ready", "outboxq-failed", "outboxq-running", "1 of 1", "mail", str(later)):
            assert shown in body
        glances = self.glances()
        assert local_time(glances[later].due) in localized(self.store.explain(later, using="default").sentence)
        assert glances[running].due is None

    def glances(self):
        return {task.pk: task.glance for task in self.client.get(LIST).context["cl"].result_list}

    def test_the_list_says_in_a_few_words_why_a_task_does_not_run(self):
        wanted = {self.failed(partition_key="held", on_dead_letter=OnDeadLetter.HOLD): ""}
        wanted[self.running(partition_key="runs")] = ""
        stopping, lost = self.running(), self.running(lease=timedelta(seconds=10))
        self.store.cancel(stopping, using="default")
        wanted |= {stopping: "asked to stop", lost: "its lease ended"}
        claim = self.claim_of(self.add())
        retry = Outcome(claim=claim, event_type=EventType.RETRY_SCHEDULED, available_at=later_than_now())
        self.store.finish([retry], using="default")
        wanted[claim.id] = "waits for its retry"
        given_back = self.claim_of(self.add(task_name="shop.gone"))
        self.store.finish([released(given_back, UNKNOWN_TASK, delay=timedelta(days=1))], using="default")
        wanted[given_back.id] = "no worker knows it"
        wanted[self.add(expires_in=timedelta(seconds=20))] = "expired"
        wanted[self.add(delay=timedelta(days=1))] = "delayed"
        wanted[self.add(delay=timedelta(days=1), task_name="shop.gone")] = "delayed"
        wanted[self.add(partition_key="first", delay=timedelta(days=1))] = "delayed"
        wanted[self.add(partition_key="first")] = "behind another of its key"
        wanted[self.add(partition_key="held")] = "a dead letter holds its key"
        wanted[self.add(partition_key="runs")] = "another of its key runs"
        wanted[self.add(partition_key="free")] = wanted[self.add()] = "due"
        wanted[self.add(task_name="shop.gone")] = "no worker knows it"
        wanted[self.add(queue="paused")] = "queue paused"
        wanted[self.add(queue="full")] = "concurrency limit"
        wanted[self.add(queue="slow")] = "rate limit"
        wanted[self.add(queue="events")] = "no worker takes its topic"
        wanted[self.add(queue="nobody's")] = "no worker on its queue"
        self.store.queues.pause("paused", using="default", create=True)
        self.arrange_limits(wanted)
        known = {"concurrency": 1, "task_names": ["shop.work"], "using": "default"}
        here, events = {"queues": ["default", "paused", "full", "slow"]}, {"queues": ["events"], "topics": ["a.*"]}
        self.store.workers.register(uuid4(), label="one", unknown_tasks=[("default", "shop.gone")], **here, **known)
        self.store.workers.register(uuid4(), label="two", **events, **known)
        with mock.patch.object(self.store, "clock", return_value=datetime.now(UTC) + SOON):
            found = {task_id: glance.reason for task_id, glance in self.glances().items()}
        assert found == wanted

    def arrange_limits(self, wanted):
        """One of `full` runs, and one of `slow` has started: each may no more."""
        self.store.queues.limit("slow", rate=(1, timedelta(days=1)), using="default", create=True)
        for queue in ("full", "slow"):
            started = self.add(queue=queue, priority=100)
            (claim,) = self.store.claim_ready_task(1, worker_id=uuid4(), queues=[queue], using="default")
            assert claim.id == started
            wanted[started] = ""
        self.store.queues.limit("full", concurrency=1, using="default", create=True)

    def test_an_id_is_short_in_the_list_and_whole_on_its_page(self):
        ids = [self.add() for _ in range(3)]
        body = self.client.get(LIST).content.decode()
        for task_id in ids:
            text = str(task_id)
            short = f'<span class="outboxq-id" title="{text}">{text[:8]}…{text[-4:]}</span>'
            assert short in body
            assert f'<code class="outboxq-whole-id">{text}</code>' in self.client.get(page_of(task_id)).content.decode()
        assert len({str(task_id)[-4:] for task_id in ids}) > 1
        assert re.search(r"\.outboxq-whole-id { user-select: all;", self.client.get(page_of(ids[0])).content.decode())

    def test_the_status_and_the_task_stand_first(self):
        """So a telephone shows them without a move."""
        self.add()
        columns = re.findall(r'<t[hd] class="field-(\w+)', self.client.get(LIST).content.decode())
        assert columns[:3] == ["short_id", "state", "name"]

    def test_the_list_shows_the_beginning_of_an_error_and_all_of_it_when_it_is_pointed_at(self):
        self.failed(error="ValueError: " + "x" * 400)
        body = self.client.get(LIST).content.decode()
        line = f"ValueError: {'x' * 48}…"
        assert f'<span class="outboxq-error" title="ValueError: {"x" * 288}">{line}</span>' in body
        again = self.claim_of(self.add())
        once = Outcome(
            claim=again, event_type=EventType.RETRY_SCHEDULED, error="KeyError: once", data={"error": "KeyError: once"}
        )
        self.store.finish([once], using="default")
        assert "KeyError: once" in self.client.get(LIST).content.decode()
        done = Outcome(claim=self.claim_of(again.id), event_type=EventType.COMPLETED)
        self.store.finish([done], using="default")
        assert "KeyError: once" not in self.client.get(LIST).content.decode()

    def test_a_large_table_costs_no_more_queries_than_a_small_one(self):
        self.failed()
        self.running()
        for query in ("", "?status=Ready", "?status=Failed&queue=default", "?status=Completed", "?task_name=shop.work"):
            self.at_most(15, query)
        tasks = [NewTask(id=uuid7(), task_name=f"shop.t{n % 300}", args="{}", queue=f"q{n % 300}") for n in range(5000)]
        self.store.enqueue_many(tasks, using="default")
        for query in ("", "?p=2", "?status=Ready&queue=q7", "?status=Completed", "?q=shop.t1", "?created=hour"):
            self.at_most(15, query)
        assert self.listed() == [task.id for task in tasks[:-101:-1]]
        response = self.client.get(LIST)
        assert response.context["cl"].result_count == 5002
        choices = [len(spec.lookup_choices) for spec in response.context["cl"].filter_specs]
        assert choices[0] == 5
        assert choices[1:3] == [100, 100]

    def at_most(self, number, query):
        few = mock.patch.object(TaskExecutionAdmin, "list_per_page", 10)
        with few, CaptureQueriesContext(connection) as asked:
            self.listed(query)
        assert len(asked) <= number, asked.captured_queries

    def test_filters(self):
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
        assert len(self.listed("?created=hour")) == 5

    def test_the_time_of_a_filter_is_that_of_the_ids(self):
        now = datetime.now(UTC)
        old = {days: self.add(id=at(now - timedelta(days=days))) for days in (0.5, 3, 20, 50)}
        assert self.listed("?created=hour") == []
        assert self.listed("?created=day") == [old[0.5]]
        assert self.listed("?created=week&status=Ready") == [old[0.5], old[3]]
        assert self.listed("?created=month") == [old[0.5], old[3], old[20]]

    def test_what_is_asked_for_in_vain_is_no_error_of_the_server(self):
        for query in ("?status=Odd", "?created=year", "?before=x", "?queue=a%00b", "?task_name=%00"):
            assert self.client.get(LIST + query).headers["Location"] == f"{LIST}?e=1", query
        for query in ("?args__contains=secret", "?status__in=Ready", "?id__gt=0", "?worker_id=x"):
            assert self.client.get(LIST + query).status_code == 400, query
        self.client.get(f"{LIST}?q=%00")

    def test_only_so_many_tasks_are_looked_at_and_from_there_older_ones(self):
        made = [self.failed(task_name=f"shop.t{n}") if n % 3 == 0 else self.add(priority=-n) for n in range(12)]
        failed = [task_id for n, task_id in enumerate(made) if n % 3 == 0]
        with mock.patch.object(TaskList, "look", 2):
            assert self.walk("") == [made[n : n + 2][::-1] for n in range(10, -1, -2)]
            assert self.walk("?status=Failed") == [failed[2:][::-1], failed[:2][::-1]]
            assert [len(page) for page in self.walk("?status=Ready")] == [2, 2, 2, 2]
            assert self.listed("?task_name=shop.t0") == []
            assert self.listed(f"?q={made[0]}") == [made[0]]
        response = self.client.get(f"{LIST}?before={made[2]}")
        assert [task.pk for task in response.context["cl"].result_list] == [made[1], made[0]]
        assert 'href="?">Look at the newest' in response.content.decode()

    def walk(self, query):
        pages = []
        while query is not None:
            response = self.client.get(LIST + query)
            pages.append([task.pk for task in response.context["cl"].result_list])
            assert len(pages) < 20, "it goes on for ever"
            query = response.context["cl"].older
        return [page for page in pages if page]

    def test_search(self):
        first, second = self.add(task_name="shop.mail.send"), self.add(task_name="shop.100%_sure")
        assert self.listed(f"?q={first}") == [first]
        assert self.listed(f"?q={first.hex}") == [first]
        assert self.listed("?q=shop.mail") == [first]
        assert self.listed("?q=mail") == []
        assert self.listed("?q=shop.100%25_") == [second]
        assert self.listed(f"?q={uuid4()}") == []


class Pages(Case):
    def test_a_page_tells_what_happened_and_why_the_task_does_not_run(self):
        blocker = self.failed(partition_key="k", on_dead_letter=OnDeadLetter.HOLD, error="ValueError: 1 < 2")
        task_id = self.add(partition_key="k", args='{"order": 5, "note": "ü"}')
        response = self.client.get(page_of(task_id))
        body = response.content.decode()
        assert "is held by the dead letter" in body
        assert page_of(blocker) in body
        assert "&quot;order&quot;: 5" in body
        assert "ü" in body
        assert [one.name for one in response.context["offered"]] == [
            "cancel"
        ]  # it is due, and waits for something else
        response = self.client.get(page_of(self.add(delay=timedelta(days=1), partition_key="k")))
        assert [one.name for one in response.context["offered"]] == ["run_now", "cancel"]
        response = self.client.get(page_of(blocker))
        body = response.content.decode()
        assert [one.event for one in response.context["story"].moments] == [
            "task_created",
            "task_claimed",
            "task_failed",
        ]
        assert [one.attempt for one in response.context["story"].moments] == [None, 1, 1]
        assert "ValueError: 1 &lt; 2" in body
        assert "Traceback …" in body
        assert "builtins.ValueError" in body
        assert "reached: 40 %: ValueError: 1 &lt; 2" in body
        assert "… 3 lines before these are not kept\n" in body
        assert " INFO shop: logged ValueError: 1 &lt; 2</pre>" in body
        assert "Dead letter" in body
        assert [one.name for one in response.context["offered"]] == ["retry", "discard"]

    def test_what_comes_from_outside_is_text_and_nothing_else(self):
        hidden = "\u202egnp.exe\x1b[31m"
        args = json.dumps({HOSTILE: [HOSTILE, hidden]})
        task_id = self.failed(
            task_name=HOSTILE + hidden,
            queue=HOSTILE,
            partition_key=HOSTILE,
            args=args,
            error=HOSTILE + hidden,
            traceback=HOSTILE + hidden,
        )
        self.add(task_name=HOSTILE, queue=HOSTILE, partition_key=HOSTILE)
        self.store.queues.pause(HOSTILE, using="default", create=True)
        self.log_in(is_superuser=True)
        self.push("discard", task_id)
        history = f"{LIST}{task_id}/history/"
        for address in (
            LIST,
            f"{LIST}?queue={HOSTILE}",
            f"{LIST}?q={HOSTILE}",
            page_of(task_id),
            history,
            QUEUES,
            "/admin/",
        ):
            body = self.client.get(address).content.decode()
            assert "<script>alert" not in body, address
            assert "alert(&#x27;x&#x27;)" in body, address
            if address in (LIST, page_of(task_id)):
                assert "\\x1b[31m" in body
                assert "\\u202egnp" in body

    def test_secrets_are_not_shown(self):
        args = {
            "user": {"Password": "geheim", "names": [{"api_key": "geheim"}]},
            "auth_token": "geheim",
            "sort_key": "seen",
        }
        task_id = self.add(args=json.dumps(args))
        body = self.client.get(page_of(task_id)).content.decode()
        assert "geheim" not in body
        assert body.count("********") == 3
        assert "seen" in body
        with mock.patch.object(TaskExecutionAdmin, "hidden", None):
            assert self.client.get(page_of(task_id)).content.decode().count("geheim") == 3
        with mock.patch.object(TaskExecutionAdmin, "show_arguments", False):
            body = self.client.get(page_of(task_id)).content.decode()
        assert "seen" not in body
        assert "sort_key" not in body

    def test_a_long_history_is_shown_from_its_end(self):
        task_id = self.add(delay=timedelta(days=1))
        for priority in range(1, 6):
            self.store.set_priority(task_id, priority, using="default")
        with mock.patch("outboxq.contrib.django.admin_detail._EVENTS", 2):
            response = self.client.get(page_of(task_id))
        assert "Older events are not shown" in response.content.decode()
        assert [dict(one.notes)["priority"] for one in response.context["story"].moments] == ["4", "5"]

    def test_a_task_that_no_worker_knows_has_a_short_history(self):
        task_id = self.add()
        claim = self.claim_of(task_id)
        for _ in range(9):
            self.store.finish([released(claim, UNKNOWN_TASK)], using="default")
            claim = self.claim()
        moments = self.client.get(page_of(task_id)).context["story"].moments
        assert [one.event for one in moments] == ["task_created", "task_released", "task_claimed"]
        assert dict(moments[1].notes)["times"] == "9"
        with mock.patch("outboxq.contrib.django.admin_detail._READ", 5):
            response = self.client.get(page_of(task_id))
        moments = response.context["story"].moments
        assert [dict(one.notes).get("times") for one in moments] == ["2", None]
        assert "Older events are not shown" in response.content.decode()

    def test_every_time_of_a_page_is_in_the_active_zone_which_it_names(self):
        self.store.queues.pause("mail", using="default", create=True)
        delayed = self.add(delay=timedelta(days=1), expires_in=timedelta(days=2))
        failed = self.failed(on_dead_letter=OnDeadLetter.HOLD, partition_key="k")
        waits = self.add(queue="mail")
        self.log_in("view_taskexecution", "view_queuesettings")
        pages = (LIST, page_of(delayed), page_of(failed), page_of(waits))
        for name, short in (("Asia/Tokyo", "JST"), ("America/Sao_Paulo", "America/Sao_Paulo")):
            with timezone.override(name):
                created = local_time(TaskExecution.objects.get(pk=delayed).created_at)
            assert TaskExecution.objects.get(pk=delayed).created_at.strftime("%H:%M") not in created
            with override_settings(TIME_ZONE=name):
                for address in pages:
                    body = self.client.get(address).content.decode()
                    assert name in body, address
                    assert not re.search(r"UTC|\+00:00|[ap]\.m\.", body), address
                assert created in self.client.get(LIST).content.decode()
                body = self.client.get(page_of(delayed)).content.decode()
                assert body.count(created) == 3, "of the row, when it was updated, and of its first event"
                assert re.search(rf"it is due in .* at [-\d]+ [:\d]+ {short}\.", body)
                assert re.search(rf"paused since [-\d]+ [:\d]+ {short}", self.client.get(QUEUES).content.decode())

    def test_a_wide_history_scrolls_by_itself(self):
        """And the page does not, on a telephone."""
        body = self.client.get(page_of(self.failed())).content.decode()
        assert re.search(r'<div class="outboxq-scroll">\s*<table>', body)
        assert ".outboxq-scroll { overflow-x: auto; }" in body
        assert "fieldset.outboxq-history { min-width: 0; }" in body

    def test_a_long_text_is_cut(self):
        body = self.client.get(page_of(self.add(args=json.dumps({"x": "y" * 50_000})))).content.decode()
        assert len(body) < 60_000
        assert "characters more" in body

    def test_a_page_that_is_not_there(self):
        for address in (page_of(uuid4()), page_of("x"), page_of("1"), f"{LIST}{uuid4()}/history/"):
            assert self.client.get(address).headers["Location"] == "/admin/", address

    def test_arguments_that_somebody_else_wrote_are_no_error_of_the_server(self):
        task_id = self.add(args="{")
        assert "(cannot be read: JSONDecodeError)" in self.client.get(page_of(task_id)).content.decode()
        with connections[self.alias].cursor() as cursor:
            cursor.execute("UPDATE task_executions SET args = '{}'")

    def test_rows_are_not_edited(self):
        task_id = self.add()
        body = self.client.get(page_of(task_id)).content.decode()
        assert 'name="_save"' not in body
        self.log_in(is_superuser=True)
        for address in (page_of(task_id), f"{LIST}add/", f"{LIST}{task_id}/delete/"):
            assert self.client.post(address, {"post": "yes"}).status_code == 403, address
        assert self.status(task_id) == "Ready"


class Actions(Case):
    def test_a_dead_letter_runs_again(self):
        one, two = self.failed(), self.failed()
        assert self.push("retry", one) == [f"Task {one}: redriven, to run from the first attempt."]
        assert self.tick("retry", two) == [f"Task {two}: redriven, to run from the first attempt."]
        for task_id in (one, two):
            assert self.status(task_id) == "Ready"
            assert self.last_event(task_id).event_type is EventType.REQUEUED
            entry = LogEntry.objects.get(object_id=task_id)
            assert entry.user == self.user
            assert "redriven" in entry.get_change_message()
        assert len(LogEntry.objects.all()) == 2

    def test_a_delayed_task_runs_now(self):
        task_id = self.add(delay=timedelta(days=1))
        assert self.push("run_now", task_id) == [f"Task {task_id}: due now."]
        assert self.tick("run_now", task_id) == [f"Task {task_id}: due already."]
        assert self.claim().id == task_id

    def test_cancelling_says_who_did_it(self):
        two, one = self.failed(), self.add()
        self.push("cancel", one)
        self.push("discard", two)
        for task_id in (one, two):
            assert self.status(task_id) == "Cancelled"
            assert self.last_event(task_id).event_data["reason"] == f"by {self.user.username} in the admin"

    def test_a_running_task_is_asked_and_then_taken_away(self):
        task_id = self.running()
        response = self.client.get(page_of(task_id))
        assert [one.name for one in response.context["offered"]] == ["cancel", "cancel_now"]
        assert "asked to stop" in self.push("cancel", task_id)[0]
        assert self.status(task_id) == "Running"
        assert self.last_event(task_id).event_type is EventType.CANCEL_REQUESTED
        assert "cancelled" in self.push("cancel_now", task_id)[0]
        assert self.status(task_id) == "Cancelled"

    def test_what_is_refused_is_said_and_not_done(self):
        running, failed = self.running(), self.failed()
        assert self.push("retry", running) == [f"task {running} is Running and cannot be redriven."]
        assert self.push("run_now", failed) == [f"task {failed} is Failed and cannot be rescheduled."]
        assert self.push("cancel", failed) == [f"task {failed} is Failed and cannot be cancelled."]
        assert self.push("discard", running) == [f"task {running} is Running and cannot be discarded."]
        assert self.push("retry", uuid4()) == ["The task does not exist any more; it may have been pruned."]
        assert self.tick("retry", "x") == [
            "The selection contains something other than tasks, so nothing was changed; select tasks in the list."
        ]
        assert self.tick("delete_selected", running) == ["No action selected."]
        assert not LogEntry.objects.all()

    def test_some_of_many_are_refused(self):
        failed, ready = [self.failed() for _ in range(3)], [self.add() for _ in range(12)]
        told = self.tick("retry", *failed, *ready)
        assert told[0] == "3 of 15 tasks: redriven, to run from the first attempt."
        assert len([one for one in told if "is Ready and cannot be redriven" in one]) == 10
        assert told[-1] == "2 others were refused too."
        assert len(LogEntry.objects.all()) == 3

    def test_what_is_ticked_is_meant_though_the_list_has_changed(self):
        task_id = self.failed()
        self.store.redrive(task_id, using="default")
        self.claim()
        assert self.tick("cancel", task_id, query="?status=Failed") == [
            f"Task {task_id}: asked to stop, and running until it does."
        ]

    def test_all_that_the_list_means(self):
        failed, other = [self.failed() for _ in range(3)], self.failed(queue="mail")
        told = self.tick("retry", failed[0], query="?status=Failed&queue=default", select_across=1)
        assert told == ["3 of 3 tasks: redriven, to run from the first attempt."]
        assert self.status(other) == "Failed"

    def test_a_request_does_only_so_much(self):
        failed = [self.failed() for _ in range(3)]
        with mock.patch("outboxq.contrib.django.admin_actions._AT_ONCE", 2):
            told = self.tick("retry", *failed)
        assert told == [
            "2 of 2 tasks: redriven, to run from the first attempt.",
            "Only the first 2 tasks were changed; repeat the action for the others.",
        ]
        assert sorted(self.status(one) for one in failed) == ["Failed", "Ready", "Ready"]

    def test_looking_changes_nothing_and_acting_is_asked_for_by_a_form(self):
        task_id = self.add()
        assert self.client.get(f"{LIST}{task_id}/act/cancel/").status_code == 405
        assert self.client.post(f"{LIST}{task_id}/act/explode/").status_code == 404
        strict = Client(enforce_csrf_checks=True)
        strict.force_login(self.user)
        given = {"action": "cancel", "index": 0, "_selected_action": [str(task_id)]}
        assert strict.post(f"{LIST}{task_id}/act/cancel/").status_code == 403
        assert strict.post(LIST, given).status_code == 403
        assert self.status(task_id) == "Ready"
        body = strict.get(page_of(task_id)).content.decode()
        (token,) = re.findall(r'/act/cancel/"><input type="hidden" name="csrfmiddlewaretoken" value="(\w+)"', body)
        strict.post(f"{LIST}{task_id}/act/cancel/", {"csrfmiddlewaretoken": token})
        assert self.status(task_id) == "Cancelled"


class Transactions(TransactionTestCase):
    def test_a_change_that_cannot_be_logged_is_not_made(self):
        user = User.objects.create_superuser("root")
        self.client.force_login(user)
        store = outboxes["default"].store
        with transaction.atomic():
            task_id = store.enqueue(NewTask(id=uuid7(), task_name="shop.work", args="{}"), using="default").id
        full = mock.patch.object(TaskExecutionAdmin, "log_change", side_effect=RuntimeError("the log is full"))
        with full, self.assertRaisesMessage(RuntimeError, "the log is full"):
            self.client.post(f"{LIST}{task_id}/act/cancel/")
        assert self.status(task_id) == "Ready"
        assert self.client.post(f"{LIST}{task_id}/act/cancel/").status_code == 302
        assert self.status(task_id) == "Cancelled"

    def status(self, task_id):
        with transaction.atomic():
            return outboxes["default"].store.get(task_id, using="default").status


class Permissions(Case):
    def test_a_stranger_is_sent_to_the_door(self):
        task_id = self.add()
        for address in (LIST, page_of(task_id), QUEUES):
            assert Client().get(address).headers["Location"].startswith("/admin/login/"), address
        assert Client().post(f"{LIST}{task_id}/act/cancel/").headers["Location"].startswith("/admin/login/")
        assert self.status(task_id) == "Ready"

    def test_staff_without_a_permission_sees_nothing(self):
        task_id = self.add()
        for permissions in ((), ("cancel_taskexecution",)):
            self.log_in(*permissions)
            for address in (LIST, page_of(task_id), f"{LIST}{task_id}/history/", QUEUES):
                assert self.client.get(address).status_code == 403, address
            assert self.client.post(f"{LIST}{task_id}/act/cancel/").status_code == 403
            assert LIST not in self.client.get("/admin/").content.decode()
        assert self.status(task_id) == "Ready"

    def test_who_may_view_does_nothing(self):
        ready, failed = self.add(), self.failed(priority=10)
        self.log_in("view_taskexecution")
        assert self.listed() == [failed, ready]
        for task_id in (ready, failed):
            response = self.client.get(page_of(task_id))
            assert response.status_code == 200
            assert "/act/" not in response.content.decode()
            for action in ("retry", "run_now", "cancel", "cancel_now", "discard"):
                assert self.client.post(f"{LIST}{task_id}/act/{action}/").status_code == 403
        assert 'name="action"' not in self.client.get(LIST).content.decode()
        self.client.post(LIST, {"action": "cancel", "index": 0, "_selected_action": [str(ready)]})
        assert [self.status(one) for one in (ready, failed)] == ["Ready", "Failed"]

    def test_each_permission_is_for_its_own(self):
        ready, failed = self.add(delay=timedelta(days=1)), self.failed()
        self.log_in("view_taskexecution", "retry_taskexecution")
        assert self.client.post(f"{LIST}{ready}/act/cancel/").status_code == 403
        assert self.client.post(f"{LIST}{failed}/act/discard/").status_code == 403
        assert self.tick("cancel", ready) == ["No action selected."]
        assert "due now" in self.tick("run_now", ready)[0]
        self.log_in("view_taskexecution", "cancel_taskexecution")
        assert self.client.post(f"{LIST}{failed}/act/retry/").status_code == 403
        assert "cancelled" in self.push("cancel", ready)[0]


SOON = timedelta(seconds=30)
"""The list looks at the clock so much later: what ends soon has ended."""


def later_than_now():
    return datetime.now(UTC) + timedelta(days=1)


GIVEN = {
    "queue": "mail",
    "paused": "on",
    "concurrency_limit": "3",
    "rate_limit": "",
    "rate_seconds": "",
    "fair": "on",
    "create": "on",
}


class Queues(Case):
    def setUp(self):
        super().setUp()
        self.log_in("view_queuesettings", "change_queuesettings")

    def settings(self):
        return {one.queue: one for one in self.store.queues.settings(using="default")}

    def test_a_queue_is_limited_and_paused_and_set_free(self):
        self.client.post(f"{QUEUES}add/", GIVEN)
        found = self.settings()["mail"]
        assert (found.paused_at is not None, found.concurrency, found.rate, found.fair) == (True, 3, None, True)
        change = f"{QUEUES}mail/change/"
        assert self.client.get(change).context["adminform"].form["paused"].initial is True
        given = {"rate_limit": "10", "rate_seconds": "60"}
        assert self.client.post(change, given).status_code == 302
        found = self.settings()["mail"]
        assert (found.paused_at, found.concurrency, found.rate, found.fair) == (
            None,
            None,
            (10, timedelta(minutes=1)),
            False,
        )
        assert self.client.post(change, {"fair": "on"}).status_code == 302
        assert self.settings() == {}
        assert [entry.object_repr for entry in LogEntry.objects.all()] == ["mail"] * 3

    def test_the_keys_of_a_queue_are_limited_and_set_free(self):
        given = {"key_concurrency": "2", "key_rate_limit": "5", "key_rate_seconds": "60"}
        self.client.post(f"{QUEUES}add/", {**GIVEN, **given})
        found = self.settings()["mail"]
        assert (found.concurrency, found.concurrency_per_key, found.rate_per_key) == (3, 2, (5, timedelta(minutes=1)))
        listed = self.client.get(QUEUES).content.decode()
        assert "2 at once, 5 in 1 min" in listed
        change = f"{QUEUES}mail/change/"
        form = self.client.get(change).context["adminform"].form
        assert [form[name].value() for name in ("concurrency_limit", *given)] == [3, 2, 5, 60.0]
        assert self.client.post(change, {"fair": "on"}).status_code == 302
        assert self.settings() == {}

    def test_what_cannot_be_is_said_in_the_form(self):
        wrong = (
            {"queue": ""},
            {"key_rate_limit": "5"},
            {"key_concurrency": "0"},
            {"queue": "a\0b"},
            {"concurrency_limit": "0"},
            {"rate_limit": "5"},
            {"rate_seconds": "5"},
            {"rate_limit": "5", "rate_seconds": "0"},
            {"rate_limit": str(2**31), "rate_seconds": "1"},
            {"rate_limit": "5", "rate_seconds": "nan"},
            {"rate_limit": "5", "rate_seconds": "1e10"},
        )
        for given in wrong:
            response = self.client.post(f"{QUEUES}add/", {**GIVEN, **given})
            assert response.status_code == 200, given
            assert response.context["errors"], given
        assert self.settings() == {}

    def test_a_name_that_nothing_knows_is_refused_unless_it_is_new(self):
        self.add(queue="mail")
        mistyped = {**GIVEN, "queue": "mial"}
        del mistyped["create"]
        response = self.client.post(f"{QUEUES}add/", mistyped)
        assert response.status_code == 200
        (said,) = response.context["adminform"].form.errors["queue"]
        assert "live worker names it; did you mean 'mail'? Tick" in said
        assert self.settings() == {}
        known = {**mistyped, "queue": "mail"}
        assert self.client.post(f"{QUEUES}add/", known).status_code == 302
        assert list(self.settings()) == ["mail"]

    def test_pause_and_resume_in_the_list(self):
        self.store.queues.limit("mail", concurrency=2, using="default", create=True)
        for action, is_paused in (("pause", True), ("resume", False)):
            self.client.post(QUEUES, {"action": action, "index": 0, "_selected_action": ["mail"]})
            assert (self.settings()["mail"].paused_at is not None) is is_paused
        assert len(LogEntry.objects.all()) == 2
        assert self.client.get(QUEUES).status_code == 200

    def test_words_say_whether_all_is_well(self):
        self.store.queues.limit("mail", rate=(1, timedelta(hours=1)), using="default", create=True)
        self.store.queues.limit("slow", rate=(10, timedelta(seconds=90)), using="default", create=True)
        self.store.queues.order("slow", fair=False, using="default", create=True)
        self.store.queues.pause("slow", using="default", create=True)
        body = self.client.get(QUEUES).content.decode()
        assert "icon-" not in re.sub(r"(?s).*<tbody>|</tbody>.*", "", body)
        for words in (
            "open",
            "paused since",
            "1 in 1 h",
            "10 in 1 min 30 s",
            "keys take turns",
            "due the longest first",
        ):
            assert words in body, words
        self.log_in("view_queuesettings")
        body = self.client.get(f"{QUEUES}mail/change/").content.decode()
        assert "icon-no" not in body
        assert "1 in 1 h" in body

    def test_who_may_view_changes_nothing(self):
        self.store.queues.pause("mail", using="default", create=True)
        self.log_in("view_queuesettings")
        assert "mail" in self.client.get(QUEUES).content.decode()
        assert self.client.get(f"{QUEUES}mail/change/").status_code == 200
        for address in (f"{QUEUES}mail/change/", f"{QUEUES}add/", f"{QUEUES}mail/delete/"):
            assert self.client.post(address, {"fair": "on"}).status_code == 403, address
        self.client.post(QUEUES, {"action": "resume", "index": 0, "_selected_action": ["mail"]})
        assert self.settings()["mail"].paused_at is not None


class Schedules(Case):
    def setUp(self):
        super().setUp()
        self.log_in("view_taskschedule", "change_taskschedule", "view_taskexecution")

    def put(self, name="nightly", **fields):
        given = {"task_name": "shop.report", "rule": "30 2 * * *", "tz": "Europe/Berlin", **fields}
        return self.store.schedules.put(NewSchedule(name=name, **given), using="default")

    def get(self, name="nightly"):
        return self.store.schedules.get(name, using="default")

    def take(self, action, *names):
        return self.told(self.client.post(SCHEDULES, {"action": action, "index": 0, "_selected_action": list(names)}))

    def page(self, name="nightly"):
        response = self.client.get(f"{SCHEDULES}{name}/change/")
        assert response.status_code == 200, response.status_code
        return response.content.decode()

    def test_the_list_shows_when_each_schedule_has_its_ticks(self):
        self.put()
        self.put("odd", args='{"a": 1}')
        self.store.schedules.pause("odd", using="default")
        with connection.cursor() as cursor:
            cursor.execute("UPDATE task_schedules SET tz = 'Moon/Base' WHERE name = 'odd'")
        with override_settings(TIME_ZONE="America/New_York"):
            body = self.client.get(SCHEDULES).content.decode()
        assert body.count("At 02:30 every day (Europe/Berlin)") == 1
        assert re.search(r"20:30:00 E[SD]T|21:30:00 E[SD]T", body), "the next tick, in Django's time zone"
        assert "cannot be read here" in body
        assert "paused since" in body
        with connection.cursor() as cursor:
            cursor.execute("UPDATE task_schedules SET tz = 'UTC' WHERE name = 'odd'")

    def test_the_list_asks_once_for_the_next_ticks_of_all_its_schedules(self):
        def queries():
            with CaptureQueriesContext(connection) as asked:
                self.client.get(SCHEDULES)
            return len(asked)

        self.put()
        one = queries()
        for number in range(9):
            self.put(f"nightly{number}")
        assert queries() == one

    def test_the_list_and_the_page_say_that_a_clock_ahead_has_planted_a_schedule(self):
        self.put(rule="every 3600")
        with connection.cursor() as cursor:
            cursor.execute("UPDATE task_schedules SET planted_until = '8000-01-01T00:00:00.000000+00:00'")
        for body in (self.client.get(SCHEDULES).content.decode(), self.page()):
            assert "planted by a clock that was ahead" in body
        [following] = self.store.schedules.upcoming([self.get()], using="default")["nightly"]
        assert following < datetime.now(UTC) + timedelta(hours=1, minutes=1)
        self.put(rule="every 3600")
        assert "planted by a clock that was ahead" not in self.page()

    def test_the_page_shows_the_ticks_to_come_and_what_became_of_the_last(self):
        self.put(
            starts_at=datetime(2080, 1, 1, tzinfo=UTC),
            overlap=Overlap.QUEUE,
            catch_up=CatchUp.ALL,
            catch_up_limit=7,
            grace=timedelta(minutes=90),
            args='{"iban": "DE02"}',
        )
        first, last = datetime(2026, 11, 20, tzinfo=UTC), datetime(2026, 11, 22, tzinfo=UTC)
        self.store.schedules.backfill("nightly", first, last, using="default")
        body = self.page()
        for words in ("Mon 2080-01-01 02:30:00 CET", "all, at most 7", "1 h 30 min", "a program, at run time", "queue"):
            assert words in body, words
        ticks = self.store.schedules.ticks("nightly", using="default")
        assert len(ticks) == 2
        for tick in ticks:
            assert f'<a href="{page_of(tick.task_id)}">Ready</a>' in body
        assert "iban" not in body
        assert 'name="_save"' not in body, "nothing can be edited"

    def test_a_paused_schedule_says_why(self):
        self.put()
        assert self.take("pause", "nightly") == ["Schedule nightly: paused."]
        assert self.get().pause_reason == f"by {self.user.get_username()} in the admin"
        assert f"by {self.user.get_username()} in the admin" in self.page()
        assert self.take("resume", "nightly") == ["Schedule nightly: resumed."]
        assert self.get().paused_at is None
        assert [(entry.object_repr, entry.change_message) for entry in LogEntry.objects.order_by("pk")] == [
            ("nightly", "paused"),
            ("nightly", "resumed"),
        ]

    def test_a_triggered_schedule_enqueues_a_task_each_time(self):
        self.put()
        self.put("weekly")
        said = self.take("trigger", "nightly", "weekly")
        tasks = self.store.tasks(using="default")
        assert {f"task {task.id} was enqueued" for task in tasks} == {one.partition(": ")[2][:-1] for one in said}
        assert len(tasks) == 2

    def test_a_schedule_that_is_gone_meanwhile_stops_no_other(self):
        self.put()
        self.put("weekly")
        real = type(self.store.schedules).pause

        def pause(schedules, name, **options):
            if name == "nightly":
                raise ScheduleNotFound("there is no schedule 'nightly'")
            return real(schedules, name, **options)

        with mock.patch.object(type(self.store.schedules), "pause", pause):
            said = self.take("pause", "nightly", "weekly")
        assert said == ["there is no schedule 'nightly'.", "Schedule weekly: paused."]

    def test_a_schedule_whose_zone_is_unknown_here_stops_no_other(self):
        self.put()
        self.put("weekly")
        self.take("pause", "nightly", "weekly")
        with connection.cursor() as cursor:
            cursor.execute("UPDATE task_schedules SET tz = 'Moon/Base' WHERE name = 'nightly'")
        unknown, resumed = self.take("resume", "nightly", "weekly")
        assert unknown.startswith("there is no time zone 'Moon/Base'")
        assert resumed == "Schedule weekly: resumed."
        assert self.get().paused_at is not None
        with connection.cursor() as cursor:
            cursor.execute("UPDATE task_schedules SET tz = 'UTC' WHERE name = 'nightly'")

    def test_who_may_view_schedules_changes_none(self):
        self.put()
        self.log_in("view_taskschedule")
        assert "nightly" in self.client.get(SCHEDULES).content.decode()
        assert "At 02:30 every day" in self.page()
        for action in ("pause", "trigger"):
            self.client.post(SCHEDULES, {"action": action, "index": 0, "_selected_action": ["nightly"]})
        assert (self.get().paused_at, self.store.tasks(using="default")) == (None, [])
        self.log_in("view_taskexecution")
        assert self.client.get(SCHEDULES).status_code == 403

    def test_no_schedule_is_added_changed_or_deleted_by_a_form(self):
        self.put()
        for address in ("add/", "nightly/change/", "nightly/delete/"):
            assert self.client.post(f"{SCHEDULES}{address}", {"rule": "0 0 * * *"}).status_code == 403, address
        assert self.get().rule == "30 2 * * *"

    def test_hostile_names_are_shown_as_text(self):
        self.put(HOSTILE, task_name=HOSTILE)
        body = self.client.get(SCHEDULES).content.decode()
        assert HOSTILE not in body


class OtherDatabase(Case):
    databases = frozenset({"default", "other"})
    alias = "other"

    def test_the_admin_of_another_outbox_reads_and_writes_there(self):
        here = NewTask(id=uuid7(), task_name="shop.here", args="{}")
        outboxes["default"].store.enqueue(here, using="default")
        task_id = self.failed(args='{"a": "shown"}')
        tasks = "/other/outboxq/taskexecution/"
        assert self.listed(path=tasks) == [task_id]
        assert self.listed("?status=Failed&queue=default", path=tasks) == [task_id]
        assert self.listed() == [here.id]
        body = self.client.get(f"{tasks}{task_id}/change/").content.decode()
        assert "shown" not in body
        act = f"{tasks}{task_id}/act/retry/"
        assert act in body
        response = self.client.post(act)
        assert response.headers["Location"] == f"{tasks}{task_id}/change/"
        assert self.status(task_id) == "Ready"
        assert len(LogEntry.objects.using("default").all()) == 1


class Documented(Case):
    """docs/django-admin.md does what it says."""

    PAGE = (Path(__file__).parents[4] / "docs" / "django-admin.md").read_text()

    def test_its_class_takes_the_place_of_ours(self):
        (code,) = re.findall(r"^```python\n(.*?)^```$", self.PAGE, re.DOTALL | re.MULTILINE)
        ours = admin.site._registry[TaskExecution]
        urls = ModuleType("urls_of_the_page")
        try:
            exec(compile(code, "docs/django-admin.md", "exec"), {"__name__": "shop.admin"})
            urls.urlpatterns = [path("admin/", admin.site.urls)]
        finally:
            admin.site._registry[TaskExecution] = ours
        task_id = self.add(args='{"iban": "geheim", "api_key": "seen"}')
        with override_settings(ROOT_URLCONF=urls):
            body = self.client.get(page_of(task_id)).content.decode()
        assert "geheim" not in body
        assert "seen" in body

    def test_its_permissions_and_actions_are_there(self):
        named = set(re.findall(r"`outboxq\.(\w+_\w+)`", self.PAGE))
        own = Permission.objects.filter(content_type__app_label="outboxq", codename__in=named)
        assert named == {one.codename for one in own}
        for action in ACTIONS.values():
            row = f"| {action.button} | {', '.join(sorted(action.statuses))}"
            (line,) = [line for line in self.PAGE.splitlines() if line.startswith(row)]
            assert line.endswith(f"| `outboxq.{action.permission}_taskexecution` |")
        assert f"{LOOK:_}".replace("_", " ") in self.PAGE
        assert f"at most {_AT_ONCE:_}".replace("_", " ") in self.PAGE


class Pieces(TestCase):
    def test_an_error_that_speaks_of_no_day_of_the_calendar_is_shown_as_it_is(self):
        said = "it failed: Incorrect value: 0000-00-00 00:00:00 UTC"
        assert localized(said) == said

    def test_a_span_is_written_in_its_units(self):
        spans = {3600: "1 h", 90: "1 min 30 s", 0.5: "0.5 s", 86_400: "1 d", 90_061: "1 d 1 h 1 min 1 s", 0: "0 s"}
        assert {seconds: in_words(seconds) for seconds in spans} == spans

    def test_the_admin_is_there(self):
        assert reverse("admin:outboxq_taskexecution_changelist") == LIST
        assert {model.__name__ for model in admin.site._registry} >= {"TaskExecution", "QueueSettings", "TaskSchedule"}

    def test_the_first_id_of_a_moment(self):
        before, moment = datetime.now(UTC), first_id(datetime.now(UTC) + timedelta(milliseconds=1))
        assert first_id(before) < moment < uuid7().__class__(int=uuid7().int + (1000 << 80))
        assert first_id(datetime(1960, 1, 1, tzinfo=UTC)).int == 0

    def test_every_status_has_an_action_or_is_an_end(self):
        offered = set().union(*(action.statuses for action in ACTIONS.values()))
        assert offered == {TaskStatus.READY, TaskStatus.RUNNING, TaskStatus.FAILED}


def at(moment):
    """An id of that time."""
    return UUID(int=first_id(moment).int | (uuid7().int & ((1 << 80) - 1)))
