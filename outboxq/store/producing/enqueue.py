"""Enqueue one task or thousands, in the caller's transaction or in a separate one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import timedelta
from functools import partial
from itertools import chain, cycle
from operator import attrgetter, is_
from types import NoneType, SimpleNamespace
from typing import Any, Protocol
from uuid import UUID

import sqlalchemy as sa

from ...database.dialects import Begin
from ...database.grammar import Grammar, Relations, Statement, Transition, insert_values, sql_literal
from ...database.privileges import Feature
from ...database.tables import task_executions, task_outbox
from ...database.target import Target
from ...errors import InvalidArgument
from ...model import EARLIEST, LATEST, EventType, Handle, NewTask, OnConflict, OnDeadLetter
from ...model.batches import is_batch
from ...model.options import MICROSECOND, bad_name, bad_span, check_options, is_name, is_span, is_text
from ...model.records import concurrency_key_of
from ...model.uuid7 import are_uuid7s, is_uuid7
from ..arguments import aware
from ..task_rows import (
    CONSTANT_COLUMNS,
    NEW_TASK,
    OWN,
    PLAIN_TASK,
    alike_rows,
    event,
    given_execution,
    is_plain,
    new_entry,
    new_event,
    new_execution,
    plain_columns,
    plain_row,
    row,
)
from ..tasks.idempotency import enqueue_keyed, enqueued, foreseen
from ..transactions import Transactions
from .batches import added_to, join, leave

_PLAIN = frozenset[Feature]()
_KEYED = frozenset({Feature.IDEMPOTENCY})
_REPLACING = frozenset({Feature.IDEMPOTENCY, Feature.REPLACE})
_BATCHED = frozenset({Feature.BATCHES})
_NOTHING = timedelta(0)


class EnqueuesMany(Protocol):
    """A store whose `enqueue_many` is called by `enqueue`. If a subclass overrides `enqueue_many`, its method is called
    for every task.
    """

    def enqueue_many(self, tasks: Sequence[NewTask], *, using: object = None) -> list[Handle]: ...


def enqueue(store: EnqueuesMany, task: NewTask, *, using: object = None) -> Handle:
    """Write one task, which consists of an execution, a `task_created` event and an outbox entry.

    `using` accepts a SQLAlchemy Session or Connection, or a psycopg, sqlite3 or Django connection; the task is then
    committed or rolled back with the transaction of that session or connection. On PostgreSQL, this is one statement.
    Raises InvalidArgument, InvalidTarget and SchemaOutOfDate before anything is written.
    """
    return store.enqueue_many([task], using=using)[0]


def enqueue_many(store: Transactions, tasks: Sequence[NewTask], *, using: object = None) -> list[Handle]:
    """Write many tasks in one statement, in the given order; see `enqueue`.

    If a task's idempotency key is taken, the task is not written, and its `on_conflict` decides what happens. A key is
    free again when its task is pruned. Depending on the options of the task that took the key, the key is also free
    after a period (`unique_for`) or when the task has ended (`unique_until_finished`). A replacement does not restart
    the period. Two tasks with the same key in one call are handled in order. If DuplicateTask is raised, the call
    writes nothing, and the caller's transaction stays usable.

    If another open transaction has taken one of the call's keys, the call waits for that transaction to end. At READ
    COMMITTED, and on SQLite, the wait itself never causes an error. Above READ COMMITTED, the database raises a
    serialization failure if, since the transaction began, another session has acquired or taken over the key, or has
    replaced its task. In this case, run the transaction again.

    A free key costs nothing extra; a taken key costs a lookup of its task. Keys are locked in sorted order, so that two
    calls never wait for each other; the calls in one transaction should also use a fixed order. If a conflict may raise
    an error, several tasks are written under a savepoint of the caller's PostgreSQL transaction.
    """
    if not tasks:
        return []
    are_alike = len(tasks) > 1 and _check_all(tasks)
    if len(tasks) == 1 and (columns := _checked(tasks[0])) is not None:
        return _enqueue_plain(store, tasks, columns, using=using)
    features, added = _features(tasks), added_to(tasks)
    if added:
        features = features | _BATCHED

    def work(target: Target) -> list[Handle]:
        if added:
            return _enqueue_in_batches(store, target, tasks, added, are_alike=are_alike, using=using)
        if features is _PLAIN:
            with target.atomic():
                return _insert(target, store.values(target), tasks, are_alike=are_alike)
        # A task may raise an error after others were written. Our own transaction is then rolled back; a caller's stays
        # usable.
        may_raise = len(tasks) > 1 and any(task.on_conflict is OnConflict.RAISE for task in tasks)
        with target.atomic(savepoint=may_raise and using is not None):
            return enqueue_keyed(store, target, tasks)

    begin = Begin.INSERT if features is _PLAIN and len(tasks) == 1 else Begin.WRITE
    done = partial(enqueued, store, tasks=tasks)
    return store.run(work, using=using, begin=begin, done=done, enqueues=features)


def foresee(store: Transactions, task: NewTask) -> Handle:
    """Return the handle that enqueueing this task would return now, without writing anything. Raises DuplicateTask."""
    return store.run(lambda target: foreseen(store, target, task), begin=Begin.READ, enqueues=_features([task]))


def _enqueue_plain(
    store: Transactions, tasks: Sequence[NewTask], columns: Mapping[str, Any], *, using: object
) -> list[Handle]:
    """Write the only task in `tasks`, which is plain and has these columns."""
    [task] = tasks

    def work(target: Target) -> list[Handle]:
        with target.atomic():
            target.run(insert_plain_task, plain_row(task, columns, store.values(target)))
        return [Handle(id=task.id)]

    done = partial(enqueued, store, tasks=tasks)
    return store.run(work, using=using, begin=Begin.INSERT, done=done, enqueues=_PLAIN)


def _enqueue_in_batches(
    store: Transactions,
    target: Target,
    tasks: Sequence[NewTask],
    added: Counter[UUID],
    *,
    are_alike: bool,
    using: object,
) -> list[Handle]:
    """Write tasks, some of which are added to batches, and count the written ones."""
    with target.atomic(savepoint=using is not None):
        values = store.values(target)
        join(target, values, added)
        handles = enqueue_keyed(store, target, tasks) if any(task.idempotency_key for task in tasks) else None
        if handles is None:
            return _insert(target, values, tasks, are_alike=are_alike)
        found = zip(tasks, handles, strict=True)
        for batch_id, number in added_to(task for task, handle in found if not handle.created).items():
            leave(target, values, batch_id, number)
        return handles


def _features(tasks: Sequence[NewTask]) -> frozenset[Feature]:
    for task in tasks:  # faster than any(…) for one task
        if task.idempotency_key is not None:
            return _REPLACING if any(one.on_conflict is OnConflict.REPLACE for one in tasks) else _KEYED
    return _PLAIN


def _checked(task: NewTask) -> Mapping[str, Any] | None:
    """Check a task that is enqueued alone, and return its `plain_columns`; None if it is not plain.

    Tasks with the same name usually share their option objects, so the options are checked and turned into columns only
    for the first of these tasks. This saves a tenth of the client's time.
    """
    if type(task.task_name) is str and (known := _known.get(task.task_name)) is not None:
        made_of, shared, columns = known
        if (made_of is not None and task.made_of is made_of) or all(map(is_, _shared(task), shared)):
            _check_own(task)
            return columns
    check(task)
    if not is_plain(task):
        return None
    if len(_known) == _MOST_KNOWN:
        _known.clear()
    columns = plain_columns(task)
    _known[task.task_name] = task.made_of, _shared(task), columns
    return columns


_known: dict[str, tuple[object, tuple[object, ...], Mapping[str, Any]]] = {}
"""The last plain task with each name: its `made_of` (the values that it shares with other tasks) and its columns."""
_MOST_KNOWN = 1000


def _check_all(tasks: Sequence[NewTask]) -> bool:
    """Check each task. Returns whether the tasks are alike. The tasks of one `enqueue_many` share the same objects in
    all fields except the id and the arguments, so the shared fields are checked only once. The arguments are checked as
    one string.

    Each of 1,000 tasks then takes 2.5 us from this check to the driver, instead of 5.6 us.
    """
    made_of, first = tasks[0].made_of, _shared_in_batch(tasks[0])
    made_alike = made_of is not None and set(map(id, map(_made_of, tasks))) == {id(made_of)}
    if not made_alike and not all(map(is_, chain.from_iterable(map(_shared_in_batch, tasks)), cycle(first))):
        for task in tasks:
            check(task)
        return False
    check(tasks[0])
    if not _are_texts([task.args for task in tasks]) or not are_uuid7s([task.id for task in tasks]):
        for task in tasks:
            _check_own(task)
    return True


def _insert(target: Target, values: Mapping[str, Any], tasks: Sequence[NewTask], *, are_alike: bool) -> list[Handle]:
    rows = alike_rows(tasks) if are_alike else [row(task) for task in tasks]
    target.run(insert_tasks, values, rows)
    return [Handle(id=task.id) for task in tasks]


def _are_texts(values: Sequence[str]) -> bool:
    """Return whether all values are strings that every database can store."""
    try:
        return is_text("".join(values))
    except TypeError:
        return False


_FIELDS = [one.name for one in fields(NewTask)]
_made_of = attrgetter("made_of")
_shared = attrgetter(*(name for name in _FIELDS if name not in OWN))
_shared_in_batch = attrgetter(*(name for name in _FIELDS if name not in {"id", "args"}))


def _check_own(task: NewTask, what: str = "") -> None:
    """Raise InvalidArgument if a field in `OWN` has an invalid value."""
    if type(task.id) is not UUID:
        raise InvalidArgument(f"the id of {_named(task, what)} must be a uuid.UUID")
    if not is_uuid7(task.id):
        raise InvalidArgument(
            f"the id of {_named(task, what)} must come from uuid7(), because old tasks are found by the time in their ids"
        )
    if not is_text(task.args):
        raise InvalidArgument(f"args of {_named(task, what)} must be text without NUL or lone surrogates")
    if not (task.headers is None or is_text(task.headers)):
        raise InvalidArgument(f"headers of {_named(task, what)} must be text without NUL or lone surrogates")


def _named(task: NewTask, what: str) -> str:
    return what or f"task {task.task_name!r}"


def check(task: NewTask, what: str = "") -> None:  # noqa: C901, PLR0912 - one case per field
    """Raise InvalidArgument for values that the database would refuse, before they can abort the caller's transaction.

    `what` names the object if it is not a task.
    """
    name = _named(task, what)
    check_options(task, name, task_name=task.task_name)
    for key, value in (
        ("idempotency_key", task.idempotency_key),
        ("partition_key", task.partition_key),
        ("concurrency_key", task.concurrency_key),
        ("topic", task.topic),
    ):
        if value is not None and not is_name(value):
            raise bad_name(key, name, value)
    _check_own(task, name)
    if type(task.pipeline_execution_id) not in (UUID, NoneType):
        raise InvalidArgument(f"the pipeline_execution_id of {name} must be a uuid.UUID")
    if not is_span(task.delay, _NOTHING):
        raise InvalidArgument(f"delay of {name} must be a timedelta from 0 to 100 years")
    if task.expires_in is not None and not is_span(task.expires_in, MICROSECOND):
        raise InvalidArgument(f"expires_in of {name} must be a positive timedelta of at most 100 years")
    if task.expires_at is not None and task.expires_in is not None:
        raise InvalidArgument(f"{name} cannot have both expires_at and expires_in")
    for moment, which in ((task.available_at, "due time"), (task.expires_at, "expiry")):
        if moment is not None and not EARLIEST <= aware(moment, f"the {which} of {name}") <= LATEST:
            raise InvalidArgument(f"the {which} of {name} must be between the years 1970 and 9000 (UTC)")
    if type(task.on_conflict) is not OnConflict:
        raise InvalidArgument(f"on_conflict of {name} must be an OnConflict")
    if task.unique_for is not None and not is_span(task.unique_for, MICROSECOND):
        raise bad_span("unique_for", name)
    if type(task.unique_until_finished) is not bool:
        raise InvalidArgument(f"unique_until_finished of {name} must be True or False")
    if task.idempotency_key is None and (
        task.unique_for is not None or task.unique_until_finished or task.on_conflict is not OnConflict.RETURN
    ):
        raise InvalidArgument(
            f"unique_for, unique_until_finished and on_conflict need an idempotency_key, but {name} has none"
        )
    if task.on_conflict is OnConflict.REPLACE and is_batch(task.pipeline_execution_id):
        raise InvalidArgument(f"{name} belongs to a batch, so it cannot replace a task outside the batch")
    if task.partition_key is not None and task.concurrency_key is not None:
        raise InvalidArgument(f"{name} has both a partition_key and a concurrency_key; pass only one of them")
    if task.on_dead_letter is OnDeadLetter.HOLD and (
        task.partition_key is None or concurrency_key_of(task.partition_key) is not None
    ):
        raise InvalidArgument(f"{name} has no partition key, so it cannot hold one when it fails")


def insert_tasks(g: Grammar) -> Transition:
    """Write new tasks without idempotency keys."""
    return Transition(
        given=NEW_TASK,
        constant_columns=CONSTANT_COLUMNS,
        steps={
            "entry": lambda r: new_entry(g, r["given"].c, r["given"], r["given"]),
            "execution": lambda r: given_execution(g, r),
            "event": lambda r: new_event(g, r["given"], r["entry"]),
        },
    )


def insert_plain_task(g: Grammar) -> Transition:
    """Write one new task of `PLAIN_TASK`: the rows of `insert_tasks` from plain parameters, without joins.

    With `insert_tasks`, enqueueing one task takes 22 % more CPU time on PostgreSQL, and a third more on SQLite (`python
    -m benchmarks.tunings --only plain-task`).
    """
    task = SimpleNamespace(**{name: sa.bindparam(name, type_=kind, required=True) for name, kind in PLAIN_TASK.items()})
    position = sa.select(task_outbox.c.position).where(task_outbox.c.task_execution_id == task.id).scalar_subquery()

    def entry(_: Relations) -> Statement:
        values = {
            "task_execution_id": task.id,
            "queue": task.queue,
            "priority": task.priority,
            "position": g.position(None),
            "available_at": g.due(task.available_at, task.delay_seconds),
            "created_at": g.now,
        }
        new = insert_values(sa.insert(task_outbox), values, None)
        # On SQLite, RETURNING and the relations made from it would cost 6 to 15 % of an enqueue (--only plain-inserts).
        return new.returning(task_outbox.c.position, task_outbox.c.available_at) if g.one_statement else new

    def written(r: Relations) -> tuple[Any, sa.FromClause | None]:
        """Return the entry's position and due time, and the relation that contains them."""
        if g.one_statement:
            return r["entry"].c, r["entry"]
        return SimpleNamespace(position=position, available_at=task.available_at), None

    def execution(r: Relations) -> Statement:
        entry, rows = written(r)
        given = {name: one for name, one in vars(task).items() if name in task_executions.c}
        times = SimpleNamespace(position=entry.position, expires_at=sa.null())
        return new_execution(g, {**given, "pipeline_execution_id": task.id}, times, rows)

    def created(r: Relations) -> Statement:
        entry, rows = written(r)
        data = g.json_of_one("available_at", entry.available_at)
        itself = SimpleNamespace(id=task.id, pipeline_execution_id=task.id)
        return event(g, itself, rows, event_type=sql_literal(EventType.CREATED), data=data)

    return Transition(steps={"entry": entry, "execution": execution, "event": created})
