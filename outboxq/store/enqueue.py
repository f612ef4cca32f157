"""Writing tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from types import NoneType
from typing import TypeGuard
from uuid import UUID

from ..errors import InvalidArgument
from ..model import Handle, NewTask, OnConflict, OnDeadLetter
from ..target import Target
from .base import Transactions, aware

_MICROSECOND = timedelta(microseconds=1)
MAX_NAME = 200
"""Characters in a name or a key: each becomes part of an index entry."""


class Enqueue(Transactions):
    def enqueue(self, task: NewTask, *, using: object = None) -> Handle:
        """Write one task: its execution, its `task_created` event and its outbox entry, together.

        `using` takes a SQLAlchemy Session or Connection, a psycopg, sqlite3 or Django connection; the task is then committed
        or rolled back with it. One statement on PostgreSQL. Raises InvalidArgument, InvalidTarget and SchemaOutOfDate before
        anything is written.
        """
        return self.enqueue_many([task], using=using)[0]

    def enqueue_many(self, tasks: Sequence[NewTask], *, using: object = None) -> list[Handle]:
        """Write many tasks, in their order, as one statement; see `enqueue`.

        A task whose idempotency key is taken is not written; its handle names the task that has the key.
        """
        for task in tasks:
            check(task)
        if not tasks:
            return []
        return self._run(
            lambda target: self._enqueue(target, tasks), using=using, done=lambda target: self._enqueued(target, tasks)
        )

    def _enqueue(self, target: Target, tasks: Sequence[NewTask]) -> list[Handle]:
        statements, values = target.dialect.statements, self._values(target)
        with target.atomic():
            if not any(task.idempotency_key is not None for task in tasks):
                statements.enqueue.run(target.execute, values, [_row(task) for task in tasks])
                return _handles(tasks, {})
            rows = [(*_row(task), task.idempotency_key) for task in tasks]
            created = {row["id"] for row in statements.enqueue_keyed.run(target.execute, values, rows)}
        refused = [task for task in tasks if task.id not in created]
        # A second statement, for its snapshot sees what the first one waited for.
        holders = self._holders(target, refused)
        if gone := [task for task in refused if _key(task) not in holders]:
            # Pruned between the two statements: their keys are free now.
            again = self._enqueue(target, gone)
            holders |= {_key(task): handle.id for task, handle in zip(gone, again, strict=True)}
        return _handles(tasks, holders)

    def _enqueued(self, target: Target, tasks: Sequence[NewTask]) -> list[Handle] | None:
        """The handles of tasks that an earlier try wrote, all of them together; None if it wrote none."""
        handles = _handles(tasks, self._holders(target, [task for task in tasks if task.idempotency_key is not None]))
        for handle in handles:
            if handle.created:
                return handles if target.dialect.statements.get.run(target.execute, {"task_id": handle.id}) else None
        return None

    def _holders(self, target: Target, tasks: Sequence[NewTask]) -> dict[tuple[str, str | None], UUID]:
        """Which task has the key, for those of the tasks' keys that are taken."""
        keys = sorted({_key(task) for task in tasks}, key=str)
        held = target.dialect.statements.keyed_tasks.run(target.execute, self._values(target), keys) if keys else []
        return {(row["scope"], row["key"]): row["id"] for row in held}


def _handles(tasks: Sequence[NewTask], holders: Mapping[tuple[str, str | None], UUID]) -> list[Handle]:
    found = [(task, holders.get(_key(task), task.id)) for task in tasks]
    return [Handle(id=holder, created=holder == task.id) for task, holder in found]


def _key(task: NewTask) -> tuple[str, str | None]:
    return task.task_name, task.idempotency_key


def _row(task: NewTask) -> tuple[object, ...]:
    return (
        task.id,
        task.pipeline_execution_id or task.id,
        task.task_name,
        task.queue,
        task.priority,
        task.args,
        task.headers,
        task.max_attempts,
        task.lease.total_seconds(),
        None if task.timeout is None else task.timeout.total_seconds(),
        task.available_at,
        task.delay.total_seconds(),
        task.partition_key,
        task.on_dead_letter.value,
        task.event_type,
        task.expires_at,
        None if task.expires_in is None else task.expires_in.total_seconds(),
    )


def check(task: NewTask) -> None:  # noqa: C901, PLR0912 - one case a field
    """What the database would refuse, said before it could abort the caller's transaction."""
    name = f"task {task.task_name!r}"
    for key in ("task_name", "queue", "idempotency_key", "partition_key", "event_type"):
        value = getattr(task, key)
        if not (value is None and key not in ("task_name", "queue")) and not (
            _is_text(value) and 1 <= len(value) <= MAX_NAME
        ):
            raise InvalidArgument(f"{key} of {name} must be 1 to {MAX_NAME} characters, without NUL or lone surrogates")
    if not _is_text(task.args) or not (task.headers is None or _is_text(task.headers)):
        raise InvalidArgument(f"args and headers of {name} must be text without NUL or lone surrogates")
    if type(task.id) is not UUID or type(task.pipeline_execution_id) not in (UUID, NoneType):
        raise InvalidArgument(f"the ids of {name} must be uuid.UUID")
    if task.id.version != 7:
        raise InvalidArgument(f"the id of {name} must be made by uuid7(): old tasks are found by the time in it")
    if type(task.priority) is not int or not -100 <= task.priority <= 100:
        raise InvalidArgument(f"priority of {name} must be a whole number from -100 to 100")
    if task.max_attempts is not None and (type(task.max_attempts) is not int or not 1 <= task.max_attempts < 2**31):
        raise InvalidArgument(f"max_attempts of {name} must be a whole number of at least 1")
    for key in ("lease", "timeout"):
        span = getattr(task, key)
        if not (span is None and key == "timeout") and not _is_span(span, shortest=_MICROSECOND):
            raise InvalidArgument(
                f"{key} of {name} must be a timedelta, longer than nothing and at most a hundred years"
            )
    if not _is_span(task.delay, shortest=timedelta(0)):
        raise InvalidArgument(f"delay of {name} must be a timedelta from nothing to a hundred years")
    if task.expires_in is not None and not _is_span(task.expires_in, shortest=_MICROSECOND):
        raise InvalidArgument(f"{name} must expire after a timedelta, longer than nothing and at most a hundred years")
    if task.expires_at is not None and task.expires_in is not None:
        raise InvalidArgument(f"{name} expires at a moment or after a time, not both")
    for moment, said in ((task.available_at, "due time"), (task.expires_at, "expiry")):
        if moment is not None and not 1970 <= aware(moment, f"the {said} of {name}").year <= 9000:
            raise InvalidArgument(f"the {said} of {name} must be in the years 1970 to 9000")
    if type(task.on_dead_letter) is not OnDeadLetter or type(task.on_conflict) is not OnConflict:
        raise InvalidArgument(f"on_dead_letter and on_conflict of {name} must be OnDeadLetter and OnConflict")
    if task.on_dead_letter is OnDeadLetter.HOLD and task.partition_key is None:
        raise InvalidArgument(f"{name} cannot hold its partition key when it fails: it has none")


def _is_span(value: object, *, shortest: timedelta) -> bool:
    """Within what every clock of both databases can be moved by."""
    return isinstance(value, timedelta) and shortest <= value <= timedelta(days=36500)


def _is_text(value: object) -> TypeGuard[str]:
    if not isinstance(value, str) or "\0" in value:
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
