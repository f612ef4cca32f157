"""The pages alone tell why a task does not run and how to cure it, in each case that `explain` distinguishes."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from outboxq import Outbox, RetryPolicy
from outboxq.database.tables import task_leases
from outboxq.model import EventType, NewTask, OnDeadLetter, Outcome, TaskStatus
from outboxq.model.actions import Interface, Operator
from outboxq.model.relays import NewRelay
from outboxq.model.schedules import NewSchedule
from outboxq.model.uuid7 import uuid7
from outboxq.operating.verbs import PAUSE_QUEUE, PAUSE_RELAY, PAUSE_SCHEDULE, RECORDED, RESUME_QUEUE
from outboxq.web import application
from tests.integrations.dashboard.visiting import Visitor

pytestmark = pytest.mark.in_turn

HOUR = timedelta(hours=1)
WORK = "shop.work"


class Stage:
    """An application with a task, its dashboard, a person who uses the dashboard, and a live worker that does nothing."""

    def __init__(self, database) -> None:
        self.database, self.store, self.ran = database, database.store, []
        self.outbox = Outbox(database.engine)
        self.outbox.task(name=WORK, retry=RetryPolicy.never())(lambda n=0: self.ran.append(n))
        self.look()
        self.worker = uuid4()
        self.present()

    def look(self, **options) -> None:
        """Have the person open a dashboard with these options."""
        self.dashboard = application(self.outbox, **{"allow_actions": True, **options})
        self.visitor = Visitor(self.dashboard)

    def present(self, worker_id=None, **said) -> None:
        said = {"label": "web-1:7", "concurrency": 4, "task_names": [WORK], **said}
        self.store.workers.register(worker_id or self.worker, **said)

    def add(self, number=0, **fields):
        task = NewTask(**{"id": uuid7(), "task_name": WORK, "args": f'{{"n": {number}}}', **fields})
        return self.store.enqueue(task).id

    def claim(self, **options):
        (claim,) = self.store.claim_ready_task(1, **{"worker_id": self.worker, **options})
        return claim

    def end(self, claim, kind, **fields) -> None:
        assert not self.store.finish([Outcome(claim=claim, event_type=kind, **fields)])

    def page(self, task_id):
        """Go to the page of a task, bypassing the dashboard's cache of two seconds."""
        self.dashboard._freshness.forget()
        return self.visitor.go(f"/tasks/{task_id}")

    def work(self, **options) -> None:
        """Have a worker run every task that can be claimed."""
        assert self.outbox.worker(notifications=False, concurrency=2, **options).run(burst=True) == 0

    def status(self, task_id) -> TaskStatus:
        return self.store.get(task_id).status

    def is_done(self, *task_ids) -> None:
        self.work()
        assert {self.status(one) for one in task_ids} == {TaskStatus.COMPLETED}
        assert "It completed at" in self.page(task_ids[0]).text


@pytest.fixture
def stage(database):
    return Stage(database)


def test_a_paused_queue_is_resumed(stage):
    task = stage.add(queue="mail")
    stage.store.queues.pause("mail", create=True)
    assert "Its queue has been paused since" in stage.page(task).text
    stage.visitor.press("Resume it")
    stage.is_done(task)


def test_the_undo_button_in_the_notice_reverses_a_pause_and_a_resume(stage):
    stage.add(queue="mail")
    stage.store.queues.pause("mail")
    stage.visitor.go("/queue?name=mail").press("Resume")
    assert "The queue 'mail' has been resumed." in stage.visitor.text
    stage.visitor.press("Undo")
    assert stage.store.queues.settings()[0].paused_at is not None
    stage.visitor.press("Undo")
    assert stage.store.queues.settings() == []
    assert "Undo" not in stage.visitor.go("/queues").page.buttons()


@pytest.mark.parametrize("noun", ["queue", "schedule", "relay"])
def test_the_undo_of_a_resume_restores_the_reason_of_the_pause(stage, noun):
    stage.add(queue="mail")
    stage.store.schedules.put(NewSchedule(name="mail", task_name=WORK, rule="every 3600", tz="UTC", args="{}"))
    stage.store.relays.declare([NewRelay(name="mail", topics=("order.*",))])
    pause, listed = {
        "queue": (PAUSE_QUEUE, stage.store.queues.settings),
        "schedule": (PAUSE_SCHEDULE, stage.store.schedules.list),
        "relay": (PAUSE_RELAY, stage.store.relays.list),
    }[noun]
    pause.do(
        stage.store, "mail", operator=Operator(interface=Interface.COMMAND_LINE, name="ann"), reason="provider down"
    )
    stage.visitor.go(f"/{noun}?name=mail").press("Resume")
    stage.visitor.press("Undo")
    (paused,) = listed()
    assert (paused.paused_at is not None, paused.pause_reason) == (True, "provider down (by ann on the command line)")
    newest = stage.store.actions.list(limit=1)[0]
    assert (newest.action, newest.interface, newest.reason) == (f"{noun} pause", "dashboard", paused.pause_reason)


