"""Explain one task, a page of tasks, or one task with all data for its page. This module reads the facts for the rules,
and names the running task that a task is waiting for.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sa

from ...database.column_types import BigId, Instant
from ...database.dialects import Begin, Row
from ...database.grammar import Grammar
from ...database.queue_order import LIMITS_OF_KEYS
from ...database.tables import (
    dead_letters,
    idempotency_keys,
    partition_claims,
    queue_settings,
    task_executions,
    task_leases,
    task_outbox,
    workers,
)
from ...database.target import Target
from ...model import EventType, ExecutionEvent, TaskExecution, TaskStatus, status_after
from ...model.batches import Batch, BatchKind, OnFailed, is_batch, link_of
from ...model.running import Progress
from ...model.schedules import SCHEDULE_HEADER, TICK_HEADER, TRIGGER_HEADER
from ...model.wording import plural, unseen
from ..arguments import AnyId, identifier, positive
from ..claims.claim_sql import same_key, value_for
from ..claims.limits import limits_keys, states_of
from ..claims.lost_workers import find_running, first_running
from ..claims.partition_keys import in_order
from ..claims.unknown_runs import releases_as_unknown
from ..claims.workers import LiveWorker, live_workers
from ..producing import batches_sql
from ..producing.batches import batch_of
from ..task_rows import IDS, pack_ids
from ..tasks import tasks as statements
from ..tasks.chains import futile_redrives
from ..tasks.results import first_task
from ..tasks.slowest import select_given
from ..tasks.tasks import event_of, execution_of, no_task
from ..transactions import Transactions
from .reasons import (
    Explanation,
    Reason,
    cancel_of_batch,
    cure_of,
    inconsistent,
    of_dead_letter,
    of_other,
    span_of,
    written,
)
from .relays import explain_event
from .sentences import Facts, why

MOST = 1000
"""Maximum number of earlier tasks that are counted."""
_EVENTS = 100
_UNFINISHED = frozenset({TaskStatus.READY, TaskStatus.RUNNING})
_COLUMNS = tuple(one.name for one in fields(TaskExecution))


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskDetail:
    """A task, the reason why it is not running, and its newest events."""

    at: datetime
    """The time at which all data was read, by the database's clock."""
    task: TaskExecution
    explanation: Explanation
    events: list[ExecutionEvent]
    """The newest events, oldest first."""
    is_cut: bool
    """True if there are older events."""
    due_at: datetime | None
    """Due time of a Ready task; None in any other status."""
    holds_key: bool
    """True for a dead letter that holds its partition key."""
    exception: str | None
    """Class of a dead letter's exception."""
    idempotency_key: str | None
    lost_key: str | None
    """The idempotency key of a dead letter, if the key now belongs to another task."""
    workers: Mapping[UUID, str]
    """Labels of the registered workers that the events name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outlook:
    """The reason for the state of an unfinished task, and its due time."""

    reason: Reason
    """The reason that `explain` gives."""
    due_at: datetime | None = None
    """Due time of a Ready task; None for a Running one."""


def explain(store: Transactions, task_id: AnyId, *, using: object = None) -> Explanation:
    """Return why the task is not running, or what it is doing. If there are several reasons, the one to deal with first
    is returned.

    The task may also be one that has not been enqueued yet because it follows a batch or another task in a chain. For
    the id of an event, which is `Emitted.pipeline_execution_id`, the answer says why the event's relays have not
    published the event. The answer is read from one snapshot, unless `using` is a connection with a weaker isolation
    level. Raises TaskNotFound.
    """
    task_id = identifier(task_id)

    def work(target: Target) -> Explanation:
        if (row := _one(store, target, task_id)) is None:
            found = _explanation_of_link(target, task_id) or explain_event(store, target, task_id)
            if found is None:
                raise no_task(task_id)
            return found
        task = _task_of(row)
        events = _newest(target, task_id, _EVENTS)[:_EVENTS] if task.status is TaskStatus.CANCELLED else []
        return _explained(target, task, row, _facts_of_one(store, target, task, row), events)

    return store.run(work, using=using, begin=Begin.SNAPSHOT)


def task_detail(store: Transactions, task_id: AnyId, *, events: int = _EVENTS, using: object = None) -> TaskDetail:
    """Return a task with its explanation and its newest `events` events, in at most five statements. Raises
    TaskNotFound.
    """
    task_id = identifier(task_id)
    positive(events, "events")

    def work(target: Target) -> TaskDetail:
        if (row := _one(store, target, task_id)) is None:
            raise no_task(task_id)
        task, newest = _task_of(row), _newest(target, task_id, events + 1)
        shown = newest[:events]
        facts = _facts_of_one(store, target, task, row, {event.worker_id for event in shown})
        return TaskDetail(
            at=row["now"],
            task=task,
            explanation=_explained(target, task, row, facts, shown),
            events=shown[::-1],
            is_cut=len(newest) > events,
            due_at=row["entry_available_at"],
            holds_key=row["holds_key"] is not None,
            exception=row["dead_letter_exception"],
            idempotency_key=row["idempotency_key"],
            lost_key=row["lost_key"],
            workers=facts.labels,
        )

    return store.run(work, using=using, begin=Begin.SNAPSHOT)


def outlooks(store: Transactions, tasks: Sequence[TaskExecution], *, using: object = None) -> Mapping[UUID, Outlook]:
    """Return the outlook for each of these tasks that is Ready or Running, keyed by id. This runs a few statements, no
    matter how many tasks there are. A task that has changed since it was read is left out.
    """
    asked = [task for task in tasks if task.status in _UNFINISHED]
    ready = [task.id for task in asked if task.status is TaskStatus.READY]

    def work(target: Target) -> dict[UUID, Outlook]:
        packed = pack_ids(target, "tasks", ready)
        rows = {row["id"]: row for row in (target.run(waiting, store.values(target, **packed)) if ready else ())}
        now = next((row["now"] for row in rows.values()), None) or store.now_in(target)
        there = [task for task in asked if task.id in rows or task.status is TaskStatus.RUNNING]
        facts = _facts(store, target, there, rows, now)
        found = {task.id: why(task, facts) for task in there}
        return {task_id: Outlook(reason=one.reason, due_at=one.due_at) for task_id, one in found.items()}

    return store.run(work, using=using, begin=Begin.SNAPSHOT) if asked else {}


def explain_due(
    store: Transactions, target: Target, task_ids: Iterable[UUID], live: Sequence[LiveWorker], now: datetime
) -> dict[UUID, Explanation]:
    """Return why these due tasks are not running, in two or three statements. A task that is not waiting is left out."""
    packed = pack_ids(target, "tasks", sorted(task_ids))
    rows = {row["id"]: row for row in target.run(waiting, store.values(target, **packed))}
    tasks = [execution_of(row) for row in target.run(select_given, pack_ids(target, "chosen", sorted(rows)))]
    by_key = [(task.queue, task.partition_key) for task in tasks if limits_keys(rows[task.id])]
    facts = Facts(now=now, rows=rows, workers=live, keys=states_of(store, target, by_key))
    return {task.id: why(task, facts) for task in tasks if task.status is TaskStatus.READY}


def progress(store: Transactions, task_ids: Iterable[AnyId], *, using: object = None) -> Mapping[UUID, Progress]:
    """Return the progress of the running tasks among these, as of their last heartbeats."""
    wanted = {identifier(one) for one in task_ids}
    if not wanted:
        return {}

    def work(target: Target) -> dict[UUID, Progress]:
        rows = target.run(progress_of, pack_ids(target, "asked", sorted(wanted)))
        return {row["id"]: _progress_of(row) for row in rows}

    return store.run(work, using=using, begin=Begin.READ)


def _progress_of(row: Row) -> Progress:
    return Progress(fraction=row["progress"], note=row["progress_note"] or "")


def _one(store: Transactions, target: Target, task_id: UUID) -> Row | None:
    values = store.values(target, task_id=task_id, **pack_ids(target, "tasks", [task_id]))
    return next(iter(target.run(one, values)), None)


def _task_of(row: Row) -> TaskExecution:
    return execution_of({name: row[name] for name in _COLUMNS})


def _newest(target: Target, task_id: UUID, limit: int) -> list[ExecutionEvent]:
    """Return a task's newest events, newest first."""
    return [event_of(row) for row in target.run(statements.select_recent_history, {"task_id": task_id, "limit": limit})]


