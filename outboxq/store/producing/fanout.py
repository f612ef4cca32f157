"""Emit events, and manage tasks' subscriptions."""

from __future__ import annotations

import builtins
import json
from collections.abc import Iterable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from ...database.column_types import Instant, parameter_type
from ...database.dialects import Row
from ...database.grammar import (
    ONE,
    Builder,
    Columns,
    Grammar,
    Relations,
    Statement,
    Step,
    Transition,
    joined,
    number,
    one_step,
    sql_literal,
    text_literal,
)
from ...database.privileges import Feature
from ...database.queue_order import matches
from ...database.tables import (
    execution_events,
    idempotency_keys,
    inbox_messages,
    relay_messages,
    task_executions,
    task_subscriptions,
)
from ...database.target import Target
from ...errors import InvalidArgument
from ...model import EventType, Handle, NewTask, OnDeadLetter, TaskOptions
from ...model.options import OPTION_COLUMNS, check_options, stored_options
from ...model.records import concurrency_key_of, stored_key
from ...model.relays import RELAY_PREFIX, REMEMBERED, slot_of
from ...model.subscriptions import Emitted, NewEvent, Subscription, check_pattern, check_topic
from ...model.unknown_options import Answering
from ...model.uuid7 import FAMILY
from .. import task_rows
from ..arguments import parameters
from ..task_rows import new_execution
from ..tasks.idempotency import enqueue_keyed
from ..transactions import Noun, Transactions
from .enqueue import check

_EMITS = frozenset({Feature.EMIT})
_EMITS_KEYED = frozenset({Feature.EMIT, Feature.IDEMPOTENCY})
MOST_SUBSCRIBERS = FAMILY
"""Maximum number of subscribers to an event. The ids of the subscribers' tasks count up from the event's id."""


def emit(store: Transactions, event: NewEvent, *, using: object = None) -> Emitted:
    """Write a task for each subscriber to the event's topic, and a message for each relay to a broker. One statement
    writes all of these rows or none.

    The subscribers are read from `task_subscriptions`. If there are no subscribers, `event_unrouted` is recorded.

    With an idempotency key, each subscriber gets one task for the key, as if that task had been enqueued with the key.
    If two emits use the same key, the second waits for the first to commit or roll back, and writes tasks only for new
    subscribers. See `enqueue_many` for when a key is free again, and for what happens above READ COMMITTED. `using`
    works as in `enqueue`. Raises InvalidArgument (also for more than 65,535 subscribers), InvalidTarget and
    SchemaOutOfDate before anything is written.
    """
    check_event(event)
    features = _EMITS if event.idempotency_key is None else _EMITS_KEYED
    return store.run(
        lambda target: _emit(store, target, event),
        using=using,
        committed=lambda target, _: _is_written(store, target, event),
        enqueues=features,
    )


