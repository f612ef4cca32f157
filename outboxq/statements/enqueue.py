"""Writing new task executions: entry, execution and event, for one task or thousands, in one chain."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Double,
    Integer,
    Select,
    SmallInteger,
    Text,
    Uuid,
    false,
    func,
    literal_column,
    null,
    select,
)
from sqlalchemy import insert as plain_insert

from ..column_types import Instant
from ..model import EventType, TaskStatus
from ..tables import idempotency_keys, task_executions, task_outbox
from . import follow
from .grammar import Columns, Grammar, Relations, Statement, Transition, word

NEW_TASK: Columns = {
    "id": Uuid(),
    "pipeline_execution_id": Uuid(),
    "task_name": Text(),
    "queue": Text(),
    "priority": SmallInteger(),
    "args": Text(),
    "headers": Text(),
    "max_attempts": Integer(),
    "lease_seconds": Double(),
    "timeout_seconds": Double(),
    "available_at": Instant,
    "delay_seconds": Double(),
    "partition_key": Text(),
    "on_dead_letter": Text(),
    "event_type": Text(),
    "expires_at": Instant,
    "expires_seconds": Double(),
}
KEYED: Columns = {**NEW_TASK, "idempotency_key": Text()}


def enqueue(g: Grammar) -> Transition:
    """New tasks, none of them with an idempotency key."""
    return Transition(
        name="enqueue",
        given=NEW_TASK,
        steps={
            "entry": lambda r: _entry(g, r, _all(r)),
            "execution": lambda r: _execution(g, r),
            "event": lambda r: _event(g, r),
        },
    )


def enqueue_keyed(g: Grammar) -> Transition:
    """New tasks, some with an idempotency key. Returns the ids of those whose key was free.

    ON CONFLICT DO NOTHING waits for a concurrent holder of the key to commit or roll back, and never raises at
    READ COMMITTED. Keys are inserted in their order, so that two batches cannot wait for each other.
    """
    return Transition(
        name="enqueue_keyed",
        given=KEYED,
        steps={
            "key": lambda r: (
                g.insert(idempotency_keys)
                .from_select(
                    ["scope", "key", "task_execution_id", "until_finished", "created_at"],
                    select(r["given"].c.task_name, r["given"].c.idempotency_key, r["given"].c.id, false(), g.now)
                    .where(r["given"].c.idempotency_key.is_not(None))
                    .order_by(r["given"].c.task_name, r["given"].c.idempotency_key, r["given"].c.ordinal),
                )
                .on_conflict_do_nothing()
                .returning(idempotency_keys.c.task_execution_id.label("id"))
            ),
            "entry": lambda r: _entry(
                g,
                r,
                _all(r).where(
                    r["given"].c.idempotency_key.is_(None) | r["given"].c.id.in_(select(r["key"].c.id)),
                ),
            ),
            "execution": lambda r: _execution(g, r),
            "event": lambda r: _event(g, r),
        },
        returns="entry",
    )


def keyed_tasks() -> Transition:
    """The tasks that hold the given keys."""

    def holders(r: Relations) -> Select[tuple[object, ...]]:
        given, held = r["given"], idempotency_keys.c
        return select(held.scope, held.key, held.task_execution_id.label("id")).join_from(
            idempotency_keys, given, (held.scope == given.c.scope) & (held.key == given.c.key)
        )

    return Transition(
        name="keyed_tasks", given={"scope": Text(), "key": Text()}, steps={"holder": holders}, returns="holder"
    )


def _all(r: Relations) -> Select[tuple[object, ...]]:
    return select(r["given"])


def _entry(g: Grammar, r: Relations, tasks: Select[tuple[object, ...]]) -> Statement:
    given = r["given"].c
    position = g.position(r["given"])
    values = {
        "task_execution_id": given.id,
        "queue": given.queue,
        "priority": given.priority,
        "partition_key": given.partition_key,
        "position": position,
        "event_type": given.event_type,
        "available_at": func.coalesce(given.available_at, g.later(g.now, given.delay_seconds)),
        "expires_at": func.coalesce(given.expires_at, g.later(g.now, given.expires_seconds)),
        "created_at": g.now,
    }
    entry = task_outbox.c
    return (
        plain_insert(task_outbox)
        .from_select(list(values), tasks.with_only_columns(*values.values()))
        .returning(entry.task_execution_id.label("id"), entry.position, entry.available_at, entry.expires_at)
    )


def _execution(g: Grammar, r: Relations) -> Statement:
    given, entry = r["given"].c, r["entry"].c
    values = {
        "id": given.id,
        "pipeline_execution_id": given.pipeline_execution_id,
        "task_name": given.task_name,
        "queue": given.queue,
        "event_type": given.event_type,
        "partition_key": given.partition_key,
        "position": entry.position,
        "priority": given.priority,
        "args": given.args,
        "headers": given.headers,
        "status": word(TaskStatus.READY),
        "attempt": literal_column("1", Integer),
        "max_attempts": given.max_attempts,
        "recovery_attempts": literal_column("0", Integer),
        "lease_seconds": given.lease_seconds,
        "timeout_seconds": given.timeout_seconds,
        "lease_token": literal_column("0", BigInteger),
        "on_dead_letter": given.on_dead_letter,
        "expires_at": entry.expires_at,
        "created_at": g.now,
        "updated_at": g.now,
    }
    rows = select(*values.values()).join_from(r["given"], r["entry"], given.id == entry.id)
    return plain_insert(task_executions).from_select(list(values), rows)


def _event(g: Grammar, r: Relations) -> Statement:
    given, entry = r["given"].c, r["entry"].c
    return follow.event(
        g,
        given,
        r["given"].join(r["entry"], given.id == entry.id),
        event_type=word(EventType.CREATED),
        data=g.json(available_at=entry.available_at),
        worker_id=null(),
        lease_token=null(),
    )
