"""Write tasks with an idempotency key, and settle what happens to a task whose key is taken."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any
from uuid import UUID

from ..database.dialects import Row
from ..database.statements import idempotency, tasks
from ..database.target import Target
from ..errors import DuplicateTask
from ..model import TERMINAL, EventType, Handle, NewTask, OnConflict, TaskStatus
from .rows import keyed_row
from .transactions import Transactions

_NIL = UUID(int=0)
_SKIPPED = Handle(id=_NIL, created=False)

_LOOKS = 10
"""The number of times that a task may be Ready when it is looked at, and gone when it is to be replaced. Then it is left as it is."""

Key = tuple[str, str | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class KeyOwner:
    """The task that has a key."""

    id: UUID
    status: TaskStatus | None
    """None: it was pruned."""
    expired: bool
    until_finished: bool

    @property
    def is_free(self) -> bool:
        """True if the key may be taken from it."""
        return self.expired or self.status is None or (self.until_finished and self.status in TERMINAL)

    def loses(self, key: Key) -> str | None:
        """Return the key that its dead letter keeps in mind, to ask for it again, when the key is taken from it."""
        return key[1] if self.until_finished and self.status is TaskStatus.FAILED else None


def enqueue_keyed(store: Transactions, target: Target, tasks: Sequence[NewTask]) -> list[Handle]:
    """Write those tasks whose key is free, and treat the others as their `on_conflict` says.

    The caller rolls back what was written when this raises. A key or task that another transaction changes between our look
    and our write is looked at again, so each further round is owed to another transaction's commit.
    """
    handles: dict[UUID, Handle] = {}
    left = list(tasks)
    for look in count():
        left = _round(store, target, left, handles, may_replace=look < _LOOKS)
        if not left:
            break
    return [handles[task.id] for task in tasks]


def _round(
    store: Transactions, target: Target, tasks: Sequence[NewTask], handles: dict[UUID, Handle], *, may_replace: bool
) -> list[NewTask]:
    """Add the handles of the tasks that could be settled. Returns the tasks that must be looked at again."""
    values = store.values(target)
    created = _ids(target.run(idempotency.enqueue_keyed, values, [keyed_row(task) for task in tasks]))
    handles |= {task_id: Handle(id=task_id) for task_id in created}
    handles |= {task.id: _SKIPPED for task in tasks if task.id not in created and _asks_nothing(task)}
    refused = [task for task in tasks if task.id not in handles]
    if not refused:
        return []
    # In a second statement, because its snapshot sees what the first one waited for.
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
        elif task.on_conflict is OnConflict.REPLACE and owner.status is TaskStatus.READY and may_replace:
            replacing.setdefault(_key(task), []).append(task)
        else:
            handles[task.id] = _refused(task, owner.id)
    # A key is locked before it or its task is changed: two who replace the same task do so one after the other.
    wanted = [(owners[key].id,) for key in (*taking, *replacing)]
    kept = _ids(target.run(idempotency.lock_keys, values, wanted)) if wanted else set()
    if rows := [
        (*keyed_row(task), owners[key].id, owners[key].loses(key))
        for key, task in taking.items()
        if owners[key].id in kept
    ]:
        taken = _ids(target.run(idempotency.take_over_keys, values, rows))
        handles |= {task_id: Handle(id=task_id) for task_id in taken}
    if by_owner := {owners[key].id: several for key, several in replacing.items() if owners[key].id in kept}:
        handles |= _replace(store, target, values, by_owner)
    return [task for task in refused if task.id not in handles]


def _replace(
    store: Transactions, target: Target, values: Mapping[str, Any], by_owner: Mapping[UUID, Sequence[NewTask]]
) -> dict[UUID, Handle]:
    """Replace waiting tasks. Of several that replace one task, the last one given is what would remain of them."""
    rows = [(*keyed_row(tasks[-1]), owner) for owner, tasks in by_owner.items()]
    replaced = target.run(idempotency.replace, values, rows)
    # A replaced task may have left its partition key, or stand further behind in it, so the key may have another head now.
    store.wake(target, [row["left_queue"] for row in replaced if row["left_key"] is not None])
    return {
        task.id: Handle(id=owner, created=False, replaced=True) for owner in _ids(replaced) for task in by_owner[owner]
    }


def enqueued(store: Transactions, target: Target, tasks: Sequence[NewTask]) -> list[Handle] | None:
    """Return the handles of tasks that an earlier try wrote, all of them together; None if it wrote none.

    A try that replaced a task left its own id in that task's event.
    """
    values = store.values(target)
    created = _ids(target.run(idempotency.written, values, [(task.id,) for task in tasks]))
    others = [task for task in tasks if task.id not in created]
    # A key without an owner was given up meanwhile, so the owner's id is unknown.
    owners = {key: owner.id for key, owner in _owners(target, values, map(_key, others)).items()}
    ours = {str(task.id) for task in tasks}
    replacing = {_key(task) for task in others if task.on_conflict is OnConflict.REPLACE}
    replaced = {owners[key] for key in replacing & owners.keys() if ours & _requests(target, owners[key])}
    if not created and not replaced:
        return None
    handles = []
    for task in tasks:
        owner = owners.get(_key(task), _NIL)
        if task.id in created:
            handles.append(Handle(id=task.id))
        elif task.on_conflict is OnConflict.REPLACE and owner in replaced:
            handles.append(Handle(id=owner, created=False, replaced=True))
        else:
            handles.append(_refused(task, owner))
    return handles


def regain_keys(
    store: Transactions, target: Target, task_ids: Collection[UUID], *, force: bool = False
) -> Mapping[UUID, DuplicateTask]:
    """Lock the keys of these tasks before they leave Failed, and take back the lost ones that are free; with `force`, all.

    Returns the error of each task that must not run, because another task has its key.
    """
    values = store.values(target)
    given = [(task_id,) for task_id in sorted(task_ids)]
    if not target.run(idempotency.lock_for_redrive, values, given):
        return {}
    # In a second statement, because its snapshot sees what the first one waited for.
    lost = {row["id"]: (row["scope"], row["key"]) for row in target.run(idempotency.lost_keys, values, given)}
    owners = _owners(target, values, lost.values())
    refused: dict[UUID, DuplicateTask] = {}
    taking: dict[Key, UUID] = {}
    for task_id, key in sorted(lost.items()):
        owner = owners[key]
        if owner.id == task_id:
            continue  # nobody had it, and the lock has acquired it
        if key not in taking and (force or (owner.is_free and owner.id not in task_ids)):
            taking[key] = task_id
        else:
            refused[task_id] = _refusal(task_id, key, taking.get(key, owner.id))
    if taking:
        rows = [(task_id, *key, owners[key].id) for key, task_id in taking.items()]
        target.run(idempotency.take_back_keys, values, rows)
    return refused


def _requests(target: Target, task_id: UUID) -> set[str]:
    """Return the ids of the new tasks by which this one was replaced."""
    history = target.run(tasks.history, {"task_id": task_id})
    events = [json.loads(event["event_data"]) for event in history if event["event_type"] == EventType.REPLACED]
    return {str(UUID(data["request"])) for data in events}


def _owners(target: Target, values: Mapping[str, Any], keys: Iterable[Key]) -> dict[Key, KeyOwner]:
    """Return the task that has each of these keys, for those that are taken."""
    wanted = sorted({key for key in keys if key[1] is not None}, key=str)
    found = target.run(idempotency.key_holders, values, wanted) if wanted else []
    return {
        (row["scope"], row["key"]): KeyOwner(
            id=row["id"],
            status=None if row["status"] is None else TaskStatus(row["status"]),
            expired=bool(row["expired"]),
            until_finished=row["until_finished"],
        )
        for row in found
    }


def _ids(rows: Iterable[Row]) -> set[UUID]:
    return {row["id"] for row in rows}


def _key(task: NewTask) -> Key:
    return task.task_name, task.idempotency_key


def _asks_nothing(task: NewTask) -> bool:
    """Return whether the task is skipped without a look at its key's task: a key that never expires cannot be free again."""
    return task.on_conflict is OnConflict.SKIP and task.unique_for is None and not task.unique_until_finished


def _refused(task: NewTask, owner: UUID) -> Handle:
    return _SKIPPED if task.on_conflict is OnConflict.SKIP else Handle(id=owner, created=False)


def _duplicate(task: NewTask, owner: UUID, handles: Mapping[UUID, Handle]) -> DuplicateTask:
    what = f"the idempotency key {task.idempotency_key!r} of task {task.task_name!r}"
    if owner in handles:
        return DuplicateTask(f"{what} is given twice in one call; nothing of it was written", owner)
    return DuplicateTask(
        f"{what} has task {owner} already, so nothing was written; look at that task, or enqueue with another on_conflict",
        owner,
    )


def _refusal(task_id: UUID, key: Key, owner: UUID) -> DuplicateTask:
    return DuplicateTask(
        f"task {task_id} cannot run again: its idempotency key {key[1]!r} of task {key[0]!r} has task {owner} by now, and two "
        "would do the same work; look at that task, then discard this one, or take the key from the other with "
        "take_key_back=True (--take-key-back)",
        owner,
    )
