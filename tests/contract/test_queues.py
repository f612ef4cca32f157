"""A queue's settings (paused, limited, ordered) are stored separately and deleted once all are the default."""

from __future__ import annotations

from datetime import timedelta

import pytest

from outboxq.errors import InvalidArgument
from outboxq.store import QueueSettings
from tests.contract import helpers

MINUTE = timedelta(minutes=1)


def said(database):
    return {one.queue: one for one in database.frozen.queues.settings()}


def test_a_new_queue_has_no_settings(database):
    database.add()
    assert database.frozen.queues.settings() == []


def test_a_repeated_pause_keeps_its_start_time_and_a_resume_deletes_it(database):
    noon = database.clock.now
    assert database.frozen.queues.pause("mail", create=True).paused_at == noon
    database.clock.advance(60)
    assert database.frozen.queues.pause("mail", create=True).paused_at == noon
    assert said(database)["mail"] == QueueSettings(queue="mail", paused_at=noon, updated_at=database.clock.now)
    assert database.frozen.queues.resume("mail").paused_at is None
    assert said(database) == {}
    database.add(queue="mail")
    assert database.frozen.queues.resume("mail").paused_at is None
    assert said(database) == {}


def test_each_setting_is_changed_without_affecting_the_others(database):
    store = database.frozen
    store.queues.limit("mail", concurrency=3, create=True)
    store.queues.limit("mail", rate=(100, MINUTE), create=True)
    store.queues.pause("mail", create=True)
    store.queues.order("mail", fair=False, create=True)
    store.queues.limit("other", rate=(5, 0.5), create=True)
    expected = QueueSettings(
        queue="mail",
        paused_at=database.clock.now,
        concurrency=3,
        rate=(100, MINUTE),
        fair=False,
        updated_at=database.clock.now,
    )
    assert said(database)["mail"] == expected
    assert said(database)["other"].rate == (5, timedelta(seconds=0.5))
    store.queues.resume("mail")
    store.queues.limit("mail", concurrency=None, create=True)
    left = said(database)["mail"]
    assert (left.paused_at, left.concurrency, left.rate, left.fair) == (None, None, (100, MINUTE), False)
    store.queues.limit("mail", concurrency=1, rate=None, create=True)
    assert store.queues.order("mail", fair=True, create=True).concurrency == 1
    assert said(database)["mail"].rate is None
    store.queues.limit("mail", concurrency=None, create=True)
    assert list(said(database)) == ["other"]


def test_a_different_rate_starts_with_a_full_bucket_and_the_same_rate_does_not(database):
    store = database.frozen
    store.queues.limit("mail", rate=(10, MINUTE), create=True)
    database.run("UPDATE queue_settings SET rate_full_at = '2030-01-01T12:00:30.000000+00:00'")
    full = lambda: database.rows("SELECT rate_full_at IS NULL FROM queue_settings") == [(1,)]  # noqa: E731
    store.queues.limit("mail", rate=(10, 60), create=True)
    store.queues.limit("mail", concurrency=2, create=True)
    store.queues.pause("mail", create=True)
    assert not full()
    store.queues.limit("mail", rate=(11, 60), create=True)
    assert full()


def test_a_rollback_by_the_caller_undoes_the_settings(database):
    with helpers.transaction(database) as connection:
        database.frozen.queues.pause("mail", using=connection, create=True)
        database.frozen.queues.limit("mail", rate=(1, 1), using=connection, create=True)
        connection.rollback()
        assert said(database) == {}
        connection.begin()
        database.frozen.queues.limit("mail", rate=(1, 1), using=connection, create=True)
        connection.commit()
    assert list(said(database)) == ["mail"]


def test_simultaneous_changes_of_settings_are_all_kept(database):
    store = database.frozen
    for _ in range(3):
        done = helpers.at_once(
            lambda: store.queues.pause("mail", create=True),
            lambda: store.queues.limit("mail", concurrency=4, create=True),
            lambda: store.queues.limit("mail", rate=(7, MINUTE), create=True),
            lambda: store.queues.order("mail", fair=False, create=True),
        )
        assert all(isinstance(one, QueueSettings) for one in done), done
        (kept,) = store.queues.settings()
        assert (kept.paused_at is None, kept.concurrency, kept.rate, kept.fair) == (False, 4, (7, MINUTE), False)
        helpers.at_once(
            lambda: store.queues.resume("mail"),
            lambda: store.queues.limit("mail", concurrency=None, rate=None, create=True),
            lambda: store.queues.order("mail", fair=True, create=True),
        )
        assert store.queues.settings() == []


@pytest.mark.parametrize(
    ("call", "wakes"),
    [
        (lambda store: store.queues.pause("mail", create=True), []),
        (lambda store: store.queues.resume("mail"), ["mail"]),
        (lambda store: store.queues.limit("mail", concurrency=9, create=True), ["mail"]),
        (lambda store: store.queues.order("mail", fair=False, create=True), ["mail"]),
    ],
    ids=["pause", "resume", "limit", "order"],
)
def test_every_change_that_may_let_tasks_start_wakes_workers(database, monkeypatch, call, wakes):
    database.frozen.queues.limit("mail", concurrency=7, create=True)
    told = helpers.woken(database.frozen, monkeypatch)
    call(database.frozen)
    assert told == wakes


@pytest.mark.parametrize(
    ("operation", "arguments", "options"),
    [
        ("pause", [""], {}),
        ("pause", [None], {}),
        ("resume", ["nul \0"], {}),
        ("limit", ["mail"], {}),
        ("limit", ["mail"], {"concurrency": 0}),
        ("limit", ["mail"], {"concurrency": True}),
        ("limit", ["mail"], {"concurrency": 2**31}),
        ("limit", ["mail"], {"rate": 5}),
        ("limit", ["mail"], {"rate": (0, MINUTE)}),
        ("limit", ["mail"], {"rate": (1, 0)}),
        ("limit", ["mail"], {"rate": (1, timedelta(days=9999))}),
        ("limit", ["mail"], {"rate": (1, "soon")}),
        ("order", ["mail"], {"fair": "yes"}),
    ],
)
def test_invalid_arguments_are_refused(sqlite, operation, arguments, options):
    with pytest.raises(InvalidArgument):
        getattr(sqlite.frozen.queues, operation)(*arguments, **options)
    assert sqlite.frozen.queues.settings() == []
