"""Write tasks with idempotency keys, and take keys over from the tasks that hold them.

Locks are taken in one order: keys by scope and key, then outbox entries, then executions. A key's row is locked before it or
its task is changed, and keys are inserted and locked in their order. So two batches cannot wait for each other.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    Boolean,
    ColumnElement,
    Double,
    Integer,
    Select,
    Text,
    Uuid,
    and_,
    case,
    delete,
    literal_column,
    null,
    or_,
    select,
    true,
    update,
)

from ...model import TERMINAL, EventType, TaskStatus
from ..tables import dead_letters, idempotency_keys, task_executions, task_outbox
from . import effects, enqueue
from .grammar import Columns, Grammar, Relations, Statement, StepCondition, Transition, word

KEYED: Columns = {
    **enqueue.NEW_TASK,
    "idempotency_key": Text(),
    "unique_seconds": Double(),
    "until_finished": Boolean(),
}
CONTENDED: Columns = {**KEYED, "holder": Uuid()}
"""A new task, and the task that holds its key."""
TAKING: Columns = {**CONTENDED, "lost_key": Text()}
"""A contended task with the key that a dead letter loses. The dead letter must acquire it again before it is redriven."""


def enqueue_keyed(g: Grammar) -> Transition:
    """Write new tasks, some with an idempotency key. Returns the ids of the tasks that were written: those whose key was free.

    ON CONFLICT DO NOTHING waits for a concurrent holder of the key to commit or roll back, and never raises at
    READ COMMITTED.
    """

    def key(r: Relations) -> Statement:
        given = r["given"].c
        values = {
            "scope": given.task_name,
            "key": given.idempotency_key,
            "task_execution_id": given.id,
            "expires_at": g.later(g.now, given.unique_seconds),
            "until_finished": given.until_finished,
            "created_at": g.now,
        }
        rows = (
            select(*values.values())
            .where(given.idempotency_key.is_not(None))
            .order_by(given.task_name, given.idempotency_key, given.ordinal)
        )
        new = g.insert(idempotency_keys).from_select(list(values), rows).on_conflict_do_nothing()
        return new.returning(idempotency_keys.c.task_execution_id.label("id"))  # type: ignore[no-any-return]

    def entry(r: Relations) -> Statement:
        given = r["given"].c
        free = given.idempotency_key.is_(None) | given.id.in_(select(r["key"].c.id))
        return enqueue.entry(g, r, enqueue.every(r).where(free))

    return Transition(
        given=KEYED,
        constant_columns=enqueue.CONSTANT_COLUMNS,
        steps={
            "key": key,
            "entry": entry,
            "execution": lambda r: enqueue.execution(g, r),
            "event": lambda r: enqueue.event(g, r, **asked(g, r["given"].c)),
        },
        returns="entry",
        returning=("id",),  # no times: psycopg cannot read the format of every caller's connection
    )


def asked(g: Grammar, given: Any) -> dict[str, ColumnElement[Any]]:
    """Return the members of a Created event's data that name the task's idempotency key."""
    keyed = given.idempotency_key.is_not(None)
    return {
        "idempotency_key": given.idempotency_key,
        "unique_until": case((keyed, g.later(g.now, given.unique_seconds))),
        "unique_until_finished": case((and_(keyed, given.until_finished), true())),
    }


def key_holders(g: Grammar) -> Transition:
    """Return the task that holds each key, if the key has expired, and the task's status (None if it was pruned)."""
    held = idempotency_keys.c

    def found(r: Relations) -> Statement:
        """Look each key up by index, whatever the planner estimates for the table."""
        given = r["given"].c
        mine = select(held.task_execution_id).where(held.scope == given.scope, held.key == given.key)
        return select(mine.scalar_subquery().label("id")).select_from(r["given"])

    def holder(r: Relations) -> Statement:
        return select(
            held.task_execution_id.label("id"),
            held.scope,
            held.key,
            (held.expires_at <= g.now).label("expired"),
            held.until_finished,
        ).where(g.among(held.task_execution_id, r["found"].c.id))

    def task(r: Relations) -> Statement:
        execution = task_executions.c
        return select(execution.id, execution.status).where(g.among(execution.id, r["holder"].c.id))

    return Transition(
        given={"scope": Text(), "key": Text()},
        steps={"found": found, "holder": holder, "task": task},
        returns="holder",
        joined_steps=("task",),
    )


def lock_keys(g: Grammar) -> Transition:
    """Lock the keys of these tasks in the order of the keys. Returns the tasks that still hold theirs."""
    held = idempotency_keys.c

    def locked(r: Relations) -> Statement:
        return (
            select(held.task_execution_id.label("id"))
            .where(g.among(held.task_execution_id, r["given"].c.id))
            .order_by(held.scope, held.key)
            .with_for_update()
        )

    return Transition(given={"id": Uuid()}, steps={"locked": locked}, returns="locked")


