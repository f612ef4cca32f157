"""`outboxq schedule`: its output, the stored schedules and the exit codes."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime, timedelta

import pytest
from click.testing import CliRunner, Result

from outboxq.cli import main
from outboxq.model.schedules import CatchUp, NewSchedule, Overlap

HEAD = ["schedule", "task", "when", "next tick", "paused since", "paused because", "rule", "time zone"]
APPLICATION = """
from outboxq import Outbox

outbox = Outbox()


@outbox.task(name="shop.report", queue="reports", priority=3, timeout=60)
def report(days: int) -> None: ...
"""


@pytest.fixture
def application(tmp_path, monkeypatch):
    """Make a module `shop_app` importable in this process."""
    (tmp_path / "shop_app.py").write_text(APPLICATION)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "shop_app"
    sys.modules.pop("shop_app", None)


def outboxq(database, *arguments: object, exit_code: int = 0) -> Result:
    words = ["schedule", *map(str, arguments)]
    environment = {} if database is None else {"OUTBOXQ_DATABASE_URL": database.url}
    result = CliRunner().invoke(main, words, env=environment, catch_exceptions=False)
    assert result.exit_code == exit_code, result.output
    return result


def cells(result: Result) -> list[list[str]]:
    return [line.split("\t") for line in result.stdout.splitlines()]


def add(database, *options: object, name="nightly", task="shop.report", rule="30 2 * * *", **more) -> Result:
    return outboxq(database, "add", name, task, rule, *options, **more)


# -- next --------------------------------------------------------------------------------------------------------------


def test_next_needs_no_database_and_shows_the_ticks_in_both_zones():
    result = outboxq(None, "next", "30 2 * * *", "--tz", "Europe/Berlin", "-n", 3, "--from", "2026-03-27T12:00")
    assert cells(result) == [
        ["tick", "in Europe/Berlin"],
        ["2026-03-28 01:30:00+00:00", "Sat 2026-03-28 02:30:00 CET"],
        ["2026-03-29 01:00:00+00:00", "Sun 2026-03-29 03:00:00 CEST"],
        ["2026-03-30 00:30:00+00:00", "Mon 2026-03-30 02:30:00 CEST"],
    ]
    assert result.stderr == "At 02:30 every day (Europe/Berlin)\n"


@pytest.mark.parametrize(
    ("rule", "first"), [("every 15m", "12:15:00"), ("every 900", "12:15:00"), ("@hourly", "13:00:00")]
)
def test_next_also_accepts_an_interval_or_a_named_rule(rule, first):
    (_, (tick, _)) = cells(outboxq(None, "next", rule, "-n", 1, "--from", "2026-11-23T12:00+00:00"))
    assert tick == f"2026-11-23 {first}+00:00"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["* * * *"], "it has 4 fields, not five"),
        (["0 0 31 2 *"], "never ticks"),
        (["every 1x"], "write a span such as 90d"),
        (["every 0"], "at least 1"),
        (["0 0 * * *", "--tz", "Europe/Berln"], "did you mean 'Europe/Berlin'?"),
        (["0 0 * * *", "--from", "tomorrow"], "'tomorrow' is not a time"),
        (["0 0 * * *", "--from", "9999-12-31", "--tz", "Asia/Tokyo"], "is outside the years"),
        (["every 15m", "--from", "0001-01-01T00:00+14:00"], "is outside the years"),
    ],
)
def test_an_invalid_rule_zone_or_time_is_a_usage_error(options, sentence):
    assert sentence in outboxq(None, "next", *options, exit_code=2).stderr


# -- add and list ------------------------------------------------------------------------------------------------------


def test_a_schedule_is_added_listed_and_changed(database):
    head, row = cells(add(database, "--tz", "Europe/Berlin", "--args", '{"days": 7}', "--grace", "1h"))
    assert head == HEAD
    assert row[:3] == ["nightly", "shop.report", "At 02:30 every day (Europe/Berlin)"]
    assert row[4:] == ["", "", "30 2 * * *", "Europe/Berlin"]
    tick = datetime.fromisoformat(row[3])
    assert timedelta(0) < tick - datetime.now(UTC) <= timedelta(days=1, hours=1)
    assert cells(outboxq(database, "list")) == [head, row]
    stored = database.store.schedules.get("nightly")
    assert (json.loads(stored.args), stored.grace, stored.declared_by) == ({"days": 7}, timedelta(hours=1), None)
    (_, changed) = cells(add(database, rule="every 15m"))
    assert changed[2] == "Every 15 minutes, counted from the schedule's start"
    assert [one.rule for one in database.store.schedules.list()] == ["every 900"]


@pytest.mark.in_turn
def test_every_option_of_add_is_stored(database):
    add(
        database,
        *("--tz", "America/New_York", "-q", "reports", "--priority", -5, "--max-attempts", 2, "--timeout", "5m"),
        *("--overlap", "skip", "--catch-up", "all", "--catch-up-limit", 7, "--grace", "10m", "--jitter", "30s"),
        *("--starts-at", "2030-01-01", "--ends-at", "2031-01-01T00:00+00:00"),
    )
    found = database.store.schedules.get("nightly")
    assert (found.queue, found.priority, found.max_attempts, found.timeout) == ("reports", -5, 2, timedelta(minutes=5))
    assert (found.overlap, found.catch_up, found.catch_up_limit) == (Overlap.SKIP, CatchUp.ALL, 7)
    assert (found.grace, found.jitter) == (timedelta(minutes=10), timedelta(seconds=30))
    assert found.starts_at == datetime(2030, 1, 1, 5, tzinfo=UTC), "midnight in the zone of the rule"
    assert found.ends_at == datetime(2031, 1, 1, tzinfo=UTC)


@pytest.mark.in_turn
def test_the_application_supplies_the_task_options_and_checks_the_arguments(database, application):
    add(database, "--args", '{"days": 7}', "--priority", 5, application)
    found = database.store.schedules.get("nightly")
    assert (found.queue, found.priority, found.timeout, found.args) == (
        "reports",
        5,
        timedelta(seconds=60),
        '{"days":7}',
    )
    wrong = [
        (["--args", '{"days": 7, "weeks": 7}'], "unexpected keyword argument 'weeks'; its parameters are: days"),
        (["--args", '{"days": "seven"}'], "days"),
        ([], "missing a required argument: 'days'; its parameters are: days"),
    ]
    for options, word in wrong:
        result = add(database, *options, application, name="other", exit_code=1)
        assert word in result.stderr
    assert "'shop.raport' is not registered" in add(database, application, task="shop.raport", exit_code=3).stderr
    assert [one.name for one in database.store.schedules.list()] == ["nightly"]


@pytest.mark.in_turn
def test_retention_is_a_schedule_like_any_other(database):
    (_, row) = cells(outboxq(database, "add-retention", "90d"))
    assert row[:3] == ["outboxq.retention", "outboxq.prune", "Every hour, counted from the schedule's start"]
    assert json.loads(database.store.schedules.get("outboxq.retention").args) == {"seconds": 90 * 86_400}
    outboxq(database, "add-retention", "30d")
    assert json.loads(database.store.schedules.get("outboxq.retention").args) == {"seconds": 30 * 86_400}
    assert "at least a second" in outboxq(database, "add-retention", "1ms", exit_code=1).stderr
    assert outboxq(database, "remove", "outboxq.retention").stdout.endswith(
        " was removed; planted ticks that were not due yet are cancelled\n"
    )


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("options", "code", "sentence"),
    [
        (["--args", "[7]"], 2, "write an object as JSON"),
        (["--args", "{"], 2, "write an object as JSON"),
        (["--args", "[" * 5000], 2, "write an object as JSON"),
        (["--args", '{"a": NaN}'], 1, "arguments.a"),
        (["--starts-at", "9999-12-31"], 2, "is outside the years"),
        (["--grace", "-1s"], 2, "write a span such as 90d"),
        (["--overlap", "never"], 2, "'never' is not one of"),
        (["--ends-at", "2000-01-01", "--starts-at", "2001-01-01"], 1, "must come after"),
    ],
)
def test_an_invalid_schedule_is_refused_before_a_row_is_written(database, options, code, sentence):
    assert sentence in add(database, *options, exit_code=code).stderr
    assert database.store.schedules.list() == []


@pytest.mark.in_turn
def test_a_name_used_for_another_task_is_refused(database):
    add(database)
    assert "belongs to a schedule of the task shop.report" in add(database, task="shop.other", exit_code=1).stderr


@pytest.mark.in_turn
def test_an_unreadable_schedule_does_not_hide_other_schedules(database):
    add(database)
    add(database, name="odd")
    database.run("UPDATE task_schedules SET tz = 'Moon/Base' WHERE name = 'odd'")
    database.corrupted = True
    _, nightly, odd = cells(outboxq(database, "list"))
    assert nightly[3] != ""
    assert (odd[2].partition(":")[0], odd[3]) == ("cannot be read by this process", "")


# -- show --------------------------------------------------------------------------------------------------------------


def test_show_prints_the_next_ticks_and_the_status_of_the_last_ones(database):
    add(database, "--args", '{"days": 7}', "--starts-at", "2080-01-01")
    outboxq(database, "backfill", "nightly", "--from", "2026-11-20", "--to", "2026-11-22", "--yes")
    result = outboxq(database, "show", "nightly", "-n", 2)
    lines, following, last = (block.splitlines() for block in result.stdout.split("\n\n"))
    assert lines[:3] == ["schedule\tnightly", "task\tshop.report", "when\tAt 02:30 every day (UTC)"]
    assert [line.split("\t")[0] for line in following] == [
        "tick",
        "2080-01-01 02:30:00+00:00",
        "2080-01-02 02:30:00+00:00",
    ]
    ticks = [line.split("\t") for line in last]
    assert [(tick, status) for tick, _, status in ticks] == [
        ("last tick", "status"),
        ("2026-11-21 02:30:00+00:00", "Ready"),
        ("2026-11-20 02:30:00+00:00", "Ready"),
    ]
    task = database.store.get(database.store.find(ticks[1][1]))
    assert task.task_name == "shop.report"
    assert "days" not in result.output, "arguments are printed only if asked for"
    assert '{"days":7}' in outboxq(database, "show", "nightly", "--show-args").stdout


@pytest.mark.in_turn
def test_show_prints_the_reason_of_a_pause_and_no_next_tick(database, monkeypatch):
    monkeypatch.setenv("OUTBOXQ_OPERATOR", "ann")
    add(database)
    (_, row) = cells(outboxq(database, "pause", "nightly", "--reason", "stock-taking"))
    assert (row[3], row[4] > "2026") == ("", True)
    text = outboxq(database, "show", "nightly").stdout
    assert "paused because\tstock-taking (by ann on the command line)\n" in text
    [_, line] = cells(outboxq(database, "list"))
    assert line[HEAD.index("paused because")] == "stock-taking (by ann on the command line)"
    assert "in UTC" not in text
    (_, row) = cells(outboxq(database, "resume", "nightly"))
    assert (row[3] > "2026", row[4]) == (True, "")
    assert "paused" not in outboxq(database, "show", "nightly").stdout


# -- changes -----------------------------------------------------------------------------------------------------------


def test_trigger_prints_the_id_of_the_task(database):
    add(database)
    outboxq(database, "pause", "nightly")
    task_id = outboxq(database, "trigger", "nightly").stdout.strip()
    assert database.store.get(database.store.find(task_id)).task_name == "shop.report"


def test_a_removed_schedule_is_no_longer_listed(database):
    add(database)
    assert outboxq(database, "remove", "nightly").stdout.endswith(
        " was removed; planted ticks that were not due yet are cancelled\n"
    )
    assert cells(outboxq(database, "list")) == [HEAD]


@pytest.mark.in_turn
@pytest.mark.parametrize("command", ["show", "remove", "pause", "resume", "trigger", "backfill"])
def test_an_unknown_schedule_is_reported(database, command):
    span = ("--from", "2026-01-01", "--to", "2026-01-02") if command == "backfill" else ()
    result = outboxq(database, command, "weekly", *span, exit_code=3)
    assert result.stderr.startswith("outboxq: there is no schedule 'weekly'")


def test_a_backfill_has_a_dry_run_and_uses_the_zone_of_the_schedule(database):
    add(database, "--tz", "Europe/Berlin")
    span = ("--from", "2026-11-20T02:30", "--to", "2026-11-22T02:30")
    tried = outboxq(database, "backfill", "nightly", *span, "--dry-run")
    assert [tick for tick, _ in cells(tried)[1:]] == ["2026-11-20 01:30:00+00:00", "2026-11-21 01:30:00+00:00"]
    assert tried.stderr == "2 ticks would be enqueued\n"
    assert database.store.schedules.ticks("nightly") == []
    assert "--yes" in outboxq(database, "backfill", "nightly", *span, exit_code=2).stderr
    done = outboxq(database, "backfill", "nightly", *span, "--yes")
    assert (done.stdout, done.stderr) == (tried.stdout, "2 ticks were enqueued\n")
    assert len(database.store.schedules.ticks("nightly")) == 2
    assert outboxq(database, "backfill", "nightly", *span, "--yes").stderr == "0 ticks were enqueued\n"


def test_plant_plants_each_tick_once(database):
    add(database, rule="every 1h")
    assert outboxq(database, "plant").stdout == "0 ticks were planted\n"
    assert outboxq(database, "plant", "--ahead", "3h").stdout == "3 ticks were planted\n"
    assert outboxq(database, "plant", "--ahead", "3h").stdout == "0 ticks were planted\n"
    assert "longer than 1d" in outboxq(database, "plant", "--ahead", "2d", exit_code=2).stderr


# -- a clock that was ahead --------------------------------------------------------------------------------------------


def test_list_and_show_print_the_next_tick_and_report_a_clock_that_was_ahead(database):
    """Under that clock, the next tick has run early."""
    now = datetime.now(UTC).replace(microsecond=0)
    database.clock.now = now
    database.frozen.schedules.put(NewSchedule(name="hourly", task_name="tests.work", rule="every 3600"))
    database.clock.advance(timedelta(hours=1, minutes=30))
    database.frozen.schedules.plant()
    for claim in database.claim(10):
        database.frozen.complete(claim)
    database.clock.now = now
    second = str(now + timedelta(hours=2))
    [_, line] = cells(outboxq(database, "list"))
    assert line[3] == second
    shown = outboxq(database, "show", "hourly").stdout
    assert "by a clock that was running fast; workers use the current time" in shown
    [found] = json.loads(outboxq(database, "list", "--json").stdout)
    assert datetime.fromisoformat(found["next_tick"]) == now + timedelta(hours=2)
    outboxq(database, "plant")
    assert "clock" not in outboxq(database, "show", "hourly").stdout
    assert cells(outboxq(database, "list"))[1][3] == second


# -- edit --------------------------------------------------------------------------------------------------------------


def test_edit_changes_the_given_values_and_keeps_the_rest(database):
    add(database, "--args", '{"days": 7}', "--priority", 4, "--grace", "5m")
    outboxq(database, "edit", "nightly", "--rule", "every 1h", "--grace", "none", "--args", '{"days": 9}')
    found = database.store.schedules.get("nightly")
    assert (found.rule, found.args, found.grace, found.priority) == ("every 3600", '{"days":9}', None, 4)
    assert "give at least one value" in outboxq(database, "edit", "nightly", exit_code=2).stderr
    again = outboxq(database, "edit", "nightly", "--rule", "every 1h")
    assert again.stderr == "nothing was changed: the schedule 'nightly' already had these values\n"


def test_edit_checks_the_arguments_against_the_task_of_the_application(database, application):
    add(database, "--args", '{"days": 7}')
    app = ("--app", f"{application}:outbox")
    wrong = outboxq(database, "edit", "nightly", "--args", '{"day": 9}', *app, exit_code=1)
    assert "unexpected keyword argument 'day'; its parameters are: days; did you mean 'days'?" in wrong.stderr
    assert database.store.schedules.get("nightly").args == '{"days":7}'
