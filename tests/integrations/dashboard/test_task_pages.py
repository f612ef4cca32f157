"""The pages of tasks: the lists, the page of one task, and the actions on it."""

from __future__ import annotations

import json
from datetime import timedelta
from uuid import UUID, uuid4

import pytest

from outboxq.model import EventType, NewTask, Outcome, TaskStatus
from outboxq.model.running import Progress
from outboxq.model.uuid7 import uuid7
from outboxq.store import NewStep
from outboxq.web import application
from outboxq.web.pages import failures
from outboxq.web.pages.tasks import _ROWS
from outboxq.web.request import Viewer
from tests.integrations.dashboard.pages import Local
from tests.integrations.dashboard.test_cures import HOUR, WORK, Stage
from tests.integrations.dashboard.visiting import Visitor

pytestmark = pytest.mark.in_turn


@pytest.fixture
def stage(database):
    return Stage(database)


def listed(stage, path) -> list[str]:
    """The ids that a list shows, in the order of the list."""
    stage.dashboard._freshness.forget()
    stage.visitor.go(path)
    return [href.rpartition("/")[2] for _, href in stage.visitor.page.links if href.startswith("/tasks/")]


# --- lists


def test_a_list_has_links_to_older_and_newer_pages(stage):
    ids = [str(stage.add(number)) for number in range(2 * _ROWS + 7)][::-1]
    assert listed(stage, "/tasks") == ids[:_ROWS]
    stage.visitor.follow("Older →")
    assert listed(stage, stage.visitor.path) == ids[_ROWS : 2 * _ROWS]
    stage.visitor.follow("Older →")
    assert listed(stage, stage.visitor.path) == ids[2 * _ROWS :]
    assert "Older →" not in stage.visitor.text
    stage.visitor.follow("← Newer")
    assert listed(stage, stage.visitor.path) == ids[_ROWS : 2 * _ROWS]


def test_filters_are_in_the_url_and_kept_from_page_to_page(stage):
    mine = [str(stage.add(number, queue="mail", partition_key="a b&c", topic="x.y")) for number in range(_ROWS + 1)]
    stage.add(queue="mail")
    stage.visitor.go("/tasks").press("Filter", queue="mail", key="a b&c", topic="x.y", task=WORK)
    assert listed(stage, "/tasks?queue=mail&key=a+b%26c") == mine[:0:-1]
    stage.visitor.follow("Older →")
    assert listed(stage, stage.visitor.path) == mine[:1]
    stage.visitor.follow("Due")
    assert "Filter: queue=mail, key=a b&c" in stage.visitor.text


def test_tasks_can_also_be_filtered_by_state_time_and_worker(stage):
    waiting, other = str(stage.add(delay=HOUR)), stage.add()
    claim = stage.claim()
    assert claim.id == other
    assert listed(stage, "/tasks?state=ready") == [waiting]
    assert listed(stage, f"/tasks?worker={stage.worker}&state=running") == [str(other)]
    tomorrow = (stage.store.now() + timedelta(days=1)).strftime("%Y-%m-%d")
    assert listed(stage, f"/tasks?since={tomorrow}") == []
    assert len(listed(stage, f"/tasks?until={tomorrow}")) == 2


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ("since=soon", "Since is not a time"),
        ("worker=7", "Worker must be a complete id"),
        ("before=7", "Before must be a complete id"),
        ("state=lost", "There is no state 'lost'"),
        ("id=zz", "'zz' is not a task id"),
    ],
)
def test_an_invalid_filter_is_named_and_no_tasks_are_listed(stage, query, sentence):
    stage.add()
    assert listed(stage, f"/tasks?{query}") == []
    assert stage.visitor.status == 200
    assert sentence in stage.visitor.text


def test_a_task_is_found_by_the_beginning_of_its_id(stage):
    one = stage.add()
    other = stage.add(id=UUID(int=one.int ^ 1))  # two new ids need not begin with the same characters
    stage.visitor.go("/tasks").press("Find", id=str(one))
    assert str(one)[:8] in stage.visitor.text
    assert listed(stage, f"/tasks?id={one}") == [str(one)]
    assert set(listed(stage, f"/tasks?id={str(one)[:8]}")) >= {str(one), str(other)}
    assert "Several ids begin with these characters" in stage.visitor.text
    assert "what it does" not in stage.visitor.go(f"/tasks/{uuid4()}").text.lower()
    assert stage.visitor.status == 404


