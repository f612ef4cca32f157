"""Emitting events, and who subscribes to them."""

from __future__ import annotations

import builtins
import json
from collections.abc import Iterable
from typing import Any
from uuid import UUID

from ..database.dialects import Row
from ..database.privileges import Feature
from ..database.statements import fanout
from ..database.statements.fanout import SUBSCRIBERS
from ..database.target import Target
from ..errors import InvalidArgument
from ..model import Handle, NewTask, TaskOptions
from ..model.options import bad_name, check_options, is_name, stored_options
from ..model.records import stored_key
from ..model.subscriptions import Emitted, NewEvent, Subscription, check_pattern, check_topic
from ..model.uuid7 import FAMILY
from .enqueue import check
from .idempotency import enqueue_keyed
from .transactions import Transactions

_EMITS = frozenset({Feature.EMIT})
_EMITS_KEYED = frozenset({Feature.EMIT, Feature.IDEMPOTENCY})
MOST_SUBSCRIBERS = FAMILY
"""Their tasks' ids are counted up from the event's."""


def emit(store: Transactions, event: NewEvent, *, using: object = None) -> Emitted:
    """Write a task for each task that subscribes to the event's topic, all of them or none, as one statement.

    The subscribers are read from `task_subscriptions`. Without any, `event_unrouted` is recorded.

    With an idempotency key, each subscriber has one task for it, as if that had been enqueued with the key. The second of two
    emits waits for the first to commit or roll back, and writes tasks only for those who subscribed since. `enqueue_many`
    says when a key is free again, and what happens above READ COMMITTED.
    `using` as in `enqueue`. Raises InvalidArgument (for more than 65 535 subscribers too), InvalidTarget and SchemaOutOfDate
    before anything is written.
    """
    check_event(event)
    return store.run(
        lambda target: _emit(store, target, event),
        using=using,
        done=lambda target: _emitted(store, target, event),
        enqueues=_EMITS if event.idempotency_key is None else _EMITS_KEYED,
    )


class Subscriptions:
    """The tasks that are enqueued when an event of a topic is emitted."""

    def __init__(self, store: Transactions) -> None:
        self._store = store

    def replace(
        self, subscriptions: Iterable[Subscription], *, tasks: Iterable[str] = (), using: object = None
    ) -> None:
        """Make these the subscriptions of the tasks they name, and of `tasks`: what stands there besides is deleted.

        Those of other tasks are left alone, and nothing is written where nothing changes; so every worker calls it at its
        start. Raises InvalidArgument.
        """
        wanted = _keyed(subscriptions)
        for one in wanted.values():
            check_subscription(one)
        names = sorted({one.task_name for one in wanted.values()}.union(tasks))

        def work(target: Target) -> None:
            # In two steps, for the second must see what the first has waited for. Rows are locked, then inserted, each in
            # their order: two workers that start with different releases of the code wait for each other one way only.
            values = self._store.values(target)
            with target.atomic():
                given = target.dialect.pack("tasks", SUBSCRIBERS, [(name,) for name in names])
                stored = _keyed(_records(target.run(fanout.lock_subscriptions, given)))
                if gone := stored.keys() - wanted.keys():
                    target.run(fanout.unsubscribe, values, sorted(gone))
                if changed := [_row(one) for key, one in sorted(wanted.items()) if stored.get(key) != one]:
                    target.run(fanout.subscribe, values, changed)

        # Most workers start with what stands there already: they lock nothing, and on SQLite wait for no writer.
        if _keyed(one for one in self.list(using=using) if one.task_name in names) != wanted:
            self._store.run(work, using=using)

    def remove(self, task_name: str, *, using: object = None) -> None:
        """Delete the subscriptions of a task; of one, say, whose code is gone. What was emitted before stays enqueued."""
        self.replace([], tasks=[task_name], using=using)

    def list(self, *, using: object = None) -> builtins.list[Subscription]:
        """Return all of them, by topic and task."""
        return _records(self._store.read(fanout.subscriptions, using=using))