class Subscriptions(Noun, Answering):
    """Tasks' subscriptions to event topics."""

    _noun = "outbox.store.subscriptions"

    def replace(
        self, subscriptions: Iterable[Subscription], *, tasks: Iterable[str] = (), using: object = None
    ) -> None:
        """Replace all subscriptions of `tasks`, and of the tasks named in `subscriptions`, with `subscriptions`.

        Subscriptions of other tasks are kept. If nothing has changed, nothing is written, so every worker can call this
        when it starts. Raises InvalidArgument.
        """
        wanted = _keyed(subscriptions)
        for one in wanted.values():
            check_subscription(one)
        names = sorted({one.task_name for one in wanted.values()}.union(tasks))

        def work(target: Target) -> None:
            # There are two steps, because the second must see the rows that the first waited for. Rows are locked and
            # then inserted in a fixed order, so that two workers with different releases of the code never wait for
            # each other.
            values = self._store.values(target)
            with target.atomic():
                given = target.dialect.pack("tasks", SUBSCRIBERS, [(name,) for name in names])
                stored = _keyed(_records(target.run(lock_subscriptions, given)))
                if gone := stored.keys() - wanted.keys():
                    target.run(unsubscribe, values, sorted(gone))
                if changed := [_row(one) for key, one in sorted(wanted.items()) if stored.get(key) != one]:
                    target.run(subscribe, values, changed)
                    # Without this statement, an emit to 1,000 subscribers takes 280 ms instead of 46 ms until the
                    # server updates its row counts on its own.
                    if count := target.dialect.count_rows(task_subscriptions.name):
                        target.execute(count, {})

        # Most workers start with unchanged subscriptions. They do not lock any rows, and on SQLite they do not wait for
        # the writer.
        if _keyed(one for one in self.list(using=using) if one.task_name in names) != wanted:
            self._store.run(work, using=using)

    def remove(self, task_name: str, *, using: object = None) -> None:
        """Delete a task's subscriptions, for example because the task's code was removed. Tasks from earlier events
        remain enqueued.
        """
        self.replace([], tasks=[task_name], using=using)

    def list(self, *, using: object = None) -> builtins.list[Subscription]:
        """Return all subscriptions, sorted by topic and task."""
        return _records(self._store.run_one(subscriptions, using=using))


def _emit(store: Transactions, target: Target, event: NewEvent) -> Emitted:
    values = store.values(target, **_values(event))
    is_plain, has_written = event.idempotency_key is None, store.emits_to_relays
    emits = INSERT_FOR_SUBSCRIBERS if is_plain else EMIT_KEYED
    with target.atomic():
        rows = target.run(emits[has_written], values)
        if len(rows) > MOST_SUBSCRIBERS:
            raise InvalidArgument(
                f"{len(rows)} tasks subscribe to {event.topic!r}, but one event can have at most {MOST_SUBSCRIBERS} subscribers, "
                "so nothing was written; divide the tasks among several topics, or remove the subscriptions of "
                "tasks that no longer exist"
            )
        if relayed := [row for row in rows if row["parameter"] is None]:
            # The steps that write messages are left out until an emit finds a relay, because they would make each emit
            # in a program without relays 5 % slower.
            if not has_written:
                written = target.run(write_messages if is_plain else write_keyed_messages, values)
                relayed = relayed if is_plain else written
                store.emits_to_relays = True
            elif not is_plain:
                relayed = [row for row in relayed if row["accepted_by"] is not None]
            rows = [row for row in rows if row["parameter"] is not None]
        rows.sort(key=lambda row: row["id"])
        handles = {row["task_name"]: Handle(id=row["id"]) for row in rows}
        # These are subscribers whose key was taken. The key may be free again by now; otherwise, its task is returned.
        if refused := [_task(event, row) for row in rows if row["position"] is None]:
            found = enqueue_keyed(store, target, refused)
            handles |= {task.task_name: handle for task, handle in zip(refused, found, strict=True)}
    relays = sorted(row["task_name"].removeprefix(RELAY_PREFIX) for row in relayed)
    return Emitted(pipeline_execution_id=event.id, handles=handles, relays=tuple(relays))


def _is_written(store: Transactions, target: Target, event: NewEvent) -> bool:
    """Return whether an earlier attempt, which wrote either everything or nothing, has written anything."""
    values = store.values(target, **_values(event))
    return any(target.run(select, values) for select in (emitted, unsent, unrouted))


def check_subscription(subscription: Subscription) -> None:
    """Raise InvalidArgument for a subscription that cannot be stored or that would make an emit fail."""
    check_pattern(subscription.topic)
    name = f"the subscription of task {subscription.task_name!r} to {subscription.topic!r}"
    if subscription.parameter is not None and not str(subscription.parameter).isidentifier():
        raise InvalidArgument(f"parameter= of {name} must name one of the parameters of its task")
    check_options(subscription, name, task_name=subscription.task_name, topic=subscription.topic)


