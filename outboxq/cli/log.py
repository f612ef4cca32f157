"""`outboxq log`: print the events of all tasks, and follow new ones."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from datetime import datetime, timedelta
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

import click

from ..errors import InvalidArgument
from ..model import EventType, ExecutionEvent
from ..model.running import progress_of
from ..model.wording import plain, plural, short, span
from .console import merged, wants_json, write_json
from .database import database_options
from .groups import Stop, until_stopped
from .parameters import MOMENT, TASK_ID, flag, number_option, option, repeated

if TYPE_CHECKING:
    from uuid import UUID

    from ..store import Store, TailCursor

_BATCH: Final = 1000
_PAUSE: Final = 1.0
"""Seconds between two polls for new events."""
_LAST: Final = 50
_WIDEST: Final = max(len(kind) for kind in EventType)
START: Final = "start"

Batches = Iterator[Sequence[ExecutionEvent]]


@click.command()
@flag("-f", "--follow", help="Keep printing new events until Ctrl-C or SIGTERM.")
@option("--task", "task_id", type=TASK_ID, metavar="ID", help="Only events of this task.")
@repeated(
    "--event",
    "kinds",
    type=click.Choice([kind.value for kind in EventType]),
    metavar="TYPE",
    help="Only events of this type, e.g. task_failed. May be repeated.",
)
@option("--since", type=MOMENT, help="Begin at this time or this long ago, e.g. 2026-11-23T02:30Z or 10m.")
@number_option("--last", help="Begin with this many of the newest events. Default: 50; with --task, all.", least=0)
@option("--cursor", "written", metavar="CURSOR", help="Position printed by --show-cursor, or `start`.")
@flag("--show-cursor", help="When done, print to stderr the position to continue from.")
@flag("--traceback", help="With --json, also print the traceback of each failed attempt.")
@database_options
def log(
    store: Store,
    *,
    task_id: str | None,
    kinds: tuple[str, ...],
    since: datetime | timedelta | None,
    last: int | None,
    written: str | None,
    follow: bool,
    show_cursor: bool,
    traceback: bool,
) -> None:
    """Print the events of all tasks, or of one task, in order.

    Each event is printed only once, however late its transaction commits. With --json and --follow, each line is a JSON
    document. A program that stores the position printed by --show-cursor, and passes it as --cursor next time, receives
    each event exactly once.
    """
    if sum(one is not None for one in (written, since, last)) > 1:
        raise click.UsageError("give only one of --cursor, --since and --last")
    if task_id is not None and (written is not None or show_cursor):
        raise click.UsageError("--cursor and --show-cursor apply to the log of all tasks; leave --task out")
    begin = store.now() - since if isinstance(since, timedelta) else since

    def wanted(event: ExecutionEvent) -> bool:
        return (not kinds or event.event_type in kinds) and (begin is None or event.created_at >= begin)

    printed: list[TailCursor] = []
    with until_stopped() if follow else nullcontext() as stop:
        if task_id is None:
            batches = _of_all(store, _start(store, written, begin, last), printed, stop)
        else:
            batches = _of_task(store, store.get(store.find(task_id)).id, last, stop)
        _print((filter(wanted, batch) for batch in batches), follow=follow, traceback=traceback)
    if show_cursor and printed:
        click.echo(str(printed[0]), err=True)


def _start(store: Store, written: str | None, begin: datetime | None, last: int | None) -> TailCursor:
    from ..store import TailCursor

    if written is not None:
        try:
            return TailCursor() if written == START else TailCursor.parse(written)
        except InvalidArgument as error:
            raise click.BadParameter(f"{error}; or write {START}", param_hint="--cursor") from None
    return store.log.tail_last(_LAST if last is None else last) if begin is None else store.log.tail_since(begin)


def _of_all(store: Store, cursor: TailCursor, printed: list[TailCursor], stop: Stop | None) -> Batches:
    """Yield the events after the cursor. With `stop`, wait for new events until the user requests a stop. Otherwise, end
    after the events that are stored now, because workers may write new ones faster than they are read.

    `printed` is set to the position after a batch once that batch has been printed, which is when the caller requests
    the next one.
    """
    last = store.log.tail_from_now().sequence_num if stop is None else 0
    while True:
        events, cursor = store.log.tail(cursor, limit=_BATCH)
        yield events
        printed[:] = [cursor]
        if stop is None and (not events or cursor.sequence_num >= last):
            return
        if stop is not None and stop.wait(0.0 if events else _PAUSE):
            return


def _of_task(store: Store, task_id: UUID, last: int | None, stop: Stop | None) -> Batches:
    """Yield the events of one task. A task's history is short, so each poll reads all of it instead of following the
    log.
    """
    events = store.history(task_id)
    first = 0 if last is None else max(0, len(events) - last)
    seen = events[first - 1].sequence_num if first else 0
    while True:
        yield [one for one in events if one.sequence_num > seen]
        seen = max((seen, *(one.sequence_num for one in events)))
        if stop is None or stop.wait(_PAUSE):
            return
        events = store.history(task_id)


def _print(batches: Iterator[Iterable[ExecutionEvent]], *, follow: bool, traceback: bool) -> None:
    events = (one for batch in batches for one in batch)
    if wants_json():
        records = (record_of(one, show_args=False, traceback=traceback) for one in events)
        if not follow:
            write_json([*records])
            return
        for record in records:
            write_json(record, line=True)
        return
    on_terminal = sys.stdout.isatty()
    if not on_terminal:
        click.echo("time\tevent\tid\tdetails\terror")
    for one in events:
        kind, task_id, rest = one.event_type, one.task_execution_id, (details(one), one.event_data.get("error"))
        if not on_terminal:
            click.echo("\t".join(map(plain, (one.created_at, kind, task_id, *rest))))
            continue
        # The width is fixed, because later lines are not known yet.
        words = "  ".join(plain(part) for part in rest if part)
        line = f"{short(one.created_at)}  {plain(kind):<{_WIDEST}}  {plain(task_id or '-'):<36}  {words}"
        click.echo(line.rstrip())


HEAD: Final = ("time", "event", "worker", "token", "details", "error")
SPARE: Final = ("worker", "token")
PAYLOAD: Final = ("args", "result")
"""Task fields that are shown only on request."""
HANDLER_LOG: Final = ("log", "log_omitted")
"""Fields of the handler log. `task show` prints them below the attempt, not in the history."""
_NAMED = ("step", "reason", "priority", "recovery_attempts", "expires_at", "policy_error")
"""Event details that are printed with their names. The error is in a separate column."""


def lines(events: Iterable[ExecutionEvent]) -> list[tuple[object, ...]]:
    """Return the cells for each event, in the order of `HEAD`."""
    cells = attrgetter("created_at", "event_type", "worker_id", "lease_token")
    return [(*cells(one), details(one), one.event_data.get("error")) for one in events]


def record_of(event: ExecutionEvent, *, show_args: bool, traceback: bool) -> dict[str, Any]:
    """Return the event in its JSON form, without the handler log. The arguments, the result and the traceback are
    included only on request.
    """
    hidden = {*HANDLER_LOG, *(() if show_args else PAYLOAD), *(() if traceback else ("traceback",))}
    data = {name: value for name, value in event.event_data.items() if name not in hidden}
    return merged(event, {"event_data": data})


def details(event: ExecutionEvent) -> str:
    """Return the attempt, the wait, and further details: "attempt 2, due in 9.6 s, reached 40 %: 12 of 30, reason: …"."""
    data = event.event_data
    parts = [f"attempt {data['attempt']}"] if data.get("attempt") is not None else []
    if (wait := wait_of(event)) is not None:
        parts.append(f"due in {span(wait)}")
    if (progress := progress_of(data.get("progress"))) is not None:
        parts.append(f"reached {progress}")
    parts += [f"{name.replace('_', ' ')}: {data[name]}" for name in _NAMED if data.get(name) is not None]
    if (times := data.get("times")) is not None:
        parts.append(f"{times} {plural(times, 'time')} in a row")
    return ", ".join(parts)


def wait_of(event: ExecutionEvent) -> timedelta | None:
    """Return the time from the event until the task is due; None if the task is due immediately."""
    with suppress(KeyError, TypeError, ValueError):  # no due time, or a value that outboxq did not write
        wait = datetime.fromisoformat(event.event_data["available_at"]) - event.created_at
        if wait > timedelta(0):
            return wait
    return None
