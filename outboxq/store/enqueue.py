"""Writing tasks."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from types import NoneType
from typing import Protocol, TypeGuard
from uuid import UUID

from ..database.dialects import Begin
from ..database.privileges import Feature
from ..database.statements import enqueue as statements
from ..database.target import Target
from ..errors import InvalidArgument
from ..model import EARLIEST, LATEST, LONGEST, MAX_ATTEMPT, Handle, NewTask, OnConflict, OnDeadLetter
from .arguments import aware
from .idempotency import enqueue_keyed, enqueued
from .rows import row
from .transactions import Transactions

_PLAIN = frozenset[Feature]()
_KEYED = frozenset({Feature.IDEMPOTENCY})
_REPLACING = frozenset({Feature.IDEMPOTENCY, Feature.REPLACE})
_NOTHING = timedelta(0)
_MICROSECOND = timedelta(microseconds=1)
MAX_NAME = 200
"""Characters in a name or a key: each becomes part of an index entry."""


class EnqueuesMany(Protocol):
    """A store, of which `enqueue` uses `enqueue_many`: whoever overrides that sees every task."""

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
    pruned; as it was asked for when the key was taken, and replacing a task does not begin its time anew. Two tasks of
    one call with the same key are dealt with as if they came one after the other. Raises DuplicateTask, where asked
    for; nothing of the call is written then, and the caller's transaction goes on.

    Who wants a key that another transaction has just taken waits for that to end. At READ COMMITTED, and on SQLite,
    that is never an error. Above READ COMMITTED the database refuses, with a serialization failure, a key that somebody
    took, took over or replaced the task of since the transaction began; the transaction is to be run again.

    Keys cost nothing while they are free. One that is taken costs a look at who has it, unless the task is to be skipped
    and its key is for ever. Keys are locked in their order, so that two calls never wait for each other; calls of one
    transaction should keep to an order too. On a caller's PostgreSQL connection, many tasks of which one may raise are
    written under a savepoint.
    """
    for task in tasks:
        check(task)
    if not tasks:
        return []
    features = _features(tasks)
    return store.run(
        lambda target: _enqueue(store, target, tasks, keyed=features is not _PLAIN, joined=using is not None),
        using=using,
        begin=Begin.INSERT if features is _PLAIN and len(tasks) == 1 else Begin.WRITE,
        done=lambda target: enqueued(store, target, tasks),
        enqueues=features,
    )


def _enqueue(
    store: Transactions, target: Target, tasks: Sequence[NewTask], *, keyed: bool, joined: bool
) -> list[Handle]:
    if not keyed:
        with target.atomic():
            target.run(statements.enqueue, store.values(target), [row(task) for task in tasks])
        return [Handle(id=task.id) for task in tasks]
    # One may raise when others are written already. A transaction of our own is then rolled back, a caller's goes on.
    may_raise = any(task.on_conflict is OnConflict.RAISE for task in tasks)
    with target.atomic(savepoint=joined and may_raise and len(tasks) > 1):
        return enqueue_keyed(store, target, tasks)


def _features(tasks: Sequence[NewTask]) -> frozenset[Feature]:
    for task in tasks:  # not any(…): an enqueue is mostly of one
        if task.idempotency_key is not None:
            break
    else:
        return _PLAIN
    return _REPLACING if any(task.on_conflict is OnConflict.REPLACE for task in tasks) else _KEYED


