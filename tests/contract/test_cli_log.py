"""`outboxq log`, `task history` and `task state-at`: the events of tasks on the command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from datetime import timedelta
from uuid import uuid4

import pytest
from click.testing import CliRunner, Result

from outboxq.cli import log, main
from outboxq.cli.groups import Stop, until_stopped
from outboxq.errors import InvalidArgument
from outboxq.model import EventType, Outcome
from outboxq.store import TailCursor
from outboxq.store.tasks.event_log import EventLog
from tests import forked
from tests.contract import helpers

HOUR = timedelta(hours=1)


def outboxq(database, *arguments: object, exit_code: int = 0) -> Result:
    words = [str(one) for one in arguments]
    result = CliRunner().invoke(main, words, env={"OUTBOXQ_DATABASE_URL": database.url}, catch_exceptions=False)
    assert result.exit_code == exit_code, result.output
    return result


def events(result: Result) -> list[tuple[str, str]]:
    """Return the event type and the task of each line."""
    return [tuple(line.split("\t")[1:3]) for line in result.stdout.splitlines()[1:]]


def failed(database):
    handle = database.add(database.store)
    (claim,) = database.claim(store=database.store)
    data = {"error": "ValueError: no", "exception": "builtins.ValueError", "traceback": "secret of the customer"}
    database.store.finish([Outcome(claim=claim, event_type=EventType.FAILED, error="ValueError: no", data=data)])
    return str(handle.id)


# --- log


def test_the_log_prints_the_events_of_all_tasks_in_order(database):
    first = failed(database)
    second = str(database.add(database.store, delay=HOUR).id)
    everything = [("task_created", first), ("task_claimed", first), ("task_failed", first), ("task_created", second)]
    assert events(outboxq(database, "log")) == everything
    assert events(outboxq(database, "log", "--task", first)) == everything[:3]
    assert events(outboxq(database, "log", "--task", first, "--last", 1)) == everything[2:3]
    assert events(outboxq(database, "log", "--event", "task_created")) == [everything[0], everything[3]]
    assert events(outboxq(database, "log", "--last", 1)) == everything[3:]
    assert events(outboxq(database, "log", "--last", 0)) == []
    assert events(outboxq(database, "log", "--since", "1h")) == everything
    assert events(outboxq(database, "log", "--since", "2100-01-01T00:00Z")) == []
    assert "ValueError: no" in outboxq(database, "log").stdout


def test_a_stored_cursor_continues_after_the_last_printed_event(database):
    failed(database)
    first = outboxq(database, "log", "--cursor", "start", "--show-cursor")
    position = first.stderr.strip()
    assert len(events(first)) == 3
    assert events(outboxq(database, "log", "--cursor", position)) == []
    added = str(database.add(database.store, delay=HOUR).id)
    assert events(outboxq(database, "log", "--cursor", position)) == [("task_created", added)]
    wrong = outboxq(database, "log", "--cursor", "yesterday", exit_code=2)
    assert "not a position in the log" in wrong.stderr
    outboxq(database, "log", "--cursor", position, "--since", "1h", exit_code=2)
    outboxq(database, "log", "--task", added, "--show-cursor", exit_code=2)
    outboxq(database, "log", "--task", uuid4(), exit_code=3)


def test_json_has_the_fields_of_events_and_tracebacks_only_on_request(database):
    task_id = failed(database)
    found = json.loads(outboxq(database, "log", "--json").stdout)
    assert [one["event_type"] for one in found] == ["task_created", "task_claimed", "task_failed"]
    assert {"sequence_num", "task_execution_id", "event_data", "created_at"} <= found[0].keys()
    assert found[2]["event_data"]["exception"] == "builtins.ValueError"
    assert "secret" not in outboxq(database, "log", "--json").stdout
    assert "secret" in outboxq(database, "log", "--json", "--traceback").stdout
    assert "secret" not in outboxq(database, "task", "history", task_id, "--json").stdout
    assert "secret" in outboxq(database, "task", "history", task_id, "--json", "--traceback").stdout


@contextmanager
def following(database, *words: str):
    """Run the command in a separate process that does not outlive the test."""
    command = [sys.executable, "-m", "outboxq", "log", "--follow", *words]
    environment = {**os.environ, "OUTBOXQ_DATABASE_URL": database.url, "PYTHONUNBUFFERED": "1"}
    with forked.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        try:
            yield running
        finally:
            running.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
@pytest.mark.in_turn
def test_following_the_log_ends_cleanly_at_a_signal(database, number):
    with following(database, "--json", "--cursor", "start", "--show-cursor") as running:
        for _ in range(2):  # the second task is enqueued while the command is following
            task_id = failed(database)
            seen = [json.loads(running.stdout.readline()) for _ in range(3)]
            assert {one["task_execution_id"] for one in seen} == {task_id}
        running.send_signal(number)
        rest, said = running.communicate(timeout=60)
    assert (running.returncode, rest) == (0, "")
    assert TailCursor.parse(said.strip()).sequence_num == seen[-1]["sequence_num"]


@pytest.mark.in_turn
def test_following_one_task_prints_only_its_history(database):
    task_id = failed(database)
    with following(database, "--task", task_id) as running:
        seen = [running.stdout.readline().split("\t")[1] for _ in range(4)]
        database.add(database.store)
        database.store.discard(database.store.find(task_id))
        seen.append(running.stdout.readline().split("\t")[1])
        running.terminate()
        assert running.wait(timeout=60) == 0
    assert seen == ["event", "task_created", "task_claimed", "task_failed", "task_discarded"]


@pytest.mark.parametrize("last", [0, 1, 2, None])
def test_following_a_task_begins_with_its_newest_events(database, last):
    task_id = database.store.find(failed(database))

    class Discards(Stop):
        def wait(self, seconds):
            if not self.is_wanted:
                database.store.discard(task_id)
                self.is_wanted = True
                return False
            return True

    seen = [[one.event_type for one in batch] for batch in log._of_task(database.store, task_id, last, Discards())]
    before = ["task_created", "task_claimed", "task_failed"]
    assert seen == [before if last is None else before[3 - last :], ["task_discarded"]]


def test_a_signal_ends_a_wait_and_a_second_signal_ends_the_block():
    """On PostgreSQL, an exception during a statement would leave the connection unusable, and the query would be repeated."""
    went_on = []
    with until_stopped() as stop:
        signal.raise_signal(signal.SIGINT)
        went_on.append(stop.wait(3600))  # returns immediately
    with until_stopped():
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)  # a second signal ends the block at any point
        went_on.append("after a second signal")
    assert went_on == [True]


def test_a_cursor_by_time_or_number_is_before_the_events_it_selects(database):
    store = database.store
    assert store.log.tail(store.log.tail_since(store.now()))[0] == []  # the log is empty
    ids = [database.add(store, delay=HOUR).id for _ in range(3)]

    def read(cursor):
        return [event.task_execution_id for event in store.log.tail(cursor)[0]]

    assert read(store.log.tail_last(2)) == ids[1:]
    assert read(store.log.tail_last(2**40)) == ids
    assert read(store.log.tail_since(store.now())) == ids  # within the leeway
    assert read(store.log.tail_since(store.now() + HOUR)) == []
    for wrong in (lambda: store.log.tail_last(-1), lambda: store.log.tail_since(store.now().replace(tzinfo=None))):
        with pytest.raises(InvalidArgument):
            wrong()


def test_the_requested_number_of_newest_events_is_read_despite_gaps_in_the_log(database):
    store = database.frozen
    first = database.add(delay=1000 * HOUR).id
    for _ in range(3):
        store.complete(helpers.claimed(database))
    database.clock.advance(HOUR)
    last = database.add(delay=1000 * HOUR).id
    assert store.prune(0) == 3
    for count, expected in ((1, [last]), (2, [first, last]), (3, [first, last]), (0, [])):
        events, _ = store.log.tail(store.log.tail_last(count))
        assert [one.task_execution_id for one in events] == expected


@pytest.mark.parametrize("missing", ["first", "last", "middle", "most"])
def test_the_first_event_after_a_time_is_found_in_a_log_with_gaps(database, missing):
    """The log is searched by bisection, which must not be misled by the gaps that retention leaves."""
    tasks = []
    for _ in range(40):
        claim = helpers.claimed(database)
        database.frozen.complete(claim)
        tasks.append((claim.id, database.clock.now))
        database.clock.advance(60)
    chosen = {"first": tasks[:9], "last": tasks[31:], "middle": tasks[10:30], "most": tasks[:20] + tasks[21:39]}
    gone = {str(task_id) for task_id, _ in chosen[missing]}
    listed = ", ".join(f"'{name.replace('-', '') if database.name == 'sqlite' else name}'" for name in gone)
    database.run(f"DELETE FROM execution_events WHERE task_execution_id IN ({listed})")
    database.run(f"DELETE FROM task_executions WHERE id IN ({listed})")
    log = database.frozen.log
    for minutes in range(0, 44, 3):
        when = database.clock.now - timedelta(minutes=minutes)
        found = {event.task_execution_id for event in log.tail(log.tail_since(when))[0]}
        early = when - timedelta(minutes=2)  # the leeway, in which numbers and times of events may disagree
        assert found == {task_id for task_id, ended in tasks if ended >= early and str(task_id) not in gone}


# --- task history, state-at, reschedule


def test_a_history_has_one_line_for_each_event(database):
    task_id = failed(database)
    printed = outboxq(database, "task", "history", task_id).stdout.splitlines()
    assert [line.split("\t")[1] for line in printed] == ["event", "task_created", "task_claimed", "task_failed"]
    assert printed[-1].endswith("ValueError: no")
    outboxq(database, "task", "history", uuid4(), exit_code=3)


def test_state_at_shows_a_task_at_an_earlier_time(database):
    task_id = failed(database)
    created, claimed, ended = database.store.history(database.store.find(task_id))

    def at(moment):
        return json.loads(outboxq(database, "task", "state-at", task_id, moment.isoformat(), "--json").stdout)

    assert [at(one.created_at)["status"] for one in (created, claimed, ended)] == ["Ready", "Running", "Failed"]
    assert at(ended.created_at)["last_error"] == "ValueError: no"
    shown = outboxq(database, "task", "state-at", task_id, claimed.created_at.isoformat()).stdout
    assert "status\tRunning\n" in shown
    early = (created.created_at - timedelta(microseconds=1)).isoformat()
    assert "did not exist yet" in outboxq(database, "task", "state-at", task_id, early, exit_code=3).stderr
    assert "has no offset" in outboxq(database, "task", "state-at", task_id, "2026-11-23T02:30", exit_code=2).stderr
    for wrong in ("yesterday", "0001-01-01T00:00+10:00", "9999-12-31T23:59-10:00"):
        outboxq(database, "task", "state-at", task_id, wrong, exit_code=2)


def test_a_rescheduled_task_keeps_its_attempt_and_position(database):
    store = database.store
    task_id = database.add(store, partition_key="k", priority=7).id
    before = store.get(task_id)
    outboxq(database, "task", "reschedule", task_id, "--at", "2100-01-01T01:00+01:00")
    task = store.get(task_id)
    assert store.explain(task_id).due_at.isoformat() == "2100-01-01T00:00:00+00:00"
    assert (task.status, task.attempt, task.position, task.priority) == ("Ready", 1, before.position, 7)
    assert store.history(task_id)[-1].event_type is EventType.RESCHEDULED
    found = json.loads(outboxq(database, "task", "reschedule", task_id, "--in", "0s", "--json").stdout)
    assert found["id"] == str(task_id)
    (claim,) = database.claim(store=store)
    assert (claim.id, claim.attempt) == (task_id, 1)
    refused = outboxq(database, "task", "reschedule", task_id, "--in", "1h", exit_code=1)
    assert "is Running and cannot be rescheduled" in refused.stderr
    assert store.get(task_id).lease_token == claim.lease_token
    store.complete(claim)
    outboxq(database, "task", "reschedule", task_id, "--in", "1h", exit_code=1)
    for wrong in ((), ("--in", "1h", "--at", "2100-01-01T00:00Z")):
        outboxq(database, "task", "reschedule", task_id, *wrong, exit_code=2)


def test_a_dead_letter_can_be_redriven_at_a_later_time(database):
    store = database.store
    task_id = store.find(failed(database))
    outboxq(database, "task", "reschedule", task_id, "--in", "1h")
    assert (store.get(task_id).status, store.get(task_id).attempt) == ("Ready", 1)
    assert database.claim(store=store) == []
    assert HOUR * 0.9 < store.explain(task_id).due_at - store.now() <= HOUR
    assert store.dead_letters.list() == []
    assert store.verify() == []


def test_the_log_without_follow_ends_although_new_events_are_added(database, monkeypatch):
    failed(database)
    real, calls = EventLog.tail, []

    def tail(self, *arguments, **options):
        calls.append(database.add(database.store))
        assert len(calls) < 10, "each read finds another new event"
        return real(self, *arguments, **options)

    monkeypatch.setattr(EventLog, "tail", tail)
    assert len(events(outboxq(database, "log"))) >= 3