def _facts_of_one(
    store: Transactions, target: Target, task: TaskExecution, row: Row, named: Iterable[UUID | None] = ()
) -> Facts:
    """Read the facts for one task, with the labels of the workers in `named`."""
    if task.status not in _UNFINISHED:
        return Facts(now=row["now"], labels=_registered(target, named, ())[0])
    entry = {name: row[f"entry_{name}"] for name in _FACTS}
    rows = {task.id: entry} if entry["id"] is not None else {}
    return _facts(store, target, [task], rows, row["now"], named=named)


def _facts(
    store: Transactions,
    target: Target,
    tasks: Sequence[TaskExecution],
    rows: Mapping[UUID, Row],
    now: datetime,
    *,
    named: Iterable[UUID | None] = (),
) -> Facts:
    """Read the facts for all of these tasks together. `rows` are the rows of `waiting`."""
    live = live_workers(target, now)
    later = [(task.id, task.lease_token) for task in tasks if task.id in rows and rows[task.id]["available_at"] > now]
    by_key = [(task.queue, task.partition_key) for task in tasks if task.id in rows and limits_keys(rows[task.id])]
    running = {task.worker_id for task in tasks if task.status is TaskStatus.RUNNING}
    labels, seen = _registered(target, {*running, *named}, live)
    return Facts(
        now=now,
        rows=rows,
        workers=live,
        labels=labels,
        seen=seen,
        keys=states_of(store, target, by_key),
        given_back=releases_as_unknown(target, later) if later else {},
    )