def check_event(event: NewEvent) -> None:
    """Raise InvalidArgument for values that the database would refuse."""
    check_topic(event.topic)
    name = f"event {event.topic[:200]!r}"
    if type(event.id) is not UUID or event.id.int & FAMILY:
        raise InvalidArgument(
            f"the id of {name} must come from uuid7.family(), because the ids of its tasks are derived from it"
        )
    check(NewTask(id=event.id, task_name="event", args=event.payload, **_shared(event)), name)


def _values(event: NewEvent) -> dict[str, Any]:
    return {
        **_shared(event),
        "partition_key": stored_key(event.partition_key, event.concurrency_key),
        "relay_key": event.partition_key,
        "may_hold": _key_to_hold(event) is not None,
        "slot": slot_of(event.partition_key, event.id),
        "pipeline_execution_id": event.id,
        "quoted_topic": json.dumps(event.topic, ensure_ascii=False),
        "payload": event.payload,
        "delay_seconds": event.delay.total_seconds(),
        "expires_seconds": None if event.expires_in is None else event.expires_in.total_seconds(),
        "most_subscribers": MOST_SUBSCRIBERS,
    }


def _shared(event: NewEvent) -> dict[str, Any]:
    """Return the fields that an event shares with its tasks."""
    return {name: getattr(event, name) for name in _SHARED}


_SHARED = (
    *("topic", "partition_key", "concurrency_key", "idempotency_key", "headers"),
    *("available_at", "delay", "expires_at", "expires_in"),
)


def _key_to_hold(event: NewEvent) -> str | None:
    """Return the key that a dead letter may hold. A dead letter never holds a concurrency key."""
    return None if concurrency_key_of(event.partition_key) is not None else event.partition_key


def _keyed(subscriptions: Iterable[Subscription]) -> dict[tuple[str, str], Subscription]:
    return {(one.topic, one.task_name): one for one in subscriptions}


def _task(event: NewEvent, subscriber: Row) -> NewTask:
    """Return the task that the statement would have written for this subscriber."""
    return NewTask(
        id=subscriber["id"],
        pipeline_execution_id=event.id,
        task_name=subscriber["task_name"],
        args=f'{{"{subscriber["parameter"]}":{event.payload}}}',
        **vars(TaskOptions(**stored_options(subscriber)).with_key(_key_to_hold(event))),
        **_shared(event),
    )


def _row(subscription: Subscription) -> tuple[object, ...]:
    cells = {name: getattr(subscription, name) for name in _OWN} | subscription.stored
    return tuple(cells[column] for column in SUBSCRIPTION)


def _records(rows: Iterable[Row]) -> list[Subscription]:
    return [Subscription(**{name: row[name] for name in _OWN}, **stored_options(row)) for row in rows]


SUBSCRIPTION: Columns = {column.name: parameter_type(column.type) for column in task_subscriptions.c}
SUBSCRIBERS: Columns = {"task_name": sa.Text()}
_KEY = ("topic", "task_name")
_OWN = (*_KEY, "parameter")
_OF_THE_TASK = ("task_name", *OPTION_COLUMNS.values())
"""The columns that a subscription shares with its tasks."""

_topic, _quoted_topic, _payload, _partition_key, _relay_key, _idempotency_key, _headers = parameters(
    sa.Text, "topic", "quoted_topic", "payload", "partition_key", "relay_key", "idempotency_key", "headers"
)
_pipeline = sa.bindparam("pipeline_execution_id", type_=sa.Uuid, required=True)
_available_at, _expires_at = parameters(Instant, "available_at", "expires_at")
_delay, _expires_in = parameters(sa.Double, "delay_seconds", "expires_seconds")
(_may_hold,) = parameters(sa.Boolean, "may_hold")
(_slot,) = parameters(sa.SmallInteger, "slot")
_most = sa.bindparam("most_subscribers", type_=sa.Integer, required=True)


