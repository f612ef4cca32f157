"""The admin of batches and chains, asked as a browser would ask it. Run by `test_django_admin.py`, once for each database."""

import re
from pathlib import Path
from unittest import mock

from admin_cases import HOSTILE, LIST, Case, page_of
from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.db import connection, transaction
from django.test import TransactionTestCase
from django.test.utils import CaptureQueriesContext

from outboxq.contrib.django import admin_batches, outboxes
from outboxq.contrib.django.admin_list import TaskList
from outboxq.contrib.django.models import Batch, TaskExecution
from outboxq.model import EventType, NewTask, Outcome, TaskStatus
from outboxq.model.batches import BatchKind, BatchLink, NewBatch, OnFailed, new_batch_id
from outboxq.model.uuid7 import uuid7

BATCHES = "/admin/outboxq/batch/"
INVISIBLE = "ev\u202eil"


def batch_page(batch_id):
    return f"{BATCHES}{batch_id}/change/"


class BatchCase(Case):
    def setUp(self):
        super().setUp()
        self.log_in("view_batch", "view_taskexecution", "cancel_taskexecution")

    def tearDown(self):
        connection.check_constraints()
        super().tearDown()

    def made(self, tasks=0, then=("shop.report",), **fields):
        """Write a batch with so many tasks; returns its id and theirs."""
        batch_id = new_batch_id()
        following = [
            NewTask(id=BatchLink(batch_id=batch_id, number=number).task_id, task_name=name, args="{}")
            for number, name in enumerate(then, 1)
        ]
        batch = NewBatch(**{"id": batch_id, "then": following, **fields})
        self.store.batches.create(batch, using=self.alias)
        ids = [self.add(pipeline_execution_id=batch.id) for _ in range(tasks)]
        self.store.batches.close(batch.id, using=self.alias)
        connection.check_constraints()  # PostgreSQL counts at the end of a transaction
        return batch.id, ids

    def page(self, batch_id):
        response = self.client.get(batch_page(batch_id))
        assert response.status_code == 200, (response.status_code, self.told(response))
        return self.words(response)

    def words(self, response):
        """The text of a page."""
        body = response.content.decode().partition('id="content-main"')[2]
        return " ".join(re.sub(r"<[^>]*>", " ", body).split())

    def shown(self, query=""):
        response = self.client.get(f"{BATCHES}{query}")
        return [one["id"] for one in response.context["batches"]]

    def push_cancel(self, batch_id, **given):
        return self.client.post(f"{BATCHES}{batch_id}/cancel/", given)


