"""Dead letters are found by any of their fields, redriven or discarded only once, and then free their keys."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from outboxq.errors import InvalidArgument, InvalidTransition, TaskNotFound
from outboxq.model import EventType, NewTask, OnDeadLetter, Outcome, TaskStatus
from outboxq.model.uuid7 import uuid7
from outboxq.store.tasks import cancelling, dead_letters
from tests.contract import helpers

HOUR = timedelta(hours=1)


def died(database, *, exception="builtins.ValueError", **fields):
    """Create a dead letter, then advance the clock by a second."""
    claim = helpers.claimed(database, **fields)
    data = {"error": "ValueError: no", "exception": exception, "traceback": "Traceback …"}
    database.frozen.finish([Outcome(claim=claim, event_type=EventType.FAILED, error="ValueError: no", data=data)])
    database.clock.advance(1)
    return claim.id


def many(database, number, **fields):
    """Create dead letters that failed at the same moment."""
    rows = [NewTask(id=uuid7(), task_name="tests.work", args="{}", **fields) for _ in range(number)]
    database.frozen.enqueue_many(rows)
    claims = database.claim(number)
    assert len(claims) == number
    database.frozen.finish([Outcome(claim=claim, event_type=EventType.FAILED, error="no") for claim in claims])
    return {claim.id for claim in claims}


def held(database):
    return database.rows("SELECT partition_key, held FROM partition_claims ORDER BY partition_key")


# --- reading


def test_a_dead_letter_has_the_fields_that_an_operator_needs(database):
    task_id = died(database, queue="mail", partition_key="k", topic="order.paid", on_dead_letter=OnDeadLetter.HOLD)
    (letter,) = database.frozen.dead_letters.list()
    assert (letter.id, letter.task_name, letter.queue, letter.topic) == (
        task_id,
        "tests.work",
        "mail",
        "order.paid",
    )
    assert (letter.partition_key, letter.holds_key, letter.exception) == ("k", True, "builtins.ValueError")
    assert (letter.last_error, letter.attempt, letter.recovery_attempts) == ("ValueError: no", 1, 0)
    assert letter.failed_at == helpers.stale_by(database, 1)


def test_only_failed_tasks_are_dead_letters(database):
    helpers.claimed(database)
    database.add(delay=HOUR)
    task_id = died(database)
    assert [letter.id for letter in database.frozen.dead_letters.list()] == [task_id]
    database.frozen.redrive(task_id)
    assert database.frozen.dead_letters.list() == []


def test_dead_letters_are_listed_newest_first_and_page_by_page(database):
    ids = [died(database) for _ in range(3)] + sorted(many(database, 4))
    pages, after = [], None
    while page := database.frozen.dead_letters.list(limit=2, after=after):
        pages.append([letter.id for letter in page])
        after = page[-1].place
    assert [len(page) for page in pages] == [2, 2, 2, 1]
    assert [task_id for page in pages for task_id in page] == ids[::-1]
    assert [letter.id for letter in database.frozen.dead_letters.list()] == ids[::-1]


FILTERS = [
    ({"queue": "mail"}, {"a"}),
    ({"task": "tests.send"}, {"b"}),
    ({"topic": "order.paid"}, {"c"}),
    ({"partition_key": "k"}, {"d"}),
    ({"exception": "app.errors.Gone"}, {"e"}),
    ({"exception": "Gone"}, {"e"}),
    ({"exception": "errors.Gone"}, {"e"}),
    ({"exception": "one"}, set()),
    ({"exception": "ValueError"}, {"a", "b", "c", "d"}),
    ({"exception": "builtins.ValueError", "queue": "mail"}, {"a"}),
    ({"exception": "Gone", "queue": "mail"}, set()),
    ({"exception": "%"}, set()),
    ({"exception": "a.much.longer.name.than.any.that.was.raised"}, set()),
    ({"since": 3}, {"d", "e", "f"}),
    ({"until": 3}, {"a", "b", "c"}),
    ({"since": 1, "until": 2}, {"b"}),
    ({}, {"a", "b", "c", "d", "e", "f"}),
    ({"queue": None, "since": None}, {"a", "b", "c", "d", "e", "f"}),
]


def told_apart(database):
    """Create a dead letter for each filter, a second apart. Return the time of the first, and their names by id."""
    began = database.clock.now
    ids = {
        "a": died(database, queue="mail"),
        "b": died(database, task_name="tests.send"),
        "c": died(database, topic="order.paid"),
        "d": died(database, partition_key="k"),
        "e": died(database, exception="app.errors.Gone"),
        "f": died(database, exception=None),
    }
    return began, {task_id: name for name, task_id in ids.items()}


def test_a_filter_selects_the_same_dead_letters_in_every_operation(database):
    """Listing, redriving and discarding select the same dead letters."""
    began, names = told_apart(database)
    for filters, expected in FILTERS:
        moments = {key: began + timedelta(seconds=filters[key]) for key in ("since", "until") if filters.get(key)}
        wanted = filters | moments
        assert {names[letter.id] for letter in database.frozen.dead_letters.list(**wanted)} == expected, wanted
        with helpers.transaction(database) as connection:
            assert database.frozen.dead_letters.redrive_all(**wanted, using=connection) == len(expected), wanted
            left = {names[letter.id] for letter in database.frozen.dead_letters.list(using=connection)}
            assert left == set("abcdef") - expected
            connection.rollback()
    assert database.frozen.dead_letters.discard_all(exception="Gone") == 1
    assert database.frozen.dead_letters.discard_all(queue="none") == 0
    assert {names[letter.id] for letter in database.frozen.dead_letters.list()} == set("abcdf")


@pytest.mark.parametrize(
    ("operation", "options"),
    [
        ("list", {"limit": 0}),
        ("list", {"queue": 7}),
        ("list", {"exception": "nul \0"}),
        ("list", {"since": datetime(2030, 1, 1)}),  # noqa: DTZ001
        ("list", {"after": (datetime(2030, 1, 1), uuid4())}),  # noqa: DTZ001
        ("list", {"after": (datetime(2030, 1, 1, tzinfo=UTC), "id")}),
        ("redrive_all", {"limit": 0}),
        ("redrive_all", {"until": "now"}),
        ("discard_all", {"queues": ["mail"]}),
    ],
)
def test_invalid_filters_are_refused_before_anything_is_changed(sqlite, operation, options):
    died(sqlite)
    with pytest.raises(InvalidArgument):
        getattr(sqlite.frozen.dead_letters, operation)(**options)
    assert len(sqlite.frozen.dead_letters.list()) == 1


def test_attempts_contain_the_outcome_of_each_attempt(database):
    store = database.frozen
    claim = helpers.claimed(database)
    helpers.recovered(database, claim)
    (claim,) = database.claim()
    told = {"error": "OSError: away", "exception": "builtins.OSError", "traceback": "Traceback: away"}
    store.finish([Outcome(claim=claim, event_type=EventType.RETRY_SCHEDULED, error="OSError: away", data=told)])
    (claim,) = database.claim()
    database.clock.advance(5)
    store.fail(claim, "at last")
    store.redrive(claim.id)
    (claim,) = database.claim()
    attempts = store.attempts(claim.id)
    assert [(a.number, a.lease_token, a.outcome, a.error) for a in attempts] == [
        (1, 1, EventType.RESET, None),
        (1, 2, EventType.RETRY_SCHEDULED, "OSError: away"),
        (2, 3, EventType.FAILED, "at last"),
        (1, 4, None, None),
    ]
    assert (attempts[1].exception, attempts[1].traceback) == ("builtins.OSError", "Traceback: away")
    assert attempts[2].ended_at - attempts[2].started_at == timedelta(seconds=5)
    assert {a.worker_id for a in attempts} == {database.worker}
    assert (attempts[3].ended_at, attempts[3].started_at) == (None, claim.started_at)
    assert store.attempts(database.add().id) == []
    with pytest.raises(TaskNotFound):
        store.attempts(uuid4())


# --- redriving and discarding


def test_a_discarded_letter_is_cancelled_for_good(database):
    task_id = died(database)
    database.frozen.discard(task_id, reason="obsolete")
    task, event = database.frozen.get(task_id), database.frozen.history(task_id)[-1]
    assert (task.status, task.completed_at, task.last_error) == (
        TaskStatus.CANCELLED,
        database.clock.now,
        "ValueError: no",
    )
    assert (event.event_type, event.lease_token, event.event_data["reason"]) == ("task_discarded", None, "obsolete")
    assert database.frozen.dead_letters.list() == []
    for call in (database.frozen.discard, database.frozen.redrive, database.frozen.cancel):
        with pytest.raises(InvalidTransition):
            call(task_id)


@pytest.mark.parametrize("state", ["Ready", "Running", "Completed"])
def test_only_failed_tasks_can_be_discarded(database, state):
    handle = database.add()
    if state != "Ready":
        (claim,) = database.claim()
        if state == "Completed":
            database.frozen.complete(claim)
    before = helpers.everything(database)
    with pytest.raises(InvalidTransition, match="cannot be discarded"):
        database.frozen.discard(handle.id)
    with pytest.raises(TaskNotFound):
        database.frozen.discard(uuid4())
    assert database.frozen.dead_letters.redrive_all() == database.frozen.dead_letters.discard_all() == 0
    assert helpers.everything(database) == before


def test_all_dead_letters_are_redriven_in_batches_oldest_first(database, monkeypatch):
    monkeypatch.setattr(cancelling, "BATCH", 2)
    ids = [died(database) for _ in range(3)] + sorted(many(database, 4))
    assert database.frozen.dead_letters.redrive_all(limit=3) == 3
    assert {claim.id for claim in database.claim(9)} == set(ids[:3])
    assert [letter.id for letter in database.frozen.dead_letters.list()] == ids[:2:-1]
    assert database.frozen.dead_letters.redrive_all() == 4
    again = database.claim(9)
    assert {(claim.id, claim.attempt, claim.lease_token) for claim in again} == {(task_id, 1, 2) for task_id in ids[3:]}
    assert database.frozen.dead_letters.redrive_all() == 0
    assert all(helpers.types(database, task_id).count("task_requeued") == 1 for task_id in ids)


def test_a_task_that_fails_again_during_redrive_all_is_redriven_once(database, monkeypatch):
    monkeypatch.setattr(cancelling, "BATCH", 1)
    store = database.frozen
    ids = [died(database) for _ in range(3)]
    real = dead_letters.change_all

    def failing_at_once(*given, **options):
        moved = real(*given, **options)
        database.clock.advance(1)
        (claim,) = store.claim_ready_task(1, worker_id=database.worker)
        store.fail(claim, "again")
        return moved

    monkeypatch.setattr(dead_letters, "change_all", failing_at_once)
    assert store.dead_letters.redrive_all(limit=9) == 3
    assert {letter.id for letter in store.dead_letters.list()} == set(ids)
    assert all(helpers.types(database, task_id).count("task_requeued") == 1 for task_id in ids)


def test_only_one_of_several_simultaneous_changes_affects_a_letter(database, monkeypatch):
    monkeypatch.setattr(cancelling, "BATCH", 7)
    ids = many(database, 60)
    store = database.frozen
    moved = helpers.at_once(
        store.dead_letters.redrive_all, store.dead_letters.discard_all, store.dead_letters.redrive_all
    )
    assert all(isinstance(one, int) for one in moved), moved
    assert sum(moved) == len(ids)
    assert store.dead_letters.list() == []
    ends = database.rows(
        "SELECT count(*), count(DISTINCT task_execution_id) FROM execution_events "
        "WHERE event_type IN ('task_requeued', 'task_discarded')"
    )
    assert ends == [(60, 60)]


@pytest.mark.parametrize("operation", ["redrive_all", "discard_all"])
def test_dead_letters_are_counted_even_if_the_commit_response_is_lost(database, monkeypatch, operation):
    many(database, 3)
    assert getattr(helpers.lossy(database, monkeypatch).dead_letters, operation)() == 3
    assert database.frozen.dead_letters.list() == []


def test_a_rollback_by_the_caller_undoes_all_batches(database, monkeypatch):
    monkeypatch.setattr(cancelling, "BATCH", 2)
    many(database, 5)
    before = helpers.everything(database)
    with helpers.transaction(database) as connection:
        assert database.frozen.dead_letters.redrive_all(using=connection) == 5
        connection.rollback()
    assert helpers.everything(database) == before


def test_an_event_that_cannot_be_inserted_undoes_its_batch(database):
    many(database, 3)
    before = helpers.everything(database)
    helpers.refuse_event(database, "task_requeued")
    with pytest.raises(Exception, match="refuse"):
        database.frozen.dead_letters.redrive_all()
    assert helpers.everything(database) == before
    assert len(database.frozen.dead_letters.list()) == 3


# --- keys

FREES = {
    "redrive": lambda store, task_id: store.redrive(task_id),
    "redrive_all": lambda store, task_id: store.dead_letters.redrive_all(partition_key="k"),
    "discard": lambda store, task_id: store.discard(task_id),
    "discard_all": lambda store, task_id: store.dead_letters.discard_all(queue="default"),
    "schedule_retry": lambda store, task_id: store.schedule_retry(task_id, datetime(2031, 1, 1, tzinfo=UTC), 1),
    "prune": lambda store, task_id: store.prune(0, statuses=[TaskStatus.FAILED]),
}


@pytest.mark.parametrize("how", FREES)
def test_a_dead_letter_with_hold_keeps_its_key_until_it_is_resolved(database, monkeypatch, how):
    first = died(database, partition_key="k", on_dead_letter=OnDeadLetter.HOLD)
    second = database.add(partition_key="k")
    other = died(database, partition_key="j", on_dead_letter=OnDeadLetter.HOLD, queue="other")
    assert database.claim(9) == []
    assert [tuple(map(str, row)) for row in held(database)] in (
        [("j", "1"), ("k", "1")],
        [("j", "True"), ("k", "True")],
    )
    told = helpers.woken(database.frozen, monkeypatch)
    FREES[how](database.frozen, first)
    if how == "prune":
        assert held(database) == []
        assert {claim.id for claim in database.claim(9)} == {second.id}
        return
    assert [key for key, _ in held(database)] == ["j"]
    assert told == ["default"]
    assert database.frozen.dead_letters.list()[0].id == other
    claims = database.claim(9)
    expected = {"redrive": first, "redrive_all": first, "discard": second.id, "discard_all": second.id}
    assert [claim.id for claim in claims] == (
        [expected[how]] if how in expected else []
    )  # the head is a retry that is due in a year


def test_a_dead_letter_without_hold_does_not_keep_its_key(database):
    died(database, partition_key="k")
    second = database.add(partition_key="k")
    assert held(database) == []
    assert not database.frozen.dead_letters.list()[0].holds_key
    assert [claim.id for claim in database.claim(9)] == [second.id]


@pytest.mark.parametrize("force", [False, True])
def test_a_cancelled_task_releases_its_key(database, monkeypatch, force):
    first, second = database.add(partition_key="k"), database.add(partition_key="k")
    if force:
        assert [claim.id for claim in database.claim(9)] == [first.id]
    told = helpers.woken(database.frozen, monkeypatch)
    database.frozen.cancel(first.id, force=force)
    assert told == ["default"]
    assert [claim.id for claim in database.claim(9)] == [second.id]
