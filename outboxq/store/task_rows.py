"""Write a task's rows: execution, outbox entry, dead letter, events and partition key.

Which rows are written depends on the task's new status. A Failed task gets a dead letter, and a Ready task an outbox
entry. A task that has ended frees its key or holds it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from types import NoneType
from typing import Any, get_type_hints
from uuid import UUID

import sqlalchemy as sa

from ..database.column_types import Instant, parameter_type
from ..database.dialects import Alike
from ..database.grammar import (
    ONE,
    ZERO,
    Columns,
    Grammar,
    Relations,
    SqlStatus,
    Statement,
    Step,
    Transition,
    insert_values,
    joined,
    sql_literal,
)
from ..database.tables import dead_letters, execution_events, partition_claims, task_executions, task_outbox
from ..database.target import Target
from ..model import EventType, NewTask, OnDeadLetter
from ..model.options import OPTION_COLUMNS
from ..model.records import stored_key
from ..payload.parameters import sanitize

_ONLY_GIVEN: Columns = {"available_at": Instant, "delay_seconds": sa.Double(), "expires_seconds": sa.Double()}
"""Columns that are passed to an enqueue, but are not columns of the execution. These columns determine the times in the
execution's outbox entry.
"""
_GIVEN = """
    id pipeline_execution_id task_name queue priority args headers max_attempts lease_seconds timeout_seconds available_at delay_seconds
    partition_key on_dead_letter topic expires_at expires_seconds
"""
NEW_TASK: Columns = {
    name: _ONLY_GIVEN[name] if name in _ONLY_GIVEN else parameter_type(task_executions.c[name].type)
    for name in dict.fromkeys([*_GIVEN.split(), *OPTION_COLUMNS.values()])
}
"""The columns of the rows that are passed to an enqueue, in order. Further options come last."""

CONSTANT_COLUMNS = frozenset(NEW_TASK) - {"id", "pipeline_execution_id", "args"}
"""Columns that usually have one value throughout a batch, because tasks that are written together are usually calls to
one function with the same options.
"""

IDS: Columns = {"id": sa.Uuid()}
"""The columns of a relation that holds only ids."""

KEPT = ("queue", "priority", "partition_key", "position", "topic", "expires_at")
"""The columns that an outbox entry has in common with its execution."""
CARRIED = tuple(
    task_executions.c[name] for name in ("id", "pipeline_execution_id", "task_name", *KEPT, "on_dead_letter", "status")
)
"""The columns of a changed execution that later steps read."""
_NO_WORKER = sa.null()

_FIELDS = ["expires_in" if name == "expires_seconds" else name.removesuffix("_seconds") for name in NEW_TASK]
"""The NewTask field for each column passed to an enqueue."""
_HINTS = get_type_hints(NewTask)
_SPANS = [at for at, name in enumerate(_FIELDS) if "timedelta" in str(_HINTS[name])]
_PIPELINE, _KEY = _FIELDS.index("pipeline_execution_id"), _FIELDS.index("partition_key")
_PATHS = [f"{name}._value_" if str(_HINTS[name]).startswith("<enum") else name for name in _FIELDS]
_cells = attrgetter(*_PATHS)

_OF_SOME = ("pipeline_execution_id", "partition_key", "topic", "expires_at", "expires_seconds")
PLAIN_TASK: Columns = {name: kind for name, kind in NEW_TASK.items() if name not in _OF_SOME}
"""The columns of a plain new task, which has no key, topic, expiry, pipeline or idempotency key."""
OWN = ("id", "args", "headers")
"""The columns in which tasks with the same options differ."""
_is_of_some = attrgetter(
    *(_FIELDS[list(NEW_TASK).index(name)] for name in _OF_SOME), "concurrency_key", "idempotency_key"
)
_NONE = (None,) * (len(_OF_SOME) + 2)
_plain_cells = attrgetter(*(path for name, path in zip(NEW_TASK, _PATHS, strict=True) if name in PLAIN_TASK))
_PLAIN_SPANS = [name for at, name in enumerate(NEW_TASK) if at in _SPANS and name in PLAIN_TASK]


def pack_ids(target: Target, name: str, several: Iterable[UUID]) -> dict[str, Any]:
    """Return the parameters for the relation `name`, whose only column holds these ids."""
    return target.dialect.pack(name, IDS, [(one,) for one in several])


def row(task: NewTask) -> tuple[object, ...]:
    """Return the task's values for the columns of `NEW_TASK`."""
    cells = list(_cells(task))
    for at in _SPANS:
        if (span := cells[at]) is not None:
            cells[at] = span.total_seconds()
    if cells[_PIPELINE] is None:
        cells[_PIPELINE] = task.id
    if task.concurrency_key is not None:
        cells[_KEY] = stored_key(None, task.concurrency_key)
    return tuple(cells)


