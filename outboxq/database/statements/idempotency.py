"""Write tasks with idempotency keys, take keys over from the tasks that hold them, and give keys back to redriven tasks.

Locks are taken in one order: keys by scope and key, then outbox entries, then executions. A key's row is locked before it or
its task is changed, and keys are inserted and locked in their order. So two batches cannot wait for each other, and no key is
taken over while its task is redriven.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import (
    Boolean,
    ColumnElement,
    Double,
    FromClause,
    Integer,
    Text,
    Uuid,
    and_,
    case,
    delete,
    func,
    literal_column,
    null,
    or_,
    select,
    true,
    union_all,
    update,
)

from ...model import EventType
from ..grammar import Columns, Grammar, Relations, SqlStatus, Statement, Step, StepCondition, Transition, sql_literal
from ..tables import dead_letters, idempotency_keys, task_executions, task_outbox
from . import enqueue, task_rows

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
_FIXED = {"id", "pipeline_execution_id", "task_name", "expires_at"}
_OVERWRITTEN = [name for name in enqueue.NEW_TASK if name in task_executions.c and name not in _FIXED]
"""The columns that a task takes over from the one that replaces it, as they are given."""
_held, _letter = idempotency_keys.c, dead_letters.c


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
        return new.returning(_held.task_execution_id.label("id"))  # type: ignore[no-any-return]

    def is_free(r: Relations) -> ColumnElement[bool]:
        return or_(r["given"].c.idempotency_key.is_(None), _has_key(r))

    return Transition(
        given=KEYED,
        constant_columns=enqueue.CONSTANT_COLUMNS,
        steps={"key": key, **_new_task(g, is_free)},
        returns="entry",
        returning=("id",),  # no times: psycopg cannot read the format of every caller's connection
    )


def key_holders(g: Grammar) -> Transition:
    """Return the task that holds each key, if the key has expired, and the task's status (None if it was pruned)."""

    def found(r: Relations) -> Statement:
        """Look each key up by index, whatever the planner estimates for the table."""
        given = r["given"].c
        mine = select(_held.task_execution_id).where(_held.scope == given.scope, _held.key == given.key)
        return select(mine.scalar_subquery().label("id")).select_from(r["given"])

    def holder(r: Relations) -> Statement:
        expired = (_held.expires_at <= g.now).label("expired")
        columns = (_held.task_execution_id.label("id"), _held.scope, _held.key, expired, _held.until_finished)
        return select(*columns).where(g.among(_held.task_execution_id, r["found"].c.id))

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

    def locked(r: Relations) -> Statement:
        held = select(_held.task_execution_id.label("id")).where(g.among(_held.task_execution_id, r["given"].c.id))
        return held.order_by(_held.scope, _held.key).with_for_update()

    return Transition(given={"id": Uuid()}, steps={"locked": locked}, returns="locked")


def take_over_keys(g: Grammar) -> Transition:
    """Write new tasks for keys that are free again. Returns the ids of the tasks whose key still was as `key_holders` saw it.

    The task that held the key may have been redriven since. A redrive locks the key first, so this is seen.
    """

    def alive(r: Relations) -> Statement:
        execution = task_executions.c
        unfinished = execution.status.in_([SqlStatus.READY, SqlStatus.RUNNING])
        return select(execution.id).where(g.among(execution.id, r["given"].c.holder), unfinished)

    def key(r: Relations) -> Statement:
        given = r["given"].c
        free = or_(_held.expires_at <= g.now, _held.task_execution_id.not_in(select(r["alive"].c.id)))
        return _pass_key(
            g,
            given,
            (_held.scope == given.task_name, _held.key == given.idempotency_key, free),
            expires_at=g.later(g.now, given.unique_seconds),
            until_finished=given.until_finished,
        )

    def lost(r: Relations) -> Statement:
        given = r["given"].c
        return _lose_key(g, given, given.lost_key, given.lost_key.is_not(None), _has_key(r))

    return Transition(
        given=TAKING,
        conditions={"lost": StepCondition(column="lost_key")},
        steps={"alive": alive, "key": key, "lost": lost, **_new_task(g, _has_key)},
        returns="entry",
        returning=("id",),
    )


