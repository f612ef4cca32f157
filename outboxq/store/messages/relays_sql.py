"""The statements for relays to brokers."""

from __future__ import annotations

from functools import partial
from typing import Any

import sqlalchemy as sa

from ...database.column_types import parameter_type
from ...database.grammar import (
    ONE,
    ZERO,
    Builder,
    Columns,
    Grammar,
    Relations,
    SqlStatus,
    Statement,
    Transition,
    limit,
    number,
    one_step,
    sql_literal,
    text_literal,
    worker_id,
)
from ...database.tables import (
    dead_letters,
    inbox_messages,
    partition_claims,
    relay_messages,
    relay_shards,
    relays,
    task_executions,
    task_leases,
    task_outbox,
    task_subscriptions,
    workers,
)
from ...model import EventType
from ...model.relays import RELAY_PREFIX
from .. import task_rows
from ..arguments import parameters
from ..producing.fanout import relay_of

NAMES: Columns = {"name": sa.Text()}
RELAY: Columns = {"name": sa.Text(), "shards": sa.Integer(), "on_refused": sa.Text()}
SHARD: Columns = {
    name: parameter_type(relay_shards.c[name].type) for name in ("relay", "shard", "lease_token", "lease_expires_at")
}
HELD: Columns = {"relay": sa.Text(), "shard": sa.Integer(), "token": sa.BigInteger()}
IDS: Columns = {"id": sa.BigInteger()}
BURIED: Columns = {"id": sa.Uuid(), "error": sa.Text()}

_relay, _queue, _reason, _error = parameters(sa.Text, "relay", "queue", "reason", "error")
_shard, _shards, _most = parameters(sa.Integer, "shard", "shards", "most")
_token, _settled = parameters(sa.BigInteger, "token", "settled")
_lease, _pause = parameters(sa.Double, "lease_seconds", "pause_seconds")
_restarts = sa.bindparam("restarts", type_=sa.Boolean, required=True)
_r, _s, _m = relays.c, relay_shards.c, relay_messages.c
_NOTHING = sa.null()
_prefix = text_literal(RELAY_PREFIX)
TASK_OF_RELAY: sa.ColumnElement[str] = _prefix + _r.name
"""The name of a relay's task and queue, for a row of `relays`."""
_refused = text_literal("outboxq.errors.EventRefused")
"""The exception that is named in the dead letter of a refused event."""
_MINE = sa.and_(_s.relay == _relay, _s.shard == _shard, _s.lease_token == _token, _s.worker_id == worker_id)
"""A condition that tests whether a shard is still leased to this worker under this token."""


def lock_relays(g: Grammar) -> sa.Select[Any]:
    """Select the given relays, and lock them until the transaction ends."""
    names = g.rows("names", NAMES).c.name
    return sa.select(_r.name, _r.shards, _r.on_refused).where(g.among(_r.name, names)).with_for_update()  # type: ignore[return-value]


@one_step("written", RELAY)
def declare(g: Grammar, given: Any) -> Statement:
    """Write the relays. A relay that already exists keeps its pause and its failures."""
    values = {**{name: given[name] for name in RELAY}, "failures": ZERO, "created_at": g.now}
    # The condition is always true. Without a WHERE, SQLite would read ON CONFLICT as the ON of a join.
    rows = sa.select(*values.values()).where(given.name.is_not(None)).order_by(given.name)
    new = g.insert(relays).from_select(list(values), rows)
    changes = {name: new.excluded[name] for name in ("shards", "on_refused")}
    return new.on_conflict_do_update(index_elements=["name"], set_=changes)  # type: ignore[no-any-return]


def lock_shards(_: Grammar) -> sa.Select[Any]:
    """Select the shards of :relay, and lock them until the transaction ends."""
    return sa.select(_s.shard, _s.lease_token, _s.lease_expires_at).where(_s.relay == _relay).with_for_update()


def drop_shards(_: Grammar) -> sa.Delete:
    return sa.delete(relay_shards).where(_s.relay == _relay)


@one_step("added", SHARD)
def add_shards(_: Grammar, given: Any) -> Statement:
    """Write shards that do not have a sender yet."""
    return sa.insert(relay_shards).from_select(list(SHARD), sa.select(*(given[name] for name in SHARD)))


