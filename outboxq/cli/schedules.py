"""`outboxq schedule`: list, store and change schedules."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import islice
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any

import click

from ..errors import InvalidArgument
from ..model import EARLIEST, LATEST
from ..model.actions import CommandAction
from ..model.rules import describe, parse_rule, sentence_of, stands_ahead, zone_of
from ..model.schedules import HORIZON, CatchUp, NewSchedule, Overlap, Schedule
from ..model.wording import plain, plural
from ..operating.fields import REASON, checked
from ..operating.reading import read_rule, read_span, read_zone
from ..operating.verb import Noun, Outcome, with_changes
from ..operating.verbs import EDIT, REMOVE
from .changes import Exactly, changed, confirmed, yes_option
from .console import card, in_utc, json_option, merged, show, speaking_plainly, table, tell, wants_json, write_json
from .database import database_options, present_outbox
from .groups import Group
from .parameters import (
    QUEUE,
    SCHEDULE,
    SPAN,
    TASK_NAME,
    Read,
    choice_option,
    flag,
    json_reader,
    number_option,
    option,
    span_option,
)
from .verbs import add_verbs, carry_out, note_no_change, recorded, say, with_fields

if TYPE_CHECKING:
    from ..store import Store

_FARTHEST = timedelta(days=1)
_MOST = 1000


def _read_local(text: str) -> datetime:
    """Parse a time in ISO 8601. Without an offset, the result is naive and refers to the schedule's time zone."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        hint = "write it as 2026-11-23, 2026-11-23T02:30 or …+01:00"
        raise InvalidArgument(f"{text!r} is not a time; {hint}") from None
    if not EARLIEST.year < moment.year < LATEST.year:
        raise InvalidArgument(f"{text!r} is outside the years {EARLIEST.year + 1} to {LATEST.year - 1}")
    return moment


def _read_ahead(text: str) -> timedelta:
    """Parse the time span of `plant`. The span is limited, because a schedule that ticks every second has 86,400 ticks
    a day.
    """
    found = read_span(text)
    if found > _FARTHEST:
        raise InvalidArgument("the span is longer than 1d, the maximum")
    return found


RULE, MOMENT = Read("rule", read_rule), Read("time", _read_local)
tz_option = option(
    "--tz", default="UTC", show_default=True, type=Read("text", read_zone), help="IANA time zone for the rule."
)
ticks_option = number_option("-n", "--number", help="Number of ticks to print.", most=_MOST, default=5)


@click.group(cls=Group)
def schedule() -> None:
    """List, add or change schedules."""


@schedule.command("list")
@database_options
def list_(store: Store) -> None:
    """List all schedules, each with its next tick."""
    found = store.schedules.list()
    following = store.schedules.upcoming(found)
    _print(found, following, [_record(one, following[one.name]) for one in found])


@schedule.command("show")
@click.argument("name", type=SCHEDULE)
@ticks_option
@flag("--show-args", help="Also print the tasks' arguments.")
@database_options
def show_(store: Store, name: str, number: int, *, show_args: bool) -> None:
    """Print a schedule, its next ticks and its last ticks."""
    found, now = store.schedules.get(name), store.now()
    following, ticks = store.schedules.upcoming([found], number)[name], store.schedules.ticks(name, number)
    if wants_json():
        write_json(merged(_record(found, following, show_args=show_args), {"next_ticks": following, "ticks": ticks}))
        return
    card(("schedule", found.name), _lines(found, now).items())
    if show_args:
        table(("arguments", found.args), [])
    if following:
        click.echo()
        _print_moments(following, found.tz)
    click.echo()
    table(("last tick", "task id", "status"), [(one.tick, one.task_id, one.status or "deleted") for one in ticks])