def replace(g: Grammar) -> Transition:
    """Overwrite waiting tasks with the values of new tasks; a batch names each holder once. Returns the holders it overwrote.

    A task is still waiting if its outbox entry can be deleted. A task that was claimed meanwhile is not changed.
    """
    entry = task_outbox.c

    def waiting(r: Relations) -> Statement:
        held = select(entry.task_execution_id.label("id")).where(g.among(entry.task_execution_id, r["given"].c.holder))
        return held.order_by(entry.task_execution_id).with_for_update()

    def gone(r: Relations) -> Statement:
        left = (entry.queue.label("left_queue"), entry.partition_key.label("left_key"))
        replaced = delete(task_outbox).where(g.among(entry.task_execution_id, r["waiting"].c.id))
        return replaced.returning(entry.task_execution_id.label("id"), *left)

    def new_entry(r: Relations) -> Statement:
        return task_rows.entry(g, r["replaced"].c, _both(r), due=enqueue.due(g, r["given"].c))

    return Transition(
        given=CONTENDED,
        steps={
            "waiting": waiting,
            "gone": gone,
            "replaced": lambda r: _replaced(g, r),
            "entry": new_entry,
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


def lock_for_redrive(g: Grammar) -> Transition:
    """Lock the keys that these tasks hold or have lost, until the transaction ends. A lost key that is free is acquired.

    Each row is updated without a change. So no transaction above READ COMMITTED can take the key over by an older snapshot.
    """

    def wanted(r: Relations) -> Statement:
        given = r["given"].c.id
        own = select(_held.scope, _held.key, _held.task_execution_id.label("id")).where(
            g.among(_held.task_execution_id, given), _held.until_finished
        )
        lost = select(_letter.task_name, _letter.lost_key, _letter.task_execution_id).where(
            g.among(_letter.task_execution_id, given), _letter.lost_key.is_not(None)
        )
        both = union_all(own, lost).subquery("both")
        nth = func.row_number().over(partition_by=(both.c.scope, both.c.key), order_by=both.c.id)
        return select(*both.c, nth.label("nth"))

    def locked(r: Relations) -> Statement:
        wanted = r["wanted"].c
        first = select(wanted.scope, wanted.key, wanted.id, true(), g.now).where(wanted.nth == literal_column("1"))
        names = ["scope", "key", "task_execution_id", "until_finished", "created_at"]
        return (  # type: ignore[no-any-return]
            g.insert(idempotency_keys)
            .from_select(names, first.order_by(wanted.scope, wanted.key))
            .on_conflict_do_update(index_elements=["scope", "key"], set_={"key": _held.key})
            .returning(_held.task_execution_id.label("id"))
        )

    return Transition(given={"id": Uuid()}, steps={"wanted": wanted, "locked": locked}, returns="locked")


def lost_keys(g: Grammar) -> Transition:
    """Select the keys that these dead letters have lost. They must be locked first."""

    def found(r: Relations) -> Statement:
        lost = (_letter.task_execution_id.label("id"), _letter.task_name.label("scope"), _letter.lost_key.label("key"))
        mine = g.among(_letter.task_execution_id, r["given"].c.id)
        return select(*lost).where(mine, _letter.lost_key.is_not(None))

    return Transition(given={"id": Uuid()}, steps={"found": found}, returns="found")


def take_back_keys(g: Grammar) -> Transition:
    """Give locked keys back to the tasks that had lost them. A Failed task that holds such a key is recorded as having
    lost it.
    """

    def key(r: Relations) -> Statement:
        given = r["given"].c
        its_key = (_held.scope == given.scope, _held.key == given.key)
        return _pass_key(g, given, its_key, expires_at=null(), until_finished=true())

    return Transition(
        given={"id": Uuid(), "scope": Text(), "key": Text(), "holder": Uuid()},
        steps={"letter": lambda r: _lose_key(g, r["given"].c, r["given"].c.key), "key": key},
        returns="key",
    )


def _new_task(g: Grammar, is_free: Callable[[Relations], ColumnElement[bool]]) -> Mapping[str, Step]:
    """Return the steps that write the new tasks whose key is free."""
    return {
        "entry": lambda r: enqueue.entry(g, r["given"].c, r["given"], r["given"], is_free(r)),
        "execution": lambda r: enqueue.execution(g, r),
        "event": lambda r: enqueue.event(g, r["given"], r["entry"], **_asked(g, r["given"].c)),
    }


def _has_key(r: Relations) -> ColumnElement[bool]:
    """Return a condition: the step `key` has given the task its key."""
    return r["given"].c.id.in_(select(r["key"].c.id))  # type: ignore[no-any-return]


def _asked(g: Grammar, given: Any) -> Mapping[str, ColumnElement[Any]]:
    """Return the members of a Created event's data that name the task's idempotency key."""
    keyed = given.idempotency_key.is_not(None)
    return {
        "idempotency_key": given.idempotency_key,
        "unique_until": case((keyed, g.later(g.now, given.unique_seconds))),
        "unique_until_finished": case((and_(keyed, given.until_finished), true())),
    }


def _pass_key(g: Grammar, given: Any, its_key: tuple[ColumnElement[bool], ...], **values: Any) -> Statement:
    """Pass `its_key` from the task that holds it to the given one."""
    mine = (g.among(_held.task_execution_id, given.holder), _held.task_execution_id == given.holder)
    return (
        update(idempotency_keys)
        .where(*mine, *its_key)
        .values(task_execution_id=given.id, created_at=g.now, **values)
        .returning(_held.task_execution_id.label("id"))
    )


def _lose_key(g: Grammar, given: Any, key: ColumnElement[str], *where: ColumnElement[bool]) -> Statement:
    """Record in the dead letter of the task that holds the key that it loses it."""
    mine = (g.among(_letter.task_execution_id, given.holder), _letter.task_execution_id == given.holder)
    return update(dead_letters).where(*mine, *where).values(lost_key=key)


def _replaced(g: Grammar, r: Relations) -> Statement:
    execution, given = task_executions.c, r["given"].c
    return (
        update(task_executions)
        .where(g.among(execution.id, r["gone"].c.id), execution.id == given.holder, execution.status == SqlStatus.READY)
        .values(
            **{name: given[name] for name in _OVERWRITTEN},
            attempt=literal_column("1", Integer),
            recovery_attempts=literal_column("0", Integer),
            retry_at=null(),
            expires_at=enqueue.expiry(g, given),
            updated_at=g.now,
        )
        .returning(*task_rows.CARRIED, execution.attempt, execution.recovery_attempts)
    )


def _event(g: Grammar, r: Relations) -> Statement:
    replaced, given = r["replaced"].c, r["given"].c
    data = g.json(
        available_at=enqueue.due(g, given),
        attempt=replaced.attempt,
        recovery_attempts=replaced.recovery_attempts,
        request=given.id,
        position=case((replaced.partition_key.is_not(None), replaced.position)),
    )
    return task_rows.event(g, replaced, _both(r), event_type=sql_literal(EventType.REPLACED), data=data)


def _both(r: Relations) -> FromClause:
    return r["replaced"].join(r["given"], r["replaced"].c.id == r["given"].c.holder)  # type: ignore[no-any-return]