def check(task: NewTask, what: str = "") -> None:  # noqa: C901, PLR0912 - one case a field
    """What the database would refuse, said before it could abort the caller's transaction.

    `what` names what was given, where that is not a task.
    """
    for key, name in (("task_name", task.task_name), ("queue", task.queue)):
        if not _is_name(name):
            raise _bad_name(key, task, what)
    for key, maybe in (
        ("idempotency_key", task.idempotency_key),
        ("partition_key", task.partition_key),
        ("topic", task.topic),
    ):
        if maybe is not None and not _is_name(maybe):
            raise _bad_name(key, task, what)
    if not _is_text(task.args) or not (task.headers is None or _is_text(task.headers)):
        raise InvalidArgument(f"args and headers of {_named(task, what)} must be text without NUL or lone surrogates")
    if type(task.id) is not UUID or type(task.pipeline_execution_id) not in (UUID, NoneType):
        raise InvalidArgument(f"the ids of {_named(task, what)} must be uuid.UUID")
    if task.id.version != 7:
        raise InvalidArgument(
            f"the id of {_named(task, what)} must be made by uuid7(): old tasks are found by the time in it"
        )
    if type(task.priority) is not int or not -100 <= task.priority <= 100:
        raise InvalidArgument(f"priority of {_named(task, what)} must be a whole number from -100 to 100")
    if task.max_attempts is not None and (
        type(task.max_attempts) is not int or not 1 <= task.max_attempts <= MAX_ATTEMPT
    ):
        raise InvalidArgument(f"max_attempts of {_named(task, what)} must be a whole number of at least 1")
    if not _is_span(task.lease, _MICROSECOND):
        raise _bad_span("lease", task, what)
    if task.timeout is not None and not _is_span(task.timeout, _MICROSECOND):
        raise _bad_span("timeout", task, what)
    if not _is_span(task.delay, _NOTHING):
        raise InvalidArgument(f"delay of {_named(task, what)} must be a timedelta from nothing to a hundred years")
    if task.expires_in is not None and not _is_span(task.expires_in, _MICROSECOND):
        raise InvalidArgument(
            f"{_named(task, what)} must expire after a timedelta, longer than nothing and at most a hundred years"
        )
    if task.expires_at is not None and task.expires_in is not None:
        raise InvalidArgument(f"{_named(task, what)} expires at a moment or after a time, not both")
    for moment, said in ((task.available_at, "due time"), (task.expires_at, "expiry")):
        if moment is not None and not EARLIEST <= aware(moment, f"the {said} of {_named(task, what)}") <= LATEST:
            raise InvalidArgument(f"the {said} of {_named(task, what)} must be in the years 1970 to 9000 (UTC)")
    if type(task.on_dead_letter) is not OnDeadLetter or type(task.on_conflict) is not OnConflict:
        raise InvalidArgument(
            f"on_dead_letter and on_conflict of {_named(task, what)} must be OnDeadLetter and OnConflict"
        )
    if task.unique_for is not None and not _is_span(task.unique_for, _MICROSECOND):
        raise _bad_span("unique_for", task, what)
    if type(task.unique_until_finished) is not bool:
        raise InvalidArgument(f"unique_until_finished of {_named(task, what)} must be True or False")
    if task.idempotency_key is None and (
        task.unique_for is not None or task.unique_until_finished or task.on_conflict is not OnConflict.RETURN
    ):
        raise InvalidArgument(
            f"unique_for, unique_until_finished and on_conflict of {_named(task, what)} say how long its idempotency_key is "
            "taken and what happens then; give it one"
        )
    if task.on_dead_letter is OnDeadLetter.HOLD and task.partition_key is None:
        raise InvalidArgument(f"{_named(task, what)} cannot hold its partition key when it fails: it has none")


def _is_name(value: object) -> bool:
    return _is_text(value) and 1 <= len(value) <= MAX_NAME


def _is_text(value: object) -> TypeGuard[str]:
    if not isinstance(value, str) or "\0" in value:
        return False
    if value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_span(value: object, shortest: timedelta) -> bool:
    """Within what every clock of both databases can be moved by."""
    return isinstance(value, timedelta) and shortest <= value <= LONGEST


def _bad_name(key: str, task: NewTask, what: str) -> InvalidArgument:
    return InvalidArgument(
        f"{key} of {_named(task, what)} must be 1 to {MAX_NAME} characters, without NUL or lone surrogates"
    )


def _bad_span(key: str, task: NewTask, what: str) -> InvalidArgument:
    return InvalidArgument(
        f"{key} of {_named(task, what)} must be a timedelta, longer than nothing and at most a hundred years"
    )


def _named(task: NewTask, what: str) -> str:
    return what or f"task {task.task_name!r}"