@schedule.command("next")
@click.argument("rule", type=RULE)
@tz_option
@ticks_option
@option("--from", "start", type=MOMENT, help="Print the ticks after this time. Default: now.")
@json_option
def next_(rule: str, tz: str, number: int, start: datetime | None) -> None:
    """Print the next ticks of a rule. No database is needed.

    RULE is a cron expression such as "30 2 * * *", or "every 15m", which counts from now.
    """
    with speaking_plainly():
        after = datetime.now(UTC).replace(microsecond=0) if start is None else _in_zone(start, tz)
        click.echo(plain(describe(rule, tz)), err=True)
        _print_moments(islice(parse_rule(rule, tz, starts_at=after).ticks(after), number), tz)


@schedule.command()
@click.argument("name")
@click.argument("task", type=TASK_NAME)
@click.argument("rule", type=RULE)
@tz_option
@option(
    "--args",
    default="{}",
    callback=json_reader("an object", '{"days": 7}', dict),
    metavar="JSON",
    help="Arguments for each task by name, as a JSON object; - reads standard input.",
)
@option("-q", "--queue", type=QUEUE, help="Queue for the tasks.")
@number_option("--priority", help="Priority for the tasks.", least=-100, most=100)
@number_option("--max-attempts", help="Maximum number of attempts for each task.")
@span_option("--timeout", help="Timeout for each task, e.g. 5m.")
@choice_option(
    "--overlap",
    kind=Overlap,
    default=Overlap.ALLOW,
    help="How to handle a tick while the task of an earlier tick is unfinished: run it as well, wait, or skip it.",
)
@choice_option("--catch-up", kind=CatchUp, default=CatchUp.LATEST, help="Which missed ticks to run.")
@number_option("--catch-up-limit", help="Maximum number of missed ticks to run.", most=10_000, default=100)
@span_option("--grace", help="Time span after a tick during which its task may still start, e.g. 10m.")
@span_option("--jitter", help="Maximum random delay for a tick's task, e.g. 30s.")
@option("--starts-at", type=MOMENT, help="Time of the earliest tick. Default: now.")
@option("--ends-at", type=MOMENT, help="End of the schedule. There are no ticks at or after this time.")
@with_fields(REASON)
@database_options
def add(store: Store, name: str, task: str, rule: str, *, reason: str, **options: Any) -> None:
    """Store a schedule: each tick of RULE enqueues TASK.

    RULE is a cron expression such as "30 2 * * *", or "every 15m". If a schedule with this name and task exists, it is
    changed. With APP, the task's declared options are the defaults, and the arguments are checked.
    """
    _put(store, CommandAction.SCHEDULE_ADD, _new_schedule(name, task, rule, **options), reason)


@schedule.command("add-retention")
@click.argument("age", type=SPAN, metavar="AGE")
@with_fields(REASON)
@database_options
def add_retention(store: Store, age: timedelta, *, reason: str) -> None:
    """Store a schedule that deletes old tasks every hour.

    Completed and cancelled tasks are deleted once AGE, e.g. 90d, has passed since they ended. Workers that serve the
    queue `default` delete them. The schedule is called outboxq.retention; to stop deleting tasks, `remove` it.
    """
    from ..outbox import Outbox
    from ..store.numbers.maintenance_jobs import PRUNE
    from ..task.built_in import retention_schedule

    outbox = present_outbox() or Outbox()
    new = retention_schedule(outbox.tasks.get(PRUNE), age)
    _put(store, CommandAction.SCHEDULE_ADD_RETENTION, new, reason, age_seconds=age.total_seconds())


def _put(store: Store, action: CommandAction, new: NewSchedule, reason: str, **details: Any) -> None:
    """Store the schedule, record the action with these details if anything has changed, and print the schedule."""
    details = {"task": new.task_name, "rule": new.rule, "tz": new.tz, **details}
    change = partial(with_changes, store.schedules.put, new)
    found, changes = recorded(store, action, new.name, change, details=details, reason=reason, number=itemgetter(1))
    _print_one(store, found, changed=bool(changes))
    if not changes:
        click.echo(plain(f"nothing was changed: the schedule {found.name!r} already had these values"), err=True)


