"""Read single tasks, their history and attempts, and the database's time."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from ...database.dialects import Begin
from ...database.grammar import ONE, Grammar, SqlStatus, limit, sql_literal
from ...database.tables import execution_events, task_executions, task_leases, task_outbox
from ...errors import AmbiguousTask, InvalidArgument, TaskNotFound
from ...model import ENDS_CLAIM, EventType, ExecutionEvent, TaskExecution, TaskStatus, event_type_of
from ...model.batches import link_of
from ...model.running import LogLine, Progress, log_of, omitted_of, progress_of
from ..arguments import AnyId, identifier, parameters, positive
from ..transactions import Transactions

_FEWEST, _ALL = 6, 32
_NAMED = 5
"""Maximum number of tasks that AmbiguousTask names."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """One claim of a task, from its start to its end."""

    number: int
    """The number of the attempt; 0 if the event of the claim does not contain the number. After a snooze or the death
    of a worker, the next claim has the same number.
    """
    lease_token: int
    worker_id: UUID | None
    started_at: datetime
    ended_at: datetime | None = None
    """The time at which the attempt ended; None while it is running."""
    outcome: EventType | str | None = None
    """Type of the event that ended the attempt; a plain string for a type from a later release."""
    error: str | None = None
    """The error, on one line."""
    exception: str | None = None
    """Module and name of the exception's class."""
    traceback: str | None = None
    progress: Progress | None = None
    """The last progress that the handler reported; None if it did not report any, or if the worker died."""
    log: tuple[LogLine, ...] = ()
    """The last lines that the handler logged; empty while the attempt is running, or if the worker died."""
    log_omitted: int = 0
    """Number of earlier lines that were not kept."""


def now(store: Transactions, *, using: object = None) -> datetime:
    """Return the database's time, which is used for due times and leases."""
    return store.run(store.now_in, using=using, begin=Begin.READ)


def get(store: Transactions, task_id: AnyId, *, using: object = None) -> TaskExecution:
    """Return one task execution. Raises TaskNotFound."""
    rows = store.run_one(select_task, task_id=identifier(task_id), using=using)
    if not rows:
        raise no_task(identifier(task_id))
    return execution_of(rows[0])


def history(store: Transactions, task_id: AnyId, *, using: object = None) -> list[ExecutionEvent]:
    """Return the events of the task, oldest first; empty for an unknown task."""
    rows = store.run_one(select_history, task_id=identifier(task_id), using=using)
    return [event_of(row) for row in rows]


def recent_history(store: Transactions, task_id: AnyId, limit: int, *, using: object = None) -> list[ExecutionEvent]:
    """Return the newest events of the task, at most `limit`, oldest first; empty for an unknown task. The cost does not
    grow with the length of the history.
    """
    rows = store.run_one(select_recent_history, task_id=identifier(task_id), limit=positive(limit), using=using)
    return [event_of(row) for row in reversed(rows)]


def restarted_at(store: Transactions, task_id: AnyId, *, using: object = None) -> datetime | None:
    """Return the start of the first attempt since a person last redrove, rewound or replaced the task, or scheduled its
    retry; None if the history does not contain such an attempt.
    """
    rows = store.run_one(select_restart, task_id=identifier(task_id), using=using)
    return rows[0]["restarted_at"] if rows else None


def get_ready_for_retry(store: Transactions, limit: int = 1000, *, using: object = None) -> list[TaskExecution]:
    """Return the Ready tasks that may run now, oldest first. Each task either has never been attempted, or has reached
    its retry time.
    """
    return [execution_of(row) for row in store.run_one(ready_for_retry, limit=positive(limit), using=using)]


def attempts(store: Transactions, task_id: AnyId, *, using: object = None) -> list[Attempt]:
    """Return each attempt at the task, oldest first; empty for a task that was never claimed. Raises TaskNotFound."""
    return attempts_of(events_of(store, task_id, using))


