"""Writing tasks with an idempotency key: who has the key, and what is done then."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any
from uuid import UUID

from ..database.dialects import Row
from ..database.statements import idempotency, reading
from ..database.target import Target
from ..errors import DuplicateTask
from ..model import TERMINAL, EventType, Handle, NewTask, OnConflict, TaskStatus
from .rows import keyed_row
from .transactions import Transactions

_NIL = UUID(int=0)
_SKIPPED = Handle(id=_NIL, created=False)

_LOOKS = 10
"""The number of times that a task may be found Ready and be gone when it is to be replaced, before it is left as it is."""

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
        """Return the key that its dead letter keeps when the key is taken from it: it may ask for it again."""
        return key[1] if self.until_finished and self.status is TaskStatus.FAILED else None


def enqueue_keyed(store: Transactions, target: Target, tasks: Sequence[NewTask]) -> list[Handle]:
    """Write those tasks whose key is free; deal with the others as each of them says.

    The caller takes back what was written when this raises. What is lost to another session between a look and the
    change is looked at again; each further round is owed to another transaction's commit.
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
    """Note the handles of what could be settled; returns the tasks that must be looked at again."""
    values = store.values(target)
    created = _ids(target.run(idempotency.enqueue_keyed, values, [keyed_row(task) for task in tasks]))
    handles |= {task_id: Handle(id=task_id) for task_id in created}
    handles |= {task.id: _SKIPPED for task in tasks if task.id not in created and _asks_nothing(task)}
    refused = [task for task in tasks if task.id not in handles]
    if not refused:
        return []
    # A second statement, for its snapshot sees what the first one waited for.
    owners = _owners(store, target, refused)
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
    if taking or replacing:
        _change(store, target, owners, taking=taking, replacing=replacing, handles=handles)
    return [task for task in refused if task.id not in handles]


def _change(
    store: Transactions,
    target: Target,
    owners: Mapping[Key, KeyOwner],
    *,
    taking: Mapping[Key, NewTask],
    replacing: Mapping[Key, Sequence[NewTask]],
    handles: dict[UUID, Handle],
) -> None:
    """Take over keys that are free again, and replace tasks that wait."""
    values = store.values(target)
    wanted = [(owners[key].id,) for key in (*taking, *replacing)]
    # Whoever changes a key or its task has the key first: two who replace the same task do so one after the other.
    kept = _ids(target.run(idempotency.lock_keys, values, wanted))
    if rows := [
        (*keyed_row(task), owners[key].id, owners[key].loses(key))
        for key, task in taking.items()
        if owners[key].id in kept
    ]:
        taken = _ids(target.run(idempotency.take_over_keys, values, rows))
        handles |= {task_id: Handle(id=task_id) for task_id in taken}
    # Of several that replace one task, the last given would be what remains.
    last = [(tasks[-1], owners[key].id) for key, tasks in replacing.items() if owners[key].id in kept]
    if rows := [(*keyed_row(task), owner) for task, owner in last]:
        replaced = target.run(idempotency.replace, values, rows)
        done = _ids(replaced)
        for key, tasks in replacing.items():
            if (owner := owners[key].id) in done:
                handles |= {task.id: Handle(id=owner, created=False, replaced=True) for task in tasks}
        # The task may have been the head of a key it has left, or stands further behind in now.
        store.wake(target, [row["left_queue"] for row in replaced if row["left_key"] is not None])


def enqueued(store: Transactions, target: Target, tasks: Sequence[NewTask]) -> list[Handle] | None:
    """Return the handles of tasks that an earlier try wrote, all of them together; None if it wrote none.

    A try that replaced a task left its own id in that task's event.
    """
    values = store.values(target)
    created = _ids(target.run(idempotency.written, values, [(task.id,) for task in tasks]))
    # The owner of a key that has none now gave it up meanwhile, so its id is unknown.
    owners = _owners(store, target, [task for task in tasks if task.id not in created])
    replacing = [task for task in tasks if task.on_conflict is OnConflict.REPLACE and task.id not in created]
    ours = {str(task.id) for task in tasks}
    replaced = {
        owners[key].id
        for key in {_key(task) for task in replacing} & owners.keys()
        if ours & _requests(target, owners[key].id)
    }
    if not created and not replaced:
        return None
    handles = []
    for task in tasks:
        owner = owners[_key(task)].id if _key(task) in owners else _NIL
        if task.id in created:
            handles.append(Handle(id=task.id))
        elif task in replacing and owner in replaced:
            handles.append(Handle(id=owner, created=False, replaced=True))
        else:
            handles.append(_refused(task, owner))
    return handles


def _requests(target: Target, task_id: UUID) -> set[str]:
    """The ids of the new tasks that this one was replaced by."""
    history = target.run(reading.history, {"task_id": task_id})
    events = [json.loads(event["event_data"]) for event in history if event["event_type"] == EventType.REPLACED]
    return {str(UUID(data["request"])) for data in events}


def _owners(store: Transactions, target: Target, tasks: Iterable[NewTask]) -> dict[Key, KeyOwner]:
    """Return the task that has each of the tasks' keys, for those that are taken."""
    return owners_of(target, store.values(target), [_key(task) for task in tasks if task.idempotency_key is not None])


def owners_of(target: Target, values: Mapping[str, Any], keys: Iterable[Key]) -> dict[Key, KeyOwner]:
    """Return the task that has each of these keys, for those that are taken."""
    wanted = sorted(set(keys), key=str)
    found = target.run(idempotency.key_holders, values, wanted) if wanted else []
    return {(row["scope"], row["key"]): _owner(row) for row in found}


def _ids(rows: Iterable[Row]) -> set[UUID]:
    return {row["id"] for row in rows}


def _key(task: NewTask) -> Key:
    return task.task_name, task.idempotency_key


def _owner(row: Row) -> KeyOwner:
    return KeyOwner(
        id=row["id"],
        status=None if row["status"] is None else TaskStatus(row["status"]),
        expired=bool(row["expired"]),
        until_finished=row["until_finished"],
    )


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
