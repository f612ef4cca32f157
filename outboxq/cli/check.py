"""`outboxq check`: exit code 1 where something needs attention, for cron, Nagios and Kubernetes."""

from __future__ import annotations

import sys
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from ..model.unknown_options import no_queue
from ..model.wording import plain
from .console import EXIT_NOT_FOUND, fail, merged, wants_json, write_json
from .database import database_options, front_end
from .parameters import SPAN, span_option

if TYPE_CHECKING:
    from ..store import Store
    from ..store.numbers.health import Problem

EXIT_PROBLEM = 1


def _optional_span(context: click.Context, parameter: click.Parameter, value: str | None) -> timedelta | str | None:
    return value if value in {None, "none"} else SPAN.convert(value, parameter, context)


def _optional_number(_context: click.Context, _parameter: click.Parameter, value: str | None) -> int | str | None:
    if value in {None, "none"}:
        return value
    if not str(value).isascii() or not str(value).isdecimal() or len(str(value)) > 9:
        raise click.BadParameter("write a whole number of at least 0, or none")
    return int(str(value))


@click.command()
@click.option(
    "--max-age",
    "oldest",
    callback=_optional_span,
    metavar="SPAN",
    help="Longest time that a task may be due. Default: 5m. `none`: do not ask.",
)
@click.option(
    "--max-failed",
    "failed",
    callback=_optional_number,
    metavar="NUMBER",
    help="Maximum number of dead letters within --failed-within. Default: 0. `none`: do not ask.",
)
@span_option("--failed-within", help="Time span of --max-failed. Default: 1h.")
@click.option(
    "--max-lateness",
    "schedule_overdue",
    callback=_optional_span,
    metavar="SPAN",
    help="Longest time by which a schedule may be overdue. Default: 1m. `none`: do not ask.",
)
@click.option(
    "--clocks/--no-clocks",
    "schedule_ahead",
    default=True,
    help="Ask whether a clock that was ahead has planted a schedule.",
)
@click.option(
    "--workers/--no-workers", "no_worker", default=True, help="Ask whether a worker is live where tasks are due."
)
@click.option("--keys/--no-keys", "key_held", default=True, help="Ask whether tasks wait behind a dead letter.")
@click.option("--names/--no-names", "unknown_task", default=True, help="Ask whether workers know all waiting tasks.")
@click.option("--batches/--no-batches", "batch_unclosed", default=True, help="Ask whether a batch was left unclosed.")
@click.option("--pauses/--no-pauses", "queue_paused", default=False, help="Ask whether a queue is paused. Default: no.")
@click.option("-q", "--queue", "queues", multiple=True, help="Only problems of this queue. May be repeated.")
@database_options
def check(store: Store, *, queues: tuple[str, ...], **limits: Any) -> None:
    """Print what needs attention; exit with 1 if anything does.

    Each problem is one line, with the commands that help. The exit code is 0 if all is well, 3 if there is no queue of that name,
    and 69, 77 or 4 if the database cannot be asked.
    """
    from ..store.numbers.health import OF_SCHEDULES, HealthLimits

    given: dict[str, Any] = {
        name: None if value == "none" else value for name, value in limits.items() if value is not None
    }
    found = store.health(replace(HealthLimits(), **given))
    if queues:
        known = [one.queue for one in store.queues.list()]
        for name in queues:
            # For a mistyped name, all would be well for ever.
            if name not in known and not store.queues.is_known(name):
                fail(no_queue(name, known), EXIT_NOT_FOUND)
        found = [one for one in found if one.rule not in OF_SCHEDULES and one.subject in queues]
    typed = front_end("check").typed
    if wants_json():
        write_json([_record(one, typed) for one in found])
    else:
        for one in found:
            cures = "; ".join(f"to {cure.purpose}: {typed(cure.command)}" for cure in one.cures)
            click.echo(plain(f"{one.rule}: {one.sentence}{f' ({cures})' if cures else ''}"))
        if not found:
            click.echo("all is well")
    sys.exit(EXIT_PROBLEM if found else 0)


def _record(problem: Problem, typed: Any) -> dict[str, Any]:
    cures = [{"purpose": one.purpose, "command": typed(one.command)} for one in problem.cures]
    return merged(problem, {"cures": cures})