def attempts_of(events: Iterable[ExecutionEvent]) -> list[Attempt]:
    """Return the attempts that these events of one task describe. The events must be sorted oldest first."""
    found: dict[int, Attempt] = {}
    for event in events:
        token, data = event.lease_token, event.event_data
        if token is None:
            continue
        if event.event_type is EventType.CLAIMED:
            number, worker = data.get("attempt", 0), event.worker_id
            found[token] = Attempt(number=number, lease_token=token, worker_id=worker, started_at=event.created_at)
        elif token in found:
            found[token] = replace(
                found[token],
                ended_at=event.created_at,
                outcome=event.event_type,
                error=data.get("error"),
                exception=data.get("exception"),
                traceback=data.get("traceback"),
                progress=progress_of(data.get("progress")),
                log=log_of(data),
                log_omitted=omitted_of(data),
            )
    return list(found.values())


def no_task(task_id: UUID) -> TaskNotFound:
    """Return the error for a missing task. The error names a batch if the id shows that the task follows that batch."""
    hint, link = "; its transaction may not have been committed yet", link_of(task_id)
    if link is not None and link.number == 0:
        hint = f"; this is the id of a batch or a chain: outboxq batch show {task_id}"
    elif link is not None:
        hint = f"; it may not have been enqueued yet: outboxq batch show {link.batch_id}"
    return TaskNotFound(f"there is no task {task_id}{hint}")


def find(store: Transactions, beginning: str, *, using: object = None) -> UUID:
    """Return the id of the only task whose id begins with this string: at least six hex digits, in upper or lower case,
    with or without dashes.

    A full id is returned unchanged, without reading the tables. An id begins with the time at which it was created, so
    the ids of tasks that were enqueued within the same minute usually share their first eight digits. Raises
    TaskNotFound; AmbiguousTask, which names up to five matching tasks; and InvalidArgument for any other string.
    """
    digits = digits_of(beginning)
    if len(digits) == _ALL:
        return UUID(digits)
    first, last = UUID(digits.ljust(_ALL, "0")), UUID(digits.ljust(_ALL, "f"))
    rows = store.run_one(select_beginning, first=first, last=last, limit=_NAMED + 1, using=using)
    if not rows:
        raise TaskNotFound(f"no committed task has an id that begins with {digits}")
    if len(rows) > 1:
        named = ", ".join(f"{row['id']} ({row['task_name']}, {row['status']})" for row in rows[:_NAMED])
        many = f"more than {_NAMED}" if len(rows) > _NAMED else str(len(rows))
        raise AmbiguousTask(
            f"{many} task ids begin with {digits}; enter more digits: {named}",
            [row["id"] for row in rows[:_NAMED]],
        )
    return rows[0]["id"]  # type: ignore[no-any-return]


def digits_of(text: str) -> str:
    """Return the hex digits of an id, or of its beginning. Raises InvalidArgument."""
    digits = re.sub(r"^urn:uuid:|[-{}]", "", text.strip().lower())
    if not re.fullmatch(rf"[0-9a-f]{{{_FEWEST},{_ALL}}}", digits):
        raise InvalidArgument(f"{text!r} is not a task id; enter a full id, or at least its first {_FEWEST} hex digits")
    return digits


def events_of(store: Transactions, task_id: AnyId, using: object) -> list[ExecutionEvent]:
    """Return the task's history. Raises TaskNotFound."""
    if not (events := history(store, task_id, using=using)):
        raise no_task(identifier(task_id))
    return events


def execution_of(row: dict[str, Any]) -> TaskExecution:
    return TaskExecution(**{**row, "status": TaskStatus(row["status"])})


def event_of(row: dict[str, Any]) -> ExecutionEvent:
    kind, data = event_type_of(row["event_type"]), data_of(row["event_data"])
    return ExecutionEvent(**{**row, "event_type": kind, "event_data": data})


def data_of(text: str | None) -> dict[str, Any]:
    """Return the data of an event. A string that is not a JSON object, which SQL from outside outboxq may have written,
    is returned under ``unreadable``.
    """
    try:
        data = json.loads(text or "{}")
    except ValueError:
        data = None
    return data if isinstance(data, dict) else {"unreadable": text}


_task_id, _first, _last = parameters(sa.Uuid, "task_id", "first", "last")


def select_task(_: Grammar) -> sa.Select[Any]:
    """Select one task execution, with its lease if the task is Running."""
    return with_lease().where(task_executions.c.id == _task_id)


