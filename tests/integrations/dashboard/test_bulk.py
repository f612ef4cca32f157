"""Changes of many tasks at once, from the confirmation page to the task that makes the change."""

from __future__ import annotations

import json
import logging
import re
from dataclasses import replace
from urllib.parse import urlencode

import pytest

from outboxq.errors import NotPermitted
from outboxq.model import EventType, NewTask, Outcome, TaskStatus
from outboxq.model.uuid7 import uuid7
from outboxq.task.built_in import BULK, BULK_QUEUE, Selection
from outboxq.web.pages import bulk
from tests.contract import helpers
from tests.contract.test_counted import enqueueing
from tests.integrations.dashboard.pages import Local
from tests.integrations.dashboard.test_cures import HOUR, WORK, Stage
from tests.waiting import until

pytestmark = pytest.mark.in_turn


@pytest.fixture
def stage(database):
    return Stage(database)


@pytest.fixture
def few(monkeypatch):
    """Let a request change at most two tasks itself, so that a change of three needs the task."""
    monkeypatch.setattr(bulk, "_AT_ONCE", 2)


def failed(stage, number, error="SMTPError: code 451", **fields):
    """Create this many dead letters."""
    ids = [stage.add(n, **fields) for n in range(number)]
    queues = [fields.get("queue", "default")]
    while claims := stage.store.claim_ready_task(100, worker_id=stage.worker, queues=queues):
        ends = {"error": error, "exception": f"smtplib.{error.partition(':')[0]}"}
        outcomes = [Outcome(claim=one, event_type=EventType.FAILED, error=error, data=ends) for one in claims]
        assert not stage.store.finish(outcomes)
    return ids


def statuses(stage, ids):
    return {stage.status(one) for one in ids}


def bulk_tasks(stage):
    return stage.store.tasks(task=BULK)


def test_a_group_is_redriven_after_a_confirmation_that_shows_its_size(stage):
    mine = failed(stage, 3, "SMTPError: code 451 for 7@example.com")
    others = failed(stage, 1, "ValueError: no")
    stage.visitor.go("/failures")
    assert "SMTPError: code … for …" in stage.visitor.text
    group = next(one for one in stage.store.dead_letters.groups().groups if one.count == 3)
    stage.visitor.go(f"/failures/{group.id}").follow("Redrive all …")
    assert f"3 dead letters of {WORK} that failed with SMTPError" in stage.visitor.text
    stage.visitor.press("Redrive 3", reason="the mail server is back")
    assert "3 were redriven." in stage.visitor.text
    assert statuses(stage, mine) == {TaskStatus.READY}
    assert statuses(stage, others) == {TaskStatus.FAILED}
    assert stage.store.history(mine[0])[-1].event_data["reason"] == "the mail server is back (in the dashboard)"
    assert bulk_tasks(stage) == []


def test_dead_letters_that_match_a_typed_filter_are_discarded(stage):
    mine, others = failed(stage, 2, queue="mail"), failed(stage, 1)
    stage.visitor.go("/failures").press("Count them …", action="discard", queue="mail", exception="SMTPError")
    assert "2 dead letters in the queue 'mail' that failed with 'SMTPError'" in stage.visitor.text
    stage.visitor.press("Discard 2", tick=True)
    assert statuses(stage, mine) == {TaskStatus.CANCELLED}
    assert statuses(stage, others) == {TaskStatus.FAILED}


def test_tasks_that_fail_after_the_confirmation_are_not_changed(stage):
    mine = failed(stage, 2)
    stage.visitor.go(f"/bulk?action=discard&task={WORK}")
    later = failed(stage, 1)
    stage.visitor.press("Discard 2", tick=True)
    assert "2 were discarded." in stage.visitor.text
    assert statuses(stage, mine) == {TaskStatus.CANCELLED}
    assert statuses(stage, later) == {TaskStatus.FAILED}


def test_a_task_committed_after_the_confirmation_page_is_not_changed(stage):
    mine = [stage.add(queue="mail", delay=HOUR) for _ in range(3)]
    with helpers.transaction(stage.database) as late:
        task = NewTask(id=uuid7(), task_name=WORK, args="{}", queue="mail")
        later = stage.store.enqueue(task, using=late).id
        stage.visitor.go("/bulk?action=cancel&queue=mail")
        late.commit()
    stage.store.cancel(mine[0])
    stage.visitor.press("Cancel 3", tick=True)
    assert "2 of 3 were cancelled; running tasks were asked to stop. 1 had ended in the meantime." in stage.visitor.text
    assert statuses(stage, mine) == {TaskStatus.CANCELLED}
    assert stage.status(later) is TaskStatus.READY


