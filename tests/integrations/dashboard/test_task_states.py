"""The pages show how many tasks are due, delayed or retrying."""

from __future__ import annotations

import json
import re
from datetime import timedelta

import pytest

from outboxq import Outbox
from outboxq.model import EventType
from outboxq.store.tasks import task_pages
from outboxq.web import application
from outboxq.web.pages import tasks
from tests.contract.test_cli_operators import outboxq
from tests.integrations.dashboard.pages import Local
from tests.integrations.dashboard.test_cures import HOUR, WORK, Stage

pytestmark = pytest.mark.in_turn


@pytest.fixture
def stage(database):
    return Stage(database)


def tabs(page) -> dict[str, str]:
    """The number on each tab, by the tab's word; "" for a tab without a number."""
    names = ("All", "Due", "Delayed", "Retrying", "Running", "Failed", "Completed", "Cancelled")
    found = {}
    for text, _ in page.links:
        word, _, number = text.partition(" ")
        if word in names:
            found.setdefault(word, number)
    return found


def in_each_state(stage):
    """Create a task in each state (two that are delayed), all but one in the queue `mail`."""
    found = {"failed": stage.add(queue="mail")}
    stage.end(stage.claim(), EventType.FAILED, error="ValueError: no")
    found["retrying"] = stage.add(queue="mail")
    stage.claim()
    stage.store.schedule_retry(found["retrying"], stage.store.now() + timedelta(seconds=40), 2)
    found["running"] = stage.add(queue="mail")
    stage.claim()
    found["due"] = stage.add(queue="mail")
    found["delayed"] = stage.add(queue="mail", delay=HOUR)
    found["other"] = stage.add(queue="other", delay=HOUR)
    return found


def test_each_tab_shows_the_number_of_its_tasks_and_lists_them(stage):
    found = in_each_state(stage)
    stage.visitor.go("/tasks?queue=mail")
    counted = {"All": "", "Due": "1", "Delayed": "1", "Retrying": "1", "Running": "1", "Failed": "1"}
    assert tabs(stage.visitor.page) == {**counted, "Completed": "", "Cancelled": ""}
    for state in ("due", "delayed", "retrying", "running", "failed"):
        stage.visitor.go(f"/tasks?queue=mail&state={state}")
        listed = [href for text, href in stage.visitor.page.links if text == WORK]
        assert listed == [f"/tasks/{found[state]}"]
        assert state.capitalize() in stage.visitor.text
    assert tabs(stage.visitor.go("/tasks").page)["Delayed"] == "2"
    assert tabs(stage.visitor.go(f"/tasks?task={WORK}").page)["Retrying"] == "1"
    assert set(tabs(stage.visitor.go("/tasks?key=k").page).values()) == {""}


def test_the_page_of_a_retrying_task_shows_its_next_attempt_and_time(stage):
    task = stage.add()
    stage.claim()
    stage.store.schedule_retry(task, stage.store.now() + timedelta(hours=2), 2)
    text = stage.page(task).text
    assert "Attempt 2 of 1, next in 1 h 59 min" in text or "Attempt 2 of 1, next in 2 h" in text
    assert "Retries One attempt" in text
    assert "2 of 1 next in " in stage.visitor.go("/tasks?state=retrying").text


def test_the_tiles_of_the_overview_lead_to_the_lists_of_their_states(stage):
    links = dict(stage.visitor.go("/").page.links)
    [due] = [href for text, href in links.items() if text.startswith("Due")]
    [delayed] = [href for text, href in links.items() if text.startswith("Delayed")]
    assert (due, delayed) == ("/tasks?state=due", "/tasks?state=delayed")


def test_an_unknown_state_is_refused_with_a_list_of_valid_states(stage):
    assert (
        "There is no state 'late': choose one of due, delayed, retrying, ready"
        in stage.visitor.go("/tasks?state=late").text
    )


def test_the_command_lists_tasks_by_state_and_shows_their_state(stage, database):
    found = in_each_state(stage)
    for state in ("due", "delayed", "retrying", "running", "failed"):
        [one] = json.loads(outboxq(database, "task", "list", "-q", "mail", "--status", state, "--json").stdout)
        assert (one["id"], one["state"]) == (str(found[state]), state)
    page = outboxq(database, "task", "list", "--status", "delayed", "--limit", 1)
    assert "--status=delayed" in page.stderr
    assert "--waiting" not in page.stderr


def test_a_page_without_tasks_has_one_link_to_older_ones_and_no_bulk_button(stage, monkeypatch):
    monkeypatch.setattr(task_pages, "SCAN", 2)
    monkeypatch.setattr(tasks, "_ROWS", 2)
    stage.add(partition_key="rare")
    for _ in range(3):
        stage.add()
    stage.visitor.go("/tasks?key=rare")
    assert "None of the tasks that were read match." in stage.visitor.text
    words = [words for words, href in stage.visitor.page.links if "before=" in href]
    assert words == ["Continue with older tasks →"]
    assert "Cancel all that match" not in stage.visitor.text
    stage.visitor.follow("Continue with older tasks →")
    assert "Cancel all that match" in stage.visitor.text  # the task is now listed


def test_a_short_attempt_is_shown_to_the_millisecond(stage):
    task = stage.add()
    stage.end(stage.claim(), EventType.FAILED, error="ValueError: no")
    stage.visitor.go(f"/tasks/{task}")
    assert len(re.findall(r"\d\d:\d\d:\d\d\.\d{3} UTC", stage.visitor.text)) > 3


def test_a_task_of_a_pipeline_links_to_the_first_task(stage):
    first = stage.add()
    other = stage.add(pipeline_execution_id=first)
    stage.visitor.go(f"/tasks/{other}").follow(str(first))
    assert "No such task" not in stage.visitor.text
    assert "Pipeline" not in stage.visitor.text


def test_the_page_of_a_task_shows_the_same_state_as_the_lists(stage):
    for state, task in in_each_state(stage).items():
        stage.page(task)
        word = {"other": "Delayed"}.get(state, state.capitalize())
        assert f"{WORK} {word} {task}" in stage.visitor.text


def test_a_state_has_the_color_of_its_tile(database):
    tasks = in_each_state(Stage(database))
    client = Local(application(Outbox(database.engine)))
    for state in ("due", "delayed", "retrying", "running", "failed"):
        badge = f'<span class="badge {state}">{state.capitalize()}</span>'
        assert badge in client.get(f"/tasks?state={state}").text
        assert badge in client.get(f"/tasks/{tasks[state]}").text
