"""Every page and every action works without scripts: links, tabs, filters, paginated lists, and each form.

A browser tests a queue's folded forms, the links and the filters. A client submits the other forms as a browser would.
"""

from __future__ import annotations

from datetime import timedelta
from urllib.parse import urlencode

import pytest

from outboxq.database.tables import task_leases
from outboxq.model import EventType, TaskStatus
from outboxq.model.workers import WorkerOrder
from outboxq.web import application
from outboxq.web.pages import ROUTES
from tests.integrations.dashboard.filling import CHARGE, LETTER
from tests.integrations.dashboard.pages import address, largest_group
from tests.integrations.dashboard.visiting import Visitor
from tests.waiting import until


@pytest.fixture
def person(open_tab, site, filling, browser):
    """A person whose browser runs no scripts."""
    return Person(browser.run(open_tab, site.url, javascript=False), filling)


class Person:
    """A person who opens pages, follows links and submits forms."""

    def __init__(self, tab, filling):
        self.tab, self.page, self.filling = tab, tab.page, filling

    def goes_to(self, page):
        """Go to one of `PAGES`, or to a path."""
        answer = self.tab.open(page if page.startswith("/") else address(page, self.filling))
        assert answer.status == 200
        return self

    def sends(self, action, words="", **fields):
        """Fill in and submit the form of an action, unfolding it if necessary. Its notice must contain these words."""
        form = self.page.locator(f'main form:is([action$="{action}"], [action*="{action}?"])').first
        folded = form.locator("xpath=ancestor::details[not(@open)]/summary")
        if folded.count():
            folded.first.click()
        for name, value in fields.items():
            field = form.locator(f"[name={name}]")
            field.check() if value is True else field.fill(value)
        self.presses(form.locator("button"))
        notice = self.page.locator("#notices .notice:not([hidden])").inner_text()
        assert words in notice, notice
        return self

    def follows(self, words):
        """Follow the first link with these words."""
        self.presses(self.page.locator("main").get_by_role("link", name=words).first)
        return self

    def presses(self, control):
        """Press a button or a link, and wait for the page that it leads to."""
        with self.page.expect_navigation() as answered:
            control.click()
        assert answered.value.status == 200

    def sees(self, words):
        assert words in self.page.locator("main").inner_text().replace("\N{NO-BREAK SPACE}", " ")
        return self


@pytest.fixture
def sender(filling):
    """Return a client that sends the requests of a browser without scripts."""
    return Sender(filling)


class Sender:
    """A client that reads pages and submits their forms."""

    def __init__(self, filling):
        self.visitor = Visitor(application(filling.outbox, allow_actions=True, show_arguments=True))
        self.filling = filling

    def goes_to(self, page):
        """Go to one of `PAGES`, or to a path."""
        self.visitor.go(page if page.startswith("/") else address(page, self.filling))
        assert self.visitor.status == 200
        return self

    def sends(self, action, words="", **fields):
        """Fill in and submit the form of an action. The page that follows must contain these words."""
        form = next(one for one in self.visitor.page.forms if one.action.partition("?")[0].endswith(action))
        ticked = {name: form.boxes[name] for name, value in fields.items() if value is True}
        typed = {name: value for name, value in fields.items() if value is not True}
        assert typed.keys() <= form.fields.keys(), form
        self.visitor.send(form, {**form.fields, **typed, **ticked})
        assert self.visitor.status == 200
        return self.sees(words)

    def follows(self, words):
        """Follow the first link with these words."""
        self.visitor.follow(words)
        assert self.visitor.status == 200
        return self

    def sees(self, words):
        assert words in self.visitor.text
        return self


def actions(prefix):
    return {route.name for route in ROUTES if route.is_action and route.name.startswith(prefix)}


def test_these_tests_cover_every_action():
    """A new action must be added to these tests."""
    of_queues = {"queue_pause", "queue_resume", "queue_limit", "queue_order", "queue_forget"}
    of_schedules = {"schedule_pause", "schedule_resume", "schedule_trigger", "schedule_remove", "schedule_edit"}
    of_tasks = {"task_run_now", "task_priority", "task_cancel", "task_cancel_now", "task_recover"}
    of_tasks |= {"task_redrive", "task_discard", "task_reschedule"}
    of_relays = {"relay_pause", "relay_resume", "relay_remove"}
    of_workers = {"worker_quiet", "worker_resume", "worker_stop", "worker_stacks", "worker_recover"}
    assert actions("") == of_queues | of_schedules | of_tasks | of_relays | of_workers | {
        "bulk_start",
        "enqueue_check",
        "enqueue_start",
        "selected",
        "batch_cancel",
        "session_end_session",  # tested in tests/dialects/test_dead_rows.py
    }