class BatchPages(BatchCase):
    def test_the_list_shows_each_batch_with_its_counts(self):
        batch_id, _ = self.made(3, name="may")
        claim = self.claim()
        self.store.finish([Outcome(claim=claim, event_type=EventType.FAILED, error="no")], using="default")
        ended, _ = self.made(name="empty", then=())
        connection.check_constraints()
        response = self.client.get(BATCHES)
        assert "Running may batch 3 2 0 1 0" in self.words(response)
        assert "Completed empty batch 0 0 0 0 0" in self.words(response)
        assert f'<a href="{batch_page(batch_id)}">' in response.content.decode()
        assert (self.shown(), self.shown("?state=open")) == ([ended, batch_id], [batch_id])
        assert "Batches" in self.client.get("/admin/").content.decode()

    def test_a_page_has_so_many_and_leads_to_older_ones(self):
        made = [self.made()[0] for _ in range(5)]
        with mock.patch.object(admin_batches, "_PAGE", 2):
            page, seen = BATCHES, []
            while page is not None:
                with CaptureQueriesContext(connection) as asked:
                    response = self.client.get(page)
                assert len(asked) <= 6, asked.captured_queries
                seen.append([one["id"] for one in response.context["batches"]])
                page = response.context["older"]
            assert response.context["newest"] == BATCHES
        made.reverse()
        assert seen == [made[:2], made[2:4], made[4:]]

    def test_an_id_is_found_and_other_words_are_refused(self):
        batch_id, _ = self.made()
        assert self.client.get(f"{BATCHES}?q= {batch_id} ").headers["Location"] == batch_page(batch_id)
        for query, words in (("q=may", "whole id"), ("before=x", "x is not the id of a batch")):
            (said,) = self.told(self.client.get(f"{BATCHES}?{query}"))
            assert words in said
        (said,) = self.told(self.client.get(batch_page(new_batch_id())))
        assert said.startswith("There is no batch")
        (said,) = self.told(self.client.get(batch_page("<b>")))
        assert said.startswith("There is no batch")

    def test_the_page_shows_the_policy_what_follows_and_the_tasks(self):
        batch_id, (task_id,) = self.made(
            1, then=("shop.report", "shop.mail"), kind=BatchKind.CHAIN, on_failed=OnFailed.WAIT
        )
        words = self.page(batch_id)
        for shown in (
            "Running 1 task, of which 1 has not ended",
            "Kind chain",
            "waits until it is redriven or discarded",
        ):
            assert shown in words, shown
        assert "Then shop.report (not enqueued) Then shop.mail (not enqueued)" in words
        self.store.finish([Outcome(claim=self.claim_of(task_id), event_type=EventType.COMPLETED)], using="default")
        connection.check_constraints()
        words = self.page(batch_id)
        assert "Then shop.report Then shop.mail (not enqueued)" in words
        follower = self.store.batches.get(batch_id, using="default").then_ids[0]
        body = self.client.get(batch_page(batch_id)).content.decode()
        assert f'<a href="{page_of(follower)}">shop.report</a>' in body
        assert f"{LIST}?batch={batch_id}&amp;status=Failed" in body

    def test_the_list_of_tasks_can_be_that_of_a_batch(self):
        batch_id, ids = self.made(3)
        other, (alone,) = self.made(1)
        loose = self.add()
        running = self.claim()
        assert self.listed(f"?batch={batch_id}") == ids[::-1]
        assert self.listed(f"?batch={batch_id}&status=Running") == [running.id]
        assert self.listed(f"?batch={loose}") == [], "a task without others is not together with itself"
        response = self.client.get(f"{LIST}?batch=x")
        assert response.headers["Location"].endswith("?e=1")
        response = self.client.get(LIST)
        assert "By batch" not in response.content.decode()
        links = re.findall(rf'<td class="field-batch"><a href="{BATCHES}([0-9a-f-]+)/', response.content.decode())
        assert links == [str(other), *[str(batch_id)] * 3]
        with mock.patch.object(TaskList, "look", 2):
            assert self.listed(f"?batch={batch_id}") == ids[:0:-1]
            older = self.client.get(f"{LIST}?batch={batch_id}").context["cl"].older
            assert self.listed(older) == ids[:1]
        assert f'<a href="{batch_page(other)}">' in self.client.get(page_of(alone)).content.decode()
        assert "It belongs to" not in self.client.get(page_of(loose)).content.decode()

    def test_the_tasks_of_a_batch_are_found_by_their_index(self):
        batch_id, _ = self.made(3)
        with CaptureQueriesContext(connection) as asked:
            self.listed(f"?batch={batch_id}")
        (sql,) = [
            one["sql"] for one in asked if "LIMIT 1 OFFSET" in one["sql"] and "pipeline_execution_id" in one["sql"]
        ]
        with connection.cursor() as cursor:
            if connection.vendor == "postgresql":
                cursor.execute("SET LOCAL enable_seqscan = off")
                cursor.execute("SET LOCAL enable_indexscan = off")
                cursor.execute(f"EXPLAIN {sql}")
            else:
                cursor.execute(f"EXPLAIN QUERY PLAN {sql}")
            plan = str(cursor.fetchall())
        assert "ix_task_executions_pipeline" in plan, plan

    def test_hostile_names_are_shown_as_text(self):
        batch_id, _ = self.made(1, name=HOSTILE, then=(HOSTILE, INVISIBLE))
        self.made(name=INVISIBLE)
        for response in (self.client.get(BATCHES), self.client.get(batch_page(batch_id)), self.push_cancel(batch_id)):
            body = response.content.decode()
            assert HOSTILE not in body
            assert "\u202e" not in body
            assert "alert(&#x27;x&#x27;)" in body
        assert "ev\\u202eil" in self.client.get(BATCHES).content.decode()


class BatchesDocumented(BatchCase):
    """docs/django-admin.md does what it says of batches."""

    PAGE = (Path(__file__).parents[4] / "docs" / "django-admin.md").read_text()

    def test_its_addresses_and_numbers_are_there(self):
        batch_id, ids = self.made(1)
        (query,) = re.findall(r"`(\?batch=…[^`]*)`", self.PAGE)
        assert self.listed(query.replace("…", str(batch_id))) == []
        assert self.listed(query.replace("…", str(batch_id)).replace("Failed", "Ready")) == ids
        assert f"newest first and {admin_batches._PAGE} a page" in self.PAGE
        assert f"at most {admin_batches._AT_ONCE:_}".replace("_", " ") in self.PAGE
        body = self.client.get("/admin/").content.decode()
        for model in (Batch, TaskExecution):
            assert f"**{model._meta.verbose_name_plural.capitalize()}**" in self.PAGE
            assert f"{model._meta.verbose_name_plural.capitalize()}</a>" in body


