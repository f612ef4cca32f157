"""`outboxq worker list`: the live workers."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

import click

from ..model.plurals import plural
from .console import brief
from .database import database_options
from .groups import Group
from .output import merged, show, wants_json

if TYPE_CHECKING:
    from ..store import LiveWorker, Store

_MOST_QUEUES = 3


@click.group(cls=Group)
def workers() -> None:
    """List the live workers. `worker list` does the same."""


@workers.command("list")
@click.option("-q", "--queue", help="Only workers of this queue.")
@database_options
def list_(store: Store, queue: str | None) -> None:
    """List the live workers, the oldest first.

    A worker is live if it was seen in the last 90 seconds; it reports every 30. The last column has the number of child
    processes of a worker that runs its handlers in these. It also marks workers that run another version of the application, or
    another release of outboxq, than the worker that started last.
    """
    every = store.workers.list()
    found = [one for one in every if queue is None or one.works_on(queue)]
    now = store.now()
    rows = [
        (
            one.host or one.label,
            one.pid,
            one.version,
            one.release,
            f"{'?' if one.busy is None else one.busy}/{one.concurrency}",
            _queues(one),
            brief(now - one.last_seen_at),
            ", ".join([*_children(one), *differences(one, every)]),
        )
        for one in found
    ]
    head = ("host", "pid", "version", "outboxq", "busy", "queues", "seen ago", "note")
    show(
        head,
        rows,
        records=[merged(one, {"differs": differences(one, every)}) for one in found],
        spare=("outboxq", "version"),
    )
    if not found and not wants_json():
        click.echo("no worker is live" if queue is None else f"no worker of the queue {queue!r} is live", err=True)


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
