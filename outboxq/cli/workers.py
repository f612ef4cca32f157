"""`outboxq workers list`, `workers show` and the orders to one worker."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from operator import attrgetter
from typing import TYPE_CHECKING

import click

from ..model import TaskStatus
from ..model.wording import brief, plain, plural, short
from ..model.workers import WorkerOrder, WorkerState, sources_of
from ..operating.fields import REASON
from ..operating.verb import Noun
from ..operating.worker_verbs import RECOVER_WORKER, STACKS
from .changes import FEW, Exactly, confirmation_options, confirmed
from .console import EXIT_NOT_FOUND, add_table, card, fail, in_utc, merged, show, tell, wants_json, write_json
from .database import database_options
from .groups import Group
from .log import PAYLOAD
from .parameters import QUEUE, flag, option, span_option
from .relays import receiver_lines
from .verbs import add_verbs, carry_out, present_operator, with_fields

if TYPE_CHECKING:
    from ..store import LiveWorker, Store

_MOST_QUEUES = 3
_MOST_TASKS = 100
_MOST_RECOVERED = 1_000
_LOOK_EVERY = 0.2
"""Seconds between two checks for a worker's stacks."""


@click.group(cls=Group)
def workers() -> None:
    """List the live workers, show one, or give it an order."""


@workers.command("list")
@option("-q", "--queue", type=QUEUE, help="Only workers that serve this queue.")
@flag("--all", "with_silent", help="Include workers that ended, were killed or were cut off in the last week.")
@database_options
def list_(store: Store, *, queue: str | None, with_silent: bool) -> None:
    """List the live workers, oldest first.

    A worker is live if it was seen in the last 90 seconds; it reports every five seconds. The last column gives the
    number of child processes for a worker that runs with --isolation process. The column also marks workers whose
    application version or outboxq release differs from that of the most recently started worker. Workers whose
    receivers are failing are marked too, and so are workers that have been given an order, for example to go quiet.
    With --all, the column also gives the number of tasks that other workers recovered from a worker that is not live,
    and the number of tasks that are still leased to that worker. Workers that stopped normally are marked as ended.
    """
    from ..store.claims.workers import KEPT, LIVE_WITHIN

    presence = store.workers.presence(KEPT if with_silent else LIVE_WITHIN, with_ended=with_silent)
    now = presence.at
    every = [one for one in presence.workers if one.is_live(now)]
    found = [one for one in presence.workers if queue is None or one.works_on(queue)]
    blamed = store.dead_letters.blamed_versions()
    rows, records = [], []
    for one in found:
        busy, notes, differs = one.busy, [], differences(one, every, blamed)
        held, taken = None, None
        if one.isolation == "process":
            notes.append(f"{one.concurrency} child {plural(one.concurrency, 'process', 'processes')}")
        notes += differs
        if one in every and one.failure is not None:
            notes.append(one.failure.partition(":")[0])
        if failing := sum(state.failing_since is not None for state in one.receivers):
            notes.append(f"{failing} {plural(failing, 'receiver is failing', 'receivers are failing')}")
        if one.ended_at is not None:
            busy = None
            notes.append("ended")
        elif one not in every:
            busy, held = None, len(store.tasks(status=TaskStatus.RUNNING, worker=one.id, limit=_MOST_TASKS))
            taken = store.workers.recovered(one.id)
            left = f"{held}{'+' * (held == _MOST_TASKS)}"
            back = f"{len(taken.tasks)}{'' if taken.is_complete else '+'} recovered"
            notes += ["not seen lately", f"{back}, {left} not yet"]
        elif (order := order_of(one)) is not None:
            notes.append(f"order: {order}")
        busy_of = f"{'?' if busy is None else busy}/{one.concurrency}"
        identity = (one.host or one.label, one.pid, one.version, one.release, busy_of, _queues(one))
        rows.append((*identity, brief(now - one.last_seen_at), ", ".join(notes), one.id))
        more = {"differs": differs, "is_live": one in every, "holds": held, "recovered": taken}
        records.append(merged(one, more))
    head = ("host", "pid", "version", "outboxq", "busy", "queues", "seen ago", "note", "id")
    show(head, rows, records=records, spare=("outboxq", "version", "id", "pid", "queues"))
    if not found and not wants_json():
        click.echo("no worker is live" if queue is None else f"no live worker serves the queue {queue!r}", err=True)


