"""Ticked tasks are each changed and recorded separately, as far as the viewer's permissions allow."""

from __future__ import annotations

from dataclasses import replace
from uuid import uuid4

import pytest

from outboxq.model import TaskStatus
from outboxq.web import Permission
from tests.contract.test_cli_operators import failed
from tests.integrations.dashboard.test_permissions import ANN, Stage
from tests.integrations.dashboard.visiting import Form


@pytest.fixture
def stage(database):
    return Stage(database)


def tick(stage, path, verb, *ids, **fields):
    """Submit the form of a page with these boxes ticked."""
    (form,) = [one for one in stage.page(path).forms if one.action == "/selected"]
    assert not form.fields.keys() & {"verb", "id"}
    values = {**form.fields, "verb": verb, "id": [str(one) for one in ids], **fields}
    stage.visitor.send(Form(action="/selected", method="post"), values)
    return stage.visitor.text


def test_the_ticked_dead_letters_are_redriven_and_each_is_recorded(stage):
    first, second, third = (failed(stage.database, queue="mail") for _ in range(3))
    said = tick(stage, "/tasks?state=failed&queue=mail", "redrive", first, third, third, reason="provider is back")
    assert "2 tasks were redriven from the first attempt, due now." in said
    assert stage.visitor.path == "/tasks?state=failed&queue=mail"
    statuses = [stage.database.store.get(one).status for one in (first, second, third)]
    assert statuses == [TaskStatus.READY, TaskStatus.FAILED, TaskStatus.READY]
    found = stage.database.store.actions.list()
    assert {(one.target, one.operator, one.reason) for one in found} == {
        (first, "ann", "provider is back"),
        (third, "ann", "provider is back"),
    }


def test_a_discard_requires_the_ticked_box_and_refused_changes_are_reported(stage):
    task = failed(stage.database)
    assert "Nothing was changed: tick the box to confirm." in tick(stage, "/tasks?state=failed", "discard", task)
    assert "Nothing was changed: no task is selected." in tick(stage, "/tasks?state=failed", "redrive")
    gone = uuid4()
    said = tick(stage, "/tasks?state=failed", "discard", task, gone, confirm="yes")
    assert f"1 task was discarded. Not changed: there is no task {gone}" in said
    assert stage.database.store.get(task).status is TaskStatus.CANCELLED


def test_selected_tasks_are_changed_only_if_permitted(stage):
    mine, other = failed(stage.database, queue="mail"), failed(stage.database, queue="other")
    failed(stage.database, queue="mail")
    stage.viewer = replace(ANN, permissions=[Permission(actions=["failed redrive"], queues=["mail"])])
    assert [one for one in stage.page("/tasks?state=failed").forms if one.action == "/selected"] == []
    said = tick(stage, "/tasks?state=failed&queue=mail", "redrive", mine, other)
    assert (
        f"1 task was redriven from the first attempt, due now. Not changed: you are not allowed to change task {other} in this way."
        in said
    )
    assert stage.database.store.get(other).status is TaskStatus.FAILED
    assert "you are not allowed to change task" in tick(
        stage, "/tasks?state=failed&queue=mail", "discard", other, confirm="yes"
    )


def test_each_state_offers_only_its_verbs(stage):
    stage.database.add(stage.database.store)
    (form,) = [one for one in stage.page("/tasks?state=due").forms if one.action == "/selected"]
    assert form.buttons == ["Cancel"]
    assert [one for one in stage.page("/tasks").forms if one.action == "/selected"] == []
    for wrong in (
        {"verb": "pause"},
        {"verb": "redrive", "id": "x"},
        {"verb": "redrive", "id": [str(uuid4()) for _ in range(101)]},
    ):
        assert stage.post("/selected", **wrong) == 400
