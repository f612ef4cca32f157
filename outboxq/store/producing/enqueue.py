"""Enqueue tasks: one or thousands, in the caller's transaction or in one of our own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from types import NoneType
from typing import Protocol
from uuid import UUID

from ...database.dialects import Begin
from ...database.grammar import Grammar, Transition
from ...database.privileges import Feature
from ...database.target import Target
from ...errors import InvalidArgument
from ...model import EARLIEST, LATEST, Handle, NewTask, OnConflict, OnDeadLetter
from ...model.batches import is_batch
from ...model.options import MICROSECOND, bad_name, bad_span, check_options, is_name, is_span, is_text
from ...model.records import concurrency_key_of
from ..arguments import aware
from ..task_rows import CONSTANT_COLUMNS, NEW_TASK, given_execution, new_entry, new_event, row
from ..tasks.idempotency import enqueue_keyed, enqueued
from ..transactions import Transactions
from .batches import added_to, join, leave

_PLAIN = frozenset[Feature]()
_KEYED = frozenset({Feature.IDEMPOTENCY})
_REPLACING = frozenset({Feature.IDEMPOTENCY, Feature.REPLACE})
_BATCHED = frozenset({Feature.BATCHES})
_NOTHING = timedelta(0)


class EnqueuesMany(Protocol):
    """A store, of which `enqueue` uses `enqueue_many`: a subclass that overrides it sees every task."""

    def enqueue_many(self, tasks: Sequence[NewTask], *, using: object = None) -> list[Handle]: ...


def enqueue(store: EnqueuesMany, task: NewTask, *, using: object = None) -> Handle:
    """Write one task: its execution, its `task_created` event and its outbox entry, together.

    `using` takes a SQLAlchemy Session or Connection, a psycopg, sqlite3 or Django connection; the task is then committed
    or rolled back with it. One statement on PostgreSQL. Raises InvalidArgument, InvalidTarget and SchemaOutOfDate before
    anything is written.
    """
    return store.enqueue_many([task], using=using)[0]


def enqueue_many(store: Transactions, tasks: Sequence[NewTask], *, using: object = None) -> list[Handle]:
    """Write many tasks, in their order, as one statement; see `enqueue`.

    A task whose idempotency key has a task already is not written; its `on_conflict` says what happens instead. The key
    is free again where its time is over (`unique_for`), where its task has ended (`unique_until_finished`) or was
    pruned. What counts is what was asked for when the key was taken; replacing a task does not restart its time. Two
    tasks of one call with the same key are dealt with as if they came one after the other. Raises DuplicateTask, where
    asked for; nothing of the call is written then, and the caller's transaction goes on.

    A call that wants a key which another transaction has just taken waits for that to end. At READ COMMITTED, and on
    SQLite, that is never an error. Above READ COMMITTED the database answers with a serialization failure if another session
    took or took over the key, or replaced its task, since the transaction began; the transaction is to be run again.

    A key costs nothing while it is free. One that is taken costs a look at who has it, unless the task is to be skipped
    and its key is for ever. Keys are locked in their order, so that two calls never wait for each other; calls of one
    transaction should keep to an order too. Many tasks of which one may raise are written under a savepoint of a caller's
    PostgreSQL transaction.
    """
    for task in tasks:
        check(task)
    if not tasks:
        return []
    features, added = _features(tasks), added_to(tasks)
    if added:
        features = features | _BATCHED

    def work(target: Target) -> list[Handle]:
        if added:
            return _enqueue_in_batches(store, target, tasks, added, using=using)
        if features is _PLAIN:
            with target.atomic():
                target.run(insert_tasks, store.values(target), [row(task) for task in tasks])
            return [Handle(id=task.id) for task in tasks]
        # One may raise when others are written already. A transaction of our own is then rolled back, a caller's goes on.
        may_raise = len(tasks) > 1 and any(task.on_conflict is OnConflict.RAISE for task in tasks)
        with target.atomic(savepoint=may_raise and using is not None):
            return enqueue_keyed(store, target, tasks)

    return store.run(
        work,
        using=using,
        begin=Begin.INSERT if features is _PLAIN and len(tasks) == 1 else Begin.WRITE,
        done=lambda target: enqueued(store, target, tasks),
        enqueues=features,
    )


def _enqueue_in_batches(
    store: Transactions, target: Target, tasks: Sequence[NewTask], added: Counter[UUID], *, using: object
) -> list[Handle]:
    """Write tasks of which some are added to batches, and count those that are written."""
    with target.atomic(savepoint=using is not None):
        values = store.values(target)
        join(target, values, added)
        handles = enqueue_keyed(store, target, tasks) if any(task.idempotency_key for task in tasks) else None
        if handles is None:
            target.run(insert_tasks, values, [row(task) for task in tasks])
            return [Handle(id=task.id) for task in tasks]
        found = zip(tasks, handles, strict=True)
        for batch_id, number in added_to(task for task, handle in found if not handle.created).items():
            leave(target, values, batch_id, number)
        return handles


def _features(tasks: Sequence[NewTask]) -> frozenset[Feature]:
    for task in tasks:  # not any(…): an enqueue is mostly of one
        if task.idempotency_key is not None:
            return _REPLACING if any(one.on_conflict is OnConflict.REPLACE for one in tasks) else _KEYED
    return _PLAIN


def check(task: NewTask, what: str = "") -> None:  # noqa: C901, PLR0912 - one case a field
    """Raise InvalidArgument for what the database would refuse, before that could abort the caller's transaction.

    `what` names what was given, where that is not a task.
    """
    name = what or f"task {task.task_name!r}"
    if not is_name(task.task_name):
        raise bad_name("task_name", name)
    check_options(task, name)
    for key, value in (
        ("idempotency_key", task.idempotency_key),
        ("partition_key", task.partition_key),
        ("concurrency_key", task.concurrency_key),
        ("topic", task.topic),
    ):
        if value is not None and not is_name(value):
            raise bad_name(key, name)
    if not is_text(task.args) or not (task.headers is None or is_text(task.headers)):
        raise InvalidArgument(f"args and headers of {name} must be text without NUL or lone surrogates")
    if type(task.id) is not UUID or type(task.pipeline_execution_id) not in (UUID, NoneType):
        raise InvalidArgument(f"the ids of {name} must be uuid.UUID")
    if task.id.version != 7:
        raise InvalidArgument(f"the id of {name} must be made by uuid7(): old tasks are found by the time in it")
    if not is_span(task.delay, _NOTHING):
        raise InvalidArgument(f"delay of {name} must be a timedelta from nothing to a hundred years")
    if task.expires_in is not None and not is_span(task.expires_in, MICROSECOND):
        raise InvalidArgument(f"{name} must expire after a timedelta, longer than nothing and at most a hundred years")
    if task.expires_at is not None and task.expires_in is not None:
        raise InvalidArgument(f"{name} expires at a moment or after a time, not both")
    for moment, which in ((task.available_at, "due time"), (task.expires_at, "expiry")):
        if moment is not None and not EARLIEST <= aware(moment, f"the {which} of {name}") <= LATEST:
            raise InvalidArgument(f"the {which} of {name} must be in the years 1970 to 9000 (UTC)")
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
            f"unique_for, unique_until_finished and on_conflict of {name} say how long its idempotency_key is "
            "taken and what happens then; give it one"
        )
    if task.on_conflict is OnConflict.REPLACE and is_batch(task.pipeline_execution_id):
        raise InvalidArgument(f"{name} is for a batch, so it cannot replace a task that may be in none")
    if task.partition_key is not None and task.concurrency_key is not None:
        raise InvalidArgument(f"{name} has a partition_key and a concurrency_key; a task has one key")
    if task.on_dead_letter is OnDeadLetter.HOLD and (
        task.partition_key is None or concurrency_key_of(task.partition_key) is not None
    ):
        raise InvalidArgument(f"{name} cannot hold its partition key when it fails: it has none")


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