def test_exactly_the_counted_tasks_are_cancelled_while_others_are_enqueued(stage, few):
    """The request may not change this many tasks itself, so the task does it."""
    for _ in range(5):
        stage.add(queue="mail", delay=HOUR)
    with enqueueing(stage.database, queue="mail", delay=HOUR) as made:
        stage.visitor.go("/bulk?action=cancel&queue=mail")
        asked = int(re.search(r"Cancel (\d+) tasks\?", stage.visitor.text)[1])
        seen = len(made)
        until(lambda: len(made) > seen + 10)
        stage.visitor.press(f"Cancel {asked}", tick=True)
        stage.work(queues=[BULK_QUEUE])
    assert len(stage.store.tasks(queue="mail", status=TaskStatus.CANCELLED, limit=10_000)) == asked


@pytest.mark.parametrize("snapshot", ["", "soon", "9" * 40 + ":"])
def test_a_form_without_its_snapshot_changes_nothing(stage, snapshot):
    mine = failed(stage, 2)
    stage.visitor.go("/bulk?action=redrive").press("Redrive 2", snapshot=snapshot)
    assert stage.visitor.status == 400
    assert statuses(stage, mine) == {TaskStatus.FAILED}


def test_a_discard_requires_the_ticked_box(stage):
    mine = failed(stage, 2)
    stage.visitor.go(f"/bulk?action=discard&task={WORK}").press("Discard 2")
    assert stage.visitor.status == 400
    assert "Nothing was done: tick the box" in stage.visitor.text
    assert statuses(stage, mine) == {TaskStatus.FAILED}


def test_a_second_click_on_a_small_change_changes_nothing(stage):
    failed(stage, 2)
    stage.visitor.go("/bulk?action=redrive").again("Redrive 2")
    assert "Nothing was changed: there are no longer any matching tasks." in stage.visitor.text


def test_tasks_that_match_the_filter_of_the_list_are_cancelled(stage):
    mine, other = [stage.add(queue="mail", delay=HOUR) for _ in range(2)], stage.add()
    stage.visitor.go("/tasks?queue=mail").follow("Cancel all that match …")
    assert "2 waiting or running tasks in the queue 'mail'" in stage.visitor.text
    stage.visitor.press("Cancel 2", tick=True)
    assert statuses(stage, mine) == {TaskStatus.CANCELLED}
    assert stage.status(other) is TaskStatus.READY


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ("action=cancel", "in the dashboard, cancel needs a filter"),
        ("action=discard", "in the dashboard, discard needs a filter"),
        ("action=delete&queue=a", "there is no action 'delete'"),
        ("action=cancel&queue=a&exception=E", "cancel does not support the filter exception"),
        ("action=cancel&queue=a&state=failed", "only Ready and Running tasks can be cancelled"),
        ("action=redrive&since=soon", "since is not a time"),
        ("action=redrive&group=7", "16 hex digits"),
        ("action=redrive&worker=7", "there is no filter 'worker'"),
        ("action=redrive&queue=a&queue=b", "queue is given 2 times"),
    ],
)
def test_an_invalid_bulk_query_is_refused(stage, query, sentence):
    failed(stage, 1)
    assert sentence in stage.visitor.go(f"/bulk?{query}").text
    assert stage.visitor.status == 400


def test_many_tasks_are_changed_by_a_task_whose_page_shows_its_progress(stage, few):
    stage.present(task_names=[WORK, BULK])
    mine = failed(stage, 5, queue="mail")
    stage.visitor.go("/bulk?action=discard&queue=mail")
    assert "A task in the queue outboxq makes this change in transactions of up to 500 tasks." in stage.visitor.text
    assert "No live worker" not in stage.visitor.text
    stage.visitor.press("Discard 5", tick=True, reason="gone")
    (task,) = bulk_tasks(stage)
    assert task.queue == BULK_QUEUE
    assert stage.visitor.path == f"/tasks/{task.id}"
    assert "Discard all dead letters in the queue 'mail', as of" in stage.visitor.text
    assert "5 still match." in stage.visitor.text
    later = failed(stage, 1, queue="mail")
    stage.work(queues=[BULK_QUEUE])
    assert statuses(stage, mine) == {TaskStatus.CANCELLED}
    assert statuses(stage, later) == {TaskStatus.FAILED}
    assert "5 were changed." in stage.page(task.id).text
    assert stage.store.history(mine[0])[-1].event_data["reason"] == "gone (in the dashboard)"