def _registered(
    target: Target, wanted: Iterable[UUID | None], live: Iterable[LiveWorker]
) -> tuple[dict[UUID, str], dict[UUID, datetime]]:
    """Return the labels of the registered workers among these, and the times at which they were last seen. The labels
    and times of the workers in `live` are already known.
    """
    found = {one.id: one.label for one in live}
    seen = {one.id: one.last_seen_at for one in live}
    if missing := {one for one in wanted if one is not None} - found.keys():
        for row in target.run(labels, pack_ids(target, "named", sorted(missing))):
            found[row["id"]], seen[row["id"]] = row["label"], row["last_seen_at"]
    return found, seen


def _explained(
    target: Target, task: TaskExecution, row: Row, facts: Facts, events: Sequence[ExecutionEvent]
) -> Explanation:
    """Return the explanation of the task. `events` are its newest events, newest first."""
    done = None if row["progress"] is None else _progress_of(row)
    if task.status is TaskStatus.FAILED:
        found = _failed(target, task)
    elif task.status not in _UNFINISHED:
        found = _ended(task, next((one for one in events if status_after(one.event_type) is not None), None))
    else:
        found = replace(why(task, facts, done), progress=done)
    if found.reason is Reason.DUE and not found.cures:
        before = target.run(ahead, {**facts.rows[task.id], "queue": task.queue, "now": facts.now})[0]["tasks"]
        many = f"more than {MOST}" if before > MOST else str(before)
        place = f"; due tasks ahead of it in its queue: {many}" if before else "; the next claim will take it"
        found = replace(found, sentence=f"{found.sentence}{place}")
    if found.reason in BEHIND_A_RUNNING_TASK:
        found = with_running_task(target, task, found, facts.now)
    origin = _origin_of(task.headers)
    return found if origin is None else replace(found, sentence=f"{found.sentence}; {origin}")


