"""The form that enqueues a task: its checks, its preview before anything is written, and the action that it records."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from outboxq import Outbox
from outboxq.web import Permission, Viewer, application
from tests.contract import helpers
from tests.integrations.dashboard.visiting import Form, Visitor

ANN = Viewer(name="ann", may_act=True)
CHECK, ENQUEUE = "Check it", "Enqueue it"
RECEIPT = {"task": "shop.receipt", "args": '{"order_id": 7}'}


class Stage:
    """A dashboard whose process knows two tasks, and whose viewer can be replaced."""

    def __init__(self, database) -> None:
        self.database, self.viewer = database, ANN
        self.outbox = Outbox(database.engine)

        @self.outbox.task(name="shop.receipt", queue="mail", priority=3)
        def receipt(order_id: int, note: str = "") -> None:
            pass

        @self.outbox.task(name="shop.sweep")
        def sweep() -> None:
            pass

        self.app = application(self.outbox, authorize=lambda _: self.viewer, allow_actions=True)
        self.visitor = Visitor(self.app)

    @property
    def tasks(self):
        return self.database.store.tasks()

    @property
    def actions(self):
        return self.database.store.actions.list()

    def form(self, button: str) -> Form:
        [found] = [form for form in self.visitor.page.forms if button in form.buttons]
        return found

    def check(self, **typed: str) -> Visitor:
        self.visitor.go("/enqueue")
        form = self.form(CHECK)
        return self.visitor.send(form, {**form.fields, **typed})


@pytest.fixture
def stage(database):
    return Stage(database)


def test_a_task_is_previewed_and_then_enqueued_with_its_operator_and_reason(stage):
    stage.visitor.go("/tasks").follow("Enqueue a task …")
    assert "shop.receipt (mail)" in stage.visitor.text
    stage.check(**RECEIPT, reason="the customer lost it")
    assert stage.visitor.status == 200
    for words in ("Enqueue shop.receipt?", "Queue mail", "Due now", "Priority 3", '"order_id": 7', "lost it"):
        assert words in stage.visitor.text
    assert (stage.tasks, stage.actions) == ([], [])
    stage.visitor.press(ENQUEUE)
    [task] = stage.tasks
    assert f"The task {task.id} was enqueued." in stage.visitor.text
    assert stage.visitor.path == f"/tasks/{task.id}"
    assert (task.task_name, task.queue, task.priority, json.loads(task.args)) == (
        "shop.receipt",
        "mail",
        3,
        {"order_id": 7},
    )
    [action] = stage.actions
    assert (action.action, action.operator, action.interface) == ("enqueue", "ann", "dashboard")
    assert (action.target, action.reason, action.changed) == (str(task.id), "the customer lost it", 1)
    assert action.details == {"task": "shop.receipt"}
    assert f"/tasks/{task.id}" in [href for _, href in stage.visitor.go("/actions").page.links]


def test_a_form_that_is_sent_twice_enqueues_one_task(stage):
    stage.check(**RECEIPT)
    stage.visitor.again(ENQUEUE)
    [task] = stage.tasks
    assert f"Nothing was enqueued: this form has already enqueued the task {task.id}." in stage.visitor.text
    assert len(stage.actions) == 1
    stage.check(**RECEIPT).press(ENQUEUE)
    assert len(stage.tasks) == 2


def test_a_taken_idempotency_key_is_reported_with_its_task(stage):
    stage.check(**RECEIPT, key="receipt-7").press(ENQUEUE)
    stage.check(**RECEIPT, key="receipt-7").press(ENQUEUE)
    [task] = stage.tasks
    assert f"the task {task.id} already has the idempotency key 'receipt-7'" in stage.visitor.text
    assert [one.details["key"] for one in stage.actions] == ["receipt-7"]


@pytest.mark.parametrize("key", ["", "receipt-7"])
def test_a_task_whose_commit_response_was_lost_is_reported_as_enqueued(stage, monkeypatch, key):
    stage.check(**RECEIPT, key=key)
    lossy = helpers.lossy(stage.database, monkeypatch)
    monkeypatch.setattr(stage.outbox.store, "run", lossy.run)
    stage.visitor.press(ENQUEUE)
    [task] = stage.tasks
    assert f"The task {task.id} was enqueued." in stage.visitor.text
    assert [one.target for one in stage.actions] == [str(task.id)]


def test_a_task_is_delayed_by_a_duration_or_until_a_time(stage):
    stage.check(task="shop.sweep", delay="2h", queue="nights").press(ENQUEUE)
    stage.check(task="shop.sweep", at="2100-01-01T02:30+01:00").press(ENQUEUE)
    later, sooner = (stage.database.store.explain(one.id).due_at for one in stage.tasks)
    assert later == datetime(2100, 1, 1, 1, 30, tzinfo=UTC)
    assert timedelta(minutes=119) < sooner - stage.database.store.now() <= timedelta(hours=2)
    assert stage.tasks[1].queue == "nights"


@pytest.mark.parametrize(
    ("typed", "problem"),
    [
        ({"task": ""}, "does not know the task ''; choose one from the list"),
        ({"task": "outboxq.prune"}, "does not know the task 'outboxq.prune'"),
        ({**RECEIPT, "args": ""}, "missing a required argument: 'order_id'"),
        ({**RECEIPT, "args": '{"order_id": "7"}'}, "argument order_id"),
        ({**RECEIPT, "args": '{"order_id": 7, "colour": 1}'}, "colour"),
        ({**RECEIPT, "args": "order_id=7"}, "Arguments: the text is not JSON"),
        ({**RECEIPT, "args": "[7]"}, "Arguments: write a JSON object"),
        ({**RECEIPT, "args": "[" * 20_000}, "Arguments: the JSON is nested"),
        ({**RECEIPT, "delay": "soon"}, "Due in, such as 2h: write a span such as"),
        ({**RECEIPT, "at": "2030-01-01 10:00"}, "has no offset"),
        ({**RECEIPT, "at": "2030-01-01T10:00Z", "delay": "1h"}, "ive either the time span"),
        ({**RECEIPT, "queue": "q" * 300}, "queue"),
        ({**RECEIPT, "key": "k" * 3000}, "key"),
    ],
)
def test_an_invalid_task_is_refused_and_the_form_keeps_its_fields(stage, typed, problem):
    stage.check(**typed, reason="because")
    assert (stage.visitor.status, problem in stage.visitor.text) == (400, True), stage.visitor.text
    assert stage.form(CHECK).fields["reason"] == "because"
    stage.visitor.go("/enqueue")
    token = stage.form(CHECK).fields["csrf"]
    stage.visitor.send(Form(action="/enqueue/start", method="post"), {"csrf": token, "form_id": "0" * 16, **typed})
    assert (stage.visitor.status, problem in stage.visitor.text) == (400, True)
    assert (stage.tasks, stage.actions) == ([], [])


def test_arguments_arrive_as_they_were_typed(stage):
    args = '{"order_id": 7,\r\n "note": "a\u202eb  \u200b<b>&quot;</b>"}'
    stage.check(task="shop.receipt", args=args)
    assert "\u202e" not in stage.visitor.text
    stage.visitor.press(ENQUEUE)
    assert json.loads(stage.tasks[0].args) == json.loads(args)


def test_a_secret_argument_is_neither_shown_nor_logged_nor_recorded(stage, caplog):
    @stage.outbox.task(name="shop.connect")
    def connect(api_key: str, note: str) -> None:
        pass

    with caplog.at_level(logging.INFO, logger="outboxq.web"):
        stage.check(task="shop.connect", args='{"api_key": "swordfish", "note": "trout"}')
        assert ("swordfish" in stage.visitor.text, "********" in stage.visitor.text) == (False, True)
        stage.visitor.press(ENQUEUE)
    assert len(stage.tasks) == 1
    assert "enqueue_start" in caplog.text
    for secret in ("swordfish", "trout"):
        assert secret not in caplog.text + str(stage.actions)


def test_a_queue_that_no_worker_serves_causes_a_warning(stage):
    stage.check(**RECEIPT, queue="mial")
    assert "No live worker serves the new queue mial and knows this task" in stage.visitor.text
    assert "worker" in stage.visitor.page.commands[0]
    stage.database.store.workers.register(uuid4(), label="a:1", concurrency=1, task_names=["shop.receipt"])
    assert "No live worker" not in stage.check(**RECEIPT).text


def test_enqueueing_requires_a_separate_permission_for_the_queue(stage):
    stage.check(**RECEIPT)
    form = stage.form(ENQUEUE)
    cases = (
        ([Permission(actions=["enqueue"], queues=["mail"])], 200),
        ([Permission(actions=["enqueue"], queues=["other"])], 403),
        ([Permission(actions=["task cancel", "schedule edit"])], 403),
        ([Permission(queues=["mail"])], 200),
        ([], 403),
    )
    for number, (permissions, status) in enumerate(cases):
        stage.viewer = replace(ANN, permissions=permissions)
        stage.visitor.send(replace(form, action="/enqueue/check"), form.fields)
        assert stage.visitor.status == status, permissions
        stage.visitor.send(form, {**form.fields, "form_id": f"{number:016}"})
        assert stage.visitor.status == status, permissions
    assert len(stage.tasks) == len(stage.actions) == 2
    assert "You are not allowed to enqueue tasks here." in stage.visitor.go("/enqueue").text
    assert "Enqueue a task …" not in [words for words, _ in stage.visitor.go("/tasks").page.links]


def test_a_read_only_viewer_sees_the_command(stage):
    stage.check(**RECEIPT)
    form = stage.form(ENQUEUE)
    stage.viewer = replace(ANN, may_act=False)
    stage.visitor.go("/enqueue")
    assert "This dashboard is read-only." in stage.visitor.text
    assert stage.visitor.page.buttons() == []
    assert "enqueue" in stage.visitor.page.commands[0]
    assert stage.visitor.send(form, form.fields).status == 403
    assert stage.tasks == []


def test_a_form_without_its_token_is_refused(stage):
    stage.check(**RECEIPT)
    form = stage.form(ENQUEUE)
    assert stage.visitor.send(form, {**form.fields, "csrf": "wrong"}).status == 403
    assert stage.tasks == []


def test_a_dashboard_without_an_application_says_so(database):
    visitor = Visitor(application(Outbox(database.engine), authorize=lambda _: ANN, allow_actions=True))
    text = visitor.go("/enqueue").text
    assert "This dashboard does not know any tasks." in text
    assert "Name the application in its command: outboxq web APP --allow-actions" in text