def test_a_second_click_on_a_large_change_enqueues_no_second_task(stage, few):
    failed(stage, 3)
    stage.visitor.go("/bulk?action=redrive").again("Redrive 3")
    (task,) = bulk_tasks(stage)
    assert stage.visitor.path == f"/tasks/{task.id}"


def test_the_confirmation_page_warns_that_no_live_worker_runs_the_task(stage, few):
    failed(stage, 3)
    stage.visitor.go("/bulk?action=redrive")
    assert "No live worker serves the queue outboxq" in stage.visitor.text
    assert stage.visitor.page.commands == ["outboxq worker APP -q outboxq"]
    stage.visitor.press("Redrive 3")
    assert "What it changes" in stage.visitor.text
    assert "No live worker" in stage.visitor.text


def test_the_next_worker_finishes_a_bulk_change_that_was_interrupted(stage, few, monkeypatch):
    monkeypatch.setattr("outboxq.store.tasks.cancelling.BATCH", 2)
    mine = [stage.add(n, queue="mail", delay=HOUR) for n in range(5)]
    stage.visitor.go("/bulk?action=cancel&queue=mail").press("Cancel 5", tick=True)
    (task,) = bulk_tasks(stage)
    claim = stage.claim(queues=[BULK_QUEUE], lease=HOUR / 3600)
    arguments = stage.store.get(task.id).args
    asked = iter([False, True])  # the process dies after the first batch
    wanted = Selection.of_json(json.loads(arguments)["selection"])
    assert wanted.run(stage.store, reason="x", stop=lambda: next(asked)) == 2
    stage.store.release(claim)
    stage.work(queues=[BULK_QUEUE])
    assert statuses(stage, mine) == {TaskStatus.CANCELLED}
    assert [len(stage.store.history(one)) for one in mine] == [2] * 5
    assert stage.store.get(task.id).result == "3"


def test_a_missing_privilege_fails_the_task_and_its_page_shows_the_grant(stage, few, monkeypatch, caplog):
    failed(stage, 3)
    stage.visitor.go("/bulk?action=redrive").press("Redrive 3")
    (task,) = bulk_tasks(stage)

    def refused(*_args, **_options):
        raise NotPermitted("the role worker lacks DELETE on dead_letters; run: outboxq grants --role operator worker")

    monkeypatch.setattr("outboxq.store.tasks.dead_letters.DeadLetters.redrive_all", refused)
    with caplog.at_level(logging.CRITICAL):
        stage.work(queues=[BULK_QUEUE])
    assert stage.status(task.id) is TaskStatus.FAILED
    assert "run: outboxq grants --role operator worker" in stage.page(task.id).text


def test_a_read_only_viewer_cannot_start_a_bulk_change(stage):
    mine = failed(stage, 2)
    stage.look(allow_actions=False)
    stage.visitor.go("/bulk?action=redrive")
    assert "read-only" in stage.visitor.text
    assert stage.visitor.page.buttons() == ["Count again"]
    assert stage.visitor._client.post("/bulk/start?action=redrive", data={"confirm": "yes"}).status_code == 403
    assert statuses(stage, mine) == {TaskStatus.FAILED}


ODD = {
    "spaces": "  ",
    "a space before": " mail",
    "a space behind": "mail ",
    "a line break": "ma\nil",
    "a carriage return": "mail\r",
    "an override": "ma\u202eil",
    "no width": "ma\u200bil",
    "an escape in words": "ma\\u202eil",
}
"""Names that a form field would alter, and names that are easily mistaken for them."""


@pytest.mark.parametrize("odd", ODD)
def test_an_odd_key_changes_only_the_counted_tasks(stage, odd):
    ids = {key: stage.add(partition_key=key, delay=HOUR) for key in ("mail", *ODD.values())}
    stage.visitor.go(f"/tasks?{urlencode({'key': ODD[odd]})}").follow("Cancel all that match …")
    words = " ".join(f"1 waiting or running task with the partition key {ODD[odd]!r}".split())
    assert words in stage.visitor.text
    stage.visitor.press("Cancel 1", tick=True)
    assert {key for key, one in ids.items() if stage.status(one) is TaskStatus.CANCELLED} == {ODD[odd]}