def _emit(store: Transactions, target: Target, event: NewEvent) -> Emitted:
    values = store.values(target, **_values(event))
    emit = fanout.emit if event.idempotency_key is None else fanout.emit_keyed
    with target.atomic():
        rows = target.run(emit, values)
        if len(rows) > MOST_SUBSCRIBERS:
            raise InvalidArgument(
                f"{len(rows)} tasks subscribe to {event.topic!r}, and one event can have {MOST_SUBSCRIBERS} of them, so nothing "
                "was written; give groups of them topics of their own, or remove the subscriptions of tasks that are gone"
            )
        rows.sort(key=lambda row: row["id"])
        handles = {row["task_name"]: Handle(id=row["id"]) for row in rows}
        # Whose key had a task already: it may be free again by now, and else its task is to be named.
        if refused := [_task(event, row) for row in rows if row["position"] is None]:
            found = enqueue_keyed(store, target, refused)
            handles |= {task.task_name: handle for task, handle in zip(refused, found, strict=True)}
    return Emitted(pipeline_execution_id=event.id, handles=handles)


def _emitted(store: Transactions, target: Target, event: NewEvent) -> Emitted | None:
    """Return what an earlier try wrote, all of it together; None if it wrote nothing."""
    values = store.values(target, **_values(event))
    handles = {row["task_name"]: Handle(id=row["id"]) for row in target.run(fanout.emitted, values)}
    if not handles and not target.run(fanout.unrouted, values):
        return None
    if handles and event.idempotency_key is not None:
        held = target.run(fanout.held_for_event, values)
        handles = {row["task_name"]: Handle(id=row["id"], created=False) for row in held} | handles
    return Emitted(pipeline_execution_id=event.id, handles=dict(sorted(handles.items())))


def check_subscription(subscription: Subscription) -> None:
    """Raise InvalidArgument for what could not be stored, or would make an emit fail."""
    check_pattern(subscription.topic)
    name = f"the subscription of task {subscription.task_name!r} to {subscription.topic!r}"
    if not str(subscription.parameter).isidentifier():
        raise InvalidArgument(f"parameter of {name} must be the name of one of its parameters")
    for key, value in (("task_name", subscription.task_name), ("topic", subscription.topic)):
        if not is_name(value):
            raise bad_name(key, name)
    check_options(subscription, name)


def check_event(event: NewEvent) -> None:
    """Raise InvalidArgument for what the database would refuse."""
    check_topic(event.topic)
    name = f"event {event.topic[:200]!r}"
    if type(event.id) is not UUID or event.id.int & FAMILY:
        raise InvalidArgument(
            f"the id of {name} must be made by uuid7.family(): those of its tasks are counted up from it"
        )
    check(NewTask(id=event.id, task_name="event", args=event.payload, **_shared(event)), name)


def _values(event: NewEvent) -> dict[str, Any]:
    return {
        **_shared(event),
        "partition_key": stored_key(event.partition_key, event.concurrency_key),
        "pipeline_execution_id": event.id,
        "quoted_topic": json.dumps(event.topic, ensure_ascii=False),
        "payload": event.payload,
        "delay_seconds": event.delay.total_seconds(),
        "expires_seconds": None if event.expires_in is None else event.expires_in.total_seconds(),
        "most_subscribers": MOST_SUBSCRIBERS,
    }


def _shared(event: NewEvent) -> dict[str, Any]:
    """Return the fields that an event and its tasks have in common."""
    return {
        "topic": event.topic,
        "partition_key": event.partition_key,
        "concurrency_key": event.concurrency_key,
        "available_at": event.available_at,
        "delay": event.delay,
        "expires_at": event.expires_at,
        "expires_in": event.expires_in,
        "idempotency_key": event.idempotency_key,
        "headers": event.headers,
    }


def _keyed(subscriptions: Iterable[Subscription]) -> dict[tuple[str, str], Subscription]:
    return {(one.topic, one.task_name): one for one in subscriptions}


def _task(event: NewEvent, subscriber: Row) -> NewTask:
    """Return the task that the statement `fanout.emit` would have written for this subscriber."""
    return NewTask(
        id=subscriber["id"],
        pipeline_execution_id=event.id,
        task_name=subscriber["task_name"],
        args=f'{{"{subscriber["parameter"]}":{event.payload}}}',
        **vars(TaskOptions(**stored_options(subscriber)).with_key(event.partition_key)),
        **_shared(event),
    )


def _row(subscription: Subscription) -> tuple[object, ...]:
    own = {name: getattr(subscription, name) for name in ("topic", "task_name", "parameter")}
    cells = own | subscription.stored
    return tuple(cells[column] for column in fanout.SUBSCRIPTION)


def _records(rows: Iterable[Row]) -> list[Subscription]:
    own = ("topic", "task_name", "parameter")
    return [Subscription(**{name: row[name] for name in own}, **stored_options(row)) for row in rows]
