"""Write tasks with idempotency keys, take over keys, and return keys to redriven tasks.

Locks are taken in a fixed order: keys by scope and key, then outbox entries, then executions. A key's row is locked
before the key or its task changes, and keys are inserted and locked in a fixed order. So two calls cannot wait for each
other, and a key is not taken over while its task is being redriven.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from ...database.dialects import Row
from ...database.grammar import (
    ONE,
    ZERO,
    Columns,
    Grammar,
    Relations,
    SqlStatus,
    Statement,
    Step,
    StepCondition,
    Transition,
    one_step,
    sql_literal,
)
from ...database.tables import dead_letters, idempotency_keys, task_executions, task_outbox
from ...database.target import Target
from ...errors import DuplicateTask
from ...model import TERMINAL, EventType, Handle, NewTask, OnConflict, TaskStatus
from .. import task_rows
from ..task_rows import IDS, row
from ..transactions import Transactions
from . import tasks

_NIL = UUID(int=0)
_SKIPPED = Handle(id=_NIL, created=False)

_LOOKS = 10
"""The maximum number of attempts to replace a task that is Ready when it is read, but no longer Ready when it is about
to be replaced. After that number of attempts, the task is not replaced.
"""

Key = tuple[str, str | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class KeyOwner:
    """The task that holds a key."""

    id: UUID
    status: str | None
    """None if the task was pruned."""
    expired: bool | None
    until_finished: bool

    @property
    def is_free(self) -> bool:
        """True if another task may take the key."""
        return bool(self.expired) or self.status is None or (self.until_finished and self.status in TERMINAL)

    def loses(self, key: Key) -> str | None:
        """Return the key that the dead letter records as lost, which a redrive must acquire again."""
        return key[1] if self.until_finished and self.status == TaskStatus.FAILED else None


def enqueue_keyed(store: Transactions, target: Target, tasks: Sequence[NewTask]) -> list[Handle]:
    """Write the tasks whose keys are free, and handle the others according to their `on_conflict`.

    The caller rolls back if this raises an error. A key or task that another transaction changes between the read and
    the write is read again, so each further round is caused by a commit of another transaction.
    """
    handles: dict[UUID, Handle] = {}
    left, look = tasks, count()
    while left:
        left = _round(store, target, left, handles, may_replace=next(look) < _LOOKS)
    return [handles[task.id] for task in tasks]


def foreseen(store: Transactions, target: Target, task: NewTask) -> Handle:
    """Return the handle that `enqueue_keyed` would return for this task now, and write nothing. Raises DuplicateTask."""
    owner = _owners(target, store.values(target), [_key(task)]).get(_key(task))
    if owner is None or owner.is_free:
        return Handle(id=task.id)
    if task.on_conflict is OnConflict.RAISE:
        raise _duplicate(task, owner.id, {})
    if task.on_conflict is OnConflict.REPLACE and owner.status == TaskStatus.READY:
        return Handle(id=owner.id, created=False, replaced=True)
    return _refused(task, owner.id)


def _round(
    store: Transactions, target: Target, tasks: Sequence[NewTask], handles: dict[UUID, Handle], *, may_replace: bool
) -> list[NewTask]:
    """Add the handles of the tasks whose outcome is known. Returns the other tasks, which must be read again."""
    values = store.values(target)
    created = _ids(target.run(insert_keyed, values, [keyed_row(task) for task in tasks]))
    handles |= {task_id: Handle(id=task_id) for task_id in created}
    refused = [task for task in tasks if task.id not in handles]
    if not refused:
        return []
    # This is a second statement, because its snapshot sees the rows that the first one waited for.
    owners = _owners(target, values, map(_key, refused))
    taking: dict[Key, NewTask] = {}
    replacing: dict[Key, list[NewTask]] = {}
    for task in refused:
        owner = owners.get(_key(task))
        if owner is None:
            continue  # pruned between the two statements
        if owner.is_free:
            taking.setdefault(_key(task), task)
        elif task.on_conflict is OnConflict.RAISE:
            raise _duplicate(task, owner.id, handles)
        elif task.on_conflict is OnConflict.REPLACE and owner.status == TaskStatus.READY and may_replace:
            replacing.setdefault(_key(task), []).append(task)
        else:
            handles[task.id] = _refused(task, owner.id)
    # A key is locked before it or its task is changed, so that two replacements of one task happen one after the other.
    wanted = [(owners[key].id,) for key in (*taking, *replacing)]
    kept = _ids(target.run(lock_keys, values, wanted)) if wanted else set()
    pairs = [(key, owners[key], task) for key, task in taking.items() if owners[key].id in kept]
    if rows := [(*keyed_row(task), owner.id, owner.loses(key)) for key, owner, task in pairs]:
        taken = _ids(target.run(take_over_keys, values, rows))
        handles |= {task_id: Handle(id=task_id) for task_id in taken}
    if by_owner := {owners[key].id: several for key, several in replacing.items() if owners[key].id in kept}:
        handles |= _replace(store, target, values, by_owner)
    return [task for task in refused if task.id not in handles]


def _replace(
    store: Transactions, target: Target, values: Mapping[str, Any], by_owner: Mapping[UUID, Sequence[NewTask]]
) -> dict[UUID, Handle]:
    """Replace waiting tasks. If several tasks replace one task, only the last of them is written."""
    rows = [(*keyed_row(tasks[-1]), owner) for owner, tasks in by_owner.items()]
    replaced = target.run(replace, values, rows)
    # A replaced task may have left its partition key, or moved back within it, so another task may now be the first
    # with the key.
    store.wake(target, [row["left_queue"] for row in replaced if row["left_key"] is not None])
    return {
        task.id: Handle(id=owner, created=False, replaced=True) for owner in _ids(replaced) for task in by_owner[owner]
    }


def enqueued(store: Transactions, target: Target, tasks: Sequence[NewTask]) -> list[Handle] | None:
    """Return the handles of the tasks that an earlier attempt wrote. That attempt wrote either all of the tasks, or
    none of them, in which case the result is None.

    If the attempt replaced a task, the event of the replaced task contains the id of the new task.
    """
    values = store.values(target)
    created = _ids(target.run(written, values, [(task.id,) for task in tasks]))
    others = [task for task in tasks if task.id not in created]
    # A key without an owner has been given up in the meantime, so the owner's id is unknown.
    owners = {key: owner.id for key, owner in _owners(target, values, map(_key, others)).items()}
    ours = {str(task.id) for task in tasks}
    replacing = {_key(task) for task in others if task.on_conflict is OnConflict.REPLACE}
    replaced = {owners[key] for key in replacing & owners.keys() if ours & _requests(target, owners[key])}
    if not created and not replaced:
        return None

    def handle_of(task: NewTask) -> Handle:
        owner = owners.get(_key(task), _NIL)
        if task.id in created:
            return Handle(id=task.id)
        if task.on_conflict is OnConflict.REPLACE and owner in replaced:
            return Handle(id=owner, created=False, replaced=True)
        return _refused(task, owner)

    return list(map(handle_of, tasks))


def regain_keys(
    store: Transactions, target: Target, task_ids: Collection[UUID], *, force: bool = False
) -> Mapping[UUID, DuplicateTask]:
    """Lock the keys of these tasks before the tasks leave Failed, and take back the lost keys that are free (with
    `force`, all lost keys).

    Returns an error for each task that must not run because another task has its key.
    """
    values = store.values(target)
    given = [(task_id,) for task_id in sorted(task_ids)]
    if not target.run(lock_for_redrive, values, given):
        return {}
    # This is a second statement, because its snapshot sees the rows that the first one waited for.
    lost = {row["id"]: (row["scope"], row["key"]) for row in target.run(lost_keys, values, given)}
    owners = _owners(target, values, lost.values())
    refused: dict[UUID, DuplicateTask] = {}
    taking: dict[Key, UUID] = {}
    for task_id, key in sorted(lost.items()):
        owner = owners[key]
        if owner.id == task_id:
            continue  # the key was free, and the lock has acquired it
        if key not in taking and (force or (owner.is_free and owner.id not in task_ids)):
            taking[key] = task_id
        else:
            refused[task_id] = _refusal(task_id, key, taking.get(key, owner.id))
    if taking:
        rows = [(task_id, *key, owners[key].id) for key, task_id in taking.items()]
        target.run(take_back_keys, values, rows)
    return refused


def _requests(target: Target, task_id: UUID) -> set[str]:
    """Return the ids of the new tasks that replaced this task."""
    history = target.run(tasks.select_history, {"task_id": task_id})
    events = [json.loads(event["event_data"]) for event in history if event["event_type"] == EventType.REPLACED]
    return {str(UUID(data["request"])) for data in events}


def _owners(target: Target, values: Mapping[str, Any], keys: Iterable[Key]) -> dict[Key, KeyOwner]:
    """Return, for each of these keys that is taken, the task that holds it."""
    wanted = sorted({key for key in keys if key[1] is not None}, key=str)
    found = target.run(key_holders, values, wanted) if wanted else []
    return {(row.pop("scope"), row.pop("key")): KeyOwner(**row) for row in found}


def _ids(rows: Iterable[Row]) -> set[UUID]:
    return {row["id"] for row in rows}


def _key(task: NewTask) -> Key:
    return task.task_name, task.idempotency_key


def _refused(task: NewTask, owner: UUID) -> Handle:
    return _SKIPPED if task.on_conflict is OnConflict.SKIP else Handle(id=owner, created=False)


def _duplicate(task: NewTask, owner: UUID, handles: Mapping[UUID, Handle]) -> DuplicateTask:
    what = f"the idempotency key {task.idempotency_key!r} of task {task.task_name!r}"
    if owner in handles:
        return DuplicateTask(f"{what} is used twice in one call; nothing was written", owner)
    return DuplicateTask(
        f"{what} already belongs to task {owner}, so nothing was written; check that task, or pass another on_conflict",
        owner,
    )


def _refusal(task_id: UUID, key: Key, owner: UUID) -> DuplicateTask:
    return DuplicateTask(
        f"task {task_id} cannot run again: its idempotency key {key[1]!r} of task {key[0]!r} now belongs to task "
        f"{owner}, and both would do the same work; check the other task, then discard this one, or take the "
        "key back with take_key_back=True (--take-key-back)",
        owner,
    )


def keyed_row(task: NewTask) -> tuple[object, ...]:
    """Return the task's values for the columns of `KEYED`."""
    unique_for = None if task.unique_for is None else task.unique_for.total_seconds()
    return *row(task), task.idempotency_key, unique_for, task.unique_until_finished