@schedule.command(help=EDIT.help)
@click.argument("name", type=SCHEDULE)
@with_fields(*EDIT.fields)
@database_options
def edit(store: Store, name: str, **values: Any) -> None:
    """Change a schedule. With APP, the arguments are checked against the task's function."""
    if values["args"] is not ... and (outbox := present_outbox()) is not None:
        values["args"] = checked(outbox, store.schedules.get(name).task_name, values["args"])
    carry_out(store, EDIT, name, _print_outcome, **values)


@schedule.command()
@click.argument("name", type=SCHEDULE)
@flag("--dry-run", help="Print the schedule, and delete nothing.")
@with_fields(*REMOVE.fields)
@database_options
def remove(store: Store, name: str, *, reason: str, dry_run: bool) -> None:
    """Delete a schedule.

    Planted ticks that are not due yet are cancelled. If APP declares the schedule, it is stored again by the next
    worker of APP that starts.
    """
    if dry_run:
        found = store.schedules.get(name)
        sentence = f"{found.name!r}, which enqueues {found.task_name} {sentence_of(found)}, would be deleted"
        tell(sentence, {"name": name, "removed": False})
        return
    carry_out(store, REMOVE, name, reason=reason)


@schedule.command()
@click.argument("name", type=SCHEDULE)
@option("--from", "start", type=MOMENT, required=True, help="Time of the first tick.")
@option("--to", "end", type=MOMENT, required=True, help="End of the period; a tick at this time is left out.")
@flag("--dry-run", help="Print the ticks, and enqueue nothing.")
@with_fields(REASON)
@yes_option
@database_options
def backfill(store: Store, name: str, start: datetime, end: datetime, *, reason: str, yes: bool, dry_run: bool) -> None:
    """Enqueue a task for each past tick that does not have one.

    The command asks for confirmation, because the effects of the tasks cannot be undone. Write the times in ISO 8601
    format. Times without an offset are in the schedule's time zone.
    """
    tz = store.schedules.get(name).tz
    fill = partial(store.schedules.backfill, name, _in_zone(start, tz), _in_zone(end, tz))
    if dry_run:
        ticks = fill(dry_run=True)
    else:
        what = f"ticks of the schedule {name!r} from {start} up to, but not including, {end}"
        confirmed(lambda: Exactly(number=len(fill(dry_run=True))), what, yes=yes, dry_run=False, done="enqueued")
        action, details = CommandAction.SCHEDULE_BACKFILL, {"from": _in_zone(start, tz), "to": _in_zone(end, tz)}
        ticks = recorded(store, action, name, fill, details=details, reason=reason, number=len)
    if wants_json():
        change = changed("enqueued", len(ticks), Exactly(number=len(ticks)), dry_run=dry_run)
        write_json(merged(change, {"ticks": ticks}))
        return
    _print_moments(ticks, tz)
    were = "would be" if dry_run else plural(len(ticks), "was", "were")
    click.echo(f"{len(ticks)} {plural(len(ticks), 'tick')} {were} enqueued", err=True)


@schedule.command()
@option(
    "--ahead",
    type=Read("span", _read_ahead),
    default=f"{HORIZON.total_seconds():.0f}s",
    show_default=True,
    help="How far ahead to plant ticks.",
)
@database_options
def plant(store: Store, ahead: timedelta) -> None:
    """Enqueue the tasks for upcoming ticks.

    Running workers do this automatically. Use this command if you start workers only occasionally, with --burst.
    """
    planted = store.schedules.plant(horizon=ahead)
    tell(f"{planted} {plural(planted, 'tick was', 'ticks were')} planted", {"planted": planted})