def _failed(target: Target, task: TaskExecution) -> Explanation:
    batch = _batch(target, task.pipeline_execution_id) if is_batch(task.pipeline_execution_id) else None
    waits = batch if batch is not None and batch.awaited else None
    error = f": {task.last_error}" if task.last_error else ""
    waiting_for_it = "" if waits is None else f"the {waits.kind} {waits.id} is waiting for it; "
    cures = of_dead_letter(task.id, "it")
    if refused := futile_redrives(target, {task.id}):
        do, cures = str(refused[task.id]).replace(f"task {task.id}", "it", 1), cures[1:]
    else:
        do = "redrive or discard it" if waits is None else _advice(waits)
    sentence = f"it failed at {written(task.completed_at)} in attempt {task.attempt}{error}; {waiting_for_it}{do}"
    return Explanation(Reason.FAILED, sentence, cures)


def _ended(task: TaskExecution, last: ExecutionEvent | None) -> Explanation:
    at = written(task.completed_at)
    if task.status is TaskStatus.COMPLETED:
        return Explanation(Reason.COMPLETED, f"it completed at {at}")
    kind, data = (last.event_type, last.event_data) if last else (None, {})
    if kind is EventType.EXPIRED:
        return Explanation(Reason.CANCELLED, f"it expired: it had to start before {written(task.expires_at)}")
    verb = "discarded as a dead letter" if kind is EventType.DISCARDED else "cancelled"
    reason = f": {data['reason']}" if data.get("reason") else ""
    return Explanation(Reason.CANCELLED, f"it was {verb} at {at}{reason}")


def _origin_of(headers: str | None) -> str | None:
    """Return a clause that names the schedule and the tick of a task; None if the task does not belong to a schedule."""
    if headers is None or SCHEDULE_HEADER not in headers:
        return None
    try:
        found = json.loads(headers)
        schedule = found[SCHEDULE_HEADER]
        if (by := found.get(TRIGGER_HEADER)) is not None:
            return f"it was triggered from the schedule {schedule!r}{f' by {by}' if by else ''}"
        return f"it is the tick of the schedule {schedule!r} for {written(datetime.fromisoformat(found[TICK_HEADER]))}"
    except (ValueError, TypeError, LookupError, AttributeError):
        return None  # these headers were not written by a schedule


def _explanation_of_link(target: Target, task_id: UUID) -> Explanation | None:
    """Return why this task, which has no row, has not been enqueued; None if it does not follow a batch."""
    link = link_of(task_id)
    found = None if link is None else _batch(target, link.batch_id)
    return None if found is None or task_id not in found.then_ids[found.stage :] else _of_link(target, found, task_id)


def _batch(target: Target, batch_id: UUID) -> Batch | None:
    rows = target.run(batches_sql.get, {"batch_id": batch_id})
    return batch_of(rows[0]) if rows else None


def _of_link(target: Target, batch: Batch, task_id: UUID) -> Explanation:
    name = f"the {batch.kind} {batch.id}"
    shown, why_never = cure_of(f"see the {batch.kind}", "batch", "show", batch.id), None
    if batch.completed_at is not None:
        why_never = f"ended as Cancelled at {written(batch.completed_at)}"
    elif not batch.runs_then:
        why_never = "is being cancelled"
    elif not batch.closed:
        why_never = "is not closed, because its `with` block raised an error; cancel the batch and create it again"
        shown = cancel_of_batch(batch.id) + shown
    if why_never is not None:
        sentence = f"it will never be enqueued: it follows {name}, which {why_never}"
        return Explanation(Reason.NOT_ENQUEUED, sentence, shown)
    left, between = batch.pending, batch.then_ids.index(task_id) - batch.stage
    counted = f"{left} {plural(left, 'task has', 'tasks have')} not finished"
    sentence = f"it is not enqueued yet: it follows {name}, in which {counted}"
    if between:
        sentence += f" and {between} more {plural(between, 'task comes', 'tasks come')} before it"
    # A dead letter that the batch is waiting for comes before other tasks.
    first = first_task(target, batch.id, TaskStatus.FAILED) if batch.on_failed is OnFailed.WAIT else None
    if (first := first or first_task(target, batch.id, TaskStatus.READY, TaskStatus.RUNNING)) is None:
        return inconsistent(f"{sentence}, but no such task was found")
    name, cures = f"{first.id} ({first.task_name})", of_other(first.id)
    why = f"the first of them is {name}, which is {first.status}"
    if first.status is TaskStatus.FAILED:
        why = f"the {batch.kind} is waiting for the dead letter {name}; {_advice(batch)}"
        cures = of_dead_letter(first.id, "the dead letter")
    return Explanation(Reason.NOT_ENQUEUED, f"{sentence}; {why}", cures + shown, first.id)


