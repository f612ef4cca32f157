"""Schedules in an application: declared on tasks, or stored at run time."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from outboxq import ConfigurationError, InvalidArgument, InvalidCall, InvalidTarget, Outbox, PayloadError, TaskContext
from outboxq.errors import ScheduleNotFound, UnknownTask
from outboxq.model import TaskStatus
from outboxq.model.schedules import CatchUp, Overlap
from tests.waiting import until

HOUR = timedelta(hours=1)


def report(region: str, days: int = 1) -> None: ...


@pytest.fixture
def outbox(database):
    outbox = Outbox(database.engine)
    outbox.task(name="report")(report)
    return outbox


@pytest.fixture
def task(outbox):
    return outbox.tasks.get("report")


def nothing_is_stored(database):
    return database.rows("SELECT name FROM task_schedules") == []


@pytest.mark.in_turn
def test_a_declared_schedule_has_the_options_of_its_task(database):
    outbox = Outbox(database.engine, version="1.2")

    @outbox.periodic(
        "30 2 * * mon-fri",
        tz="Europe/Berlin",
        args={"region": "eu"},
        overlap="skip",
        catch_up="all",
        catch_up_limit=7,
        grace=HOUR,
        jitter=60,
        ends_at=datetime(2040, 1, 1, tzinfo=UTC),
    )
    @outbox.periodic(every=HOUR, name="hourly", args=("us",))
    @outbox.task(name="report", queue="reports", priority=7, timeout=30)
    def declared(region: str) -> None: ...

    assert declared.name == "report"  # the decorators return the task
    outbox.sync_schedules()
    hourly, nightly = outbox.schedules.list()
    assert (hourly.name, hourly.rule, hourly.args, hourly.overlap) == (
        "hourly",
        "every 3600",
        '{"region":"us"}',
        "allow",
    )
    assert (nightly.name, nightly.rule, nightly.tz) == ("report", "30 2 * * MON-FRI", "Europe/Berlin")
    assert (nightly.queue, nightly.priority, nightly.timeout) == ("reports", 7, timedelta(seconds=30))
    assert (nightly.overlap, nightly.catch_up, nightly.catch_up_limit) == (Overlap.SKIP, CatchUp.ALL, 7)
    assert (nightly.grace, nightly.jitter) == (HOUR, timedelta(minutes=1))
    assert nightly.declared_by == "1.2"


@pytest.mark.in_turn
def test_a_declared_schedule_runs_and_its_handler_knows_the_tick(database):
    outbox, seen = Outbox(database.engine), []

    @outbox.periodic(every=1, name="each-second", tz="Australia/Lord_Howe")
    @outbox.task(name="tick")
    def tick(ctx: TaskContext) -> None:
        seen.append((ctx.schedule, ctx.tick))

    @outbox.task(name="plain")
    def plain(ctx: TaskContext) -> None:
        seen.append((ctx.schedule, ctx.tick))

    worker = outbox.worker(poll=0.1)
    worker.start()
    until(lambda: seen)
    worker.stop()
    name, first = seen[0]
    assert name == "each-second"
    assert first.tzinfo == ZoneInfo("Australia/Lord_Howe")
    starts_at = outbox.schedules.get("each-second").starts_at
    assert (first - starts_at) % timedelta(seconds=1) == timedelta(0)

    outbox.schedules.pause("each-second", using=outbox)
    seen.clear()
    plain.using(outbox).enqueue()
    handle = outbox.schedules.trigger("each-second", by="ada", using=outbox)
    worker = outbox.worker(poll=0.1)
    worker.start()
    made = outbox.store.get(handle.id)
    # A tick that was due before the pause may run too.
    until(lambda: {(None, None), ("each-second", made.created_at)} <= set(seen))
    worker.stop()


def test_a_schedule_that_was_removed_from_the_code_is_paused(database):
    old, new = Outbox(database.engine), Outbox(database.engine)
    kept = old.task(name="report")(report)
    old.periodic("@daily", args=("eu",))(kept)
    old.sync_schedules()
    new.task(name="report")(report)
    new.sync_schedules()
    assert "removed from the code" in old.schedules.get("report").pause_reason
    old.sync_schedules()
    assert old.schedules.get("report").paused_at is None


def test_a_schedule_whose_task_was_removed_with_it_continues_and_is_logged(database, caplog):
    """The task may belong to another program."""
    old, new = Outbox(database.engine, version="2"), Outbox(database.engine, version="3")
    old.periodic("@daily", args=("eu",))(old.task(name="report")(report))
    old.sync_schedules()
    new.task(name="other")(report)
    with caplog.at_level(logging.INFO):
        new.sync_schedules()
        assert (
            "this code does not declare the tasks of these running schedules: report; if no other program"
            in caplog.text
        )
        assert new.schedules.get("report").paused_at is None
        caplog.clear()
        new.tasks.version = "1"
        new.sync_schedules()
        assert caplog.text == "", "the newer release is responsible for the schedule"
        new.tasks.version = "3"
        new.schedules.pause("report", using=new)
        new.sync_schedules()
        assert caplog.text == ""


def test_an_older_version_does_not_change_schedules_of_a_newer_version(database):
    def release(version, rule):
        outbox = Outbox(database.engine, version=version)
        outbox.periodic(rule, args=("eu",))(outbox.task(name="report")(report))
        outbox.sync_schedules()
        return outbox.schedules.get("report").rule

    assert release("1.9", "0 1 * * *") == "0 1 * * *"
    assert release("1.10", "0 2 * * *") == "0 2 * * *"
    assert release("1.9", "0 1 * * *") == "0 2 * * *"


def test_two_schedules_with_one_name_are_refused():
    outbox = Outbox()
    one = outbox.task(name="report")(report)
    outbox.periodic("@daily", args=("eu",))(one)
    with pytest.raises(ConfigurationError, match="two schedules are called 'report'"):
        outbox.periodic("@hourly", args=("eu",))(one)
    other = outbox.task(name="other")(lambda: None)
    with pytest.raises(ConfigurationError, match="for the tasks report and other"):
        outbox.periodic("@hourly", name="report")(other)


def test_a_module_that_runs_again_replaces_its_schedules():
    outbox = Outbox()
    source = "@outbox.periodic(rule)\n@outbox.task\ndef again(): ..."
    for rule in ("@daily", "@hourly"):
        exec(compile(source, "jobs.py", "exec"), {"outbox": outbox, "rule": rule, "__name__": "jobs"})
    assert [one.rule for one in outbox.tasks.schedules] == ["0 * * * *"]


def test_wrong_uses_of_the_decorator_are_refused_with_an_explanation():
    outbox = Outbox()
    with pytest.raises(ConfigurationError, match="report is not a task.*above @outbox.task"):
        outbox.periodic("@daily")(report)
    with pytest.raises(ConfigurationError, match="takes a rule or every="):
        outbox.periodic(outbox.task(name="report")(report))
    with pytest.raises(ConfigurationError, match="declared on another Outbox"):
        outbox.periodic("@daily", args=("eu",))(Outbox().task(name="report")(report))


def test_an_unknown_option_is_refused_by_name():
    with pytest.raises(InvalidCall, match="no option 'crontab'; write the rule as the first argument"):
        Outbox().periodic(crontab="@daily")


BAD = [
    ({"rule": "61 * * * *"}, InvalidArgument, "minute is wrong"),
    ({"rule": "0 0 31 2 *"}, InvalidArgument, "never ticks"),
    ({"rule": None}, InvalidArgument, "needs a rule"),
    ({"every": HOUR}, InvalidArgument, "not both"),
    ({"rule": None, "every": -1}, InvalidArgument, "every must be"),
    ({"tz": "Europe/Berln"}, InvalidArgument, "did you mean 'Europe/Berlin'"),
    ({"grace": -1}, InvalidArgument, "grace"),
    ({"jitter": timedelta(0)}, InvalidArgument, "jitter"),
    ({"overlap": "never"}, InvalidArgument, "overlap must be one of"),
    ({"catch_up": "some"}, InvalidArgument, "catch_up must be one of"),
    ({"catch_up_limit": 0}, InvalidArgument, "catch_up_limit"),
    ({"starts_at": datetime(2030, 1, 1)}, InvalidArgument, "starts_at"),  # noqa: DTZ001
    ({"starts_at": "noon"}, InvalidArgument, "starts_at"),
    (
        {"ends_at": datetime(2030, 1, 1, tzinfo=UTC), "starts_at": datetime(2031, 1, 1, tzinfo=UTC)},
        InvalidArgument,
        "ends_at",
    ),
    ({"args": ()}, InvalidCall, "missing a required argument: 'region'"),
    ({"args": ("eu", 1, 2)}, InvalidCall, "too many positional arguments"),
    ({"args": {"region": "eu", "hours": 1}}, InvalidCall, "unexpected keyword argument 'hours'"),
    ({"args": {"region": 7}}, PayloadError, "argument region"),
    ({"args": "eu"}, InvalidCall, "a call is a tuple"),
    ({"args": 7}, InvalidCall, "a call is a tuple"),
]


@pytest.mark.in_turn
@pytest.mark.parametrize(("changes", "error", "said"), BAD, ids=lambda value: str(value)[:40])
def test_bad_input_is_refused_before_a_row_is_written(database, outbox, task, changes, error, said):
    given = {"rule": "@daily", "args": ("eu",), **changes}
    with pytest.raises(error, match=said):
        outbox.schedules.put("mine", task, using=outbox, **given)
    rule = given.pop("rule")
    with pytest.raises(error, match=said):
        outbox.periodic(rule, **given)(task)
    assert nothing_is_stored(database)
    assert outbox.tasks.schedules == []


def test_a_schedule_is_stored_in_the_transaction_of_the_caller(database, outbox, task):
    with Session(database.host) as session:
        outbox.schedules.put("mine", task, "@daily", args=("eu",), using=session)
        assert [one.name for one in outbox.schedules.list(using=session)] == ["mine"]
        session.rollback()
    assert nothing_is_stored(database)
    with Session(database.host) as session, session.begin():
        outbox.schedules.put("mine", task, "@daily", args={"region": "eu"}, using=session)
        outbox.schedules.pause("mine", reason="holiday", using=session)
    stored = outbox.schedules.get("mine")
    assert (stored.pause_reason, json.loads(stored.args), stored.declared_by) == ("holiday", {"region": "eu"}, None)


def test_a_schedule_joins_the_ambient_transaction_if_one_is_known(database):
    sessions = scoped_session(sessionmaker(database.host))
    outbox = Outbox(database.engine, session=sessions)
    task = outbox.task(name="report")(report)
    outbox.schedules.put("mine", task, "@daily", args=("eu",))
    assert [one.name for one in outbox.schedules.list()] == ["mine"]
    sessions.rollback()
    assert outbox.schedules.list() == []
    sessions.remove()


@pytest.mark.in_turn
def test_without_a_transaction_only_reading_works(outbox, task):
    with pytest.raises(InvalidTarget, match=r"schedules.put\('mine'\).*write using=session .* or using=outbox"):
        outbox.schedules.put("mine", task, "@daily", args=("eu",))
    with pytest.raises(InvalidTarget, match=r"schedules.pause\('mine'\)"):
        outbox.schedules.pause("mine")
    assert outbox.schedules.list() == []
    with pytest.raises(ScheduleNotFound, match="there is no schedule 'mine'"):
        outbox.schedules.get("mine")


@pytest.mark.in_turn
def test_a_schedule_may_name_its_task(outbox):
    assert outbox.schedules.put("mine", "report", "@daily", args=("eu",), using=outbox).task_name == "report"
    with pytest.raises(UnknownTask, match=r"raport.*did you mean .report.\?"):
        outbox.schedules.put("other", "raport", "@daily", using=outbox)


def test_a_taken_name_is_refused(outbox, task):
    outbox.schedules.put("mine", task, "@daily", args=("eu",), using=outbox)
    changed = outbox.schedules.put("mine", task, every=HOUR, args=("us",), using=outbox)
    assert changed.rule == "every 3600"
    other = outbox.task(name="other")(lambda: None)
    with pytest.raises(InvalidArgument, match="belongs to a schedule of the task report"):
        outbox.schedules.put("mine", other, "@daily", using=outbox)
    outbox.periodic("@daily", name="mine", args=("eu",))(task)
    with pytest.raises(InvalidArgument, match="was stored at run time"):
        outbox.sync_schedules()


def test_removing_a_schedule_cancels_its_ticks(outbox, task):
    outbox.schedules.put("mine", task, every=10, args=("eu",), using=outbox)
    assert outbox.schedules.ticks("mine")
    outbox.schedules.remove("mine", using=outbox)
    assert outbox.schedules.list() == []
    assert {one.status for one in outbox.store.tasks()} == {TaskStatus.CANCELLED}


def test_a_backfill_enqueues_tasks_for_past_ticks(outbox, task):
    outbox.schedules.put("mine", task, "0 * * * *", args=("eu",), using=outbox)
    now = outbox.store.now()
    span = now - 3 * HOUR, now
    planned = outbox.schedules.backfill("mine", *span, dry_run=True)
    assert len(planned) == 3
    assert outbox.store.tasks() == [] or len(outbox.store.tasks()) < 3
    assert outbox.schedules.backfill("mine", *span, using=outbox) == planned
    assert outbox.schedules.backfill("mine", *span, using=outbox) == []


def test_a_paused_schedule_can_be_resumed(outbox, task):
    outbox.schedules.put("mine", task, "0 * * * *", args=("eu",), using=outbox)
    outbox.schedules.pause("mine", using=outbox)
    assert outbox.schedules.resume("mine", using=outbox).paused_at is None


def test_next_returns_the_next_ticks_of_a_rule():
    noon = datetime(2026, 10, 24, 12, tzinfo=UTC)
    found = Outbox().schedules.next("30 2 * * *", tz="Europe/Berlin", count=2, after=noon)
    assert [str(moment) for moment in found] == ["2026-10-25 02:30:00+02:00", "2026-10-26 02:30:00+01:00"]
    assert Outbox().schedules.next(every=60, count=1, after=noon) == [noon + timedelta(minutes=1)]
    assert Outbox().schedules.next("@hourly")[0] > datetime.now(UTC)
    with pytest.raises(InvalidArgument, match="never ticks"):
        Outbox().schedules.next("0 0 31 2 *")
    with pytest.raises(InvalidArgument, match="count"):
        Outbox().schedules.next("@daily", count=0)
    with pytest.raises(InvalidArgument, match="after"):
        Outbox().schedules.next("@daily", after=datetime(2026, 1, 1))  # noqa: DTZ001


def test_retention_is_a_schedule_of_a_built_in_task(database):
    outbox = Outbox(database.engine, retention=timedelta(days=30))
    outbox.sync_schedules()
    [stored] = outbox.schedules.list()
    assert (stored.name, stored.task_name, stored.rule) == ("outboxq.retention", "outboxq.prune", "every 3600")
    assert json.loads(stored.args) == {"seconds": 30 * 86_400}
    with pytest.raises(ConfigurationError, match=r"outboxq\.prune.*one of outboxq's own tasks"):
        outbox.task(name="outboxq.prune")(report)


def test_any_worker_runs_the_prune_task_of_another_application(database):
    database.clock.now = datetime.now(UTC) - HOUR
    old = database.add()
    [claim] = database.claim()
    database.frozen.complete(claim)
    asking, other = Outbox(database.engine, retention=1), Outbox(database.engine)
    asking.sync_schedules()
    handle = asking.schedules.trigger("outboxq.retention", using=asking)
    worker = other.worker(poll=0.1)
    worker.start()
    until(lambda: database.store.get(handle.id).status is TaskStatus.COMPLETED)
    worker.stop()
    assert old.id not in {one.id for one in database.store.tasks()}


def test_a_retention_that_was_removed_from_the_code_continues_and_is_logged(database, caplog):
    Outbox(database.engine, retention=HOUR).sync_schedules()
    without = Outbox(database.engine)
    without.task(name="report")(report)
    with caplog.at_level(logging.INFO):
        without.sync_schedules()
    assert "deletes old tasks, although this code does not set a retention" in caplog.text
    assert without.schedules.get("outboxq.retention").paused_at is None
    without.schedules.pause("outboxq.retention", using=without)
    caplog.clear()
    without.sync_schedules()
    assert caplog.text == ""


@pytest.mark.parametrize("retention", [0, -1, "30 days", timedelta(days=99_999)])
def test_a_bad_retention_is_refused(retention):
    with pytest.raises(InvalidArgument, match="retention"):
        Outbox(retention=retention)