def test_a_list_shows_briefly_what_each_task_waits_for(stage):
    stage.store.queues.pause("mail", create=True)
    stage.add(queue="mail")
    stage.add(delay=HOUR)
    listed(stage, "/tasks")
    assert "queue paused" in stage.visitor.text
    assert "delayed" in stage.visitor.text


def test_the_last_error_of_a_dead_letter_has_its_own_label_in_a_narrow_window(stage):
    stage.add()
    stage.end(stage.claim(), EventType.FAILED, error="SMTPError: mailbox full")
    text = Local(stage.dashboard).get("/tasks").get_data(as_text=True)
    assert '<td data-label="Last error"><div>' in text
    stage.store.queues.pause("mail", create=True)
    stage.add(queue="mail")
    stage.dashboard._freshness.forget()
    text = Local(stage.dashboard).get("/tasks").get_data(as_text=True)
    assert "queue paused" in text.partition('data-label="Note"')[2].partition("</td>")[0]


# --- one task


def test_the_wait_of_an_attempt_starts_when_due_and_its_run_ends_with_it(database):
    stage = Stage(database)
    store, clock = database.frozen, database.clock
    handle = database.add(task_name=WORK, delay=timedelta(seconds=30))
    clock.advance(40)
    (claim,) = store.claim_ready_task(1, worker_id=stage.worker)
    clock.advance(5)
    traceback = {"error": "OSError: away", "exception": "builtins.OSError", "traceback": "Traceback of the OSError"}

    retry = Outcome(claim=claim, event_type=EventType.RETRY_SCHEDULED, error="OSError: away", data=traceback)
    assert not store.finish([retry])
    text = stage.page(handle.id).text
    assert "Waited Ran Worker" in text
    assert "10 s 5.0 s web-1:7 failed, to be retried OSError: away" in text
    assert "Traceback of the OSError" in text


def test_a_long_history_is_cut_and_shown_on_request(stage):
    task = stage.add()
    for _ in range(60):
        stage.store.release(stage.claim())
    page = stage.page(task)
    assert "Older events are not shown." in page.text
    assert "Enqueued" not in page.text.partition("History")[2].partition("Attempts")[0]
    page.follow("Show all")
    assert "Enqueued" in page.text.partition("History")[2].partition("Attempts")[0]


def test_releases_of_an_unknown_task_share_one_line(stage):
    task = stage.add()
    for _ in range(5):
        stage.store.release(stage.claim(), reason="unknown task")
    assert stage.page(task).text.count("Released: the worker does not know the task, 5 times") == 1


def test_arguments_are_hidden_by_default_and_secrets_are_always_hidden(stage):
    secrets = {"n": 9007199254740993, "password": "hunter2", "deep": [{"api_key": "secret-1"}]}
    task = stage.store.enqueue(
        _task(args=json.dumps(secrets), headers='{"traceparent": "00-1", "cookie": "cookie-1"}')
    ).id
    for allowed in (False, True):
        stage.look(show_arguments=allowed)
        answer = stage.visitor._client.get(f"/tasks/{task}").text
        assert ("9007199254740993" in answer) is allowed
        assert ("traceparent" in answer) is allowed
        assert not {one for one in ("hunter2", "secret-1", "cookie-1") if one in answer}
        answer = stage.visitor._client.get(f"/api/tasks/{task}.json")
        assert answer.status_code == 200
        api = answer.text
        assert not {one for one in ("hunter2", "secret-1", "cookie-1", "9007199254740993") if one in api}


def test_a_group_of_old_dead_letters_is_found_by_grouping_more_of_them(stage, monkeypatch):
    old = stage.add()
    for number, message in enumerate(("rare", "often 1", "often 2", "often 3")):
        if number:
            stage.add()
        stage.end(stage.claim(), EventType.FAILED, error=f"ValueError: {message}")
    monkeypatch.setattr(failures, "_FEW", 2)
    stage.visitor.go("/failures")
    assert "the newest 2 dead letters" in stage.visitor.text
    assert "rare" not in stage.visitor.text
    stage.visitor.follow("Group the newest 10,000")
    assert "rare" in stage.visitor.text
    groups = {one.message: one for one in stage.store.dead_letters.groups().groups}
    stage.visitor.go(f"/failures/{groups['ValueError: rare'].id}")
    assert f"/tasks/{old}" in [href for _, href in stage.visitor.page.links]
    stage.visitor.go(f"/failures/{groups['ValueError: often …'].id}")
    assert "2 dead letters among the newest 2 of all groups" in stage.visitor.text