def _advice(batch: Batch) -> str:
    """Return the advice on the dead letter that a batch is waiting for."""
    end = "ends the chain" if batch.kind is BatchKind.CHAIN else "lets the batch continue without it"
    return f"redrive or discard it; discarding it {end}"


SETTINGS = (
    "paused_at",
    "pause_reason",
    "concurrency_limit",
    "rate_limit",
    "rate_seconds",
    "rate_full_at",
    *LIMITS_OF_KEYS,
)
"""Columns of a queue's settings that can keep tasks from being claimed, and the reason for its pause."""
_FACTS = ("id", "entry_id", "available_at", "priority", "head", "head_due", "owner", "held", *SETTINGS, "running")
"""Columns of `waiting` that the rules read."""
_entry: Any = task_outbox.c
_task_id = sa.bindparam("task_id", type_=sa.Uuid, required=True)
_queue = sa.bindparam("queue", type_=sa.Text, required=True)
_entry_id = sa.bindparam("entry_id", type_=BigId, required=True)
_priority = sa.bindparam("priority", type_=sa.SmallInteger, required=True)
_available_at = sa.bindparam("available_at", type_=Instant, required=True)


def waiting(g: Grammar) -> sa.Select[Any]:
    """Select, for each waiting task in :tasks, its outbox entry, the head and the owner of its key, the settings of its
    queue, and the number of running tasks if the queue limits it.

    The columns are subqueries, so each task costs a few lookups, no matter how many tasks are waiting. The settings of
    each queue are read once.
    """
    among = g.among(_entry.task_execution_id, g.rows("tasks", IDS).c.id)
    columns = (_entry.queue, _entry.partition_key, _entry.available_at, _entry.priority)
    ids = (_entry.task_execution_id.label("id"), _entry.id.label("entry_id"))
    page = sa.select(*ids, *columns).where(among).cte("page").prefix_with("MATERIALIZED")
    set_up, claim, first = _of_queues(g, page.c.queue), partition_claims.alias("claim"), task_outbox.alias("first")
    head = in_order(first, page).limit(1)
    taken = sa.select(claim.c.held).where(same_key(claim, page))
    return sa.select(
        *(page.c[name] for name in ("id", "entry_id", "available_at", "priority")),
        g.now.label("now"),
        value_for(page, head.with_only_columns(first.c.task_execution_id)).label("head"),
        value_for(page, head.with_only_columns(first.c.available_at)).label("head_due"),
        value_for(page, taken.with_only_columns(claim.c.task_execution_id)).label("owner"),
        value_for(page, taken).label("held"),
        *(column for column in set_up.c if column.key != "queue"),
    ).outerjoin_from(page, set_up, set_up.c.queue == page.c.queue)


def _of_queues(g: Grammar, queues: sa.ColumnElement[str]) -> sa.CTE:
    """Select queues' settings, and the number of running tasks in each queue that limits this number."""
    mine, lease = queue_settings.c, task_leases.c
    running = sa.select(sa.func.count()).select_from(task_leases).where(lease.queue == mine.queue)
    count = sa.case((mine.concurrency_limit.is_not(None), value_for(queue_settings, running))).label("running")
    found = sa.select(mine.queue, *(mine[name] for name in SETTINGS), count).where(g.among(mine.queue, queues))
    return found.cte("set_up").prefix_with("MATERIALIZED")