def test_actions_on_queues(open_tab, person, filling):
    def settings():
        return {one.queue: one for one in filling.outbox.store.queues.settings()}["ledger"]

    person.goes_to("queue").sends("/queue/pause", "is paused").sees("paused")
    assert settings().paused_at
    person.sends("/queue/limit", "has the new limits", concurrency="3", starts="100", seconds="60").sees("100 in 1 min")
    assert (settings().concurrency, settings().rate) == (3, (100, timedelta(minutes=1)))
    person.sends("/queue/limit", "Nothing was changed", starts="7", seconds="")
    person.sends("/queue/order", "earliest due time first").sends("/queue/resume", "has been resumed")
    assert (settings().paused_at, settings().fair) == (None, False)
    filling.outbox.store.queues.limit("typo", concurrency=1, create=True)
    person.goes_to("/queue?name=typo").sends("/queue/forget", "The queue 'typo' no longer has any settings.")
    assert "typo" not in {one.queue for one in filling.outbox.store.queues.settings()}
    assert not person.tab.problems


def test_actions_on_schedules(sender, filling):
    schedules = filling.outbox.store.schedules
    sender.goes_to("schedule").sends("/schedule/pause").sees("Paused since")
    assert schedules.get("shop.sweep").paused_at
    sender.sends("/schedule/resume").sends("/schedule/trigger")
    assert not schedules.get("shop.sweep").paused_at
    sender.sends("/schedule/edit", "The schedule 'shop.sweep' has its new values.", rule="every 900")
    assert schedules.get("shop.sweep").rule == "every 900"
    sender.sends("/schedule/remove", "The schedule 'shop.sweep' was removed")
    assert "shop.sweep" not in {one.name for one in schedules.list()}


def test_a_task_is_enqueued_after_a_preview(sender, filling):
    filling.outbox.task(name="shop.greet")(lambda: None)
    sender.goes_to("enqueue").sends("/enqueue/check", "Enqueue shop.greet?", task="shop.greet")
    sender.sends("/enqueue/start", "was enqueued.")
    assert filling.outbox.store.tasks(limit=1)[0].task_name == "shop.greet"


def test_actions_on_relays(sender, filling):
    def relays():
        return {one.name: one.paused_at for one in filling.outbox.store.relays.list()}

    sender.goes_to("relay").sends("/relay/pause").sees("Paused since")
    assert relays()["bills"]
    sender.sends("/relay/resume")
    assert not relays()["bills"]
    sender.sends("/relay/remove", "The relay 'bills' was removed")
    assert relays().keys() == {"search"}


def test_orders_to_a_worker(sender, filling):
    workers = filling.outbox.store.workers
    worker_id = workers.list()[0].id
    sender.goes_to(f"/workers/{worker_id}").sends("/quiet")
    assert workers.get(worker_id).asked_to is WorkerOrder.QUIET
    sender.sends("/resume").sends("/stacks")
    assert workers.get(worker_id).asked_to is None
    assert workers.get(worker_id).stacks_asked_at
    sender.sends("/stop")
    assert workers.get(worker_id).asked_to is WorkerOrder.STOP


def test_a_task_is_recovered_from_a_dead_worker(sender, filling, monkeypatch):
    monkeypatch.setattr("outboxq.store.claims.workers.LIVE_WITHIN", timedelta(0))
    task_id, store = filling.tasks["worker_silent"], filling.outbox.store
    with store.bound_engine.begin() as connection:  # so that the lease does not expire on a slow machine
        later = store.now() + timedelta(seconds=60)
        lease = task_leases.c
        connection.execute(
            task_leases.update().where(lease.task_execution_id == task_id).values(lease_expires_at=later)
        )
    sender.goes_to(f"/tasks/{task_id}").sends("/recover", "was recovered from its worker, and is due now")
    assert store.get(task_id).status is TaskStatus.READY


def test_all_tasks_of_a_dead_worker_are_recovered(sender, filling, monkeypatch):
    monkeypatch.setattr("outboxq.store.claims.workers.LIVE_WITHIN", timedelta(0))
    store = filling.outbox.store
    worker_id = store.get(filling.tasks["worker_silent"]).worker_id
    held = store.tasks(status=TaskStatus.RUNNING, worker=worker_id)
    assert held
    sender.goes_to(f"/workers/{worker_id}").sees("Status afterwards").sees("Ready due now")
    sender.sends("/recover", "has lost", reason="the machine is gone")
    assert {store.get(one.id).status for one in held} == {TaskStatus.READY}
    assert store.actions.list(limit=1)[0].reason == "the machine is gone"


def test_a_batch_is_cancelled(sender, filling):
    batch_id = filling.batches["wait"]
    sender.goes_to(f"/batches/{batch_id}").sends("/cancel", reason="the file was wrong")
    assert filling.outbox.store.batches.get(batch_id).cancel_requested_at


