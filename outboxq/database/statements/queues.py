"""Read and change the settings of queues: pause, limits, and the order of partition keys."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    ColumnElement,
    Delete,
    Double,
    Insert,
    Integer,
    Select,
    Table,
    Text,
    and_,
    bindparam,
    case,
    delete,
    exists,
    func,
    literal_column,
    null,
    or_,
    select,
)

from ..grammar import Grammar, Statement
from ..tables import (
    dead_letters,
    key_rates,
    queue_samples,
    queue_settings,
    task_executions,
    task_leases,
    task_metrics,
    task_outbox,
    task_schedules,
    task_subscriptions,
)

_setting, _rate = queue_settings.c, key_rates.c
_queue = bindparam("queue", type_=Text, required=True)
_most = bindparam("most", type_=BigInteger, required=True)
SETTINGS = ("paused", "concurrency", "rate", "concurrency_per_key", "rate_per_key", "fair")
"""The settings of which a change may set some."""
_paused = bindparam("paused", type_=Boolean, required=True)
_sets = {name: bindparam(f"sets_{name}", type_=Boolean, required=True) for name in SETTINGS}
"""True for a setting that a change sets; the others stay."""


def change(g: Grammar) -> Insert:
    """Change the settings of :queue, and return all of them. A repeated pause keeps the time at which it began.

    A changed rate limit begins with a full bucket.
    """
    said = {
        "queue": _queue,
        "paused_at": case((_paused, g.now), else_=null()),
        "concurrency_limit": bindparam("concurrency_limit", type_=Integer, required=True),
        "rate_limit": bindparam("rate_limit", type_=Integer, required=True),
        "rate_seconds": bindparam("rate_seconds", type_=Double, required=True),
        "key_concurrency": bindparam("key_concurrency", type_=Integer, required=True),
        "key_rate_limit": bindparam("key_rate_limit", type_=Integer, required=True),
        "key_rate_seconds": bindparam("key_rate_seconds", type_=Double, required=True),
        "fair": bindparam("fair", type_=Boolean, required=True),
        "updated_at": g.now,
    }
    new = g.insert(queue_settings).from_select(list(said), select(*said.values()))
    other_rate = or_(
        _setting.rate_limit.is_distinct_from(new.excluded.rate_limit),
        _setting.rate_seconds.is_distinct_from(new.excluded.rate_seconds),
    )
    pause = case(
        (new.excluded.paused_at.is_(None), null()), else_=func.coalesce(_setting.paused_at, new.excluded.paused_at)
    )
    values = {
        "paused_at": _if("paused", pause, _setting.paused_at),
        "concurrency_limit": _if("concurrency", new.excluded.concurrency_limit, _setting.concurrency_limit),
        "rate_limit": _if("rate", new.excluded.rate_limit, _setting.rate_limit),
        "rate_seconds": _if("rate", new.excluded.rate_seconds, _setting.rate_seconds),
        "rate_full_at": case((and_(_sets["rate"], other_rate), null()), else_=_setting.rate_full_at),
        "key_concurrency": _if("concurrency_per_key", new.excluded.key_concurrency, _setting.key_concurrency),
        "key_rate_limit": _if("rate_per_key", new.excluded.key_rate_limit, _setting.key_rate_limit),
        "key_rate_seconds": _if("rate_per_key", new.excluded.key_rate_seconds, _setting.key_rate_seconds),
        "fair": _if("fair", new.excluded.fair, _setting.fair),
        "updated_at": g.now,
    }
    return new.on_conflict_do_update(index_elements=[_setting.queue], set_=values).returning(*_setting)  # type: ignore[no-any-return]


def forget(_: Grammar) -> Delete:
    """Delete the row of a queue whose settings are the defaults."""
    return delete(queue_settings).where(
        _setting.queue == _queue,
        _setting.paused_at.is_(None),
        _setting.concurrency_limit.is_(None),
        _setting.rate_limit.is_(None),
        _setting.key_concurrency.is_(None),
        _setting.key_rate_limit.is_(None),
        _setting.fair,
    )


def settings(_: Grammar) -> Select[Any]:
    """Select the settings of each queue."""
    return select(queue_settings).order_by(_setting.queue)


def forget_all(_: Grammar) -> Statement:
    """Delete the row of a queue, whatever its settings are."""
    return delete(queue_settings).where(_setting.queue == _queue).returning(*_setting)


def has_tasks(_: Grammar) -> Select[Any]:
    """Select one row if :queue has a waiting or running task, or a dead letter."""
    return _any_of(*map(_names, (task_outbox, task_leases, dead_letters)))


def is_named(_: Grammar) -> Select[Any]:
    """Select one row if settings, tasks that have not ended, subscriptions, schedules, statistics or one of the newest :most tasks
    name :queue.
    """
    execution = task_executions.c
    newest = select(execution.queue).order_by(execution.id.desc()).limit(_most).subquery("newest")
    own = (queue_settings, task_outbox, task_leases, dead_letters, task_subscriptions)
    recent = exists(select(newest.c.queue).where(newest.c.queue == _queue))
    return _any_of(*map(_names, own), recent, *map(_names, (task_schedules, queue_samples, task_metrics)))


def _names(table: Table) -> ColumnElement[bool]:
    return exists(select(table.c.queue).where(table.c.queue == _queue))


def _any_of(*conditions: ColumnElement[bool]) -> Select[Any]:
    return select(literal_column("1").label("found")).where(or_(*conditions))


def forget_key_rates(_: Grammar) -> Delete:
    """Delete what the keys of :queue have used of their rate."""
    return delete(key_rates).where(_rate.queue == _queue)


def _if(name: str, new: Any, old: Any) -> Any:
    return case((_sets[name], new), else_=old)