def _insert_for_subscribers(g: Grammar, *, messages: bool) -> Transition:
    """Write a task for each subscriber to the event and, with `messages`, a message for each relay. If there are no
    subscribers, record this fact.

    Returns the subscribers, each with its new task. Relays have no `parameter`. The statement does not write anything
    if there are more than :most_subscribers.
    """
    entry = {"entry": lambda r: _entry(g, r, r["subscriber"], _is_task(r), _fits_family(r))}
    return _emission(g, entry | _messages(g) if messages else entry)


def _emit_keyed(g: Grammar, *, messages: bool) -> Transition:
    """Write the tasks for the subscribers that have no task with this key. The other subscribers are returned without
    a position.

    ON CONFLICT DO NOTHING waits for a concurrent holder of the key to commit or roll back. All transactions insert keys
    in order of task name, so two emits cannot wait for each other. With `messages`, also write the messages of the
    relays that have not yet received an event with this key.
    """

    def key(r: Relations) -> Statement:
        names = ["scope", "key", "task_execution_id", "until_finished", "created_at"]
        subscriber = r["subscriber"].c
        cells = (subscriber.task_name, _idempotency_key, subscriber.id, sa.false(), g.now)
        # After a query without WHERE, SQLite reads ON CONFLICT as the ON of a join.
        keys = sa.select(*cells).where(_is_task(r), _fits_family(r)).order_by(subscriber.task_name)
        new = g.insert(idempotency_keys).from_select(names, keys)
        return new.on_conflict_do_nothing().returning(idempotency_keys.c.task_execution_id.label("id"))  # type: ignore[no-any-return]

    steps = {"key": key, "entry": lambda r: _entry(g, r, joined(r["subscriber"], r["key"]))}
    if messages:
        steps |= _keyed_messages(g)
    return _emission(g, steps, idempotency_key=_idempotency_key)


def write_messages(g: Grammar) -> Transition:
    """Write only the messages of `INSERT_FOR_SUBSCRIBERS`."""
    return Transition(steps={"subscriber": lambda _: _subscribers(g), **_messages(g)})


def write_keyed_messages(g: Grammar) -> Transition:
    """Write only the messages of `EMIT_KEYED`. Returns the tasks of the relays that received a message."""
    return Transition(steps={"subscriber": lambda _: _subscribers(g), **_keyed_messages(g)}, returns="accepted")


def emitted(_: Grammar) -> sa.Select[Any]:
    """Select the tasks of an event by the event's id."""
    return sa.select(task_executions.c.task_name, task_executions.c.id).where(task_rows.made_together(_pipeline))


def unrouted(_: Grammar) -> sa.Select[Any]:
    """Select the record of an event without subscribers."""
    event = execution_events.c
    return sa.select(event.sequence_num).where(
        event.task_execution_id.is_(None),
        event.lease_token.is_(None),
        event.event_type == sql_literal(EventType.UNROUTED),
        event.pipeline_execution_id == _pipeline,
    )


def unsent(_: Grammar) -> sa.Select[Any]:
    """Select one of an event's messages that no broker has confirmed yet. There is no index for this, because the query
    runs only after an answer was lost.
    """
    return sa.select(relay_messages.c.event_id).where(relay_messages.c.event_id == _pipeline).limit(ONE)


def subscriptions(_: Grammar) -> sa.Select[Any]:
    return sa.select(task_subscriptions).order_by(*(task_subscriptions.c[name] for name in _KEY))


def lock_subscriptions(g: Grammar) -> sa.Select[Any]:
    """Select the subscriptions of the given `tasks`, and lock them until the transaction ends."""
    names = g.rows("tasks", SUBSCRIBERS).c.task_name
    return subscriptions(g).where(g.among(task_subscriptions.c.task_name, names)).with_for_update()