def take_shard(g: Grammar) -> sa.Update:
    """Lease the first free shard of :relay to this worker for :lease_seconds. Returns no row if no shard is free."""
    shard = relay_shards.alias("free")
    is_free = sa.or_(shard.c.lease_expires_at.is_(None), shard.c.lease_expires_at <= g.now)
    free = sa.select(shard.c.shard).where(shard.c.relay == _relay, is_free).order_by(shard.c.shard)
    first = free.limit(ONE).with_for_update(skip_locked=True).scalar_subquery()
    taken = sa.update(relay_shards).where(_s.relay == _relay, _s.shard == first)
    lease = {"lease_token": _s.lease_token + ONE, "lease_expires_at": g.later(g.now, _lease)}
    return taken.values(worker_id=worker_id, **lease, sleeps_until=_NOTHING).returning(_s.shard, _s.lease_token)


@one_step("renewed", HELD, returns=True)
def renew(g: Grammar, given: Any) -> Statement:
    """Extend the given leases of this worker to :lease_seconds from now. Returns the leases that the worker still
    holds.
    """
    return _of_worker(given).values(lease_expires_at=g.later(g.now, _lease)).returning(_s.relay, _s.shard)


@one_step("freed", HELD)
def give_up(_: Grammar, given: Any) -> Statement:
    """End the given leases of this worker, so that another worker can take the shards immediately."""
    return _of_worker(given).values(worker_id=_NOTHING, lease_expires_at=_NOTHING, sleeps_until=_NOTHING)


def _of_worker(given: Any) -> sa.Update:
    """Return an UPDATE of those of the given shards that are leased to this worker."""
    held = (_s.relay == given.relay, _s.shard == given.shard, _s.lease_token == given.token)
    return sa.update(relay_shards).where(*held, _s.worker_id == worker_id)


def sleep(g: Grammar) -> sa.Update:
    """Ask that this worker be notified of :relay's messages during the next :pause_seconds seconds."""
    mine = sa.update(relay_shards).where(_s.relay == _relay, _s.worker_id == worker_id)
    return mine.values(sleeps_until=g.later(g.now, _pause))


def wake(_: Grammar) -> sa.Update:
    """End the request made by `sleep`."""
    return sa.update(relay_shards).where(_s.relay == _relay, _s.worker_id == worker_id).values(sleeps_until=_NOTHING)


def look(g: Grammar) -> sa.Select[Any]:
    """Select the state of :relay, its highest message id, and the transactions that may still write lower ids. Selects
    no row if the relay does not exist or if the lease has been lost.
    """
    highest = sa.select(sa.func.max(_m.id)).where(_m.relay == _relay).scalar_subquery()
    micros = g.between(g.now, _r.next_try_at)
    columns: tuple[sa.ColumnElement[Any], ...] = (
        sa.func.coalesce(highest, ZERO, type_=sa.BigInteger).label("head"),
        g.oldest_open.label("oldest_open"),
        g.next_transaction.label("next_transaction"),
        *(_r.shards, _r.on_refused, _r.failures),
        _r.paused_at.is_not(None).label("paused"),
        (micros / number(1_000_000)).label("try_in"),
    )
    return sa.select(*columns).select_from(relays).where(_r.name == _relay, sa.select(_s.shard).where(_MINE).exists())


def _following(g: Grammar, *, holds: bool) -> sa.Select[Any]:
    """Select up to :limit messages in a shard with ids up to :settled, in id order, while this worker has the shard's
    lease.

    With `holds`, messages whose key waits for an event that the broker refused are left out. The event's task holds the
    key while the task is Failed and, after a redrive, while it is running. Between these two states, the task has an
    outbox entry.
    """
    has_lease = sa.select(_s.shard).where(_MINE, _s.lease_expires_at > g.now).exists()
    conditions = [_m.relay == _relay, _m.slot % _shards == _shard, _m.id <= _settled, has_lease]
    if holds:
        for table in (partition_claims, task_outbox):
            held = sa.select(table.c.partition_key).where(
                table.c.queue == _queue, table.c.partition_key == _m.partition_key
            )
            conditions.append(~held.correlate(relay_messages).exists())
    columns = (_m.id, _m.event_id, _m.topic, _m.partition_key, _m.headers, _m.payload, _m.created_at)
    return sa.select(*columns).where(*conditions).order_by(_m.id).limit(limit)


FOLLOWING: dict[bool, Builder] = {holds: partial(_following, holds=holds) for holds in (False, True)}


def settle(g: Grammar) -> Transition:
    """Delete the given messages, which the broker has confirmed, if this worker still has the lease.

    Returns one row with the lease, which stays locked until the transaction ends, or no row if the lease is lost.
    """
    return Transition(given=IDS, steps={"held": _held, "gone": lambda r: _gone(g, r)}, returns="held")


def take_out(g: Grammar) -> Transition:
    """Delete and return the given messages, which the broker has refused, if this worker still has the lease."""

    def gone(r: Relations) -> Statement:
        return _gone(g, r).returning(*_m)

    return Transition(given=IDS, steps={"held": _held, "gone": gone}, returns="gone")