def _task(**fields):

    return NewTask(**{"id": uuid7(), "task_name": WORK, "args": "{}", **fields})


def test_the_page_of_a_task_names_its_schedule(stage):
    headers = '{"outboxq-schedule": "nightly", "outboxq-tick": "2030-01-01T02:30:00+00:00"}'
    task = stage.store.enqueue(_task(headers=headers)).id
    stage.database.corrupted = True  # the tick is not recorded
    assert "nightly , tick of 2030-01-01 02:30:00 UTC" in stage.page(task).text


def test_hostile_texts_are_shown_escaped(stage):
    name = "evil\u202e</h1><script>alert(1)</script>\x1b[31m"
    task = stage.store.enqueue(_task(partition_key=name, topic="x")).id
    (claim,) = stage.store.claim_ready_task(1, worker_id=stage.worker)
    stage.end(claim, EventType.FAILED, error=name, data={"error": name, "traceback": name, "exception": name})
    for path in (f"/tasks/{task}", "/tasks", "/failures", "/bulk?action=redrive&key=" + "%3Cscript%3E"):
        answer = stage.visitor._client.get(path).text
        assert "<script>alert" not in answer
        assert "\u202e" not in answer
        assert "\x1b" not in answer
    assert "\\u202e" in stage.page(task).text


# --- actions


def test_a_second_click_changes_nothing(stage):
    task = stage.add(delay=HOUR)
    stage.page(task).again("Run it now")
    assert f"Nothing was changed: task {task} was already due" in stage.visitor.text
    assert [event.event_type for event in stage.store.history(task)].count(EventType.RESCHEDULED) == 1


def test_an_action_that_the_status_forbids_is_refused_with_a_notice(stage):
    task = stage.add()
    stage.page(task)
    stage.work()
    stage.visitor.press("Cancel the task")
    assert f"Nothing was changed: task {task} is Completed and cannot be cancelled." in stage.visitor.text


def test_the_history_names_the_operator(stage):

    ann = Viewer(name="ann", may_act=True, may_see_arguments=False)
    stage.look(authorize=lambda _environ: ann, allow_actions=True)
    task = stage.add(delay=HOUR)
    stage.page(task).press("Set", priority="7")
    assert stage.store.history(task)[-1].event_data["reason"] == "by ann in the dashboard"
    assert "Given the priority 7" in stage.page(task).text
    stage.visitor.press("Cancel the task", reason="paid twice")
    assert stage.store.history(task)[-1].event_data["reason"] == "paid twice (by ann in the dashboard)"


def test_an_invalid_priority_is_refused(stage):
    task = stage.add()
    assert "Priority: write a whole number from -100 to 100" in stage.page(task).press("Set", priority="high").text


def test_redriving_a_task_whose_key_another_task_has_needs_confirmation(stage):
    keyed = {"idempotency_key": "order-7", "unique_until_finished": True}
    first = stage.store.enqueue(_task(**keyed)).id
    (claim,) = stage.store.claim_ready_task(1, worker_id=stage.worker)
    stage.end(claim, EventType.FAILED, error="ValueError: no")
    second = stage.store.enqueue(_task(**keyed)).id
    page = stage.page(first)
    assert "order-7 taken over by another task" in page.text
    page.press("Redrive it")
    assert "Nothing was changed" in page.text
    assert str(second) in page.text
    page.press("Redrive", tick=True)
    assert stage.status(first) is TaskStatus.READY
    assert stage.page(first).text.count("order-7") == 1


def test_an_action_by_a_read_only_viewer_is_refused(stage):
    task = stage.add()
    stage.page(task)
    stage.look(allow_actions=False)
    answer = stage.visitor._client.post(f"/tasks/{task}/cancel", data={"csrf": "x"})
    assert answer.status_code == 403
    assert stage.status(task) is TaskStatus.READY


def test_a_get_request_changes_nothing(stage):
    task = stage.add()
    for action in ("cancel", "cancel-now", "redrive", "discard", "run-now", "priority"):
        assert Visitor(stage.dashboard).go(f"/tasks/{task}/{action}").status == 405
    assert len(stage.store.history(task)) == 1


# --- progress and the handler log