@pytest.mark.parametrize("odd", ["spaces", "a line break", "an override"])
def test_the_bulk_task_with_an_odd_key_changes_only_the_counted_tasks(stage, few, odd):
    ids = {key: [stage.add(partition_key=key, delay=HOUR) for _ in range(3)] for key in ("mail", *ODD.values())}
    stage.visitor.go(f"/bulk?{urlencode({'action': 'cancel', 'key': ODD[odd]})}").press("Cancel 3", tick=True)
    stage.work(queues=[BULK_QUEUE])
    assert {key for key, one in ids.items() if statuses(stage, one) != {TaskStatus.READY}} == {ODD[odd]}


@pytest.mark.parametrize("lost", ["queue=", "queue=&task=shop.work", ""])
def test_a_bulk_change_whose_filter_is_missing_is_refused(stage, lost):
    mine = failed(stage, 2, queue="mail")
    stage.visitor.go("/bulk?action=discard&queue=mail")
    (form,) = (one for one in stage.visitor.page.forms if one.buttons == ["Discard 2"])
    answer = stage.visitor._client.post(f"/bulk/start?action=discard&{lost}", data={**form.fields, **form.boxes})
    assert answer.status_code == 400
    assert statuses(stage, mine) == {TaskStatus.FAILED}


def test_a_group_in_a_list_filtered_by_queue_is_changed_in_that_queue_only(stage):
    mine, others = failed(stage, 2, queue="mail"), failed(stage, 1, queue="news")
    stage.visitor.go("/failures?queue=mail")
    assert "Filter: queue=mail" in stage.visitor.text
    stage.visitor.follow("Discard …").press("Discard 2", tick=True)
    assert statuses(stage, mine) == {TaskStatus.CANCELLED}
    assert statuses(stage, others) == {TaskStatus.FAILED}


def test_a_filtered_list_without_failures_does_not_say_that_nothing_has_failed(stage):
    failed(stage, 1, queue="mail")
    assert "Nothing has failed permanently." not in stage.visitor.go("/failures?queue=news").text
    assert "No dead letter matches." in stage.visitor.text
    assert "Nothing has failed permanently." not in stage.visitor.follow("Show all of them").text


def test_without_dead_letters_the_failures_page_says_so_without_a_count(stage):
    stage.visitor.go("/failures")
    assert "Nothing has failed permanently." in stage.visitor.text
    assert "0 dead letters" not in stage.visitor.text


def test_the_confirmation_page_shows_the_counts_and_the_oldest_tasks(stage):
    first = stage.add(queue="mail")
    claim = stage.claim(queues=["mail"])
    assert claim.id == first
    waiting = [stage.add(n, queue="mail", delay=HOUR) for n in range(6)]
    stage.add(queue="other")
    stage.visitor.go("/bulk?action=cancel&queue=mail")
    text = stage.visitor.text
    assert "What matches Task Queue State Tasks shop.work mail Ready 6 shop.work mail Running 1" in text
    assert "Yes, cancel 7 tasks" in text
    assert "The oldest Task Id shop.work" in text  # no task has an error
    oldest = [href for _, href in stage.visitor.page.links if href.startswith("/tasks/")]
    assert oldest == [f"/tasks/{one}" for one in (first, *waiting[:4])]
    stage.end(claim, EventType.FAILED, error="ValueError: no", data={"exception": "builtins.ValueError"})
    stage.visitor.go("/bulk?action=discard&queue=mail")
    assert "shop.work mail Failed builtins.ValueError 1" in stage.visitor.text
    assert "The oldest Task Id Last error shop.work" in stage.visitor.text


def test_there_is_no_confirmation_if_no_task_matches(stage):
    text = stage.visitor.go("/bulk?action=discard&queue=mail").text
    assert "Nothing to discard There are 0 dead letters in the queue 'mail', so there is nothing to change." in text
    assert "?" not in text
    assert stage.visitor.follow("Back").path.startswith("/failures")


@pytest.mark.parametrize(("action", "words"), [("redrive", "Failures"), ("discard", "Failures"), ("cancel", "Tasks")])
def test_the_navigation_marks_the_list_from_which_the_change_began(stage, action, words):
    text = Local(stage.dashboard).get(f"/bulk?action={action}&queue=mail").text
    assert re.findall(r'aria-current="page">([^<]*)<', text) == [words]


def test_a_dead_letter_links_to_its_group(stage):
    [mine] = failed(stage, 1, "SMTPError: code 451 for 7@example.com")
    failed(stage, 2, "SMTPError: code 452 for 8@example.com")
    failed(stage, 1, "ValueError: no")
    stage.visitor.go(f"/tasks/{mine}").follow("2 other dead letters failed like this")
    assert "3 dead letters" in stage.visitor.text


