"""The monitoring pages (the overview, queues, workers, schedules and the database), and their actions."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from html import unescape
from unittest.mock import ANY
from uuid import uuid4

import pytest

from outboxq import Outbox
from outboxq.database.revisions import REVISION
from outboxq.database.tables import workers
from outboxq.integration import FrontEnd, Integration
from outboxq.model import OnDeadLetter, Outcome
from outboxq.model.records import EventType
from outboxq.model.schedules import NewSchedule
from outboxq.model.workers import WorkerOrder, WorkerState
from outboxq.store import QueueSample
from outboxq.web import application
from outboxq.web.pages import watching
from tests.integrations.dashboard.hostile import INVISIBLE, NAMES
from tests.integrations.dashboard.pages import Local
from tests.integrations.dashboard.visiting import Page

MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)


class Reader(Local):
    """A browser without JavaScript that reads the words of pages and presses their buttons."""

    def words(self, path: str, *, status: int = 200, **query: str) -> str:
        """The text of a page as one line."""
        self.application._freshness.forget()  # otherwise, the page may be two seconds old
        self.page = self.get(path, query_string=query)
        assert self.page.status_code == status, self.page.text
        body = self.page.text.partition("<main")[2].partition(">")[2].partition("</main>")[0]
        return " ".join(unescape(re.sub(r"<[^>]*>", " ", body.replace("<wbr>", ""))).split())

    def forms(self) -> dict[str, dict[str, str]]:
        """The fields of each form on the last page, by the path to which the form is sent."""
        found = {}
        for action, inside in re.findall(r'<form[^>]*action="([^"]*)"[^>]*>(.*?)</form>', self.page.text, re.DOTALL):
            fields = re.findall(r'<input[^>]*\bname="([^"]*)"[^>]*?(?:\bvalue="([^"]*)")?>', inside)
            found[unescape(action)] = {unescape(name): unescape(value) for name, value in fields}
        return found

    def press(self, action: str, **changed: str) -> str:
        """Submit a form of the last page, and return the notice on the page that follows."""
        (found,) = (one for one in self.forms() if one.partition("?")[0] == action)
        answer = self.post(found, data=self.forms()[found] | changed)
        assert answer.status_code == 303, answer.text
        self.page = self.get(answer.location)
        (notice,) = re.findall(r'class="notice \w+" role="\w+"><p>(.*?)</p>', self.page.text)
        return unescape(notice)


@pytest.fixture
def reader(database):
    return Reader(application(Outbox(database.engine), allow_actions=True))


@pytest.fixture
def onlooker(database):
    return Reader(application(Outbox(database.engine)))


def worker(database, *queues, label="web-1:7", **described):
    """Register a live worker."""
    found = uuid4()
    database.store.workers.register(
        found, label=label, queues=queues or None, concurrency=4, task_names=["tests.work"], **described
    )
    return found


def fail(database, **fields):
    """Create a dead letter and return its id."""
    handle = database.add(database.store, **fields)
    (claim,) = database.claim(store=database.store, queues=[fields.get("queue", "default")])
    database.store.finish([Outcome(claim=claim, event_type=EventType.FAILED, error="ValueError: 1")])
    return handle.id


def test_pages_of_an_empty_database_explain_what_is_missing(reader):
    words = reader.words("/")
    assert words.startswith("Overview There are no tasks yet")
    assert "start a worker that runs it: outboxq worker APP" in words
    assert "Nothing was recorded in this period." in reader.words("/queue", name="default")
    assert "There are no queues." in reader.words("/queues")
    assert "No worker is live." in reader.words("/workers")
    assert "There are no schedules." in reader.words("/schedules")
    assert "Old tasks are not deleted automatically." in reader.words("/system")
    assert "No live worker serves this queue." in reader.words("/queue", name="default")


def test_the_overview_begins_with_problems_and_their_cures(database, reader):
    database.add(database.store, queue="video")
    fail(database, queue="mail")
    words = reader.words("/")
    assert words.index("Needs attention") < words.index(" Due ") < words.index("Trends")
    assert "video" in words.partition(" Due ")[0]
    assert "outboxq worker APP -q video" in words
    assert "mail" in words.partition(" Due ")[0]
    worker(database)
    assert "outboxq worker APP" not in reader.words("/")


def test_an_idle_system_without_a_worker_is_reported_as_a_problem(database, reader):
    database.add(database.store)
    (claim,) = database.claim(store=database.store)
    database.store.finish([Outcome(claim=claim, event_type=EventType.COMPLETED)])
    words = reader.words("/")
    assert "There are no tasks yet" not in words
    assert "no worker is live: the next task would have to wait. outboxq worker APP" in words
    assert "Nothing needs attention." not in words
    worker(database)
    assert "Nothing needs attention." in reader.words("/")


def test_the_title_of_the_overview_counts_the_problems(database, reader):
    reader.words("/")
    assert "<title>Overview – outboxq</title>" in reader.page.text
    database.add(database.store, queue="video")
    reader.words("/")
    assert "<title>1 problem – outboxq</title>" in reader.page.text
    fail(database, queue="mail")
    reader.words("/")
    assert "<title>2 problems – outboxq</title>" in reader.page.text


def test_shown_commands_are_those_of_the_framework(database):
    class InFlask(Integration):
        front_end = FrontEnd(program="flask outboxq", finds_app=True)

    reader = Reader(application(Outbox(database.engine, integration=InFlask())))
    for path in ("/", "/workers"):
        assert "flask outboxq worker" in reader.words(path)
    fail(database)
    (group,) = database.store.dead_letters.groups().groups
    assert f"flask outboxq failed redrive --group {group.id}" in reader.words(f"/failures/{group.id}")


def test_queues_are_sorted_by_their_most_urgent_problem(database, reader):
    worker(database, "paused", "failing")
    database.add(database.store, queue="paused")
    database.store.queues.pause("paused", create=True)
    fail(database, queue="failing")
    database.add(database.store, queue="stuck")
    words = reader.words("/queues")
    assert words.index("stuck no worker") < words.index("failing") < words.index("paused paused")


def test_the_page_of_a_queue_marks_an_old_task(database, reader):
    worker(database, "mail")
    database.add(database.store, queue="mail")
    reader.words("/queue", name="mail")
    assert 'class="tile late"' not in reader.page.text
    database.clock.now = datetime.now(UTC) - HOUR
    database.add(database.frozen, queue="mail")
    assert "has been due for 1 h" in reader.words("/queue", name="mail")
    assert reader.page.text.count('class="tile late"') == 1


def test_queues_with_problems_are_listed_first(database, reader):
    worker(database, "calm", "later")
    database.add(database.store, queue="calm")
    database.add(database.store, queue="later", delay=HOUR)
    database.add(database.store, queue="stuck")
    words = reader.words("/queues")
    assert words.index("stuck no worker") < words.index("calm") < words.index("later")


def test_the_list_of_queues_has_a_chart_of_the_last_hour(database, reader):
    worker(database, "mail", "idle")
    for minutes in (20, 10):
        database.clock.now = datetime.now(UTC) - minutes * MINUTE
        database.frozen.samples.record([QueueSample(queue="mail", due=minutes)])
    reader.words("/queues")
    assert reader.page.text.count('aria-label="Due tasks in the last hour"') == 1, "only the sampled queue has a chart"


def test_a_queue_is_paused_and_resumed_by_its_buttons(database, reader, onlooker):
    database.add(database.store, queue="mail")
    reader.words("/queue", name="mail")
    assert "is paused" in reader.press("/queue/pause")
    (settings,) = database.store.queues.settings()
    assert settings.paused_at is not None
    assert "has also been paused for" in onlooker.words("/queue", name="mail")
    assert "outboxq queue resume mail" in onlooker.words("/queue", name="mail")
    assert onlooker.forms() == {}
    assert "paused" in reader.words("/queues")
    reader.words("/queue", name="mail")
    assert "has been resumed" in reader.press("/queue/resume")
    assert database.store.queues.settings() == []


def test_an_unknown_queue_has_no_page_and_no_buttons(database, reader):
    database.add(database.store, queue="mail")
    words = reader.words("/queue", status=404, name="mial")
    assert (
        "There is no queue 'mial': it is not used by any task, setting, declaration or live worker; did you mean 'mail'?"
        in words
    )
    assert reader.forms() == {}
    reader.words("/queue", name="mail")
    form = reader.forms()["/queue/pause?name=mail"]
    assert reader.post("/queue/pause?name=mial", data=form).status_code == 404
    assert database.store.queues.settings() == []


def test_a_queue_without_tasks_has_a_page(database, reader):
    database.add(database.store, queue="mail")
    database.store.complete(database.claim(store=database.store)[0])
    assert "Pause" in reader.words("/queue", name="mail")


def test_a_mistyped_queue_disappears_once_it_is_resumed(database, reader):
    database.store.queues.pause("typo", create=True)
    reader.words("/queue", name="typo")
    assert "The queue 'typo' has been resumed." in reader.press("/queue/resume")
    reader.words("/queue", status=404, name="typo")


def limits(database):
    return [(one.concurrency, one.rate, one.fair) for one in database.store.queues.settings()]


def test_limits_and_order_are_set_by_a_form(database, reader):
    database.add(database.store, queue="mail")
    reader.words("/queue", name="mail")
    reader.press("/queue/limit", concurrency="3", starts="100", seconds="60")
    assert limits(database) == [(3, (100, MINUTE), True)]
    words = reader.words("/queue", name="mail")
    assert "3 tasks, on all machines together" in words
    assert "100 in 1 min" in words
    filled = reader.forms()["/queue/limit?name=mail"]
    assert (filled["concurrency"], filled["starts"], filled["seconds"]) == ("3", "100", "60")
    reader.press("/queue/order")
    assert limits(database) == [(3, (100, MINUTE), False)]
    reader.press("/queue/limit", concurrency="", starts="", seconds="")
    assert limits(database) == [(None, None, False)]
    reader.press("/queue/order")
    assert limits(database) == []


def test_limits_per_key_are_set_by_the_same_form(database, reader):
    database.add(database.store, queue="mail")
    reader.words("/queue", name="mail")
    reader.press("/queue/limit", concurrency="9", key_concurrency="3", key_starts="5", key_seconds="60")
    (found,) = database.store.queues.settings()
    assert (found.concurrency, found.concurrency_per_key, found.rate_per_key) == (9, 3, (5, MINUTE))
    words = reader.words("/queue", name="mail")
    assert "3 for each concurrency key" in words
    assert "5 in 1 min" in words
    assert "9 at once, per key 3 at once, 5 in 1 min" in reader.words("/queues")
    reader.words("/queue", name="mail")
    reader.press("/queue/limit")
    assert database.store.queues.settings() == [replace(found, updated_at=ANY)]
    reader.press("/queue/limit", concurrency="", key_concurrency="", key_starts="", key_seconds="")
    assert database.store.queues.settings() == []


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"key_concurrency": "0"}, "At once per key: write a whole number from 1"),
        ({"key_starts": "5"}, "Starts per key: a rate needs a number of starts and a number of seconds"),
        ({"concurrency": "0"}, "At once: write a whole number from 1"),
        ({"concurrency": "-1"}, "At once: write a whole number from 1"),
        ({"concurrency": "x" * 5000}, "At once: write a whole number from 1"),
        ({"concurrency": "9" * 5000}, "At once: write a whole number from 1"),
        ({"starts": "5"}, "Starts: a rate needs a number of starts and a number of seconds"),
        ({"seconds": "5"}, "Starts: a rate needs a number of starts and a number of seconds"),
        ({"starts": "5", "seconds": "nan"}, "Starts: write a number of starts and a span above 0"),
        ({"starts": "5", "seconds": "1e308"}, "Starts: write a number of starts and a span above 0"),
        ({"starts": "5", "seconds": "0"}, "Starts: write a number of starts and a span above 0"),
    ],
    ids=lambda value: None,
)
@pytest.mark.in_turn
def test_an_invalid_limit_is_refused_with_the_reason(database, reader, fields, why):
    database.store.queues.limit("mail", concurrency=2, create=True)
    reader.words("/queue", name="mail")
    notice = reader.press("/queue/limit", **fields)
    assert notice.startswith(f"Nothing was changed: {why}")
    assert limits(database) == [(2, None, True)]


def test_the_settings_of_a_queue_are_deleted_after_a_warning(database, reader):
    """The settings cannot be restored. The form says so and asks for a reason."""
    database.store.queues.limit("typo", concurrency=1, create=True)
    assert "Its limits, its order and its pause are deleted. This cannot be undone." in reader.words(
        "/queue", name="typo"
    )
    reader.press("/queue/forget", reason="a mistyped name")
    assert database.store.queues.settings() == []
    assert [(one.action, one.reason) for one in database.store.actions.list()] == [("queue forget", "a mistyped name")]


@pytest.mark.in_turn
def test_a_form_without_a_queue_name_changes_nothing(database, reader):
    database.add(database.store, queue="mail")
    reader.words("/queue", name="mail")
    for action in ("/queue/pause", "/queue/resume", "/queue/limit", "/queue/order"):
        form = next(iter(reader.forms().values()))
        answer = reader.post(action, data={"csrf": form["csrf"], "concurrency": "1", "first": "oldest"})
        assert answer.status_code == 400 or "Nothing was changed" in reader.get(answer.location).text
    assert database.store.queues.settings() == []


def test_actions_by_a_read_only_viewer_are_refused(database, reader, onlooker):
    database.add(database.store, queue="mail")
    reader.words("/queue", name="mail")
    token = reader.forms()["/queue/pause?name=mail"]["csrf"]
    assert onlooker.post("/queue/pause?name=mail", data={"csrf": token}).status_code == 403
    assert onlooker.post("/schedule/trigger?name=nightly", data={"csrf": token}).status_code == 403
    assert database.store.queues.settings() == []


def test_a_queue_shows_the_keys_that_dead_letters_hold(database, reader):
    letter = fail(database, queue="ledger", partition_key="account:7", on_dead_letter=OnDeadLetter.HOLD)
    for _ in range(3):
        database.add(database.store, queue="ledger", partition_key="account:7")
    words = reader.words("/queue", name="ledger")
    held = words.partition("Keys held by dead letters")[2]
    assert re.search(r"account:7 \S+…\S+ .* ago 3 Tasks in the last hour", held), held
    assert f'/tasks/{letter}"' in reader.page.text


def test_the_pages_of_workers_show_versions_and_unknown_tasks(database, reader):
    told = {"host": "web-1", "pid": 41, "release": "0.1.0"}
    old = worker(database, "mail", label="web-1:41")
    new = worker(database, label="web-2:42")
    words = reader.words("/workers")
    assert "web-1:41" in words
    assert "versions" not in words.partition("Live workers")[0] or "are unknown" in words
    database.store.workers.describe(old, **told, version="1.9.0", busy=3)
    database.store.workers.describe(new, **told, version="1.10.0", busy=0)
    words = reader.words("/workers")
    assert "Live workers run 2 versions of the application: 1.9.0 (1 worker), 1.10.0 (1 worker)" in words
    assert words.count("older") == 1
    assert "1.9.0 outboxq 0.1.0 older" in words
    assert "3 of 4" in words
    database.store.workers.seen(new, unknown_tasks=[("mail", "shop.gone")])
    assert "shop.gone" in reader.words(f"/workers/{new}")
    assert "older version than another worker" in reader.words(f"/workers/{old}")


def test_the_page_of_a_worker_shows_its_running_tasks(database, reader):
    database.worker = worker(database, "mail")
    task = database.add(database.store, queue="mail", partition_key="k1")
    database.claim(store=database.store, queues=["mail"])
    words = reader.words(f"/workers/{database.worker}")
    running = words.partition("Running tasks")[2]
    assert "tests.work" in running
    assert "k1" in running
    assert f'/tasks/{task.id}"' in reader.page.text
    assert re.search(r"in (1 min|\d+ s)", running), running


def test_the_page_of_a_worker_shows_its_order_and_whether_it_has_obeyed(database, reader, onlooker):
    one = worker(database)
    page, orders = f"/workers/{one}", database.store.worker_orders
    assert f"{page}/quiet" in reader.get(page).text
    orders.give(one, WorkerOrder.QUIET)
    assert "It was told to be quiet, but has not yet reported that it is" in reader.words(page)
    assert f"{page}/resume" in reader.page.text
    assert f"{page}/quiet" not in reader.page.text
    database.store.workers.describe(one, state=WorkerState.QUIET)
    assert "It was told to be quiet, and claims no tasks until it is resumed" in reader.words(page)
    assert f"workers resume {one}" in onlooker.words(page)
    assert f"{page}/resume" not in onlooker.page.text
    orders.give(one, WorkerOrder.STOP)
    assert "It was told to stop, but has not begun to stop yet" in reader.words(page)
    database.store.workers.unregister(one)
    assert f"{page}/stop" not in reader.get(page).text


def test_the_page_of_a_worker_shows_the_stacks_of_its_threads(database, reader, onlooker):
    one = worker(database)
    page = f"/workers/{one}"
    assert "Stacks of its threads" not in reader.words(page)
    database.store.worker_orders.ask_for_stacks(one)
    assert "and will answer with its next report" in reader.words(page)
    database.store.worker_orders.answer(one, "in wait_for_the_file")
    assert "in wait_for_the_file" in reader.words(page)
    assert "in wait_for_the_file" not in onlooker.words(page)
    assert "They are hidden in this dashboard" in onlooker.words(page)


def test_the_pages_of_workers_show_their_isolation(database, reader):
    for isolation, words in (
        ("process", "Handlers run in 4 child processes"),
        ("thread", "Handlers run in threads of its process"),
    ):
        one = worker(database, label=isolation)
        assert "Handlers run in" not in reader.words(f"/workers/{one}")
        database.store.workers.describe(one, host="web-1", pid=7, release="1.0", busy=1, isolation=isolation)
        assert words in reader.words(f"/workers/{one}")
        assert reader.get(f"/api/workers/{one}.json").get_json()["worker"]["isolation"] == isolation
    assert reader.words("/workers").count("1 of 4 child processes") == 1


def test_an_unknown_worker_is_not_found(reader):
    assert "There is no worker" in reader.words(f"/workers/{uuid4()}", status=404)


def test_a_silent_worker_is_listed_separately(database, reader):
    silent = worker(database, label="web-3:1")
    long_ago = datetime.now(UTC) - HOUR
    with database.engine.begin() as connection:
        connection.execute(workers.update().values(last_seen_at=long_ago))
    words = reader.words("/workers")
    assert "No worker is live." in words
    assert "Not seen lately" in words
    assert "It was last seen 1 h " in reader.words(f"/workers/{silent}"), "plus a few seconds on a slow machine"


def test_the_page_of_a_killed_worker_shows_its_tasks_and_recoveries(database, reader, monkeypatch):
    killed = database.worker
    database.store.workers.register(killed, label="web-3:1", concurrency=2, task_names=["tests.work"])
    database.store.workers.describe(killed, busy=0)
    for _ in range(2):
        database.add(database.store)
    taken, held = database.claim(2, store=database.store)
    key = taken.id.hex if database.name == "sqlite" else str(taken.id)
    database.run(
        "UPDATE task_leases SET lease_expires_at = '2026-01-01T00:00:00.000000+00:00' "
        f"WHERE task_execution_id = '{key}'"
    )
    database.store.recover()
    with database.engine.begin() as connection:
        connection.execute(workers.update().values(last_seen_at=datetime.now(UTC) - HOUR))
    assert "2 tasks: 1 recovered, 1 not yet" in reader.words("/workers")
    with monkeypatch.context() as bounded:
        bounded.setattr(watching, "_RUNNING", 1)
        assert "2+ tasks: 1 recovered, 1+ not yet" in reader.words("/workers")
    words = reader.words(f"/workers/{killed}")
    assert "1 was recovered, and it still holds 1." in words
    assert "Recovered from it" in words
    assert str(taken.id)[:8] in words
    assert "0 of" not in words
    data = reader.get(f"/api/workers/{killed}.json").get_json()
    assert [one["task_id"] for one in data["recovered"]["tasks"]] == [str(taken.id)]
    assert [one["id"] for one in data["running"]] == [str(held.id)]


def test_a_stopped_worker_is_listed_as_ended_and_keeps_its_page(database, reader):
    stopped = worker(database, label="web-3:1", unknown_tasks=[("default", "tests.later")])
    assert "web-3:1" in reader.words("/workers")
    database.store.workers.unregister(stopped, met_unknown=True)
    words = reader.words("/workers")
    assert "No worker is live." in words
    assert "Ended in the last week: 1 Worker Process Version Started Ended web-3:1" in words
    assert "Not seen lately" not in words
    assert "It stopped normally" in reader.words(f"/workers/{stopped}")
    assert "A worker is forgotten a week after it was last seen." in reader.words(f"/workers/{uuid4()}", status=404)


def test_the_history_of_a_task_names_a_worker_that_has_ended(database, reader):
    ended = worker(database, label="web-3:1")
    handle = database.add(database.store)
    (claim,) = database.store.claim_ready_task(1, worker_id=ended)
    database.store.complete(claim)
    database.store.workers.unregister(ended)
    page = reader.words(f"/tasks/{handle.id}")
    assert "web-3:1" in page
    assert "web-3:1" in reader.words(f"/workers/{ended}")


def nightly(database, **fields):
    values = {"name": "nightly", "task_name": "tests.work", "rule": "30 4 * * *", "tz": "Europe/Berlin", **fields}
    return database.store.schedules.put(NewSchedule(**values))


def test_a_schedule_is_paused_resumed_and_triggered_by_its_buttons(database, reader, onlooker):
    nightly(database)
    words = reader.words("/schedules")
    assert "nightly active At 04:30 every day (Europe/Berlin)" in words
    assert "At 04:30 every day (Europe/Berlin)" in reader.words("/schedule", name="nightly")
    assert reader.page.text.count("04:30:00 C") == 5, "the next five ticks, in the schedule's time zone"
    assert "is paused" in reader.press("/schedule/pause")
    assert database.store.schedules.get("nightly").pause_reason == "in the dashboard"
    assert "Paused since" in onlooker.words("/schedule", name="nightly")
    assert onlooker.forms() == {}
    assert "outboxq schedule resume nightly" in onlooker.words("/schedule", name="nightly")
    assert "was triggered: task " in reader.press("/schedule/trigger")
    (task,) = database.store.tasks()
    assert "has been resumed" in reader.press("/schedule/resume")
    assert database.store.schedules.get("nightly").paused_at is None
    assert database.store.explain(task.id).sentence.endswith("by in the dashboard")


def test_the_last_ticks_show_their_outcomes_and_tasks(database, reader):
    nightly(database, rule="every 60", tz="UTC", starts_at=datetime.now(UTC) - timedelta(seconds=90))
    database.store.schedules.backfill("nightly", datetime.now(UTC) - 2 * MINUTE, datetime.now(UTC))
    words = reader.words("/schedule", name="nightly")
    assert "Ready" in words.partition("Last ticks")[2]
    assert all(f"/tasks/{one.task_id}" in reader.page.text for one in database.store.schedules.ticks("nightly"))


def test_a_bar_chart_shows_the_outcomes_and_durations_of_the_last_ticks(database, reader):
    nightly(database, rule="every 60", tz="UTC", starts_at=datetime.now(UTC) - timedelta(seconds=210))
    nightly(database, name="new", rule="0 0 1 1 *")
    database.store.schedules.backfill("nightly", datetime.now(UTC) - 4 * MINUTE, datetime.now(UTC))
    for _ in range(20):  # until every due tick has run
        for claim in database.claim(store=database.store):
            is_first = not [one for one in database.store.tasks() if one.status == "Failed"]
            database.store.fail(claim, "E") if is_first else database.store.complete(claim)
    runs = database.store.schedules.runs(["nightly", "new"])
    statuses = [one.status for one in runs["nightly"]]
    assert (runs["new"], statuses.count("Failed")) == ([], 1)
    assert [one.tick for one in runs["nightly"]] == [one.tick for one in database.store.schedules.ticks("nightly")][
        ::-1
    ]
    assert all((one.ran is None) is (one.status == "Ready") for one in runs["nightly"])
    for path, query in (("/schedules", {}), ("/schedule", {"name": "nightly"})):
        reader.words(path, **query)
        [spark] = re.findall(r'<svg class="spark ticks.*?</svg>', reader.page.text, re.DOTALL)
        kinds = re.findall(r'class="(\w+)-fill"', spark)
        assert kinds == [one.lower() for one in statuses]
        assert f'aria-label="The last {len(kinds)} ticks: ' in spark
        assert "1 failed" in spark
        assert "UTC: failed after " in spark
    found = reader.get("/api/schedule.json?name=nightly").get_json()
    assert {"ran", "status", "tick", "task_id", "schedule"} == found["ticks"][0].keys()


def test_an_overdue_schedule_is_listed_first_and_its_page_shows_the_cure(database, reader):
    nightly(database, name="a calm one")
    database.clock.now = datetime.now(UTC) - HOUR
    late = NewSchedule(name="late", task_name="tests.work", rule="every 60", queue="a; b")
    database.frozen.schedules.put(late)  # no worker has planted since then
    database.clock.now = datetime.now(UTC)
    words = reader.words("/schedules")
    assert words.index("late overdue") < words.index("a calm one active")
    assert "no worker has planted it" in reader.words("/schedule", name="late")
    assert "outboxq worker APP -q 'a; b'" in reader.words("/schedule", name="late")


def test_a_schedule_planted_by_a_fast_clock_is_marked_and_explained(database, reader):
    now = datetime.now(UTC).replace(microsecond=0)
    database.clock.now = now + timedelta(days=30)
    database.frozen.schedules.put(
        NewSchedule(name="early", task_name="tests.work", rule="every 3600", starts_at=now - HOUR)
    )
    database.clock.now = now
    assert "early ahead" in reader.words("/schedules")
    words = reader.words("/schedule", name="early")
    assert "Because a clock was running fast, the ticks have been planted until" in words
    database.frozen.schedules.plant()
    assert "early active" in reader.words("/schedules")


def test_a_shown_command_quotes_the_name_of_a_queue(database, reader):
    database.clock.now = datetime.now(UTC) - HOUR
    queue = "x; touch 'pwned' #"
    database.frozen.schedules.put(NewSchedule(name="late", task_name="tests.work", rule="every 60", queue=queue))
    database.clock.now = datetime.now(UTC)
    reader.words("/schedule", name="late")
    (command,) = (one for one in Page(reader.page.text).commands if "worker" in one)
    assert shlex.split(command) == ["outboxq", "worker", "APP", "-q", queue]


def test_a_schedule_with_an_unreadable_rule_does_not_hide_others(database, reader):
    nightly(database)
    nightly(database, name="odd")
    database.run("UPDATE task_schedules SET rule = 'whenever' WHERE name = 'odd'")
    database.corrupted = True  # `verify` reports the rule
    words = reader.words("/schedules")
    assert words.index("odd unreadable") < words.index("nightly active")
    assert "cannot be read by this process" in reader.words("/schedule", name="odd")


def test_a_removed_schedule_is_not_found_and_its_buttons_report_that(database, reader):
    nightly(database)
    reader.words("/schedule", name="nightly")
    database.store.schedules.remove("nightly")
    assert reader.press("/schedule/pause").startswith("Nothing was changed: there is no schedule")
    assert "there is no schedule" in reader.words("/schedule", name="nightly", status=404).lower()


def test_the_database_shows_its_schema_and_its_tables(database, reader):
    words = reader.words("/system")
    assert f"Schema {REVISION}" in words
    if database.name == "postgresql":
        assert "PostgreSQL" in words
        assert re.search(r"task_executions [^%]* never", words)  # the table has never been vacuumed
    else:
        assert "SQLite" in words
    database.store.schedules.put(
        NewSchedule(name="outboxq.retention", task_name="outboxq.prune", rule="every 3600", args='{"seconds": 60}')
    )
    assert "outboxq.retention deletes old tasks" in reader.words("/system")


@pytest.mark.in_turn
def test_a_newer_release_says_that_it_works_with_an_old_schema_and_how_to_upgrade(reader, monkeypatch):
    following = f"{int(REVISION) + 1:04}"
    monkeypatch.setattr(watching, "REVISION", following)
    words = reader.words("/system")
    assert f"The schema is at revision {REVISION}. This release knows revision {following} and works with both" in words
    assert "outboxq upgrade" in words


@pytest.mark.parametrize("width", ["", "1h", "6h", "24h", "7d", "100y", "<script>"])
@pytest.mark.in_turn
def test_a_page_accepts_any_time_range(database, reader, width):
    database.add(database.store)
    assert reader.words("/", range=width)
    assert reader.words("/queue", name="default", range=width)
    assert "<script>" not in reader.page.text.partition("</head>")[2]


@pytest.mark.parametrize("part", range(4))
@pytest.mark.in_turn
def test_actions_work_on_hostile_names_which_are_shown_escaped(database, reader, part):
    names = NAMES[part::4]
    for name in names:
        database.add(database.store, queue=name)
        worker(database, name, label=name)
        schedule = name[:191]
        nightly(database, name=schedule, task_name=name)
        reader.words("/queue", name=name)
        reader.press("/queue/pause")
        reader.words("/schedule", name=schedule)
        reader.press("/schedule/pause")
        assert database.store.schedules.get(schedule).paused_at is not None
    assert {one.queue for one in database.store.queues.settings()} == set(names)
    for path in ("/", "/queues", "/workers", "/schedules", "/system"):
        reader.words(path)
        assert not re.search(INVISIBLE, reader.page.text)
        assert "<script>" not in reader.page.text.partition("</head>")[2]
        assert "<img" not in reader.page.text
        assert " onload=" not in re.sub(r"&[#\w]+;", "", re.sub(r'="[^"]*"', "", reader.page.text))