@one_step("written", SUBSCRIPTION)
def subscribe(g: Grammar, given: Any) -> Statement:
    """Write subscriptions in a fixed order. Unchanged subscriptions are not written."""
    # The condition is always true. Without a WHERE, SQLite would read ON CONFLICT as the ON of a join.
    rows = sa.select(*(given[name] for name in SUBSCRIPTION)).where(given.task_name.is_not(None))
    query = g.insert(task_subscriptions).from_select(list(SUBSCRIPTION), rows.order_by(*(given[name] for name in _KEY)))
    changes = {name: query.excluded[name] for name in SUBSCRIPTION if name not in _KEY}
    differs = sa.or_(*(task_subscriptions.c[name].is_distinct_from(value) for name, value in changes.items()))
    return query.on_conflict_do_update(index_elements=_KEY, set_=changes, where=differs)  # type: ignore[no-any-return]


@one_step("gone", {name: sa.Text() for name in _KEY})
def unsubscribe(_: Grammar, given: Any) -> Statement:
    """Delete locked subscriptions."""
    key = sa.tuple_(*(task_subscriptions.c[name] for name in _KEY))
    return sa.delete(task_subscriptions).where(key.in_(sa.select(*(given[name] for name in _KEY))))


def _emission(g: Grammar, entry: Mapping[str, Step], **asked: sa.ColumnElement[Any]) -> Transition:
    """Write a task for each subscriber for which the steps of `entry` write an entry."""
    return Transition(
        steps={
            "subscriber": lambda _: _subscribers(g),
            **entry,
            "execution": lambda r: _execution(g, r),
            "event": lambda r: task_rows.new_event(g, r["subscriber"], r["entry"], **asked),
            "unrouted": lambda r: _unrouted(g, r),
        },
        returns="subscriber",
        joined_steps=("entry", *({"accepted_id"} & entry.keys())),
        # No times, because psycopg cannot read every connection's time format.
        joined_columns=("position", "accepted_by"),
    )


def _subscribers(g: Grammar) -> Statement:
    """Select each subscribed task once, even if several of its patterns match, and number the tasks by name."""
    subscription = task_subscriptions.c
    nth = sa.func.row_number().over(partition_by=subscription.task_name, order_by=subscription.topic)
    found = sa.select(task_subscriptions, nth.label("nth")).where(matches(_topic, subscription.topic)).subquery("found")
    number = sa.func.row_number().over(order_by=found.c.task_name)
    ids = (g.numbered(_pipeline, number).label("id"), _pipeline.label("pipeline_execution_id"))
    tasks = sa.select(*ids, *(found.c[name] for name in (*_OF_THE_TASK, "parameter")))
    return tasks.where(found.c.nth == ONE).order_by(found.c.task_name)


def _fits_family(r: Relations) -> sa.ColumnElement[bool]:
    """Return a condition that tests whether the event's family of ids has an id for each subscriber."""
    subscribers = sa.select(sa.func.count(r["subscriber"].c.id)).scalar_subquery()
    return subscribers <= _most


def _entry(g: Grammar, r: Relations, rows: sa.FromClause, *where: sa.ColumnElement[bool]) -> Statement:
    subscriber = r["subscriber"].c
    task = SimpleNamespace(
        **{name: subscriber[name] for name in ("id", "queue", "priority")},
        partition_key=_partition_key,
        topic=_topic,
        available_at=_available_at,
        delay_seconds=_delay,
        expires_at=_expires_at,
        expires_seconds=_expires_in,
    )
    return task_rows.new_entry(g, task, r["subscriber"], rows, *where)


def _execution(g: Grammar, r: Relations) -> Statement:
    subscriber, entry = r["subscriber"].c, r["entry"].c
    # A task without a partition key has no key to hold.
    on_dead_letter = sa.case((_may_hold, subscriber.on_dead_letter), else_=sql_literal(OnDeadLetter.RELEASE))
    given = {
        **{name: subscriber[name] for name in ("id", "pipeline_execution_id", *_OF_THE_TASK)},
        "topic": _topic,
        "partition_key": _partition_key,
        # Built as text, so that the numbers in the payload are not parsed and serialized again. A parameter's name
        # needs no escaping.
        "args": text_literal('{"') + subscriber.parameter + text_literal('":') + _payload + text_literal("}"),
        "headers": _headers,
        "on_dead_letter": on_dead_letter,
    }
    return new_execution(g, given, entry, joined(r["subscriber"], r["entry"]))