def test_a_large_number_is_written_without_escapes(stage, monkeypatch):
    stage.add(queue="mail")
    counted = Selection.count
    monkeypatch.setattr(Selection, "count", lambda *given, **more: replace(counted(*given, **more), number=16_024))
    stage.visitor.go("/bulk?action=cancel&queue=mail")
    assert "16,024 waiting or running tasks in the queue 'mail'" in stage.visitor.text
    assert "u202f" not in stage.visitor.text


def test_a_limit_restricts_a_change_to_the_oldest_tasks(stage):
    mine = failed(stage, 3)
    stage.visitor.go("/bulk?action=discard&queue=default").press("Count again", limit="2")
    assert "Discard 2 of 3 dead letters?" in stage.visitor.text
    stage.visitor.press("Discard 2", tick=True)
    assert "2 were discarded." in stage.visitor.text
    assert [stage.status(one) for one in mine] == [TaskStatus.CANCELLED, TaskStatus.CANCELLED, TaskStatus.FAILED]
    [found] = stage.store.actions.list()
    assert (found.action, found.changed) == ("failed discard", 2)
    assert found.details == {"queue": "default", "limit": 2}
    assert "Limit is not a whole number" in stage.visitor.go("/bulk?action=redrive&limit=0").text.replace(
        "limit", "Limit"
    )


def shown_parts(stage):
    """The numbers in the last page's table of tasks, and the number of rows in its table of the oldest tasks."""
    source = stage.visitor._client.get(stage.visitor.path).text
    parts, _, rest = source.partition('aria-label="Counts by task"')[2].partition("</table>")
    oldest = rest.partition('aria-label="Oldest tasks"')[2]
    return [int(one) for one in re.findall(r'data-label="Tasks">(\d+)<', parts)], oldest.count("<tr>") - 1


@pytest.mark.parametrize("group", [False, True])
def test_a_limit_applies_to_the_counts_and_rows_shown(stage, group):
    failed(stage, 3, "SMTPError: no")
    failed(stage, 2, "ValueError: no")
    wanted = "queue=default"
    if group:
        wanted = f"group={stage.store.dead_letters.groups(exception='SMTPError').groups[0].id}"
    for limit, numbers, rows in ((2, [2], 2), (None, [3] if group else [3, 2], 3 if group else 5)):
        stage.visitor.go(f"/bulk?action=redrive&{wanted}" + ("" if limit is None else f"&limit={limit}"))
        assert shown_parts(stage) == (numbers, rows)
    if not group:
        stage.visitor.go("/bulk?action=redrive&queue=default&limit=4")
        assert shown_parts(stage) == ([3, 1], 4)


def test_a_limited_cancel_shows_and_cancels_waiting_tasks_before_running_ones(stage):
    running, asked = stage.add(queue="mail"), stage.add(queue="mail")
    stage.database.claim(2, store=stage.store, queues=["mail"])
    stage.store.cancel(asked)
    waiting = [stage.add(n, queue="mail", delay=HOUR) for n in range(3)]
    for limit, numbers, rows in ((2, [2], 2), (4, [3, 1], 4)):
        stage.visitor.go(f"/bulk?action=cancel&queue=mail&limit={limit}")
        assert shown_parts(stage) == (numbers, rows)
    stage.visitor.go("/bulk?action=cancel&queue=mail&limit=2").press("Cancel 2", tick=True)
    assert [stage.status(one) for one in (running, *waiting)] == [
        TaskStatus.RUNNING,
        TaskStatus.CANCELLED,
        TaskStatus.CANCELLED,
        TaskStatus.READY,
    ]


