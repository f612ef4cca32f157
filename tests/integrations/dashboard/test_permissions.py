"""Permissions for actions and queues: the pages show them, and the server enforces them."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import pytest

from outboxq import Outbox
from outboxq.errors import InvalidArgument
from outboxq.operating.verb import Noun
from outboxq.operating.verbs import VERBS
from outboxq.web import Permission, Viewer, application
from outboxq.web.pages.actions import _KEYS
from tests.contract.test_actions import failed, target_for
from tests.integrations.dashboard.visiting import Form, Visitor

ANN = Viewer(name="ann", may_act=True)


class Stage:
    """A dashboard whose viewer can be replaced."""

    def __init__(self, database) -> None:
        self.database, self.viewer = database, ANN
        outbox = Outbox(database.engine)
        self.visitor = Visitor(application(outbox, authorize=lambda _: self.viewer, allow_actions=True))

    def permit(self, *permissions: Permission) -> None:
        self.viewer = replace(ANN, permissions=permissions)

    def page(self, path: str):
        return self.visitor.go(path).page

    def post(self, action: str, **fields: str) -> int:
        """Send a form that the page does not show, with the token of Ann's forms."""
        self.visitor.send(Form(action=action, method="post"), {"csrf": self.token, **fields})
        return self.visitor.status

    @cached_property
    def token(self) -> str:
        viewer, self.viewer = self.viewer, ANN
        token = self.page("/queue?name=default").forms[-1].fields["csrf"]
        self.viewer = viewer
        return token


@pytest.fixture
def stage(database):
    return Stage(database)


def address_of(verb, target) -> str:
    return {
        Noun.TASK: f"/tasks/{target}/{verb.name}",
        Noun.BATCH: f"/batches/{target}/{verb.name}",
        Noun.WORKER: f"/workers/{target}/{verb.name}",
    }.get(verb.noun, f"/{verb.noun}/{verb.name}?{_KEYS[verb.noun]}={target}")


@pytest.mark.parametrize("verb", VERBS, ids=lambda one: f"{one.noun}-{one.name}")
def test_each_verb_requires_a_permission_for_the_verb_and_the_queue(stage, verb):
    if verb.noun is Noun.SESSION and stage.database.name == "sqlite":
        stage.permit(Permission(actions=[verb.recorded_as]))
        assert stage.post(address_of(verb, "4711@2026-11-23T02:30:00Z")) != 403, "SQLite has no sessions to end"
        return
    target = target_for(stage.database, verb)
    nowhere = (Noun.BATCH, Noun.RELAY, Noun.WORKER, Noun.SESSION)
    queue = "mail" if verb.noun is Noun.QUEUE else None if verb.noun in nowhere else "default"
    other = next(one.recorded_as for one in VERBS if one.recorded_as != verb.recorded_as)
    address = address_of(verb, target)
    for wrong in (
        Permission(actions=[other]),
        Permission(actions=[verb.recorded_as], queues=["elsewhere"]),
        Permission(actions=[other], queues=[queue or "default"]),
    ):
        stage.permit(wrong)
        assert stage.post(address) == 403
        assert f"You are not allowed to use {verb.recorded_as!r} here" in stage.visitor.text
        assert stage.database.frozen.actions.list() == []
    stage.permit(Permission(actions=[verb.recorded_as], queues=None if queue is None else [queue, "other"]))
    assert stage.post(address) == 200
    assert "You are not allowed" not in stage.visitor.text


def test_a_page_offers_only_actions_that_its_viewer_may_take(stage):
    task = failed(stage.database)
    stage.database.frozen.queues.pause("default", reason="provider down")
    stage.permit(Permission(actions=["failed redrive"], queues=["default"]), Permission(actions=["queue pause"]))
    assert "Redrive" in " ".join(stage.page(f"/tasks/{task.id}").buttons())
    assert "Discard" not in " ".join(stage.page(f"/tasks/{task.id}").buttons())
    assert stage.page("/queue?name=default").buttons() == []
    stage.visitor.go("/queue?name=default")
    assert "outboxq queue resume default" in stage.visitor.text
    stage.permit(Permission(queues=["mail"]))
    assert stage.page(f"/tasks/{task.id}").buttons() == []
    stage.permit()
    assert stage.page(f"/tasks/{task.id}").buttons() == []