def test_the_undo_of_another_action_does_not_change_a_reason(stage):
    """The address names the action to undo, and anybody can put another action's id there."""
    ann = Operator(interface=Interface.DASHBOARD, name="ann")
    for queue in ("mail", "fax"):
        PAUSE_QUEUE.do(stage.store, queue, operator=ann, reason=f"{queue} is down", create=True)
    resumed = RESUME_QUEUE.do(stage.store, "fax", operator=ann).action
    RESUME_QUEUE.do(stage.store, "mail", operator=ann)
    stage.add(queue="mail")
    for undoes in (resumed, uuid7(), "nothing"):
        stage.dashboard._freshness.forget()
        page = stage.visitor.go("/queue?name=mail").page
        [form] = [one for one in page.forms if "Pause" in one.buttons]
        form.action += f"&undoes={undoes}"
        stage.visitor.send(form, form.fields)
        assert [one.pause_reason for one in stage.store.queues.settings()] == ["in the dashboard"]
        stage.store.queues.resume("mail")


def test_a_pause_by_a_colleague_is_not_reported_as_new_and_offers_no_undo(stage):
    stage.add(queue="mail")
    page = stage.visitor.go("/queue?name=mail")
    stage.store.queues.pause("mail", reason="provider down (by ann in the dashboard)")
    page.press("Pause")
    expected = "Nothing was changed: the queue 'mail' was already paused: provider down (by ann in the dashboard)."
    assert expected in stage.visitor.text
    assert "Undo" not in stage.visitor.page.buttons()


def test_each_action_can_be_chosen_on_the_page_of_actions(stage):
    words = stage.visitor.go("/actions").page.words
    assert set(RECORDED) <= set(words)


def test_actions_on_a_name_that_ends_with_a_space_can_be_filtered(stage):
    ann = Operator(interface=Interface.DASHBOARD, name="ann")
    PAUSE_QUEUE.do(stage.store, "mail ", operator=ann, create=True)
    assert stage.visitor.go("/actions?target=mail%20").text.count("queue pause mail") == 1


def test_the_details_of_an_action_are_shown_as_words(stage):
    ann = Operator(interface=Interface.DASHBOARD, name="ann")
    PAUSE_QUEUE.do(stage.store, "mail", operator=ann, create=True)
    assert "queue pause mail create: yes 1" in stage.visitor.go("/actions").text


def test_a_key_that_a_dead_letter_holds_is_freed_by_a_redrive(stage):
    key = {"partition_key": "k", "on_dead_letter": OnDeadLetter.HOLD}
    first, second = stage.add(1, **key), stage.add(2, **key)
    stage.end(stage.claim(), EventType.FAILED, error="ValueError: no")
    page = stage.page(second)
    assert f"is held by the dead letter {first}" in page.text
    page.press("Redrive the dead letter")
    assert f"Task {first} was redriven" in page.text
    assert page.path == f"/tasks/{second}"
    stage.is_done(second, first)
    assert stage.ran == [1, 2]


def test_a_key_that_a_dead_letter_holds_is_freed_by_a_discard(stage):
    key = {"partition_key": "k", "on_dead_letter": OnDeadLetter.HOLD}
    first, second = stage.add(1, **key), stage.add(2, **key)
    stage.end(stage.claim(), EventType.FAILED, error="ValueError: no")
    stage.page(second).press("Discard the dead letter", reason="paid by hand")
    assert stage.store.history(first)[-1].event_data["reason"] == "paid by hand (in the dashboard)"
    stage.is_done(second)
    assert stage.ran == [2]


def test_the_running_task_with_the_same_key_is_found_and_cancelled(stage):
    first, second = stage.add(1, partition_key="k"), stage.add(2, partition_key="k")
    stage.claim()
    assert f"Task {first} has the same partition key 'k' and is running" in stage.page(second).text
    other = stage.visitor.follow("Go to that task")
    assert "has been running it since" in other.text
    other.press("Cancel now")
    stage.is_done(second)
    assert stage.ran == [2]


def test_the_earlier_task_with_the_same_key_is_found_and_run(stage):
    first, second = stage.add(1, partition_key="k", delay=HOUR), stage.add(2, partition_key="k")
    assert f"Task {first} has the same partition key 'k' and comes first" in stage.page(second).text
    stage.visitor.follow("Go to that task").press("Run it now")
    stage.is_done(second, first)
    assert stage.ran == [1, 2]


def test_a_limit_on_running_tasks_is_lifted(stage):
    stage.store.queues.limit("mail", concurrency=1, create=True)
    stage.add(1, queue="mail")
    running, task = stage.claim(), stage.add(2, queue="mail")
    assert "Its queue may run at most 1 task at a time; running now: 1" in stage.page(task).text
    stage.visitor.follow("Lift the limit").press("Set the limits", concurrency="")
    stage.is_done(task)
    assert stage.status(running.id) is TaskStatus.RUNNING


def test_a_limit_on_starts_per_period_is_lifted(stage):
    stage.store.queues.limit("mail", rate=(1, HOUR), create=True)
    stage.add(1, queue="mail")
    stage.end(stage.claim(), EventType.COMPLETED)
    task = stage.add(2, queue="mail")
    assert "Its queue may start at most 1 task in 1 h" in stage.page(task).text
    stage.visitor.follow("Lift the limit").press("Set the limits", starts="", seconds="")
    stage.is_done(task)