def test_a_bulk_task_that_runs_again_respects_its_limit(stage, few, monkeypatch):
    monkeypatch.setattr("outboxq.store.tasks.cancelling.BATCH", 2)
    mine = [stage.add(n, queue="mail", delay=HOUR) for n in range(6)]
    stage.visitor.go("/bulk?action=cancel&queue=mail&limit=5").press("Cancel 5", tick=True, reason="spam")
    (task,) = bulk_tasks(stage)
    [begun] = stage.store.actions.list()
    assert (begun.id, begun.changed, begun.reason) == (task.id, 0, "spam")
    asked = iter([False, True])  # the process dies after the first batch
    wanted = Selection.of_json(json.loads(stage.store.get(task.id).args)["selection"])
    first = wanted.run(
        stage.store,
        reason="spam",
        limit=wanted.limit,
        stop=lambda: next(asked),
        on_change=stage.store.actions.adding_to(task.id),
    )
    assert first == 2
    assert "2 have been changed so far." in stage.page(task.id).text
    stage.work(queues=[BULK_QUEUE])
    assert [stage.status(one) for one in mine] == [TaskStatus.CANCELLED] * 5 + [TaskStatus.READY]
    assert [one.changed for one in stage.store.actions.list()] == [5]
    assert "5 were changed." in stage.page(task.id).text
    assert "Cancel the oldest 5 waiting or running tasks in the queue 'mail'" in stage.visitor.text


# --- run now


def later(stage, number, **fields):
    """Create this many delayed tasks."""
    return [stage.add(n, delay=HOUR, queue="mail", **fields) for n in range(number)]


def test_all_delayed_tasks_in_a_list_are_run_now_after_a_confirmation_with_their_number(stage):
    mine = later(stage, 3)
    due, elsewhere = stage.add(queue="mail"), stage.add(delay=HOUR)
    stage.visitor.go("/tasks?state=delayed&queue=mail").follow("Run all that match now …")
    assert "Run 3 tasks now?" in stage.visitor.text
    assert "3 delayed tasks in the queue 'mail'" in stage.visitor.text
    assert f"{WORK} mail Delayed 3" in stage.visitor.text
    after = stage.add(delay=HOUR, queue="mail")
    stage.visitor.press("Run 3 now", reason="the provider is back")
    assert "3 were made due." in stage.visitor.text
    assert {stage.store.explain(one).reason for one in mine} == {"due"}
    assert {stage.store.explain(one).reason for one in (elsewhere, after)} == {"delayed"}
    assert len(stage.store.history(due)) == 1
    assert stage.store.history(mine[0])[-1].event_data["reason"] == "the provider is back (in the dashboard)"
    [action] = stage.store.actions.list()
    assert (action.action, action.changed, action.reason) == ("task run-now", 3, "the provider is back")
    assert action.details == {"queue": "mail", "waiting": "delayed"}


def test_a_limited_run_now_shows_and_makes_due_only_the_oldest_tasks(stage):
    mine = later(stage, 3)
    retried = stage.add(queue="mail", task_name="shop.other")
    stage.store.schedule_retry(retried, stage.store.now() + HOUR, 2)
    page = stage.visitor.go("/bulk?action=run-now&queue=mail&limit=2")
    assert "Run 2 of 4 tasks now?" in page.text
    assert f"{WORK} mail Delayed 2" in page.text
    page.go("/bulk?action=run-now&queue=mail")
    assert f"{WORK} mail Delayed 3" in page.text
    assert "shop.other mail Retrying 1" in page.text
    page.go("/bulk?action=run-now&queue=mail&limit=2").press("Run 2 now")
    reasons = [stage.store.explain(one).reason for one in (*mine, retried)]
    assert reasons == ["due", "due", "delayed", "retry_later"]
    assert "2 were made due." in page.text


def test_many_tasks_are_run_now_by_a_task_that_counts_its_progress(stage, few):
    mine = later(stage, 5)
    stage.visitor.go("/bulk?action=run-now&queue=mail&state=delayed&limit=4").press("Run 4 now", reason="back")
    assert "makes the change" in stage.visitor.text
    assert "Run the oldest 4 delayed tasks in the queue 'mail' now" in stage.visitor.text
    stage.work(queues=[BULK_QUEUE])
    assert [stage.store.explain(one).reason for one in mine] == ["due"] * 4 + ["delayed"]
    assert stage.store.actions.list()[0].changed == 4


def test_tasks_that_become_due_after_the_confirmation_page_do_not_count_as_changed(stage):
    mine = later(stage, 3)
    stage.visitor.go("/bulk?action=run-now&queue=mail")
    stage.store.run_now(mine[1])
    stage.visitor.press("Run 3 now")
    assert "2 of 3 were made due. 1 had become due or ended in the meantime." in stage.visitor.text


@pytest.mark.parametrize("query", ["state=due", "state=running", "exception=ValueError"])
def test_a_filter_that_run_now_does_not_support_is_refused(stage, query):
    later(stage, 1)
    stage.visitor.go(f"/bulk?action=run-now&{query}")
    assert stage.visitor.status == 400
    assert "Nothing was done" in stage.visitor.text
