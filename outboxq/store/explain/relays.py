"""Explain why the relays to brokers have not published an event."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from ...database.column_types import BigId
from ...database.dialects import Row
from ...database.dialects.catalogue import writing_transactions
from ...database.grammar import Grammar
from ...database.queue_order import matches
from ...database.tables import (
    partition_claims,
    relay_messages,
    relay_shards,
    relays,
    task_executions,
    task_outbox,
    task_subscriptions,
)
from ...database.target import Target
from ...model import TaskStatus
from ...model.relays import RELAY_PREFIX, OnRefused
from ...model.uuid7 import FAMILY, is_uuid7
from ..arguments import parameters
from ..claims.claim_sql import value_for
from ..messages.relays_sql import TASK_OF_RELAY
from ..producing.fanout import unrouted
from ..transactions import Transactions
from .reasons import Explanation, Reason, cure_of, of_dead_letter, of_other, span_of, written

MOST = 1000
"""Maximum number of earlier events that are counted."""
_OPEN_LONG = 1.0
"""Seconds after which an open transaction is given as the reason. Shorter transactions are common."""


def explain_event(store: Transactions, target: Target, event_id: UUID) -> Explanation | None:
    """Return why the relays have not published this event; None if `event_id` is not the id of an event.

    With several relays, the sentence names each of them, and the reason is the one to deal with first. A published
    event leaves no row in `relay_messages`. The whole table is read, because it has no index on event ids. No other
    function would need such an index.
    """
    values = store.values(target, event_id=event_id)
    messages, tasks = target.run(messages_of_event, values), target.run(tasks_of_event, values)
    if not messages and not tasks:
        return _without_rows(target, event_id)
    topic = [*messages, *tasks][0]["topic"]
    resent = [one for one in tasks if one["task_name"].startswith(RELAY_PREFIX)]
    found = [_of_message(store, target, one) for one in messages] + [_of_task(one) for one in resent]
    named = {one["relay"] for one in messages} | {_relay_of(one) for one in resent}
    emitted_at = datetime.fromtimestamp((event_id.int >> 80) / 1000, UTC)
    for one in target.run(relays_of_topic, {**values, "topic": topic}):
        if one["name"] not in named and one["created_at"] <= emitted_at:
            # The relay subscribes to the event's topic now, but has no message for the event.
            sentence = (
                f"either the relay {one['name']!r} has published it, or the relay never received it, because it subscribed "
                "to the topic later or had already received an event with the same idempotency key"
            )
            found.append(Explanation(Reason.RELAY_PUBLISHED, sentence))
    if found:
        return _merged(found)
    sentence = f"it is an event, and no relay to a broker subscribes to its topic {topic!r}; tasks enqueued for it: {len(tasks)}"
    return Explanation(Reason.RELAY_MISSING, sentence, of_other(tasks[0]["id"]))


def _without_rows(target: Target, event_id: UUID) -> Explanation | None:
    """Return the explanation for an event that has neither a message nor a task."""
    if not is_uuid7(event_id) or event_id.int & FAMILY:
        return None
    if target.run(unrouted, {"pipeline_execution_id": event_id}):
        sentence = "it is an event, and no task or relay was subscribed to its topic when it was emitted"
        return Explanation(Reason.RELAY_MISSING, sentence, cure_of("see the topics of relays", "relay", "list"))
    if target.run(first_relay, {}):
        sentence = "if this is the id of an event, either its relays have published it, or the transaction that emitted it was rolled back"
        return Explanation(Reason.RELAY_PUBLISHED, f"{sentence}; a published event leaves no row")
    return None


def _merged(found: Sequence[Explanation]) -> Explanation:
    """Return one explanation for all relays of an event."""
    order = list(Reason)
    found = sorted(found, key=lambda one: order.index(one.reason))
    return Explanation(
        found[0].reason,
        "; ".join(one.sentence for one in found),
        tuple(dict.fromkeys(cure for one in found for cure in one.cures)),
        found[0].waits_for,
    )


def _of_message(store: Transactions, target: Target, message: Row) -> Explanation:
    """Return why the relay has not published this message, according to the first rule that applies."""
    name, now = message["relay"], message["now"]
    relay = f"the relay {name!r}"
    if message["shards"] is None:
        sentence = (
            f"{relay} does not exist, so no worker publishes the event; declare the relay again, or delete the event"
        )
        return Explanation(Reason.RELAY_MISSING, sentence, cure_of("see all events without a relay", "verify"))
    if (since := message["paused_at"]) is not None:
        why = f": {reason}" if (reason := message["pause_reason"]) else ""  # it names the person who paused the relay
        sentence = f"{relay} has been paused since {written(since)}, for {span_of(now - since)}{why}; resume it"
        return Explanation(Reason.RELAY_PAUSED, sentence, cure_of("resume it", "relay", "resume", name))
    if (ends := message["lease_expires_at"]) is None or ends <= now:
        sentence = f"no worker publishes shard {message['shard']} of {relay}; start a worker, or run only this relay"
        return Explanation(Reason.RELAY_UNSENT, sentence, cure_of("run the relay", "relay", "run", "--name", name))
    if (since := message["failing_since"]) is not None:
        due = message["next_try_at"]
        wait = f"in {span_of(due - now)}, at {written(due)}" if due is not None and due > now else "now"
        error = f"{message['last_error']}; the next attempt is due {wait}"
        sentence = f"the broker of {relay} has not confirmed any event since {written(since)}: {error}"
        return Explanation(Reason.RELAY_FAILING, sentence, cure_of("try again now", "relay", "resume", name))
    if message["on_refused"] == OnRefused.HOLD and (owner := message["holding"]) is not None:
        return _held(target, message, owner, relay)
    return _in_turn(store, target, message, relay)


def _held(target: Target, message: Row, holding: UUID, relay: str) -> Explanation:
    """Return the explanation for a message whose key waits for an event that was refused before it."""
    before = next(iter(target.run(task_that_holds, {"task_id": holding})), None)
    key = f"partition key {message['partition_key']!r}"
    event = "an event" if before is None else f"the event {before['event_id']}"
    if before is not None and before["status"] is not TaskStatus.FAILED:
        sentence = f"{event} has the same {key} and comes first: that event was refused, and the task {holding} will publish it again"
        return Explanation(Reason.RELAY_KEY_HELD, sentence, of_other(holding), holding)
    why = f": {before['last_error']}" if before is not None and before["last_error"] else ""
    sentence = (
        f"its {key} is held by the dead letter {holding}: the broker of {relay} refused {event} with this key{why}"
    )
    cures = of_dead_letter(holding, "the dead letter")
    return Explanation(Reason.RELAY_KEY_HELD, f"{sentence}; redrive or discard the dead letter", cures, holding)


def _in_turn(store: Transactions, target: Target, message: Row, relay: str) -> Explanation:
    """Return the explanation for a message that nothing in our tables holds back."""
    names = ("relay", "shard", "shards")
    asked = {**{name: message[name] for name in names}, "message_id": message["id"]}
    before = target.run(ahead, store.values(target, **asked))[0]["messages"]
    place = f"; events ahead of it in its shard: {f'more than {MOST}' if before > MOST else before}" if before else ""
    if not target.dialect.one_writer:
        for one in target.run(writing_transactions, {}):
            if one["age"] is not None and one["age"] >= _OPEN_LONG:
                return Explanation(Reason.RELAY_BEHIND, f"{_open_transaction(one, relay)}{place}")
    return Explanation(Reason.RELAY_DUE, f"{relay} is about to publish it{place}")


def _open_transaction(found: Row, relay: str) -> str:
    if found["pid"] is None:
        what = f"the prepared transaction {found['name']!r}"
        act = "commit or roll back that transaction"
    else:
        by = f" of {found['name']}" if found["name"] else ""
        what = f"a transaction{by} with the process id {found['pid']} in the database {found['database']!r}"
        act = "end that transaction"
    lasts = f"{what} has been open for {span_of(timedelta(seconds=found['age']))}"
    return f"{lasts}, and may write an event that comes before this one, so {relay} is waiting; {act}"


def _of_task(task: Row) -> Explanation:
    """Return the explanation for an event that has become a task of its relay: an event that the broker refused, or an
    event for a webhook.
    """
    relay, task_id, error = f"the relay {_relay_of(task)!r}", task["id"], task["last_error"]
    why = f": {error}" if error else ""
    if task["status"] is TaskStatus.FAILED:
        sentence = f"{relay} failed to send it{why}; it is now the dead letter {task_id}; redrive or discard it"
        return Explanation(Reason.RELAY_REFUSED, sentence, of_dead_letter(task_id, "it"), task_id)
    if task["status"] is TaskStatus.CANCELLED:
        return Explanation(Reason.RELAY_DISCARDED, f"{relay} will never send it: its task {task_id} was cancelled{why}")
    if task["status"] is TaskStatus.COMPLETED:
        return Explanation(Reason.RELAY_PUBLISHED, f"{relay} has sent it in the task {task_id}")
    sentence = f"the task {task_id} of {relay} has not sent it yet{why}"
    return Explanation(Reason.RELAY_DUE, sentence, of_other(task_id), task_id)


def _relay_of(task: Row) -> str:
    return str(task["task_name"]).removeprefix(RELAY_PREFIX)


(_relay, _topic) = parameters(sa.Text, "relay", "topic")
(_shard, _shards) = parameters(sa.Integer, "shard", "shards")
(_event_id, _task_id) = parameters(sa.Uuid, "event_id", "task_id")
_message_id = sa.bindparam("message_id", type_=BigId, required=True)
_r, _s, _m, _task = relays.c, relay_shards.c, relay_messages.c, task_executions.c


def messages_of_event(g: Grammar) -> sa.Select[Any]:
    """Select the messages of :event_id that no broker has confirmed, each with its relay, its shard's lease, and the task
    that holds its key.
    """
    queue = sa.literal_column(f"'{RELAY_PREFIX}'", sa.Text) + _m.relay
    of_tables = [
        sa.select(table.c.task_execution_id).where(table.c.queue == queue, table.c.partition_key == _m.partition_key)
        for table in (partition_claims, task_outbox)
    ]
    owners = (value_for(relay_messages, one.limit(sa.literal_column("1", sa.Integer))) for one in of_tables)
    shard = (_m.slot % _r.shards).label("shard")
    of_relay = ("shards", "on_refused", "paused_at", "pause_reason", "failing_since", "next_try_at", "last_error")
    both = relay_messages.outerjoin(relays, _r.name == _m.relay).outerjoin(
        relay_shards, sa.and_(_s.relay == _m.relay, _s.shard == _m.slot % _r.shards)
    )
    of_message = (_m[name] for name in ("id", "relay", "topic", "partition_key"))
    columns: tuple[sa.ColumnElement[Any], ...] = (
        *of_message,
        shard,
        _s.lease_expires_at,
        *(_r[name] for name in of_relay),
    )
    holding = sa.func.coalesce(*owners, type_=sa.Uuid).label("holding")
    found = sa.select(*columns, holding, g.now.label("now")).select_from(both)
    return found.where(_m.event_id == _event_id).order_by(_m.relay)


def tasks_of_event(_: Grammar) -> sa.Select[Any]:
    """Select the tasks of :event_id, including the tasks of relays."""
    of_event = (_task.pipeline_execution_id == _event_id, _task.id != _event_id, _task.topic.is_not(None))
    columns = (_task[name] for name in ("id", "task_name", "topic", "status", "last_error"))
    return sa.select(*columns).where(*of_event).order_by(_task.id)


def relays_of_topic(_: Grammar) -> sa.Select[Any]:
    """Select the relays that subscribe to :topic."""
    subscription = task_subscriptions.c
    takes = sa.select(subscription.task_name).where(
        subscription.task_name == TASK_OF_RELAY, subscription.parameter.is_(None), matches(_topic, subscription.topic)
    )
    columns = (_r[name] for name in ("name", "created_at"))
    return sa.select(*columns).where(takes.correlate(relays).exists()).order_by(_r.name)


def first_relay(_: Grammar) -> sa.Select[Any]:
    """Select a relay, if there is one."""
    return sa.select(_r.name).limit(sa.literal_column("1", sa.Integer))


def task_that_holds(_: Grammar) -> sa.Select[Any]:
    """Select the event, the status and the error of :task_id."""
    event = _task.pipeline_execution_id.label("event_id")
    return sa.select(event, _task.status, _task.last_error).where(_task.id == _task_id)


def ahead(_: Grammar) -> sa.Select[Any]:
    """Count the messages in the shard before :message_id, up to MOST + 1."""
    before = sa.select(_m.id).where(_m.relay == _relay, _m.slot % _shards == _shard, _m.id < _message_id)
    counted = before.limit(sa.literal_column(str(MOST + 1))).subquery("counted")
    return sa.select(sa.func.count().label("messages")).select_from(counted)
