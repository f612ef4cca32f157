"""Turn an emitted event into a task for each subscriber, and keep the table of subscriptions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Double,
    FromClause,
    Integer,
    Select,
    Text,
    Uuid,
    bindparam,
    case,
    delete,
    exists,
    false,
    func,
    insert,
    literal_column,
    or_,
    select,
    tuple_,
)

from ...model import EventType, OnDeadLetter
from ...model.options import OPTION_COLUMNS
from ...model.subscriptions import EVERYTHING
from ..column_types import Instant, parameter_type
from ..tables import execution_events, idempotency_keys, task_executions, task_subscriptions
from . import enqueue
from .grammar import Columns, Grammar, Relations, Statement, Transition, joined, sql_literal

SUBSCRIPTION: Columns = {column.name: parameter_type(column.type) for column in task_subscriptions.c}
SUBSCRIBERS: Columns = {"task_name": Text()}
_KEY = ("topic", "task_name")
_OF_THE_TASK = ("task_name", *OPTION_COLUMNS.values())
"""The columns of a subscription that its tasks have."""

_topic = bindparam("topic", type_=Text, required=True)
_quoted_topic = bindparam("quoted_topic", type_=Text, required=True)
_payload = bindparam("payload", type_=Text, required=True)
_pipeline = bindparam("pipeline_execution_id", type_=Uuid, required=True)
_partition_key = bindparam("partition_key", type_=Text, required=True)
_idempotency_key = bindparam("idempotency_key", type_=Text, required=True)
_available_at = bindparam("available_at", type_=Instant, required=True)
_delay = bindparam("delay_seconds", type_=Double, required=True)
_expires_at = bindparam("expires_at", type_=Instant, required=True)
_expires_in = bindparam("expires_seconds", type_=Double, required=True)
_headers = bindparam("headers", type_=Text, required=True)
_most = bindparam("most_subscribers", type_=Integer, required=True)


def matches(topic: ColumnElement[Any], pattern: ColumnElement[Any]) -> ColumnElement[bool]:
    """Return a condition: the pattern covers this topic. A pattern is a topic, or the beginning of one and a `*`.

    It compares character by character, because LIKE ignores case on SQLite and treats `_` and `%` as wildcards. NULL without a topic.
    """
    one = literal_column("1", Integer)
    rest = func.length(pattern) - one
    ends = func.substr(pattern, func.length(pattern), one) == literal_column(f"'{EVERYTHING}'", Text)
    begins = func.substr(topic, one, rest) == func.substr(pattern, one, rest)
    return or_(topic == pattern, ends & begins)


def emit(g: Grammar) -> Transition:
    """Write a task for each subscriber of the event, or a record that it has none.

    Returns the subscribers, each with its new task. Writes nothing for more than :most_subscribers.
    """
    return _emission(g, {"entry": lambda r: _entry(g, r, r["subscriber"], _has_room(r))})


def emit_keyed(g: Grammar) -> Transition:
    """Write the tasks of `emit` for the subscribers that have no task by this key. The others are returned without a position.

    ON CONFLICT DO NOTHING waits for a concurrent holder of the key to commit or roll back. Keys are inserted in the order of
    the task names in every transaction, so two emits cannot wait for each other.
    """

    def key(r: Relations) -> Statement:
        names = ["scope", "key", "task_execution_id", "until_finished", "created_at"]
        subscriber = r["subscriber"].c
        keys = select(subscriber.task_name, _idempotency_key, subscriber.id, false(), g.now).where(
            _has_room(r)  # SQLite reads ON CONFLICT after a query without WHERE as the ON of a join
        )
        new = g.insert(idempotency_keys).from_select(names, keys.order_by(subscriber.task_name))
        return new.on_conflict_do_nothing().returning(idempotency_keys.c.task_execution_id.label("id"))  # type: ignore[no-any-return]

    entry = {"entry": lambda r: _entry(g, r, joined(r["subscriber"], r["key"]))}
    return _emission(g, {"key": key, **entry}, idempotency_key=_idempotency_key)


def held_for_event(g: Grammar) -> Select[Any]:
    """Select the tasks that subscribers of the event have by this key."""
    held, subscription = idempotency_keys.c, task_subscriptions.c
    names = select(subscription.task_name).where(matches(_topic, subscription.topic)).subquery("subscriber")
    return select(held.scope.label("task_name"), held.task_execution_id.label("id")).where(
        g.among(held.scope, names.c.task_name), held.key == _idempotency_key
    )


def emitted(_: Grammar) -> Select[Any]:
    """Select the tasks of an event by the event's id."""
    task = task_executions.c
    return select(task.task_name, task.id).where(
        task.pipeline_execution_id == _pipeline, task.pipeline_execution_id != task.id
    )


def unrouted(_: Grammar) -> Select[Any]:
    """Select the record of an event without subscribers."""
    event = execution_events.c
    return select(event.sequence_num).where(
        event.task_execution_id.is_(None),
        event.lease_token.is_(None),
        event.event_type == sql_literal(EventType.UNROUTED),
        event.pipeline_execution_id == _pipeline,
    )


def subscriptions(_: Grammar) -> Select[Any]:
    return select(task_subscriptions).order_by(*(task_subscriptions.c[name] for name in _KEY))


