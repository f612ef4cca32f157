"""Idempotency keys of tasks that people run again: they need theirs, and another task may have it by now."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from uuid import UUID

from ..database.statements import regaining
from ..database.target import Target
from ..errors import DuplicateTask
from .idempotency import Key, owners_of
from .transactions import Transactions


def regain_keys(
    store: Transactions, target: Target, task_ids: Collection[UUID], *, force: bool = False
) -> Mapping[UUID, DuplicateTask]:
    """Lock the keys of these tasks before they leave Failed, and take back those that are free again; of all with `force`.

    Returns those that must not run, since another task has their key: why, each.
    """
    values = store.values(target)
    given = [(task_id,) for task_id in sorted(task_ids)]
    if not target.run(regaining.lock, values, given):
        return {}
    # A second statement, for its snapshot sees what the first one waited for.
    lost = {row["id"]: (row["scope"], row["key"]) for row in target.run(regaining.lost, values, given)}
    owners = owners_of(target, values, lost.values())
    refused: dict[UUID, DuplicateTask] = {}
    taking: dict[Key, UUID] = {}
    for task_id, key in sorted(lost.items()):
        owner = owners[key]
        if owner.id == task_id:
            continue  # it was nobody's
        if key not in taking and (force or (owner.is_free and owner.id not in task_ids)):
            taking[key] = task_id
        else:
            refused[task_id] = _refusal(task_id, key, taking.get(key, owner.id))
    if taking:
        rows = [(task_id, *key, owners[key].id) for key, task_id in taking.items()]
        target.run(regaining.take_back, values, rows)
    return refused


def _refusal(task_id: UUID, key: Key, owner: UUID) -> DuplicateTask:
    return DuplicateTask(
        f"task {task_id} cannot run again: its idempotency key {key[1]!r} of task {key[0]!r} has task {owner} by now, and two "
        "would do the same work; look at that task, then discard this one, or take the key from the other with "
        "take_key_back=True (--take-key-back)",
        owner,
    )