def select_history(_: Grammar) -> sa.Select[Any]:
    """Select the events of one task, oldest first."""
    events = sa.union_all(*_parts_of_history()).subquery("events")
    return sa.select(events).order_by(events.c.sequence_num)


def select_recent_history(_: Grammar) -> sa.Select[Any]:
    """Select the newest :limit events of one task, newest first. Each index is read only up to the limit, because lease
    tokens increase in event order.
    """
    event = execution_events.c
    claims, ends, others = _parts_of_history()
    newest = (
        claims.order_by(event.lease_token.desc()).limit(limit).subquery("claims"),
        ends.order_by(event.lease_token.desc()).limit(limit).subquery("ends"),
        others.order_by(event.sequence_num.desc()).limit(limit).subquery("others"),
    )
    events = sa.union_all(*map(sa.select, newest)).subquery("events")
    return sa.select(events).order_by(events.c.sequence_num.desc()).limit(limit)


def _parts_of_history() -> list[sa.Select[Any]]:
    """Select the events in three parts, one for each of the disjoint indexes."""
    event = execution_events.c
    columns, claimed = (column for column in event if column.key != "xact_id"), sql_literal(EventType.CLAIMED)
    mine = sa.select(*columns).where(event.task_execution_id == _task_id)
    return [
        mine.where(event.event_type == claimed),
        mine.where(event.event_type != claimed, event.lease_token.is_not(None)),
        mine.where(event.lease_token.is_(None)),
    ]


def select_restart(_: Grammar) -> sa.Select[Any]:
    """Select the start of the first attempt since the last event in `_RESTARTS`. The attempts are read in the order of
    their lease tokens, until one is found.
    """
    parts = _parts_of_history()
    claims, others = parts[0].subquery("claims").c, parts[2].subquery("others").c
    is_restart = others.event_type.in_([sql_literal(kind) for kind in sorted(_RESTARTS)])
    last = sa.select(sa.func.max(others.sequence_num)).where(is_restart).scalar_subquery()
    later = sa.select(claims.created_at.label("restarted_at")).where(claims.sequence_num > last)
    return later.order_by(claims.lease_token).limit(ONE)


_RESTARTS = {EventType.REQUEUED, EventType.RETRY_SCHEDULED, EventType.REWOUND, EventType.REPLACED}
"""The events without a claim that restart the time limit of a retry policy."""


def ended_by(_: Grammar) -> sa.Select[Any]:
    """Select the event that ended the claim with this worker and token, in case the answer was lost with the
    connection.
    """
    event = execution_events.c
    return sa.select(event.event_type).where(
        event.task_execution_id == _task_id,
        event.lease_token == sa.bindparam("lease_token", required=True),
        event.worker_id == sa.bindparam("worker_id", type_=sa.Uuid, required=True),
        event.event_type != sql_literal(EventType.CLAIMED),
        event.event_type.in_([sql_literal(kind) for kind in sorted(ENDS_CLAIM)]),
    )


def ready_for_retry(g: Grammar) -> sa.Select[Any]:
    """Select the Ready tasks that may run now, oldest first. A task that is due exactly now is included."""
    entry, execution = task_outbox.c, task_executions.c
    may_run = (
        execution.status == SqlStatus.READY,
        sa.or_(execution.retry_at.is_(None), execution.retry_at <= g.now),
        entry.available_at <= g.now,
    )
    found = with_lease().join(task_outbox, entry.task_execution_id == execution.id).where(*may_run)
    return found.order_by(entry.available_at, entry.id).limit(limit)


def with_lease() -> sa.Select[Any]:
    return sa.select(task_executions, task_leases.c.lease_expires_at).outerjoin_from(
        task_executions, task_leases, task_leases.c.task_execution_id == task_executions.c.id
    )


def select_beginning(_: Grammar) -> sa.Select[Any]:
    """Select the tasks whose ids are between :first and :last, oldest first. These are the tasks whose ids begin with
    the same digits.
    """
    execution = task_executions.c
    columns = (execution.id, execution.task_name, execution.status)
    found = sa.select(*columns).where(execution.id >= _first, execution.id <= _last)
    return found.order_by(execution.id).limit(limit)