@workers.command("show")
@click.argument("worker", metavar="WORKER")
@database_options
def show_(store: Store, worker: str) -> None:
    """Show a worker and the tasks that it is running.

    If the worker was killed or cut off in the last week, the command shows the tasks that are still leased to it, and
    the tasks that other workers or people recovered from it. WORKER is an id, a label, a process id or HOST:PID, as
    `workers list --all` prints them.
    """
    from ..store.claims.workers import RecoveredTasks

    worker_id = store.worker_orders.find(worker)
    found, now = store.workers.get(worker_id), store.now()
    if found is None:
        fail(f"there is no worker {worker_id}: a worker is forgotten a week after it was last seen", EXIT_NOT_FOUND)
    has_ended = found.ended_at is not None
    is_live = found.is_live(now)
    running = store.tasks(status=TaskStatus.RUNNING, worker=worker_id, limit=_MOST_TASKS)
    taken = RecoveredTasks(tasks=[], is_complete=True) if is_live or has_ended else store.workers.recovered(worker_id)
    if wants_json():
        tasks = [merged(one, without=PAYLOAD) for one in running]
        write_json(merged(found, {"is_live": is_live, "running": tasks, "recovered": taken}))
        return
    fate = "" if is_live else ": it stopped normally" if has_ended else ": killed, cut off, or frozen"
    lines: dict[str, object] = {
        "id": found.id,
        "host": found.host or found.label,
        "process": found.pid,
        "version": found.version,
        "outboxq": found.release,
        "queues": _queues(found),
        "threads": found.concurrency,
        "started": in_utc(found.started_at),
        "seen": f"{brief(now - found.last_seen_at)} ago{fate}",
        "order": order_of(found),
        "fails": _failure(found) if is_live else None,
        "runs" if is_live else "holds": _tasks(len(running), more=len(running) == _MOST_TASKS),
    }
    if not (is_live or has_ended):
        lines["recovered"] = _tasks(len(taken.tasks), more=not taken.is_complete)
    card(("worker", found.label), lines.items())
    add_table(*receiver_lines(now, sources_of(found.receivers)))
    rows = [(one.id, one.task_name, one.queue, one.attempt, one.started_at) for one in running]
    add_table(("running" if is_live else "held", "task", "queue", "attempt", "started"), rows, spare=("started",))
    ends = [(one.task_id, one.task_name, one.event_type, one.status, one.at, one.reason) for one in taken.tasks]
    add_table(("recovered", "task", "by", "status now", "at", "reason"), ends, spare=("at", "reason"))


@workers.command("stacks")
@click.argument("worker", metavar="WORKER")
@span_option("--wait", help="Time to wait for the answer.", default="15s")
@with_fields(REASON)
@database_options
def stacks_(store: Store, worker: str, wait: timedelta, reason: str) -> None:
    """Print the stacks of a worker's threads.

    The worker answers with its next report, at most six seconds later. The stacks name the functions and lines that
    the threads are running, without the values of arguments. WORKER is an id, a label, a process id or HOST:PID, as
    `workers list` prints them. The exit code is 1 if the worker does not answer in time.
    """
    worker_id = store.worker_orders.find(worker)
    STACKS.do(store, worker_id, operator=present_operator(), reason=reason)
    deadline = time.monotonic() + wait.total_seconds()
    while (found := store.worker_orders.stacks(worker_id)) is None:
        if time.monotonic() > deadline:
            fail(f"worker {worker_id} did not answer within {brief(wait)}; it may be dead, or frozen", 1)
        time.sleep(_LOOK_EVERY)
    tell(plain(found.text, kept="\n"), {"id": worker_id, "at": found.at, "stacks": found.text})


@workers.command("recover", help=RECOVER_WORKER.help)
@click.argument("worker", metavar="WORKER")
@with_fields(*RECOVER_WORKER.fields)
@confirmation_options
@database_options
def recover_(store: Store, worker: str, *, reason: str, yes: bool, dry_run: bool) -> None:
    worker_id = store.worker_orders.find(worker)
    held = store.lost_tasks(worker_id, limit=_MOST_RECOVERED)
    if dry_run and not held:
        store.ensure_lost(worker_id)  # its error says when the tasks can be recovered
    count = Exactly(number=len(held), at_least=len(held) == _MOST_RECOVERED)

    def first() -> list[str]:
        return [f"{one.id}  {one.task_name}  {one.then}" for one in held[:FEW]]

    what = f"running tasks of the worker {worker}"
    if not confirmed(count, what, yes=yes, dry_run=dry_run, done="recovered", first=first):
        return
    carry_out(store, RECOVER_WORKER, worker_id, reason=reason)


def order_of(worker: LiveWorker) -> str | None:
    """Return the order given to a worker, and whether the worker has obeyed it; None if there is nothing to report."""
    if worker.asked_to is None:
        return None if worker.state is None else f"none, still {worker.state}"
    reached = WorkerState.QUIET if worker.asked_to is WorkerOrder.QUIET else WorkerState.STOPPING
    return f"{worker.asked_to}, {'obeyed' if worker.state is reached else 'not obeyed yet'}"


def _failure(worker: LiveWorker) -> str | None:
    """Return the error that keeps a worker from working, and the time at which the error began."""
    if worker.failure is None or worker.failing_since is None:
        return worker.failure
    return f"{worker.failure}, since {short(worker.failing_since)} UTC"


def _tasks(number: int, *, more: bool) -> str:
    return f"{number}{'+' if more else ''} {plural(number, 'task')}"


def differences(worker: LiveWorker, every: Sequence[LiveWorker], blamed: Mapping[str, Collection[str]]) -> list[str]:
    """Return how the worker's versions differ from those of the most recently started worker: ``other version``,
    ``other outboxq``. If recent failures are blamed on a version, workers that run this version and serve the affected
    queues are marked ``failing version``, and other versions are not compared with this one.
    """
    found = ["failing version"] if worker.is_blamed(blamed) else []
    good = [one for one in every if one.version not in blamed]
    pairs = [("release", "other outboxq", every)]
    for name, words, compared in pairs if worker.version in blamed else [("version", "other version", good), *pairs]:
        known = [one for one in compared if getattr(one, name) is not None]
        newest = max(known, key=attrgetter("started_at"), default=None)
        if newest is not None and getattr(worker, name) not in (None, getattr(newest, name)):
            found.append(words)
    return found


def _queues(worker: LiveWorker) -> str:
    if worker.queues is None:
        return "all"
    names = sorted(worker.queues)
    more = f" and {len(names) - _MOST_QUEUES} more" if len(names) > _MOST_QUEUES else ""
    return ", ".join(names[:_MOST_QUEUES]) + more


add_verbs(workers, Noun.WORKER)