def take_over_keys(g: Grammar) -> Transition:
    """Write new tasks for keys that are free again. Returns the ids of the tasks whose key still was as `key_holders` saw it.

    The task that held the key may have been redriven since. A redrive locks the key first, so this is seen.
    """
    held, letter = idempotency_keys.c, dead_letters.c

    def alive(r: Relations) -> Statement:
        execution = task_executions.c
        statuses = [word(status) for status in TaskStatus if status not in TERMINAL]
        return select(execution.id).where(g.among(execution.id, r["given"].c.holder), execution.status.in_(statuses))

    def key(r: Relations) -> Statement:
        given = r["given"].c
        return (
            update(idempotency_keys)
            .where(
                g.among(held.task_execution_id, given.holder),
                held.task_execution_id == given.holder,
                held.scope == given.task_name,
                held.key == given.idempotency_key,
                or_(held.expires_at <= g.now, held.task_execution_id.not_in(select(r["alive"].c.id))),
            )
            .values(
                task_execution_id=given.id,
                expires_at=g.later(g.now, given.unique_seconds),
                until_finished=given.until_finished,
                created_at=g.now,
            )
            .returning(held.task_execution_id.label("id"))
        )

    def entry(r: Relations) -> Statement:
        return enqueue.entry(g, r, enqueue.every(r).where(r["given"].c.id.in_(select(r["key"].c.id))))

    def lost(r: Relations) -> Statement:
        given = r["given"].c
        return (
            update(dead_letters)
            .where(
                g.among(letter.task_execution_id, given.holder),
                letter.task_execution_id == given.holder,
                given.lost_key.is_not(None),
                given.id.in_(select(r["key"].c.id)),
            )
            .values(lost_key=given.lost_key)
        )

    return Transition(
        given=TAKING,
        conditions={"lost": StepCondition(relation="given", column="lost_key")},
        steps={
            "alive": alive,
            "key": key,
            "lost": lost,
            "entry": entry,
            "execution": lambda r: enqueue.execution(g, r),
            "event": lambda r: enqueue.event(g, r, **asked(g, r["given"].c)),
        },
        returns="entry",
        returning=("id",),
    )


def replace(g: Grammar) -> Transition:
    """Overwrite waiting tasks with the values of new tasks; a batch names each holder once. Returns the holders it overwrote.

    A task is still waiting if its outbox entry can be deleted. A task that was claimed meanwhile is not changed.
    """
    return Transition(
        given=CONTENDED,
        steps={
            "waiting": lambda r: _waiting(g, r),
            "gone": lambda r: _gone(g, r),
            "replaced": lambda r: _replaced(g, r),
            "entry": lambda r: _new_entry(g, r),
            "event": lambda r: _event(g, r),
        },
        returns="replaced",
        returning=("id",),
        joined_steps=("gone",),
    )


def written(g: Grammar) -> Transition:
    """Return the ids of these tasks that exist."""

    def found(r: Relations) -> Statement:
        return select(task_executions.c.id).where(g.among(task_executions.c.id, r["given"].c.id))

    return Transition(given={"id": Uuid()}, steps={"found": found}, returns="found")


def _waiting(g: Grammar, r: Relations) -> Select[Any]:
    entry = task_outbox.c
    return (
        select(entry.task_execution_id.label("id"))
        .where(g.among(entry.task_execution_id, r["given"].c.holder))
        .order_by(entry.task_execution_id)
        .with_for_update()
    )


def _gone(g: Grammar, r: Relations) -> Statement:
    entry = task_outbox.c
    return (
        delete(task_outbox)
        .where(g.among(entry.task_execution_id, r["waiting"].c.id))
        .returning(
            entry.task_execution_id.label("id"),
            entry.queue.label("left_queue"),
            entry.partition_key.label("left_key"),
        )
    )


def _replaced(g: Grammar, r: Relations) -> Statement:
    execution, given = task_executions.c, r["given"].c
    return (
        update(task_executions)
        .where(
            g.among(execution.id, r["gone"].c.id),
            execution.id == given.holder,
            execution.status == word(TaskStatus.READY),
        )
        .values(
            **{name: given[name] for name in _TAKEN_OVER},
            attempt=literal_column("1", Integer),
            recovery_attempts=literal_column("0", Integer),
            retry_at=null(),
            expires_at=enqueue.expiry(g, given),
            updated_at=g.now,
        )
        .returning(*(execution[name] for name in effects.CARRIED), execution.attempt, execution.recovery_attempts)
    )


_TAKEN_OVER = (
    "queue",
    "topic",
    "partition_key",
    "priority",
    "args",
    "headers",
    "max_attempts",
    "lease_seconds",
    "timeout_seconds",
    "on_dead_letter",
)


def _new_entry(g: Grammar, r: Relations) -> Statement:
    replaced, given = r["replaced"].c, r["given"].c
    rows = r["replaced"].join(r["given"], replaced.id == given.holder)
    return effects.entry(g, replaced, rows, ready=replaced.status == word(TaskStatus.READY), due=enqueue.due(g, given))


def _event(g: Grammar, r: Relations) -> Statement:
    replaced, given = r["replaced"].c, r["given"].c
    return effects.event(
        g,
        replaced,
        r["replaced"].join(r["given"], replaced.id == given.holder),
        event_type=word(EventType.REPLACED),
        data=g.json(
            available_at=enqueue.due(g, given),
            attempt=replaced.attempt,
            recovery_attempts=replaced.recovery_attempts,
            request=given.id,
            position=case((replaced.partition_key.is_not(None), replaced.position)),
        ),
        worker_id=null(),
        lease_token=null(),
    )