def test_actions_on_tasks(sender, filling):
    store, tasks = filling.outbox.store, filling.tasks

    def last(story):
        return store.history(tasks[story])[-1]

    sender.goes_to(f"/tasks/{tasks['retry_later']}").sends("/run-now")
    assert store.explain(tasks["retry_later"]).reason == "due"
    sender.goes_to(f"/tasks/{tasks['due']}").sends("/priority", priority="55")
    assert store.get(tasks["due"]).priority == 55
    sender.sends("/reschedule", "is now due at", delay="2h")
    assert store.explain(tasks["due"]).reason == "delayed"
    sender.goes_to(f"/tasks/{tasks['due']}").sends("/cancel", reason="ordered twice").sees("ordered twice")
    assert store.get(tasks["due"]).status is TaskStatus.CANCELLED
    sender.goes_to(f"/tasks/{tasks['running']}").sends("/cancel", reason="it takes too long")
    assert store.get(tasks["running"]).cancel_requested_at
    sender.goes_to(f"/tasks/{tasks['running']}").sends("/cancel-now")
    assert store.get(tasks["running"]).status is TaskStatus.CANCELLED
    sender.goes_to(f"/tasks/{tasks['dead_letter']}").sends("/redrive")
    assert last("dead_letter").event_type is EventType.REQUEUED
    sender.goes_to(f"/tasks/{tasks['holds_key']}").sends("/discard", reason="booked by hand").sees("booked by hand")
    assert last("holds_key").event_type is EventType.DISCARDED
    sender.goes_to(f"/tasks/{tasks['behind_held_key']}").sees("shop.book Due")


def test_a_cure_on_the_page_of_one_task_acts_on_another(sender, filling):
    store, tasks = filling.outbox.store, filling.tasks
    sender.goes_to(f"/tasks/{tasks['behind_held_key']}").sees("is held by the dead letter").sends(
        f"/tasks/{tasks['holds_key']}/redrive"
    )
    assert store.history(tasks["holds_key"])[-1].event_type is EventType.REQUEUED
    sender.goes_to(f"/tasks/{tasks['paused']}").sends("/queue/resume")
    assert store.explain(tasks["paused"]).reason != "queue_paused"


def test_bulk_actions_show_the_count_first(sender, filling):
    store = filling.outbox.store
    sender.goes_to("failures").follows("Redrive …").sees("dead letter")
    sender.goes_to("/bulk?" + urlencode({"action": "redrive", "group": largest_group(filling)})).sees("24 dead letters")
    assert store.dead_letters.count(task=CHARGE).number == 24
    sender.sends("/bulk/start", "24 were redriven")
    assert store.dead_letters.count(task=CHARGE).number == 0
    sender.goes_to("/tasks?" + urlencode({"queue": "newsletter", "task": LETTER})).follows("Cancel all that match …")
    sender.sees("12 waiting or running tasks")
    sender.sends("/bulk/start", "12 were cancelled", confirm=True, reason="the edition is withdrawn")
    assert store.count_tasks(queue="newsletter").number == 0
    sender.goes_to("/bulk?action=discard&queue=exports").sends("/bulk/start", "1 was discarded", confirm=True)


def test_tabs_filters_and_paginated_lists_work(open_tab, person, filling):
    person.goes_to("tasks").follows("Failed")
    assert person.page.locator("main tbody tr").count() > 20
    rows = "main tbody tr"
    person.goes_to("tasks").follows("Older →")
    second = person.page.locator(rows).first.inner_text()
    person.follows("← Newer").follows("Older →")
    assert person.page.locator(rows).first.inner_text() == second
    person.goes_to("tasks")
    person.page.get_by_text("Filter", exact=True).first.click()
    form = person.page.locator("main form:has(input[name=queue])")
    form.locator("[name=queue]").fill("ledger")
    person.presses(form.get_by_role("button", name="Filter"))
    assert {one.split("\n")[0] for one in person.page.locator(f"{rows} [data-label=Queue]").all_inner_texts()} == {
        "ledger"
    }
    person.goes_to("tasks")
    person.page.locator("[name=id]").fill(str(filling.tasks["retried"]))
    person.presses(person.page.get_by_role("button", name="Find"))
    assert person.page.locator(rows).count() == 1
    person.follows("shop.send_receipt").sees("Attempt 3 started")


def test_a_page_is_refreshed_by_a_link(open_tab, person, filling):
    person.goes_to("queue")
    filling.outbox.store.queues.pause("ledger", create=True)

    def is_seen_after_a_click():
        person.presses(person.page.get_by_role("link", name="Refresh now"))
        return person.page.locator("main .badge").get_by_text("paused").count()

    until(is_seen_after_a_click)  # the dashboard may show a cached page for two seconds