def test_the_pages_of_a_running_task_and_its_worker_show_its_progress(stage):
    task_id = stage.add()
    claim = stage.claim()
    page = stage.page(task_id)
    assert "reported" not in page.text
    stage.store.heartbeat([claim], progress={task_id: Progress(fraction=0.415, note="<b>5 of 12</b>")})
    page = stage.page(task_id)
    assert "its handler reported 41 %: <b>5 of 12</b>; its lease expires in" in page.text
    assert 'width="41.5"' in Local(stage.dashboard).get(f"/tasks/{task_id}").text
    record = json.loads(Local(stage.dashboard).get(f"/api/tasks/{task_id}.json").text)
    assert record["explanation"]["progress"] == {"fraction": 0.415, "note": "<b>5 of 12</b>"}
    stage.dashboard._freshness.forget()
    assert "41 %: <b>5 of 12</b>" in stage.visitor.go(f"/workers/{stage.worker}").text


def logged(stage, *texts, **more):
    claim = stage.claim()
    at = "2026-11-23T03:00:00.123+00:00"
    lines = [{"at": at, "level": "ERROR", "logger": "shop", "text": text} for text in texts]
    stage.end(claim, EventType.RETRY_SCHEDULED, error="no", data={"log": lines, **more})


def test_an_attempt_shows_the_log_of_its_handler(stage):
    task_id = stage.add()
    for number in range(1, 8):
        logged(stage, f"line of {number}", "<script>\u202e", log_omitted=1234 if number == 7 else 0)
    page = stage.page(task_id)
    assert "Log of attempt 7 the last 2 lines; 1,234 earlier ones were not kept" in page.text
    assert "03:00:00 ERROR shop line of 7 03:00:00 ERROR shop <script>\\u202e" in page.text
    assert "Log of attempt 3 2 lines" in page.text
    assert "Log of attempt 2" not in page.text
    record = json.loads(Local(stage.dashboard).get(f"/api/tasks/{task_id}.json").text)
    assert [one["attempt"]["log"][0]["text"] for one in record["attempts"]] == [
        f"line of {number}" for number in range(7, 0, -1)
    ]


def test_the_end_of_an_attempt_shows_the_last_progress(stage):
    task_id = stage.add()
    logged(stage, progress={"fraction": 0.4, "note": "12 of 30"})
    assert "Failed; attempt 2 follows on" in stage.page(task_id).text
    assert "Reached 40 %: 12 of 30" in stage.page(task_id).text


# --- steps


def stepped(stage):
    """A task that has completed one step and is sleeping."""
    task_id = stage.add()
    claim = stage.claim()
    made = '{"charge": 7, "token": "sk-live-9"}'
    stage.store.steps.complete(claim, NewStep(name="charge <b>", number=1, result=made, milliseconds=12))
    due_at = stage.store.steps.complete(claim, NewStep(name="a fortnight", number=2, delay=timedelta(days=14))).due_at
    outcome = Outcome(claim=claim, event_type=EventType.SNOOZED, available_at=due_at, data={"step": "a fortnight"})
    stage.store.finish([outcome])
    return task_id


def test_the_page_of_a_task_shows_its_steps(stage):
    visitor = Visitor(application(stage.outbox, show_arguments=True))
    text = visitor.go(f"/tasks/{stepped(stage)}").text
    for part in (
        "charge <b>",
        '"charge": 7',
        "Sleeps until",
        "Postponed by sleep a fortnight",
        "Step charge <b> completed",
    ):
        assert part in text
    assert "sk-live-9" not in text
    assert "task rerun" in text


def test_results_of_steps_are_hidden_if_arguments_are(stage):
    visitor = Visitor(application(stage.outbox))
    text = visitor.go(f"/tasks/{stepped(stage)}").text
    assert "charge <b>" in text
    assert '"charge": 7' not in text
    assert "Steps" not in visitor.go(f"/tasks/{stage.add()}").text


def test_tasks_can_be_sorted_by_run_time_and_wait(stage):
    quick, long = stage.add(1), stage.add(2)
    stage.work()
    stage.add(3, delay=HOUR)
    page = stage.visitor.go("/tasks").follow("longest run")
    assert page.path == "/tasks?sort=duration"
    listed = [href for _, href in page.page.links if href.startswith("/tasks/")]
    assert sorted(listed) == sorted(f"/tasks/{one}" for one in (quick, long))
    assert "Ran" in page.text
    assert page.follow("longest wait").path == "/tasks?sort=wait"
    assert "Cannot sort by 'size': choose one of duration, wait." in stage.visitor.go("/tasks?sort=size").text
    assert "A waiting task has not started" in stage.visitor.go("/tasks?sort=wait&state=due").text