def _held(_: Relations) -> Statement:
    return sa.select(_s.shard).where(_MINE).with_for_update()


def _gone(g: Grammar, r: Relations) -> sa.Delete:
    is_held = sa.select(r["held"].c.shard).exists()
    return sa.delete(relay_messages).where(g.among(_m.id, r["given"].c.id), is_held)


def bury(g: Grammar) -> Transition:
    """Turn the given tasks, which the same transaction has enqueued, into dead letters."""
    entry, execution = task_outbox.c, task_executions.c

    def failed(r: Relations) -> Statement:
        given = r["given"].c
        values = {"status": SqlStatus.FAILED, "completed_at": g.now, "updated_at": g.now, "last_error": given.error}
        mine = sa.update(task_executions).where(execution.id == given.id)
        return mine.values(values).returning(*task_rows.CARRIED, execution.last_error)

    def event(r: Relations) -> Statement:
        data = g.json(error=r["failed"].c.last_error, exception=_refused)
        return task_rows.event(g, r["failed"].c, r["failed"], event_type=sql_literal(EventType.FAILED), data=data)

    def held(r: Relations) -> Statement:
        failed, names = r["failed"].c, ["queue", "partition_key", "task_execution_id", "held"]
        holding = sa.and_(failed.partition_key.is_not(None), failed.on_dead_letter == sa.literal_column("'hold'"))
        rows = sa.select(failed.queue, failed.partition_key, failed.id, sa.true()).where(holding)
        return g.insert(partition_claims).from_select(names, rows).on_conflict_do_nothing()  # type: ignore[no-any-return]

    return Transition(
        given=BURIED,
        steps={
            "gone": lambda r: sa.delete(task_outbox).where(g.among(entry.task_execution_id, r["given"].c.id)),
            "failed": failed,
            "event": event,
            "dead_letter": lambda r: task_rows.dead_letter(g, r["failed"].c, r["failed"], exception=_refused),
            "held": held,
        },
    )


def back_off(g: Grammar) -> sa.Update:
    """Stop publishing :relay's events for :pause_seconds because of :error. With :restarts, restart the count of
    failures at one.

    A pause that another sender of the relay has begun in the meantime is not changed.
    """
    is_over = sa.or_(_r.next_try_at.is_(None), _r.next_try_at <= g.now)
    begins = sa.or_(_restarts, _r.failing_since.is_(None))
    values = {
        "failing_since": sa.case((begins, g.now), else_=_r.failing_since),
        "failures": sa.case((begins, ONE), else_=_r.failures + ONE),
        "next_try_at": g.later(g.now, _pause),
        "last_error": _error,
    }
    return sa.update(relays).where(_r.name == _relay, is_over).values(values)


def work_again(_: Grammar) -> sa.Update:
    """Record that the broker of :relay confirms events again."""
    failing = sa.update(relays).where(_r.name == _relay, _r.failures > ZERO)
    return failing.values(failing_since=_NOTHING, next_try_at=_NOTHING, failures=ZERO)


def select_relays(_: Grammar) -> sa.Select[Any]:
    """Select all relays as they are stored."""
    return sa.select(relays).order_by(_r.name)


def select_backlogs(_: Grammar) -> sa.Select[Any]:
    """Select all relays, each with the count of its messages, the time of the oldest one, and the counts of its
    dead letters and redriven events. Each count is at most :limit.
    """
    dead = dead_letters.c
    some = sa.select(_m.id).where(_m.relay == _r.name)
    refused = sa.select(dead.task_execution_id).where(dead.queue == TASK_OF_RELAY)
    # A relay's queue contains only its refused events. Of these, only redriven ones are waiting or running.
    waiting, running = (
        sa.select(ONE).where(table.c.queue == TASK_OF_RELAY).correlate(relays) for table in (task_outbox, task_leases)
    )
    redriven = sa.union_all(waiting, running)
    oldest = sa.select(_m.created_at).where(_m.relay == _r.name).order_by(_m.id).limit(ONE).correlate(relays)

    def number_of(rows: Any, name: str) -> sa.ScalarSelect[int]:
        return sa.select(sa.func.count()).select_from(rows.limit(limit).subquery(name)).scalar_subquery()

    return sa.select(
        relays,
        number_of(some.correlate(relays), "some").label("messages"),
        oldest.scalar_subquery().label("oldest_at"),
        number_of(refused.correlate(relays), "refused").label("dead_letters"),
        number_of(redriven, "redriven").label("redriven"),
    ).order_by(_r.name)