def _new_schedule(name: str, task: str, rule: str, **options: Any) -> NewSchedule:
    """Return the schedule for `add`. If there is an application, its task supplies the default options and checks the
    arguments.
    """
    from ..payload.parameters import dump_arguments
    from ..task.schedules import schedule_for

    tz, args = options.pop("tz"), options.pop("args")
    options |= {"overlap": Overlap(options["overlap"]), "catch_up": CatchUp(options["catch_up"])}
    options |= {one: _in_zone(options[one], tz) for one in ("starts_at", "ends_at") if options[one] is not None}
    of_task = {one: options.pop(one) for one in ("queue", "priority", "max_attempts", "timeout")}
    given = {one: value for one, value in of_task.items() if value is not None}
    if (outbox := present_outbox()) is None:
        stored = dump_arguments(args, name=task)
        return NewSchedule(name=name, task_name=task, rule=rule, tz=tz, args=stored, **options, **given)
    known = outbox.task_of(task)
    known.parameters.check_call((), args)
    arguments = known.parameters.load(json.dumps(args), is_new=True)
    return replace(schedule_for(known, name=name, rule=rule, tz=tz, args=arguments, **options), **given)


def _in_zone(moment: datetime, tz: str) -> datetime:
    return moment if moment.tzinfo else moment.replace(tzinfo=zone_of(tz))


def _print_outcome(store: Store, outcome: Outcome) -> None:
    if isinstance(outcome.record, Schedule):
        _print_one(store, outcome.record, changed=bool(outcome.changes))
        note_no_change(outcome)
    else:
        say(store, outcome)


def _print_one(store: Store, found: Schedule, **more: object) -> None:
    following = store.schedules.upcoming([found])
    _print([found], following, {**_record(found, following[found.name]), **more})


def _record(found: Schedule, following: Sequence[datetime], *, show_args: bool = False) -> dict[str, Any]:
    """Return the schedule in its JSON form, with its next tick and its rule in words."""
    more = {"next_tick": next(iter(following), None), "sentence": sentence_of(found)}
    return merged(found, more, without=() if show_args else ("args",))


def _print(schedules: Iterable[Schedule], following: Mapping[str, Sequence[datetime]], records: object) -> None:
    head = ("schedule", "task", "when", "next tick", "paused since", "paused because", "rule", "time zone")
    rest, rows = attrgetter("paused_at", "pause_reason", "rule", "tz"), []
    for one in schedules:
        rows.append((one.name, one.task_name, sentence_of(one), next(iter(following[one.name]), None), *rest(one)))
    show(head, rows, records=records, spare=("rule", "time zone", "paused because", "paused since", "task"))


def _print_moments(ticks: Iterable[datetime], tz: str) -> None:
    zone = zone_of(tz)
    rows = [(one, f"{one.astimezone(zone):%a %Y-%m-%d %H:%M:%S %Z}") for one in ticks]
    show(("tick", f"in {tz}"), rows, records=[{"tick": tick, "local": local} for tick, local in rows])


def _lines(found: Schedule, now: datetime) -> dict[str, object]:
    limit = f", at most {found.catch_up_limit}" if found.catch_up is CatchUp.ALL else ""
    ahead = " (by a clock that was running fast; workers use the current time)" if stands_ahead(found, now) else ""
    by = "a program, at run time" if found.declared_by is None else f"the code{f' {found.declared_by}'.rstrip()}"
    return {
        "task": found.task_name,
        "when": sentence_of(found),
        "rule": found.rule,
        "time zone": found.tz,
        "queue": found.queue,
        "overlap": found.overlap,
        "catch-up": f"{found.catch_up}{limit}",
        "grace": found.grace,
        "jitter": found.jitter,
        "starts": in_utc(found.starts_at),
        "ends": in_utc(found.ends_at),
        "stored by": by,
        "planted until": f"{in_utc(found.planted_until)}{ahead}",
        "paused since": in_utc(found.paused_at),
        "paused because": found.pause_reason,
    }


add_verbs(schedule, Noun.SCHEDULE, _print_outcome)
