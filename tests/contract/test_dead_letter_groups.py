"""Groups of similar dead letters, and changes to a single group."""

from __future__ import annotations

from datetime import timedelta

import pytest

from outboxq.errors import InvalidArgument
from outboxq.model import EventType, Outcome
from outboxq.store import Count
from outboxq.store.tasks import cancelling
from tests.contract import helpers


def failed(database, error, *, task="mail.send", queue="mail", exception="builtins.ValueError"):
    database.clock.advance(1)
    claim = helpers.claimed(database, task_name=task, queue=queue)
    data = {"exception": exception} if exception else {}
    outcome = Outcome(claim=claim, event_type=EventType.FAILED, error=error, data=data)
    database.frozen.finish([outcome])
    return claim.id


@pytest.fixture
def several(database):
    """Create seven dead letters in four groups. Return their ids by group."""
    found = {"order": [failed(database, f"ValueError: order {number} is 'gone-{number}'") for number in (1, 23, 456)]}
    found["order"].append(failed(database, "ValueError: order 9 is 'x'\nsecond line 3", queue="sync"))
    found["task"] = [failed(database, "ValueError: order 1 is 'x'", task="mail.other")]
    found["exception"] = [failed(database, "ValueError: order 1 is 'x'", exception="shop.Gone")]
    found["none"] = [failed(database, None, exception=None)]
    return found


def test_varying_parts_of_messages_do_not_separate_groups(database, several):
    found = database.frozen.dead_letters.groups()
    assert (found.looked_at, found.is_complete) == (7, True)
    largest = found.groups[0]
    assert (largest.task_name, largest.exception) == ("mail.send", "builtins.ValueError")
    assert (largest.message, largest.count) == ("ValueError: order … is …", 4)
    assert (largest.newest, largest.queues) == (several["order"][-1], ("mail", "sync"))
    assert largest.last_failed_at - largest.first_failed_at == timedelta(seconds=3)
    assert sorted(one.count for one in found.groups) == [1, 1, 1, 4]
    assert {(one.exception, one.message) for one in found.groups[1:]} == {
        ("builtins.ValueError", "ValueError: order … is …"),
        ("shop.Gone", "ValueError: order … is …"),
        (None, ""),
    }
    assert {one.newest for one in database.frozen.dead_letters.groups(queue="sync").groups} == {several["order"][-1]}
    cut = database.frozen.dead_letters.groups(limit=2)
    assert (len(cut.groups), cut.is_complete) == (2, False)


@pytest.mark.parametrize("batch", [1, 2, 500])
def test_a_single_group_can_be_listed_counted_redriven_and_discarded(database, several, monkeypatch, batch):
    monkeypatch.setattr(cancelling, "BATCH", batch)
    letters = database.frozen.dead_letters
    groups = {one.newest: one.id for one in letters.groups().groups}
    order, other = groups[several["order"][-1]], groups[several["none"][0]]
    assert [one.id for one in letters.list(group=order)] == several["order"][::-1]
    assert [one.id for one in letters.list(group=order, limit=2)] == several["order"][:1:-1]
    assert [one.id for one in letters.list(group=order, queue="sync")] == several["order"][-1:]
    assert (letters.count(group=order), letters.count(group=order, queue="mail")) == (Count(number=4), Count(number=3))
    assert letters.groups(group=order).groups == letters.groups().groups[:1]
    assert letters.redrive_all(group=order, limit=1) == 1
    assert [one.id for one in letters.list(group=order)] == several["order"][:0:-1]
    assert letters.discard_all(group=other) == 1
    assert letters.discard_all(group="0" * 16) == 0
    assert letters.redrive_all(group=order) == 3
    assert letters.count() == Count(number=2)


@pytest.mark.parametrize("batch", [1, 2, 500])
def test_a_limit_is_reached_although_members_of_the_group_are_left_out(database, monkeypatch, batch):
    monkeypatch.setattr(cancelling, "BATCH", batch)
    keyed = {"task_name": "mail.send", "queue": "mail", "idempotency_key": "k", "unique_until_finished": True}
    database.frozen.fail(helpers.claimed(database, **keyed), "ValueError: order 1")
    later = [failed(database, f"ValueError: order {number}", exception=None) for number in (2, 3, 4)]
    database.add(**keyed)  # the first dead letter has lost its key, so it cannot be redriven
    letters = database.frozen.dead_letters
    group = letters.groups().groups[0]
    assert (group.count, letters.redrive_all(group=group.id, limit=2)) == (4, 2)
    assert [database.frozen.get(one).status for one in later] == ["Ready", "Ready", "Failed"]


def test_a_count_ends_at_its_bound(database, several):
    letters = database.frozen.dead_letters
    assert letters.count(most=3) == Count(number=3, at_least=True)
    assert letters.count(most=7) == Count(number=7)
    assert letters.count(most=2, task="mail.other") == Count(number=1)
    group = letters.groups().groups[0].id
    assert letters.count(most=5, group=group) == Count(number=2, at_least=True), "only the newest five are counted"


def test_groups_cover_the_newest_dead_letters(database, several):
    found = database.frozen.dead_letters.groups(most=3)
    assert (found.looked_at, found.is_complete) == (3, False)


def test_a_group_id_must_have_16_hex_digits(database):
    for wrong in ("", "123", "g" * 16, 7):
        with pytest.raises(InvalidArgument, match="16 hex digits"):
            database.frozen.dead_letters.list(group=wrong)


def test_progress_is_reported_after_each_batch_and_a_stop_ends_the_change(database, several, monkeypatch):
    monkeypatch.setattr(cancelling, "BATCH", 2)
    letters, told = database.frozen.dead_letters, []
    assert letters.redrive_all(on_progress=told.append, stop=lambda: bool(told)) == 2
    assert letters.discard_all(on_progress=told.append) == 5
    assert told == [2, 2, 4, 5]
    assert letters.discard_all(stop=lambda: True) == 0


def test_verify_and_prune_report_their_progress(database):
    told = []
    database.frozen.verify(on_progress=lambda done, every: told.append((done, every)))
    assert [done for done, _ in told] == list(range(1, len(told) + 1))
    assert {every for _, every in told} == {len(told)}
    for _ in range(5):
        database.frozen.complete(helpers.claimed(database))
    database.clock.advance(timedelta(days=1))
    told.clear()
    assert database.frozen.prune(timedelta(hours=1), batch=2, on_progress=told.append) == 5
    assert told == [2, 4, 5]