def lock_subscriptions(g: Grammar) -> Select[Any]:
    """Lock and select the subscriptions of the given `tasks` until the transaction ends."""
    names = g.rows("tasks", SUBSCRIBERS).c.task_name
    return subscriptions(g).where(g.among(task_subscriptions.c.task_name, names)).with_for_update()


def subscribe(g: Grammar) -> Transition:
    """Write subscriptions in their order. An unchanged subscription is not written."""

    def written(r: Relations) -> Statement:
        given = r["given"].c
        # The condition is always true. SQLite reads ON CONFLICT after a query without WHERE as the ON of a join.
        rows = select(*(given[name] for name in SUBSCRIPTION)).where(given.task_name.is_not(None))
        query = g.insert(task_subscriptions).from_select(
            list(SUBSCRIPTION), rows.order_by(*(given[name] for name in _KEY))
        )
        changes = {name: query.excluded[name] for name in SUBSCRIPTION if name not in _KEY}
        differs = or_(*(task_subscriptions.c[name].is_distinct_from(value) for name, value in changes.items()))
        return query.on_conflict_do_update(index_elements=_KEY, set_=changes, where=differs)  # type: ignore[no-any-return]

    return Transition(given=SUBSCRIPTION, steps={"written": written})


def unsubscribe(_: Grammar) -> Transition:
    """Delete locked subscriptions."""

    def gone(r: Relations) -> Statement:
        key = tuple_(*(task_subscriptions.c[name] for name in _KEY))
        return delete(task_subscriptions).where(key.in_(select(*(r["given"].c[name] for name in _KEY))))

    return Transition(given={name: Text() for name in _KEY}, steps={"gone": gone})


def _emission(
    g: Grammar, entry: Mapping[str, Callable[[Relations], Statement]], **asked: ColumnElement[Any]
) -> Transition:
    """Write the tasks of the subscribers for which the steps of `entry` insert one."""
    return Transition(
        steps={
            "subscriber": lambda _: _subscribers(g),
            **entry,
            "execution": lambda r: _execution(g, r),
            "event": lambda r: enqueue.event(g, r["subscriber"], r["entry"], **asked),
            "unrouted": lambda r: _unrouted(g, r),
        },
        returns="subscriber",
        joined_steps=("entry",),
        joined_columns=("position",),  # no times: psycopg cannot read the format of every caller's connection
    )


def _subscribers(g: Grammar) -> Statement:
    """Select each subscribed task once, however many of its patterns match, numbered in the order of the task names."""
    subscription = task_subscriptions.c
    nth = func.row_number().over(partition_by=subscription.task_name, order_by=subscription.topic)
    found = select(task_subscriptions, nth.label("nth")).where(matches(_topic, subscription.topic)).subquery("found")
    number = func.row_number().over(order_by=found.c.task_name)
    return (
        select(
            g.numbered(_pipeline, number).label("id"),
            _pipeline.label("pipeline_execution_id"),
            *(found.c[name] for name in (*_OF_THE_TASK, "parameter")),
        )
        .where(found.c.nth == literal_column("1", Integer))
        .order_by(found.c.task_name)
    )


def _has_room(r: Relations) -> ColumnElement[bool]:
    """Return a condition: the caller has reserved an id for each subscriber of the event."""
    subscribers = select(func.count(r["subscriber"].c.id)).scalar_subquery()
    return subscribers <= _most


def _entry(g: Grammar, r: Relations, rows: FromClause, *where: ColumnElement[bool]) -> Statement:
    subscriber = r["subscriber"].c
    task = SimpleNamespace(
        id=subscriber.id,
        queue=subscriber.queue,
        priority=subscriber.priority,
        partition_key=_partition_key,
        topic=_topic,
        available_at=_available_at,
        delay_seconds=_delay,
        expires_at=_expires_at,
        expires_seconds=_expires_in,
    )
    return enqueue.entry(g, task, r["subscriber"], rows, *where)


def _execution(g: Grammar, r: Relations) -> Statement:
    subscriber, entry = r["subscriber"].c, r["entry"].c
    # A task without a partition key has no key to hold.
    on_dead_letter = case(
        (_partition_key.is_not(None), subscriber.on_dead_letter), else_=sql_literal(OnDeadLetter.RELEASE)
    )
    given = {
        "id": subscriber.id,
        "pipeline_execution_id": subscriber.pipeline_execution_id,
        **{name: subscriber[name] for name in _OF_THE_TASK},
        "topic": _topic,
        "partition_key": _partition_key,
        # Built as text, so that the numbers in the payload are not parsed and printed again. A parameter's name needs no
        # escaping.
        "args": _text('{"') + subscriber.parameter + _text('":') + _payload + _text("}"),
        "headers": _headers,
        "on_dead_letter": on_dead_letter,
    }
    return enqueue.new_execution(g, given, entry, joined(r["subscriber"], r["entry"]))


def _unrouted(g: Grammar, r: Relations) -> Statement:
    values = {
        "pipeline_execution_id": _pipeline,
        "event_type": sql_literal(EventType.UNROUTED),
        "event_data": _text('{"topic":') + _quoted_topic + _text(',"payload":') + _payload + _text("}"),
        "created_at": g.now,
    }
    nobody = ~exists(select(r["subscriber"].c.id))
    return insert(execution_events).from_select(list(values), g.identified(select(*values.values()).where(nobody)))


def _text(constant: str) -> ColumnElement[str]:
    return literal_column(f"'{constant}'", Text())