@pytest.mark.parametrize("why", ["no worker", "topic"])
def test_the_command_on_the_page_starts_a_worker_that_runs_the_task(stage, why):
    stage.present(queues=["other"] if why == "no worker" else None, topics=["invoice.*"] if why == "topic" else None)
    task = stage.add(queue="mail", topic="order.paid" if why == "topic" else None)
    page = stage.page(task)
    says = "No live worker serves its queue 'mail'" if why == "no worker" else "handles the topic 'order.paid'"
    assert says in page.text
    words = shlex.split(page.page.commands[0])
    assert words[:2] == ["outboxq", "worker"]
    stage.work(queues=[words[words.index("-q") + 1]])
    stage.is_done(task)


def test_the_page_of_an_unknown_task_says_what_to_import(stage):
    stage.present(task_names=["shop.other"])
    task = stage.add()
    text = stage.page(task).text
    assert (
        f"No live worker for its queue and topic knows the task '{WORK}'; import its module where the worker starts"
        in text
    )
    stage.is_done(task)


@pytest.mark.parametrize("why", ["delayed", "retry later"])
def test_a_delayed_or_retrying_task_is_run_now(stage, why):
    task = stage.add(delay=HOUR if why == "delayed" else timedelta(0))
    if why == "retry later":
        stage.end(stage.claim(), EventType.RETRY_SCHEDULED, error="OSError: away", delay=HOUR)
    page = stage.page(task)
    says = "It is due in" if why == "delayed" else "the task's retry policy chose a wait of 1 h"
    assert says in page.text
    page.press("Run it now")
    assert stage.store.history(task)[-1].event_data["reason"] == "in the dashboard"
    stage.is_done(task)


def test_a_failed_task_is_redriven(stage):
    task = stage.add()
    stage.end(stage.claim(), EventType.FAILED, error="ValueError: <no>")
    page = stage.page(task)
    assert "It failed at" in page.text
    assert "ValueError: <no>" in page.text
    page.press("Redrive it")
    stage.is_done(task)


def test_a_task_asked_to_stop_can_be_cancelled_immediately(stage):
    task = stage.add()
    stage.claim()
    stage.page(task).press("Ask it to stop", reason="not wanted")
    assert "It was asked to stop at" in stage.visitor.text
    assert "Reason: not wanted (in the dashboard)" in stage.visitor.text
    stage.visitor.press("Cancel it immediately")
    assert "It was cancelled at" in stage.visitor.text
    assert stage.status(task) is TaskStatus.CANCELLED


def test_the_command_for_a_task_of_a_dead_worker_starts_another_worker(stage):
    task = stage.add(queue="mail")
    stage.claim(lease=timedelta(microseconds=1))
    page = stage.page(task)
    assert "there is no other live worker to recover the task; start one" in page.text
    assert page.page.commands == ["outboxq worker APP -q mail"]
    stage.store.recover()  # as a worker does after it has watched the lease for two seconds
    stage.is_done(task)


def test_the_silent_worker_of_a_task_is_named(stage):
    task = stage.add(lease=HOUR)
    claim = stage.claim()
    with stage.database.engine.begin() as connection:  # the lease was last extended 50 minutes ago
        connection.execute(task_leases.update().values(lease_expires_at=datetime.now(UTC) + timedelta(minutes=10)))
    text = stage.page(task).text
    assert "Its worker web-1:7 should have extended the lease, but has not done so in the last" in text
    assert "and the task is then recovered" in text
    stage.end(claim, EventType.RELEASED)
    stage.is_done(task)


def test_an_expired_task_says_so_before_and_after_a_claim_records_it(stage):
    task = stage.add(expires_in=timedelta(microseconds=1))
    assert "the next claim will record the expiry" in stage.page(task).text
    stage.work()
    assert "It expired: it had to start before" in stage.page(task).text


def test_the_command_on_the_page_repairs_inconsistent_tables(stage):
    task = stage.add()
    stage.database.run("DELETE FROM task_outbox")
    page = stage.page(task)
    assert "It is Ready, but not in the outbox; verify and repair the tables" in page.text
    assert page.page.commands == ["outboxq verify --repair"]
    stage.store.verify(repair=True)
    stage.is_done(task)


def test_a_read_only_viewer_sees_commands_instead_of_buttons(stage):
    task = stage.add(delay=HOUR)
    stage.look(allow_actions=False)
    page = stage.page(task)
    assert f"outboxq task run-now {task}" in page.page.commands
    assert page.page.buttons() == []


def test_a_running_task_is_asked_to_stop(stage):
    task = stage.add()
    stage.claim()
    page = stage.page(task)
    assert page.page.buttons().count("Ask it to stop") == 1
    page.press("Ask it to stop", reason="wrong file")
    assert "Reason: wrong file (in the dashboard)" in page.text
    assert "Ask it to stop" not in page.page.buttons()