def alike_rows(tasks: Sequence[NewTask]) -> Alike:
    """Return the tasks' values for the columns of `NEW_TASK`. The tasks differ only in their ids and arguments."""
    ids = [task.id for task in tasks]
    several = {"id": ids, "args": [task.args for task in tasks]}
    if tasks[0].pipeline_execution_id is None:
        several["pipeline_execution_id"] = ids
    cells = {**dict(zip(NEW_TASK, row(tasks[0]), strict=True)), **several}
    return Alike(cells=cells, several=frozenset(several))


def is_plain(task: NewTask) -> bool:
    """Return whether the columns of `PLAIN_TASK` describe the task completely."""
    return bool(_is_of_some(task) == _NONE)


def plain_columns(task: NewTask) -> dict[str, Any]:
    """Return the task's values for the columns of `PLAIN_TASK` except those in `OWN`, by column name."""
    columns = {name: cell for name, cell in zip(PLAIN_TASK, _plain_cells(task), strict=True) if name not in OWN}
    for name in _PLAIN_SPANS:
        if (span := columns[name]) is not None:
            columns[name] = span.total_seconds()
    return columns


def plain_row(task: NewTask, columns: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the task's values for the columns of `PLAIN_TASK`, and `values`, the parameters of every statement.
    `columns` are the values that `plain_columns` has returned.
    """
    row = {**columns, **values, "id": task.id, "args": task.args, "headers": task.headers}
    if (now := values["now"]) is not None and task.available_at is None:
        row["available_at"] = now + task.delay  # Python supplies the time
    return row


def made_together(pipeline_id: Any) -> sa.ColumnElement[bool]:
    """Return a condition that tests whether a task belongs to this batch, or to this emit or `enqueue_many`. A task
    that was enqueued alone has its own id as its `pipeline_execution_id`.
    """
    execution = task_executions.c
    return sa.and_(execution.pipeline_execution_id == pipeline_id, execution.pipeline_execution_id != execution.id)


def new_entry(
    g: Grammar, task: Any, batch: sa.FromClause, rows: sa.FromClause, *where: sa.ColumnElement[bool]
) -> Statement:
    """Insert the outbox entries for these rows of the batch. `task` has the columns of a new task."""
    values = {
        "task_execution_id": task.id,
        "queue": task.queue,
        "priority": task.priority,
        "partition_key": task.partition_key,
        "position": g.position(batch),
        "topic": task.topic,
        "available_at": due_time(g, task),
        "expires_at": expiry(g, task),
        "created_at": g.now,
    }
    written = task_outbox.c
    # IS NOT NULL is avoided, because in a RETURNING clause, SQLite 3.40 checks the wrong column to decide whether this
    # one can be NULL.
    place = sa.case((written.partition_key >= sa.literal_column("''", sa.Text), written.position)).label("place")
    times = (written.available_at, written.expires_at)
    new = insert_values(sa.insert(task_outbox), values, rows, *where)
    return new.returning(written.task_execution_id.label("id"), written.position, *times, place)


def new_execution(
    g: Grammar, given: Mapping[str, sa.ColumnElement[Any]], entry: Any, rows: sa.FromClause | None
) -> Statement:
    """Insert a Ready execution for each of `rows` (None means only one execution), with the `given` values and the
    values of its entry.
    """
    values = {
        **given,
        "position": entry.position,
        "status": SqlStatus.READY,
        "attempt": ONE,
        "recovery_attempts": ZERO,
        "lease_token": sa.literal_column("0", sa.BigInteger),
        "expires_at": entry.expires_at,
        "created_at": g.now,
        "updated_at": g.now,
    }
    columns = [column.name for column in task_executions.c if column.name in values]
    return insert_values(sa.insert(task_executions), {name: values[name] for name in columns}, rows)


def given_execution(g: Grammar, r: Relations) -> Statement:
    """Insert the executions of the tasks whose entries were inserted."""
    given, entry = r["given"].c, r["entry"].c
    copied = {name: given[name] for name in NEW_TASK if name in task_executions.c and name != "expires_at"}
    return new_execution(g, copied, entry, joined(r["given"], r["entry"]))


def new_event(g: Grammar, tasks: sa.FromClause, entries: sa.FromClause, **asked: sa.ColumnElement[Any]) -> Statement:
    """Insert the `task_created` events for the tasks that have an entry. Each event contains the due time, the
    position, and `asked`.

    `asked` contains the event's members that name an idempotency key; they are NULL for a task without a key. `verify`
    reads the position and the key to check that they have not been lost. Most tasks have neither a position nor a key,
    so this costs nothing extra for them.
    """
    entry = entries.c
    plain = sa.and_(entry.place.is_(None), *(value.is_(None) for value in asked.values()))
    data = sa.case(
        (plain, g.json_of_one("available_at", entry.available_at)),
        else_=g.json(available_at=entry.available_at, position=entry.place, **asked),
    )
    return event(g, tasks.c, joined(tasks, entries), event_type=sql_literal(EventType.CREATED), data=data)


def due_time(g: Grammar, task: Any) -> sa.ColumnElement[Any]:
    return sa.func.coalesce(task.available_at, g.later(g.now, task.delay_seconds))


def expiry(g: Grammar, task: Any) -> sa.ColumnElement[Any]:
    return sa.func.coalesce(task.expires_at, g.later(g.now, task.expires_seconds))


def event(
    g: Grammar,
    task: Any,
    rows: sa.FromClause | None,
    *,
    event_type: sa.ColumnElement[Any],
    data: sa.ColumnElement[Any],
    worker_id: sa.ColumnElement[Any] = _NO_WORKER,
    lease_token: sa.ColumnElement[Any] = _NO_WORKER,
) -> Statement:
    """Insert one event for each of `rows` (None means only one event). `task` has the columns that identify the task;
    the last two arguments identify a claim.
    """
    values = {
        "pipeline_execution_id": task.pipeline_execution_id,
        "task_execution_id": task.id,
        "event_type": event_type,
        "event_data": data,
        "worker_id": worker_id,
        "lease_token": lease_token,
        "created_at": g.now,
    }
    return insert_values(sa.insert(execution_events), values, rows)


def event_without_task(
    g: Grammar, pipeline_id: sa.ColumnElement[Any], event_type: EventType, data: sa.ColumnElement[Any]
) -> dict[str, sa.ColumnElement[Any]]:
    """Return the values of an event that does not belong to a task, by column."""
    return {
        "pipeline_execution_id": pipeline_id,
        "event_type": sql_literal(event_type),
        "event_data": data,
        "created_at": g.now,
    }


def entry(
    g: Grammar,
    execution: Any,
    rows: sa.FromClause,
    *,
    due: sa.ColumnElement[Any],
    ready: sa.ColumnElement[bool] | None = None,
) -> Statement:
    """Insert an outbox entry for each row in `rows` whose task is Ready again. `ready` replaces that condition. The
    position does not change.
    """
    values = {
        "task_execution_id": execution.id,
        **{name: execution[name] for name in KEPT},
        "available_at": sa.cast(due, Instant),
        "created_at": g.now,
    }
    where = execution.status == SqlStatus.READY if ready is None else ready
    return insert_values(g.insert(task_outbox), values, rows, where)  # type: ignore[no-any-return]


def dead_letter(g: Grammar, execution: Any, rows: sa.FromClause, *, exception: sa.ColumnElement[Any]) -> Statement:
    """Insert a dead letter for each of `rows` that is now Failed.

    A dead letter that was left behind by mistake does not cause an error, because it must not prevent a task from
    ending.
    """
    values = {
        "task_execution_id": execution.id,
        **{name: execution[name] for name in ("queue", "task_name", "topic", "partition_key")},
        "exception": exception,
        "failed_at": g.now,
    }
    new = insert_values(g.insert(dead_letters), values, rows, execution.status == SqlStatus.FAILED)
    return new.on_conflict_do_nothing()  # type: ignore[no-any-return]


def dead_letter_gone(g: Grammar, execution: Any) -> Statement:
    """Delete the task's dead letter."""
    return sa.delete(dead_letters).where(g.among(dead_letters.c.task_execution_id, execution.id))


def key_held(g: Grammar, execution: Any) -> Statement:
    """Hold the partition key of each Failed task with `on_dead_letter=hold`."""
    holding = _with_key(execution, _holds(execution)).subquery("holding")
    mine = g.among(partition_claims.c.task_execution_id, holding.c.id)
    return sa.update(partition_claims).where(mine).values(held=sa.true())


def key_freed(g: Grammar, execution: Any) -> Statement:
    """Free the partition keys of the tasks whose keys are not held, each for the next task with that key."""
    freeing = _with_key(execution, sa.not_(_holds(execution))).subquery("freeing")
    return sa.delete(partition_claims).where(g.among(partition_claims.c.task_execution_id, freeing.c.id))


def _with_key(execution: Any, condition: sa.ColumnElement[bool]) -> sa.Select[Any]:
    return sa.select(execution.id).where(execution.partition_key.is_not(None), condition)


def _holds(execution: Any) -> sa.ColumnElement[bool]:
    return sa.and_(execution.status == SqlStatus.FAILED, execution.on_dead_letter == sql_literal(OnDeadLetter.HOLD))


def rescheduled(
    g: Grammar, found: Step, *, due: sa.ColumnElement[Any], reason: str, given: Columns | None = None
) -> Transition:
    """Delete the entries that `found` selects and locks, and insert new ones that are due at the time `due`, which may
    depend on the old entries.

    Returns the old entries.
    """
    outbox, execution = task_outbox.c, task_executions.c

    def gone(r: Relations) -> Statement:
        replaced = sa.delete(task_outbox).where(g.among(outbox.id, r["found"].c.id))
        return replaced.returning(outbox.task_execution_id.label("id"), outbox.id.label("entry_id"), due.label("due"))

    def moved(r: Relations) -> Statement:
        gone = r["gone"].c
        waits = sa.and_(execution.retry_at.is_not(None), gone.due > g.now)
        mine = sa.update(task_executions).where(execution.id == gone.id, execution.status == SqlStatus.READY)
        values = {"retry_at": sa.case((waits, gone.due), else_=sa.null()), "updated_at": g.now}
        return mine.values(values).returning(*CARRIED)

    def rescheduled_event(r: Relations) -> Statement:
        data = g.json(available_at=r["gone"].c.due, reason=sa.literal_column(f"'{reason}'"))
        rescheduled, rows = sql_literal(EventType.RESCHEDULED), joined(r["moved"], r["gone"])
        return event(g, r["moved"].c, rows, event_type=rescheduled, data=data)

    def new(r: Relations) -> Statement:
        return entry(g, r["moved"].c, joined(r["moved"], r["gone"]), due=r["gone"].c.due)

    steps = {"found": found, "gone": gone, "moved": moved, "entry": new, "event": rescheduled_event}
    return Transition(given=given or {}, steps=steps, returns="gone")


def event_data(data: Mapping[str, Any]) -> str | None:
    """Return an event's data as JSON. Characters that databases cannot store are replaced, so that the reason for a
    failure can always be written.
    """
    return json.dumps(_storable(data)) if data else None


def _storable(value: Any) -> Any:
    if isinstance(value, str):
        return sanitize(value)
    if isinstance(value, Mapping):
        return {sanitize(str(key)): _storable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_storable(item) for item in value]
    is_number = isinstance(value, float) and math.isfinite(value)  # JSON has neither infinity nor NaN
    return value if is_number or isinstance(value, bool | int | NoneType) else sanitize(str(value))
