"""Cron monitors in Sentry: the check-ins of ticks, and how the rules and names of schedules are translated."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from outboxq import Cancel, InvalidArgument, RetryPolicy, Snooze, TaskContext
from outboxq.contrib.sentry import SentryHook, schedule_of, slug_of
from outboxq.model.schedules import NewSchedule

pytestmark = pytest.mark.in_turn

TWICE = RetryPolicy(max_attempts=2, wait=timedelta(0))
LAST_YEAR = datetime(2025, 1, 1, tzinfo=UTC)


def run_tick(ours, task, rule="30 2 * * *", **fields):
    """Run the task of one tick of a new schedule, and a task that a person has triggered."""
    schedules = ours.store.schedules
    schedules.put(NewSchedule(name="Nightly report", task_name=task.name, rule=rule, **fields))
    ticks = schedules.backfill("Nightly report", LAST_YEAR, LAST_YEAR + timedelta(days=1))
    schedules.trigger("Nightly report")
    ours.worker().run(burst=True)
    return ticks


def test_a_tick_is_one_check_in_from_its_first_attempt_to_its_end(outbox, sentry):
    sent, ours = sentry(), outbox(SentryHook(monitor_schedules=True, checkin_margin=120))

    @ours.task(name="shop.nightly", retry=TWICE)
    def nightly(ctx: TaskContext) -> None:
        if ctx.attempt == 1:
            raise ConnectionError("the bank is away")

    run_tick(ours, nightly, timeout=timedelta(seconds=90), tz="Europe/Berlin")
    first, again, end = sent.of("check_in")
    assert {one["monitor_slug"] for one in (first, again, end)} == {"nightly-report"}
    assert len({one["check_in_id"] for one in (first, again, end)}) == 1
    assert [one["status"] for one in (first, again, end)] == ["in_progress", "in_progress", "ok"]
    assert end["duration"] >= 0
    assert first["monitor_config"] == {
        "schedule": {"type": "crontab", "value": "30 2 * * *"},
        "timezone": "Europe/Berlin",
        "checkin_margin": 2,
        "max_runtime": 2,
    }


ENDS = [
    (ConnectionError("the bank is away"), ["in_progress", "error"]),
    (Cancel("nothing to do"), ["in_progress", "ok"]),
    (Snooze(3600), ["in_progress"]),
]


@pytest.mark.parametrize(("error", "statuses"), ENDS, ids=["fails", "cancels", "snoozes"])
def test_a_check_in_has_the_outcome_of_its_task(outbox, sentry, error, statuses):
    sent, ours = sentry(), outbox(SentryHook(monitor_schedules=True))

    @ours.task(name="shop.nightly", retry=RetryPolicy.never())
    def nightly() -> None:
        raise error

    run_tick(ours, nightly)
    assert [one["status"] for one in sent.of("check_in")] == statuses


@pytest.mark.parametrize(
    ("hook", "rule"),
    [(SentryHook(), "30 2 * * *"), (SentryHook(monitor_schedules=True), "0 30 2 * * *")],
    ids=["unasked", "a rule with seconds"],
)
def test_an_unmonitored_tick_has_no_check_in(outbox, sentry, hook, rule):
    sent, ours = sentry(), outbox(hook)

    @ours.task(name="shop.nightly")
    def nightly() -> None: ...

    assert run_tick(ours, nightly, rule)
    assert sent.of("check_in") == []
    assert len(sent.transactions) == 2


def test_an_invalid_check_in_margin_is_refused():
    with pytest.raises(InvalidArgument, match="checkin_margin takes a timedelta or seconds"):
        SentryHook(checkin_margin="5m")


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("0 6 * * 1-5", {"type": "crontab", "value": "0 6 * * 1-5"}),
        ("0 0 6 * * 1-5", None),
        ("every 900", {"type": "interval", "value": 15, "unit": "minute"}),
        ("every 7200", {"type": "interval", "value": 2, "unit": "hour"}),
        ("every 172800", {"type": "interval", "value": 2, "unit": "day"}),
        ("every 90", None),
        ("every 0.5", None),
    ],
)
def test_a_rule_is_translated_for_sentry(rule, expected):
    assert schedule_of(rule) == expected


def test_each_schedule_name_becomes_a_unique_slug():
    assert slug_of("outboxq.retention") == "outboxq-retention"
    assert slug_of("Nightly report") == "nightly-report"
    assert slug_of("tenant/7").startswith("tenant-7-")
    assert slug_of("tenant/7") != slug_of("tenant:7")
    assert len(slug_of("x" * 200)) == 50
    assert not slug_of("42").isdigit()
    assert slug_of("ÄÖ").startswith("schedule-")