KEYED: Columns = {
    **task_rows.NEW_TASK,
    "idempotency_key": sa.Text(),
    "unique_seconds": sa.Double(),
    "until_finished": sa.Boolean(),
}
CONTENDED: Columns = {**KEYED, "holder": sa.Uuid()}
"""A new task, and the task that holds its key."""
TAKING: Columns = {**CONTENDED, "lost_key": sa.Text()}
"""A contended task, and the key that a dead letter loses to it and must acquire again before a redrive."""
_FIXED = {"id", "pipeline_execution_id", "task_name", "expires_at"}
_OVERWRITTEN = [name for name in task_rows.NEW_TASK if name in task_executions.c and name not in _FIXED]
"""The columns of a task that its replacement overwrites with the given values."""
_held, _dead_letter = idempotency_keys.c, dead_letters.c


def insert_keyed(g: Grammar) -> Transition:
    """Write new tasks, some with idempotency keys. Returns the ids of the written tasks, whose keys were free.

    ON CONFLICT DO NOTHING waits for a concurrent holder of the key to commit or roll back, and never raises an error at
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
        rows = sa.select(*values.values()).where(given.idempotency_key.is_not(None))
        order = (given.task_name, given.idempotency_key, given.ordinal)
        new = g.insert(idempotency_keys).from_select(list(values), rows.order_by(*order)).on_conflict_do_nothing()
        return new.returning(_held.task_execution_id.label("id"))  # type: ignore[no-any-return]

    def is_free(r: Relations) -> sa.ColumnElement[bool]:
        return sa.or_(r["given"].c.idempotency_key.is_(None), _has_key(r))

    return Transition(
        given=KEYED,
        constant_columns=task_rows.CONSTANT_COLUMNS,
        steps={"key": key, **_new_task(g, is_free)},
        returns="entry",
        returning=("id",),  # no times, because psycopg cannot read the time format of every caller's connection
    )


def key_holders(g: Grammar) -> Transition:
    """Return each key's task, that task's status (None if it was pruned), and whether the key has expired."""

    def found(r: Relations) -> Statement:
        """Look up each key by index, whatever the planner estimates for the table."""
        given = r["given"].c
        mine = sa.select(_held.task_execution_id).where(_held.scope == given.scope, _held.key == given.key)
        return sa.select(mine.scalar_subquery().label("id")).select_from(r["given"])

    def owner(r: Relations) -> Statement:
        expired = (_held.expires_at <= g.now).label("expired")
        columns = (_held.task_execution_id.label("id"), _held.scope, _held.key, expired, _held.until_finished)
        return sa.select(*columns).where(g.among(_held.task_execution_id, r["found"].c.id))

    def task(r: Relations) -> Statement:
        execution = task_executions.c
        return sa.select(execution.id, execution.status).where(g.among(execution.id, r["holder"].c.id))

    given: Columns = {"scope": sa.Text(), "key": sa.Text()}
    steps = {"found": found, "holder": owner, "task": task}
    return Transition(given=given, steps=steps, returns="holder", joined_steps=("task",))


@one_step("locked", IDS, returns=True)
def lock_keys(g: Grammar, given: Any) -> Statement:
    """Lock the keys of these tasks in key order. Returns the tasks that still have their keys."""
    held = sa.select(_held.task_execution_id.label("id")).where(g.among(_held.task_execution_id, given.id))
    return held.order_by(_held.scope, _held.key).with_for_update()


def take_over_keys(g: Grammar) -> Transition:
    """Write new tasks for keys that are free again. Returns the ids of the tasks whose keys were unchanged since
    `key_holders`.

    The previous task of a key may have been redriven since `key_holders` ran. Such a redrive is visible, because it
    locks the key first.
    """

    def alive(r: Relations) -> Statement:
        execution = task_executions.c
        unfinished = execution.status.in_([SqlStatus.READY, SqlStatus.RUNNING])
        return sa.select(execution.id).where(g.among(execution.id, r["given"].c.holder), unfinished)

    def key(r: Relations) -> Statement:
        given = r["given"].c
        free = sa.or_(_held.expires_at <= g.now, _held.task_execution_id.not_in(sa.select(r["alive"].c.id)))
        its_key = (_held.scope == given.task_name, _held.key == given.idempotency_key, free)
        expires_at = g.later(g.now, given.unique_seconds)
        return _pass_key(g, given, its_key, expires_at=expires_at, until_finished=given.until_finished)

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
    """Overwrite waiting tasks with the values of new tasks. Each holder occurs once in a batch. Returns the holders
    that were overwritten.

    A task is still waiting if its outbox entry can be deleted. A task that has since been claimed is not changed.
    """
    entry = task_outbox.c

    def waiting(r: Relations) -> Statement:
        task = entry.task_execution_id
        held = sa.select(task.label("id")).where(g.among(task, r["given"].c.holder))
        return held.order_by(task).with_for_update()

    def gone(r: Relations) -> Statement:
        left = (entry.queue.label("left_queue"), entry.partition_key.label("left_key"))
        replaced = sa.delete(task_outbox).where(g.among(entry.task_execution_id, r["waiting"].c.id))
        return replaced.returning(entry.task_execution_id.label("id"), *left)

    def new_entry(r: Relations) -> Statement:
        return task_rows.entry(g, r["replaced"].c, _both(r), due=task_rows.due_time(g, r["given"].c))

    steps: Mapping[str, Step] = {
        "waiting": waiting,
        "gone": gone,
        "replaced": partial(_replaced, g),
        "entry": new_entry,
        "event": partial(_event, g),
    }
    return Transition(given=CONTENDED, steps=steps, returns="replaced", returning=("id",), joined_steps=("gone",))


@one_step("found", IDS, returns=True)
def written(g: Grammar, given: Any) -> Statement:
    """Return which of these ids belong to existing tasks."""
    return sa.select(task_executions.c.id).where(g.among(task_executions.c.id, given.id))


def lock_for_redrive(g: Grammar) -> Transition:
    """Lock the keys that these tasks have, or have lost, until the transaction ends. A lost key that is free is
    acquired.

    Each row is updated without changing its values, so that no transaction at an isolation level above READ COMMITTED
    can take over the key based on an older snapshot.
    """

    def wanted(r: Relations) -> Statement:
        given = r["given"].c.id
        own = sa.select(_held.scope, _held.key, _held.task_execution_id.label("id")).where(
            g.among(_held.task_execution_id, given), _held.until_finished
        )
        lost = sa.select(_dead_letter.task_name, _dead_letter.lost_key, _dead_letter.task_execution_id).where(
            g.among(_dead_letter.task_execution_id, given), _dead_letter.lost_key.is_not(None)
        )
        both = sa.union_all(own, lost).subquery("both")
        nth = sa.func.row_number().over(partition_by=(both.c.scope, both.c.key), order_by=both.c.id)
        return sa.select(*both.c, nth.label("nth"))

    def locked(r: Relations) -> Statement:
        wanted = r["wanted"].c
        first = sa.select(wanted.scope, wanted.key, wanted.id, sa.true(), g.now).where(wanted.nth == ONE)
        names = ["scope", "key", "task_execution_id", "until_finished", "created_at"]
        new = g.insert(idempotency_keys).from_select(names, first.order_by(wanted.scope, wanted.key))
        taken = new.on_conflict_do_update(index_elements=["scope", "key"], set_={"key": _held.key})
        return taken.returning(_held.task_execution_id.label("id"))  # type: ignore[no-any-return]

    return Transition(given=IDS, steps={"wanted": wanted, "locked": locked}, returns="locked")


@one_step("found", IDS, returns=True)
def lost_keys(g: Grammar, given: Any) -> Statement:
    """Select the keys that these dead letters have lost. The keys must be locked first."""
    lost = (
        _dead_letter.task_execution_id.label("id"),
        _dead_letter.task_name.label("scope"),
        _dead_letter.lost_key.label("key"),
    )
    return sa.select(*lost).where(g.among(_dead_letter.task_execution_id, given.id), _dead_letter.lost_key.is_not(None))


def take_back_keys(g: Grammar) -> Transition:
    """Return locked keys to the tasks that had lost them. If a Failed task has such a key, its dead letter records the
    loss of the key.
    """

    def key(r: Relations) -> Statement:
        given = r["given"].c
        its_key = (_held.scope == given.scope, _held.key == given.key)
        return _pass_key(g, given, its_key, expires_at=sa.null(), until_finished=sa.true())

    return Transition(
        given={"id": sa.Uuid(), "scope": sa.Text(), "key": sa.Text(), "holder": sa.Uuid()},
        steps={"letter": lambda r: _lose_key(g, r["given"].c, r["given"].c.key), "key": key},
        returns="key",
    )


def _new_task(g: Grammar, is_free: Callable[[Relations], sa.ColumnElement[bool]]) -> Mapping[str, Step]:
    """Return the steps that write the new tasks whose keys are free."""
    return {
        "entry": lambda r: task_rows.new_entry(g, r["given"].c, r["given"], r["given"], is_free(r)),
        "execution": lambda r: task_rows.given_execution(g, r),
        "event": lambda r: task_rows.new_event(g, r["given"], r["entry"], **_asked(g, r["given"].c)),
    }


def _has_key(r: Relations) -> sa.ColumnElement[bool]:
    """Return a condition that tests whether the step `key` has given the task its key."""
    return r["given"].c.id.in_(sa.select(r["key"].c.id))  # type: ignore[no-any-return]


def _asked(g: Grammar, given: Any) -> Mapping[str, sa.ColumnElement[Any]]:
    """Return the members of a `task_created` event that name the idempotency key."""
    keyed = given.idempotency_key.is_not(None)
    return {
        "idempotency_key": given.idempotency_key,
        "unique_until": sa.case((keyed, g.later(g.now, given.unique_seconds))),
        "unique_until_finished": sa.case((sa.and_(keyed, given.until_finished), sa.true())),
    }


def _pass_key(g: Grammar, given: Any, its_key: tuple[sa.ColumnElement[bool], ...], **values: Any) -> Statement:
    """Pass `its_key` from its current task to the given one."""
    mine = (g.among(_held.task_execution_id, given.holder), _held.task_execution_id == given.holder)
    passed = sa.update(idempotency_keys).where(*mine, *its_key)
    values |= {"task_execution_id": given.id, "created_at": g.now}
    return passed.values(values).returning(_held.task_execution_id.label("id"))


def _lose_key(g: Grammar, given: Any, key: sa.ColumnElement[str], *where: sa.ColumnElement[bool]) -> Statement:
    """Record in the current holder's dead letter that the holder has lost the key."""
    mine = (g.among(_dead_letter.task_execution_id, given.holder), _dead_letter.task_execution_id == given.holder)
    return sa.update(dead_letters).where(*mine, *where).values(lost_key=key)