def test_undo_is_offered_only_to_viewers_with_its_permission(stage):
    stage.database.add(stage.database.store)
    for actions, has_undo in ((["queue pause"], False), (["queue pause", "queue resume"], True)):
        stage.permit(Permission(actions=actions, queues=["default"]))
        stage.visitor.go("/queue?name=default").press("Pause")
        assert "is paused" in stage.visitor.text
        assert ("Undo" in stage.visitor.page.buttons()) is has_undo
        stage.database.store.queues.resume("default")


def test_a_bulk_change_without_a_queue_needs_a_permission_for_all_queues(stage):
    failed(stage.database)
    stage.permit(Permission(actions=["failed redrive"], queues=["default"]))
    assert "Redrive …" not in [words for words, _ in stage.page("/failures").links]
    links = [words for words, _ in stage.page("/failures?queue=default").links]
    assert ("Redrive …" in links, "Discard …" in links) == (True, False)
    whole = stage.page("/bulk?action=redrive")
    assert "You are not allowed to make this change in all queues; choose one of yours." in whole.text
    assert "Redrive 1" not in whole.buttons()
    assert stage.post("/bulk/start?action=redrive", confirm="yes") == 400  # the form is incomplete
    for query, status in (
        ("action=redrive", 403),
        ("action=redrive&queue=mail", 403),
        ("action=discard&queue=default", 403),
    ):
        form = {"at": "2030-01-01 00:00", "snapshot": whole_snapshot(stage), "confirm": "yes"}
        assert stage.post(f"/bulk/start?{query}", **form) == status
    stage.visitor.go("/bulk?action=redrive&queue=default").press("Redrive 1")
    assert "1 was redriven." in stage.visitor.text


def whole_snapshot(stage) -> str:
    return str(stage.database.frozen.dead_letters.count().snapshot)


def test_a_bulk_cancel_is_offered_only_with_permission_for_the_queue(stage):
    stage.database.add(stage.database.store)
    stage.permit(Permission(actions=["task cancel"], queues=["default"]))
    words = "Cancel all that match …"
    assert words in [one for one, _ in stage.page("/tasks?queue=default").links]
    assert words not in [one for one, _ in stage.page("/tasks?task=tests.work").links]


def test_permissions_compare_by_value_and_mistakes_are_refused():
    assert Permission(actions=["queue pause", "queue resume"]) == Permission(actions={"queue resume", "queue pause"})
    assert hash(replace(ANN, permissions=[Permission(queues=["a"])])) == hash(
        replace(ANN, permissions=(Permission(queues={"a"}),))
    )
    with pytest.raises(InvalidArgument, match="there is no action 'queue paus'; choose from batch cancel, "):
        Permission(actions=["queue paus"])
    with pytest.raises(InvalidArgument, match="queues must be a collection of strings; write \\['mail'\\]"):
        Permission(queues="mail")
    assert not Viewer(permissions=[Permission()]).may("queue pause")
    assert ANN.may("batch cancel")


def test_only_arguments_that_are_shown_can_be_searched_for(database):
    task = database.add(database.store, queue="mail", args='{"order_id":17,"password":"x"}')
    outbox, path = Outbox(database.engine), "/tasks?queue=mail&argument=order_id%3D17"
    shown = Visitor(application(outbox, show_arguments=True, allow_actions=True)).go(path)
    assert f"/tasks/{task.id}" in [href for _, href in shown.page.links]
    assert "Cancel all that match …" not in [words for words, _ in shown.page.links]
    hidden = Visitor(application(outbox)).go(path)
    assert "The argument 'order_id' is hidden in this dashboard, so it cannot be searched for." in hidden.text
    secret = Visitor(application(outbox, show_arguments=True)).go("/tasks?queue=mail&argument=password%3Dx")
    assert "The argument 'password' is hidden in this dashboard" in secret.text
