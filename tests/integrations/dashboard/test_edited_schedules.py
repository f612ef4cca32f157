"""The form that changes a stored schedule."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from datetime import timedelta

import pytest

from outboxq import Outbox
from outboxq.model.schedules import CatchUp, NewSchedule
from outboxq.web import Permission, Viewer, application
from tests.integrations.dashboard.visiting import Form, Visitor

ANN = Viewer(name="ann", may_act=True, may_see_arguments=True)
NIGHTLY = NewSchedule(
    name="nightly", task_name="tests.report", rule="30 2 * * *", args='{"days":7}', queue="reports", priority=3
)
STORE = "Store the changes"


class Stage:
    """A dashboard whose viewer can be replaced, and a schedule."""

    def __init__(self, database, **options) -> None:
        self.database, self.viewer = database, ANN
        self.outbox = Outbox(database.engine)
        access = {"authorize": lambda _: self.viewer, "allow_actions": True, "show_arguments": True}
        self.app = application(self.outbox, **access, **options)
        self.visitor = Visitor(self.app)
        database.store.schedules.put(NIGHTLY)

    @property
    def stored(self):
        return self.database.store.schedules.get("nightly")

    @property
    def actions(self):
        return self.database.store.actions.list()

    def go(self):
        self.app._freshness.forget()
        return self.visitor.go("/schedule?name=nightly")

    @property
    def form(self) -> Form:
        found = [form for form in self.go().page.forms if STORE in form.buttons]
        return found[0] if found else Form(action="/schedule/edit?name=nightly", method="post")

    def send(self, **typed):
        """Submit the form as a browser does, including the arguments and the policy."""
        form = self.form
        given = {"args": json.dumps(json.loads(self.stored.args), indent=2), "catch_up": self.stored.catch_up.value}
        return self.visitor.send(form, {**form.fields, **given, **typed})


@pytest.fixture
def stage(database):
    return Stage(database)


def test_the_form_changes_only_the_edited_fields(stage):
    before = stage.stored
    stage.send(rule="every 15m", tz="Europe/Berlin", queue="mail", catch_up="all", grace="10m", reason="quarter end")
    assert "The schedule 'nightly' has its new values." in stage.visitor.text
    after = stage.stored
    assert (after.rule, after.tz, after.queue, after.catch_up) == ("every 900", "Europe/Berlin", "mail", CatchUp.ALL)
    assert (after.grace, after.args, after.priority) == (timedelta(minutes=10), before.args, 3)
    [action] = stage.actions
    assert (action.action, action.operator, action.target, action.reason) == (
        "schedule edit",
        "ann",
        "nightly",
        "quarter end",
    )
    assert "args" not in action.details
    assert stage.form.fields["grace"] == "600s"
    stage.send(grace="")
    assert stage.stored.grace is None


def test_an_edit_without_changes_is_not_recorded(stage):
    stage.send()
    assert "Nothing was changed: the schedule 'nightly' already had these values." in stage.visitor.text
    assert stage.actions == []


def test_new_arguments_are_stored_but_their_values_are_not_logged_or_recorded(stage, caplog):
    with caplog.at_level(logging.INFO, logger="outboxq.web"):
        stage.send(args='{"days": 30, "note": "swordfish"}')
    assert json.loads(stage.stored.args) == {"days": 30, "note": "swordfish"}
    assert stage.actions[0].details["args"] == "changed"
    assert "schedule_edit" in caplog.text
    assert "swordfish" not in caplog.text + str(stage.actions)


@pytest.mark.parametrize(("before", "after"), [("1", "true"), ("true", "1"), ("0", "false"), ("1", "1.0")])
def test_values_that_are_equal_only_in_python_count_as_a_change(stage, before, after):
    stage.send(args=f'{{"dry": {before}}}')
    stage.send(args=f'{{"dry": {after}}}')
    assert "has its new values" in stage.visitor.text
    assert stage.stored.args == f'{{"dry":{after}}}'


@pytest.mark.parametrize(
    ("typed", "problem"),
    [
        ({"rule": "99 * * * *"}, "Rule: "),
        ({"rule": "30 2 30 2 *"}, "Rule: "),
        ({"tz": "Europe/Atlantis"}, "Time zone: "),
        ({"args": "{"}, "Arguments: the text is not JSON: "),
        ({"args": "[7]"}, "Arguments: write a JSON object"),
        ({"args": '{"a": NaN}'}, "Arguments: "),
        ({"catch_up": "some"}, "Catch-up: choose one of none, latest, all, not 'some'"),
        ({"grace": "soon"}, "Grace: write a span such as 90d"),
        ({"grace": "0s"}, "Grace: write a span above 0"),
        ({"queue": "q" * 300}, "queue"),
    ],
)
def test_an_invalid_value_is_refused_and_the_form_keeps_its_fields(stage, typed, problem):
    stage.send(**typed, reason="because")
    assert stage.visitor.status == 400
    assert "Nothing was changed: " in stage.visitor.text
    assert problem in stage.visitor.text
    assert (stage.stored.rule, stage.actions) == ("30 2 * * *", [])
    [form] = [one for one in stage.visitor.page.forms if STORE in one.buttons]
    assert form.fields["reason"] == "because"


def test_arguments_are_checked_against_the_signature_of_a_known_task(stage):
    @stage.outbox.task(name="tests.report")
    def report(days: int) -> None:
        pass

    for wrong, problem in (('{"day": 7}', "did you mean 'days'?"), ('{"days": "7"}', "argument days")):
        stage.send(args=wrong)
        assert (stage.visitor.status, problem in stage.visitor.text) == (400, True), stage.visitor.text
    stage.send(args='{"days": 14}')
    assert stage.stored.args == '{"days":14}'


def test_a_form_that_is_older_than_the_last_change_is_refused(stage):
    form = stage.form
    stage.database.store.schedules.put(replace(NIGHTLY, rule="0 5 * * *"))
    stage.visitor.send(form, {**form.fields, "queue": "mail"})
    assert stage.visitor.status == 400
    assert "the schedule has been changed since you opened this form" in stage.visitor.text
    assert (stage.stored.rule, stage.stored.queue) == ("0 5 * * *", "reports")


def test_a_declared_schedule_can_be_changed_only_in_the_code(stage):
    form = stage.form
    declared = NewSchedule(name="declared", task_name="tests.report", rule="0 5 * * *")
    stage.database.store.schedules.declare([declared], declared_by="1.4")
    page = stage.visitor.go("/schedule?name=declared")
    assert "Change it in the code. When a worker starts, it stores what the code declares." in page.text
    assert STORE not in page.page.buttons()
    fields = {name: value for name, value in form.fields.items() if name != "seen"}
    stage.visitor.send(replace(form, action="/schedule/edit?name=declared"), {**fields, "queue": "mail"})
    assert "is declared in code, by the task tests.report; change it there" in stage.visitor.text
    assert stage.database.store.schedules.get("declared").queue == "default"


def test_moving_a_schedule_requires_permission_for_both_queues(stage):
    form = stage.form
    for queues, status in (([], 403), (["reports"], 403), (["mail"], 403), (["reports", "mail"], 200)):
        stage.viewer = replace(ANN, permissions=[Permission(actions=["schedule edit"], queues=queues)])
        stage.visitor.send(form, {**form.fields, "queue": "mail"})
        assert stage.visitor.status == status, queues
        assert stage.stored.queue == ("mail" if status == 200 else "reports")
    stage.viewer = replace(ANN, permissions=[Permission(actions=["schedule pause"])])
    assert STORE not in stage.go().page.buttons()
    stage.viewer = replace(ANN, may_act=False)
    assert STORE not in stage.go().page.buttons()
    stage.visitor.send(form, form.fields)
    assert stage.visitor.status == 403


def test_a_form_without_its_token_is_refused(stage):
    form = stage.form
    stage.visitor.send(form, {**form.fields, "csrf": "", "queue": "mail"})
    assert stage.visitor.status == 403
    assert stage.stored.queue == "reports"


@pytest.mark.parametrize(
    ("args", "viewer", "options"),
    [
        ('{"days":7}', replace(ANN, may_see_arguments=False), {}),
        ('{"api_key":"swordfish"}', ANN, {}),
        ('{"name":"swordfish"}', ANN, {"redact": lambda text: text.replace("swordfish", "x")}),
        ('{"name":"a\\u202eb"}', ANN, {}),
    ],
    ids=["hidden", "secret", "redacted", "invisible"],
)
def test_arguments_that_cannot_be_shown_are_kept(database, args, viewer, options):
    stage = Stage(database, **options)
    stage.viewer = viewer
    database.store.schedules.put(replace(NIGHTLY, args=args))
    text = stage.go()._client.get("/schedule?name=nightly").text
    assert ("swordfish" in text, "(hidden here; an empty field keeps them)" in text) == (False, True)
    stage.send(args="", rule="0 5 * * *")
    assert (stage.stored.rule, stage.stored.args) == ("0 5 * * *", args)


def test_a_queue_with_invisible_characters_is_kept(stage):
    stage.database.store.schedules.put(replace(NIGHTLY, queue="a\u202eb"))
    assert stage.form.fields["queue"] == ""
    stage.send(rule="0 5 * * *")
    assert (stage.stored.rule, stage.stored.queue) == ("0 5 * * *", "a\u202eb")
