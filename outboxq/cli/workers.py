"""`outboxq worker list` and `worker show`: the workers, and one of them with what it runs, or ran when it was killed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING
from uuid import UUID

import click

from ..model import TaskStatus
from ..model.wording import brief, plural, short
from .console import EXIT_NOT_FOUND, fail, merged, show, table, wants_json, write_json
from .database import database_options
from .groups import Group
from .log import PAYLOAD

if TYPE_CHECKING:
    from ..store import LiveWorker, Store, TakenBack

_MOST_QUEUES = 3
_MOST_TASKS = 100


@click.group(cls=Group)
def workers() -> None:
    """List the live workers, or show one. `worker list` and `worker show` do the same."""


@workers.command("list")
@click.option("-q", "--queue", help="Only workers of this queue.")
@click.option("--all", "with_silent", is_flag=True, help="Also workers that were killed or cut off within a day.")
@database_options
def list_(store: Store, *, queue: str | None, with_silent: bool) -> None:
    """List the live workers, the oldest first.

    A worker is live if it was seen in the last 90 seconds; it reports every 30. The last column has the number of child
    processes of a worker that runs its handlers in these. It also marks workers that run another version of the application, or
    another release of outboxq, than the worker that started last. With --all it says of a worker that is not live how many tasks
    others have taken back from it, and how many it still holds by their leases. A worker that was stopped is not listed.
    """
    from ..store.claims.workers import KEPT, LIVE_WITHIN

    presence = store.workers.presence(KEPT if with_silent else LIVE_WITHIN)
    now = presence.at
    every = [one for one in presence.workers if one.last_seen_at >= now - LIVE_WITHIN]
    found = [one for one in presence.workers if queue is None or one.works_on(queue)]
    silent = {one.id: _last(store, one) for one in found if one not in every}
    rows = [
        (
            one.host or one.label,
            one.pid,
            one.version,
            one.release,
            f"{'?' if one.busy is None or one.id in silent else one.busy}/{one.concurrency}",
            _queues(one),
            brief(now - one.last_seen_at),
            ", ".join([*_children(one), *differences(one, every), *_words(silent.get(one.id))]),
            one.id,
        )
        for one in found
    ]
    head = ("host", "pid", "version", "outboxq", "busy", "queues", "seen ago", "note", "id")
    show(
        head,
        rows,
        records=[merged(one, _record(one, every, silent.get(one.id))) for one in found],
        spare=("outboxq", "version", "id"),
    )
    if not found and not wants_json():
        click.echo("no worker is live" if queue is None else f"no worker of the queue {queue!r} is live", err=True)


@workers.command("show")
@click.argument("worker_id", type=click.UUID)
@database_options
def show_(store: Store, worker_id: UUID) -> None:
    """Show a worker, with the tasks that it runs.

    Of a worker that was killed or cut off within a day, the tasks are shown that it still holds by their leases, and those that other
    workers have taken back from it since. `worker list --all` prints the ids.
    """
    from ..store.claims.workers import KEPT, LIVE_WITHIN, TakenBack

    presence = store.workers.presence(KEPT)
    found = next((one for one in presence.workers if one.id == worker_id), None)
    if found is None:
        fail(
            f"there is no worker {worker_id}: one that was stopped is forgotten at once, one that was killed after a day",
            EXIT_NOT_FOUND,
        )
    is_live = found.last_seen_at >= presence.at - LIVE_WITHIN
    running = store.tasks(status=TaskStatus.RUNNING, worker=worker_id, limit=_MOST_TASKS)
    taken = TakenBack(tasks=[], is_complete=True) if is_live else store.workers.taken_back(worker_id)
    if wants_json():
        tasks = [merged(one, without=PAYLOAD) for one in running]
        write_json(merged(found, {"is_live": is_live, "running": tasks, "taken_back": taken}))
        return
    lines: dict[str, object] = {
        "id": found.id,
        "host": found.host or found.label,
        "process": found.pid,
        "version": found.version,
        "outboxq": found.release,
        "queues": _queues(found),
        "threads": found.concurrency,
        "started": f"{short(found.started_at)} UTC",
        "seen": f"{brief(presence.at - found.last_seen_at)} ago" + ("" if is_live else ": killed, cut off, or frozen"),
        "runs" if is_live else "holds": _tasks(len(running), more=len(running) == _MOST_TASKS),
    }
    if not is_live:
        lines["taken back"] = _tasks(len(taken.tasks), more=not taken.is_complete)
    table(("worker", found.label), [(name, value) for name, value in lines.items() if value is not None])
    if running:
        click.echo()
        rows = [(one.id, one.task_name, one.queue, one.attempt, one.started_at) for one in running]
        table(("running" if is_live else "held", "task", "queue", "attempt", "started"), rows, spare=("started",))
    if taken.tasks:
        click.echo()
        ends = [(one.task_id, one.task_name, one.event_type, one.status, one.at) for one in taken.tasks]
        table(("taken back", "task", "by", "status now", "at"), ends, spare=("at",))


def _last(store: Store, worker: LiveWorker) -> tuple[int, TakenBack]:
    """Return how many tasks a silent worker still holds, and those that were taken back from it."""
    held = store.tasks(status=TaskStatus.RUNNING, worker=worker.id, limit=_MOST_TASKS)
    return len(held), store.workers.taken_back(worker.id)


def _words(last: tuple[int, TakenBack] | None) -> list[str]:
    if last is None:
        return []
    held, taken = last
    more = "" if taken.is_complete else "+"
    return ["not seen lately", f"{len(taken.tasks)}{more} taken back, {held} not yet"]


def _record(worker: LiveWorker, every: Sequence[LiveWorker], last: tuple[int, TakenBack] | None) -> dict[str, object]:
    held, taken = (None, None) if last is None else last
    return {"differs": differences(worker, every), "is_live": last is None, "holds": held, "taken_back": taken}


def _tasks(number: int, *, more: bool) -> str:
    return f"{number}{'+' if more else ''} {plural(number, 'task')}"


def differences(worker: LiveWorker, every: Sequence[LiveWorker]) -> list[str]:
    """Return the versions that differ from those of the worker that started last: ``other version``, ``other outboxq``."""
    found = []
    for name, words in (("version", "other version"), ("release", "other outboxq")):
        known = [one for one in every if getattr(one, name) is not None]
        newest = max(known, key=_started, default=None)
        mine = getattr(worker, name)
        if newest is not None and mine is not None and mine != getattr(newest, name):
            found.append(words)
    return found


def _children(worker: LiveWorker) -> list[str]:
    """Return the number of its child processes in words; nothing for a worker that runs its handlers in threads."""
    many = worker.concurrency
    return [f"{many} child {plural(many, 'process', 'processes')}"] if worker.isolation == "process" else []


def _started(worker: LiveWorker) -> datetime:
    return worker.started_at


def _queues(worker: LiveWorker) -> str:
    if worker.queues is None:
        return "all"
    names = sorted(worker.queues)
    more = f" and {len(names) - _MOST_QUEUES} more" if len(names) > _MOST_QUEUES else ""
    return ", ".join(names[:_MOST_QUEUES]) + more