def select_topics(_: Grammar) -> sa.Select[Any]:
    """Select all relays' topics, with the relays' names."""
    subscription = task_subscriptions.c
    columns: tuple[sa.ColumnElement[Any], ...] = (relay_of(subscription.task_name).label("relay"), subscription.topic)
    return (
        sa.select(*columns).where(subscription.parameter.is_(None)).order_by(subscription.task_name, subscription.topic)
    )


def select_shards(g: Grammar) -> sa.Select[Any]:
    """Select all shards, with the labels of the workers that send their messages. If a lease has expired, its
    `worker_id` is NULL.
    """
    worker = sa.case((_s.lease_expires_at > g.now, _s.worker_id)).label("worker_id")
    found = sa.select(_s.relay, _s.shard, worker, workers.c.label.label("worker"), _s.lease_expires_at)
    both = relay_shards.outerjoin(workers, workers.c.id == _s.worker_id)
    return found.select_from(both).order_by(_s.relay, _s.shard)


def select_shard_backlogs(_: Grammar) -> sa.Select[Any]:
    """Select, for each shard, the number of its messages among :relay's first :most messages, and the time of the
    oldest one.
    """
    some = sa.select(_m.slot, _m.created_at).where(_m.relay == _relay).order_by(_m.id).limit(_most).subquery("some")
    shards = sa.select(_r.shards).where(_r.name == _relay).scalar_subquery()
    sharded = sa.select((some.c.slot % shards).label("shard"), some.c.created_at).subquery("sharded")
    messages, oldest = sa.func.count().label("messages"), sa.func.min(sharded.c.created_at).label("oldest_at")
    return sa.select(sharded.c.shard, messages, oldest).group_by(sharded.c.shard).order_by(sharded.c.shard)


def select_held_keys(_: Grammar) -> sa.Select[Any]:
    """Select up to :limit keys of :relay that are held by dead letters in its :queue, each with the refused event and
    the number of the key's messages among the relay's first :most messages.
    """
    claim, task = partition_claims.c, task_executions.c
    some = sa.select(_m.partition_key).where(_m.relay == _relay).order_by(_m.id).limit(_most).subquery("some")
    counted = sa.select(some.c.partition_key, sa.func.count().label("messages")).group_by(some.c.partition_key)
    waits = counted.subquery("waits")
    both = partition_claims.join(task_executions, task.id == claim.task_execution_id)
    columns: tuple[sa.ColumnElement[Any], ...] = (
        claim.partition_key,
        task.pipeline_execution_id.label("event_id"),
        task.topic,
        task.id.label("dead_letter"),
        task.completed_at.label("failed_at"),
        task.last_error.label("error"),
        sa.func.coalesce(waits.c.messages, ZERO).label("waiting"),
    )
    rows = both.outerjoin(waits, waits.c.partition_key == claim.partition_key)
    held = sa.select(*columns).select_from(rows).where(claim.queue == _queue, claim.held)
    return held.order_by(task.completed_at, claim.partition_key).limit(limit)


def pause(g: Grammar) -> sa.Update:
    """Pause :relay. Returns no row if the relay does not exist or is already paused."""
    paused = sa.update(relays).where(_r.name == _relay, _r.paused_at.is_(None))
    return paused.values(paused_at=g.now, pause_reason=_reason).returning(_r.name)


def resume(_: Grammar) -> sa.Update:
    """Resume :relay, and end the pause after failures. Returns no row if the relay does not exist or is not paused."""
    resumed = sa.update(relays).where(_r.name == _relay, _r.paused_at.is_not(None) | _r.next_try_at.is_not(None))
    return resumed.values(paused_at=_NOTHING, pause_reason=_NOTHING, next_try_at=_NOTHING).returning(_r.name)


def remove(g: Grammar) -> Transition:
    """Delete :relay with its topics, its shards, its messages and the idempotency keys of its events. Returns the messages."""
    task_name = _prefix + _relay
    subscription, accepted = task_subscriptions.c, inbox_messages.c
    keys = sa.delete(inbox_messages).where(accepted.consumer == task_name, accepted.source == text_literal(""))
    topics = sa.delete(task_subscriptions).where(subscription.task_name == task_name, subscription.parameter.is_(None))
    return Transition(
        steps={
            "topics": lambda _: topics,
            "relay": lambda _: sa.delete(relays).where(_r.name == _relay),
            "shards": lambda _: drop_shards(g),
            "keys": lambda _: keys,
            "gone": lambda _: sa.delete(relay_messages).where(_m.relay == _relay).returning(_m.id),
        },
        returns="gone",
    )