class BatchCancelling(BatchCase):
    def test_a_batch_is_cancelled_after_a_question(self):
        batch_id, ids = self.made(3)
        running = self.claim()
        assert "Cancel …" in self.page(batch_id)
        asked = self.push_cancel(batch_id)
        assert "3 tasks have not ended." in self.words(asked)
        assert "Nothing follows the batch then." in self.words(asked)
        assert {self.status(one) for one in ids} == {TaskStatus.READY, TaskStatus.RUNNING}
        (said,) = self.told(self.push_cancel(batch_id, confirmed="yes"))
        assert said == "3 tasks of the batch were cancelled or asked to stop. Nothing follows it."
        assert "Cancelling" in self.page(batch_id)
        self.store.finish([Outcome(claim=running, event_type=EventType.CANCELLED)], using="default")
        connection.check_constraints()
        assert "Cancelled 3 tasks, of which 0 have not ended" in self.page(batch_id)
        assert {self.status(one) for one in ids} == {TaskStatus.CANCELLED}
        by = f"by {self.user.get_username()} in the admin"
        assert self.last_event(ids[-1]).event_data["reason"] == by
        (entry,) = LogEntry.objects.all()
        assert (entry.object_id, entry.change_message) == (str(batch_id), "cancel: 3 tasks")
        assert entry.get_admin_url() == f"/admin/outboxq/batch/{batch_id}/change/"
        assert "cancel: 3 tasks" in self.client.get(f"{BATCHES}{batch_id}/history/").content.decode()
        assert "Cancel …" not in self.page(batch_id)
        (said,) = self.told(self.push_cancel(batch_id, confirmed="yes"))
        assert said.startswith(f"The batch {batch_id} ended as Cancelled at ")
        assert said.endswith(", so nothing was cancelled.")

    def test_one_task_is_no_tasks(self):
        batch_id, _ = self.made(1)
        assert "1 task, of which 1 has not ended." in self.page(batch_id)
        assert "1 task has not ended." in self.words(self.push_cancel(batch_id))
        (said,) = self.told(self.push_cancel(batch_id, confirmed="yes"))
        assert said == "1 task of the batch was cancelled or asked to stop. Nothing follows it."

    def test_one_request_cancels_so_many_and_workers_the_others(self):
        batch_id, _ = self.made(3)
        with mock.patch.object(admin_batches, "_AT_ONCE", 2):
            assert "This request cancels 2 of them, and workers the others." in self.words(self.push_cancel(batch_id))
            (said,) = self.told(self.push_cancel(batch_id, confirmed="yes"))
        assert said.endswith("Workers cancel the others.")
        connection.check_constraints()
        found = self.store.batches.get(batch_id, using="default")
        assert (found.cancelled, found.status) == (2, "Cancelling")
        self.store.batches.cancel(batch_id, using="default")

    def test_each_page_needs_its_permission(self):
        batch_id, (task_id,) = self.made(1)
        self.log_in("view_batch", "view_taskexecution")
        assert "Cancel …" not in self.page(batch_id)
        for given in ({}, {"confirmed": "yes"}):
            assert self.push_cancel(batch_id, **given).status_code == 403
        self.log_in("view_batch")
        assert f"{LIST}?batch" not in self.client.get(batch_page(batch_id)).content.decode()
        self.log_in("view_taskexecution", "cancel_taskexecution")
        for address in (BATCHES, batch_page(batch_id), f"{BATCHES}{batch_id}/history/"):
            assert self.client.get(address).status_code == 403, address
        assert self.push_cancel(batch_id, confirmed="yes").status_code == 403
        for address in (LIST, page_of(task_id)):
            assert BATCHES not in self.client.get(address).content.decode()
        self.log_in("view_batch", "cancel_taskexecution")
        assert self.client.get(f"{BATCHES}{batch_id}/cancel/").status_code == 405
        for address in (f"{BATCHES}add/", f"{BATCHES}{batch_id}/delete/"):
            assert self.client.post(address, {"post": "yes"}).status_code == 403, address
        assert self.status(task_id) == TaskStatus.READY

    def test_the_tasks_of_another_database_are_not_linked(self):
        site = admin.AdminSite(name="other_site")
        model_admin = admin_batches.BatchAdmin(Batch, site)
        assert not admin_batches.has_pages(site, TaskExecution, model_admin.alias, None)


class OutsideATransaction(TransactionTestCase):
    """Django's requests have no transaction, unless ATOMIC_REQUESTS is set; those of a TestCase do."""

    def test_each_page_reads_and_the_cancelling_is_committed(self):
        self.client.force_login(User.objects.create_superuser("root"))
        store = outboxes["default"].store
        batch = NewBatch(id=new_batch_id())
        with transaction.atomic():
            store.batches.create(batch, using="default")
            task = NewTask(id=uuid7(), task_name="shop.work", args="{}", pipeline_execution_id=batch.id)
            store.enqueue(task, using="default")
            store.batches.close(batch.id, using="default")
        failures, cancel = f"{LIST}failures/", f"{BATCHES}{batch.id}/cancel/"
        for address in (BATCHES, batch_page(batch.id), f"{LIST}?batch={batch.id}", page_of(task.id), failures):
            assert self.client.get(address).status_code == 200, address
        assert self.client.post(f"{failures}{'0' * 12}/redrive/").status_code in {302, 404}
        assert self.client.post(cancel).status_code == 200
        full = mock.patch.object(admin_batches.BatchAdmin, "log_change", side_effect=RuntimeError("the log is full"))
        with full, self.assertRaisesMessage(RuntimeError, "the log is full"):
            self.client.post(cancel, {"confirmed": "yes"})
        assert TaskExecution.objects.get(pk=task.id).status == "Ready"
        assert self.client.post(cancel, {"confirmed": "yes"}).status_code == 302
        assert TaskExecution.objects.get(pk=task.id).status == "Cancelled"
        assert "Cancelled" in self.client.get(batch_page(batch.id)).content.decode()