def _is_task(r: Relations) -> sa.ColumnElement[bool]:
    return r["subscriber"].c.parameter.is_not(None)  # type: ignore[no-any-return]


def _is_relay(r: Relations) -> sa.ColumnElement[bool]:
    return r["subscriber"].c.parameter.is_(None)  # type: ignore[no-any-return]


def _message(g: Grammar, relays: sa.FromClause, *where: sa.ColumnElement[bool]) -> Statement:
    """Insert a message for each of these relays, which are given by the names of their tasks.

    The transaction gets its id before the message does, and senders rely on this order (`store/messages/relays.py`).
    """
    values = {
        "relay": relay_of(relays.c.task_name),
        "slot": _slot,
        "event_id": _pipeline,
        "topic": _topic,
        "partition_key": _relay_key,
        "headers": _headers,
        "payload": _payload,
        "created_at": g.now,
    }
    rows = g.identified(sa.select(*values.values()).where(*where).order_by(relays.c.task_name))
    return sa.insert(relay_messages).from_select(list(values), rows)


def _messages(g: Grammar) -> dict[str, Step]:
    return {"message": lambda r: _message(g, r["subscriber"], _is_relay(r), _fits_family(r))}


def relay_of(task_name: sa.ColumnElement[str]) -> sa.ColumnElement[str]:
    """Return the name of the relay to which this task belongs."""
    return sa.func.substr(task_name, sa.literal_column(str(len(RELAY_PREFIX) + 1), sa.Integer), type_=sa.Text)


def _keyed_messages(g: Grammar) -> dict[str, Step]:
    """Accept the event for each relay only once, as a consumer accepts a message, and write a message for each relay
    that accepts it.
    """

    def accepted(r: Relations) -> Statement:
        names = ["consumer", "source", "message_id", "expires_at"]
        consumer, kept = r["subscriber"].c.task_name, g.later(g.now, number(REMEMBERED.total_seconds()))
        rows = sa.select(consumer, text_literal(""), _idempotency_key, kept).where(_is_relay(r), _fits_family(r))
        new = g.insert(inbox_messages).from_select(names, rows.order_by(consumer)).on_conflict_do_nothing()
        return new.returning(inbox_messages.c.consumer.label("task_name"))  # type: ignore[no-any-return]

    def accepted_id(r: Relations) -> Statement:
        subscriber, by = r["subscriber"].c, r["accepted"].c.task_name
        return sa.select(subscriber.id, by.label("accepted_by")).where(subscriber.task_name == by)

    return {"accepted": accepted, "message": lambda r: _message(g, r["accepted"]), "accepted_id": accepted_id}


def _unrouted(g: Grammar, r: Relations) -> Statement:
    data = text_literal('{"topic":') + _quoted_topic + text_literal(',"payload":') + _payload + text_literal("}")
    values = task_rows.event_without_task(g, _pipeline, EventType.UNROUTED, data)
    rows = sa.select(*values.values()).where(~sa.exists(sa.select(r["subscriber"].c.id)))
    return sa.insert(execution_events).from_select(list(values), g.identified(rows))


INSERT_FOR_SUBSCRIBERS: Mapping[bool, Builder] = {
    messages: partial(_insert_for_subscribers, messages=messages) for messages in (False, True)
}
EMIT_KEYED: Mapping[bool, Builder] = {messages: partial(_emit_keyed, messages=messages) for messages in (False, True)}
"""The statements for an emit with an idempotency key, keyed by whether they write relay messages."""