def _replaced(g: Grammar, r: Relations) -> Statement:
    execution, given = task_executions.c, r["given"].c
    is_ready = (execution.id == given.holder, execution.status == SqlStatus.READY)
    values = {
        **{name: given[name] for name in _OVERWRITTEN},
        "attempt": ONE,
        "recovery_attempts": ZERO,
        "retry_at": sa.null(),
        "expires_at": task_rows.expiry(g, given),
        "updated_at": g.now,
    }
    waiting = sa.update(task_executions).where(g.among(execution.id, r["gone"].c.id), *is_ready)
    return waiting.values(values).returning(*task_rows.CARRIED, execution.attempt, execution.recovery_attempts)


def _event(g: Grammar, r: Relations) -> Statement:
    replaced, given = r["replaced"].c, r["given"].c
    data = g.json(
        available_at=task_rows.due_time(g, given),
        attempt=replaced.attempt,
        recovery_attempts=replaced.recovery_attempts,
        request=given.id,
        position=sa.case((replaced.partition_key.is_not(None), replaced.position)),
    )
    return task_rows.event(g, replaced, _both(r), event_type=sql_literal(EventType.REPLACED), data=data)


def _both(r: Relations) -> sa.FromClause:
    return r["replaced"].join(r["given"], r["replaced"].c.id == r["given"].c.holder)  # type: ignore[no-any-return]