def one(g: Grammar) -> sa.Select[Any]:
    """Select the task :task_id with its lease, its dead letter, its idempotency key, and the columns of `waiting`;
    :tasks contains only this task.
    """
    execution, claim, key, dead_letter = task_executions.c, partition_claims.c, idempotency_keys.c, dead_letters.c
    entry = waiting(g).subquery("entry")
    # These are subqueries, because a join would read all claims: the planner cannot know that each key has one row.
    held = (same_key(partition_claims, task_executions), claim.task_execution_id == execution.id, claim.held)
    holds = sa.select(claim.task_execution_id).where(*held)
    idempotency = sa.select(key.key).where(key.task_execution_id == execution.id).order_by(key.key).limit(1)
    return (
        statements.with_lease()
        .outerjoin(entry, entry.c.id == execution.id)
        .outerjoin(dead_letters, dead_letter.task_execution_id == execution.id)
        .add_columns(
            g.now.label("now"),
            task_leases.c.progress,
            task_leases.c.progress_note,
            *(entry.c[name].label(f"entry_{name}") for name in _FACTS),
            value_for(task_executions, holds).label("holds_key"),
            dead_letter.exception.label("dead_letter_exception"),
            dead_letter.lost_key.label("lost_key"),
            value_for(task_executions, idempotency).label("idempotency_key"),
        )
        .where(execution.id == _task_id)
    )


def labels(g: Grammar) -> sa.Select[Any]:
    """Select the labels of the registered workers in :named, and the times at which they were last seen."""
    return sa.select(workers.c.id, workers.c.label, workers.c.last_seen_at).where(
        g.among(workers.c.id, g.rows("named", IDS).c.id)
    )


def ahead(g: Grammar) -> sa.Select[Any]:
    """Count the due tasks in the queue that will be claimed before this task, up to MOST + 1."""
    older = sa.or_(
        _entry.available_at < _available_at, sa.and_(_entry.available_at == _available_at, _entry.id < _entry_id)
    )
    before = sa.select(_entry.id).where(
        _entry.queue == _queue,
        _entry.available_at <= g.now,
        _entry.priority >= _priority,
        sa.or_(_entry.priority > _priority, older),
    )
    # The query has two parts, each with its own index.
    parts = sa.union_all(before.where(_entry.partition_key.is_(None)), before.where(_entry.partition_key.is_not(None)))
    counted = sa.select(parts.subquery("parts")).limit(sa.literal_column(str(MOST + 1))).subquery("counted")
    return sa.select(sa.func.count().label("tasks")).select_from(counted)


def progress_of(g: Grammar) -> sa.Select[Any]:
    """Select the progress of the running tasks in :asked that have reported any. Heartbeats write the progress."""
    lease = task_leases.c
    return sa.select(lease.task_execution_id.label("id"), lease.progress, lease.progress_note).where(
        g.among(lease.task_execution_id, g.rows("asked", IDS).c.id), lease.progress.is_not(None)
    )


BEHIND_A_RUNNING_TASK: Final = frozenset({Reason.KEY_RUNNING, Reason.KEY_LIMIT, Reason.CONCURRENCY_LIMIT})
"""The reasons that make a task wait until a running task ends."""


def with_running_task(target: Target, task: TaskExecution, found: Explanation, now: datetime) -> Explanation:
    """Return the explanation with the running task to deal with first, which may belong to a lost worker."""
    if found.waits_for is not None:
        held = find_running(target, found.waits_for, now)
    else:
        key = task.partition_key if found.reason is Reason.KEY_LIMIT else None
        held = first_running(target, task.queue, key, now)
    if held is None:  # it has since ended
        return found
    first_id, since = held.lease.id, written(held.started_at)
    if not held.is_lost:
        if found.waits_for is not None:
            return replace(found, sentence=f"{found.sentence}; {held.worker} has been running it since {since}")
        sentence = f"{found.sentence}; the longest-running one is task {first_id}, which {held.worker} has been running since {since}"
        return replace(found, sentence=sentence, cures=(*found.cures, *of_other(first_id)))
    lost_one = f"{held.worker}, which {unseen(held.silence)}"
    left = span_of(held.lease.lease_expires_at - held.now)
    which = "it is" if found.waits_for is not None else f"one of them is task {first_id},"
    sentence = f"{found.sentence}; {which} held by {lost_one}, and the lease expires in {left}"
    cures = cure_of("recover that task from the lost worker", "task", "recover", first_id)
    return replace(found, sentence=sentence, cures=cures + found.cures)
