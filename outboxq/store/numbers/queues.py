"""Manage queue settings: pause, limits and key order."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from types import EllipsisType
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from ...database import tables
from ...database.dialects.base import Begin
from ...database.dialects.plans import Row
from ...database.grammar import Grammar, Statement
from ...database.queue_order import every_queue
from ...database.target import Target
from ...errors import InvalidArgument, InvalidTransition, QueueNotFound
from ...model.options import TaskOptions, duration
from ...model.unknown_options import Answering, naming_options, no_queue, unused_queue
from ...payload.parameters import sanitize
from ..arguments import parameters, positive, storable
from ..claims.claim_sql import same_key
from ..claims.workers import live_workers
from ..tasks.event_log import Count, counted_to
from ..tasks.operations import OnChange
from ..transactions import Transactions
from . import samples

_LONGEST = timedelta(days=3650)
_LOOKED_AT = 10_000
MOST_WAITING = 1_000
_DEFAULT = TaskOptions().queue


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueSettings:
    """The settings of a queue. A queue without a row has the default settings."""

    queue: str
    paused_at: datetime | None = None
    """The time at which the queue was paused, after which no tasks are claimed from it; None if it is not paused."""
    pause_reason: str | None = None
    """The reason for the pause, with the name of the person who paused the queue: "provider down (by ann in the
    dashboard)"; None if it is unknown.
    """
    concurrency: int | None = None
    """The maximum number of tasks from this queue that run at once, on all machines together; None means no limit."""
    rate: tuple[int, timedelta] | None = None
    """The maximum number of starts per period on all machines together; None means no limit."""
    concurrency_per_key: int | None = None
    """Maximum number of tasks with the same concurrency key that run at once; None means 1."""
    rate_per_key: tuple[int, timedelta] | None = None
    """Maximum number of starts per period for each concurrency key or partition key; None means no limit."""
    fair: bool = True
    """True if partition keys take turns; False if the key whose task has been due the longest is next."""
    updated_at: datetime | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldKey:
    """A partition key that a dead letter holds."""

    queue: str
    partition_key: str
    dead_letter: UUID
    failed_at: datetime
    waiting: Count
    """Number of tasks that are waiting for the dead letter, counted up to 1,000."""


class Queues(Answering):
    """The settings of queues."""

    _noun = "outbox.store.queues"

    def __init__(self, store: Transactions) -> None:
        self._store = store

    def pause(
        self,
        queue: str,
        *,
        reason: str = "",
        create: bool = False,
        on_change: OnChange | None = None,
        using: object = None,
    ) -> QueueSettings:
        """Pause a queue: after the commit, its tasks are no longer claimed. Running tasks continue, and new tasks can
        be enqueued.

        Pausing a paused queue keeps its `paused_at` and its reason. Like the next three methods, this method returns
        the settings of the queue, and calls `on_change` in the transaction if a setting changes. These methods raise
        QueueNotFound for a name that is not used by any task, setting, subscription, schedule, live worker or declared
        task, because the name may be mistyped. With `create`, such a queue is set up before its first task.
        """
        why = sanitize(reason) or None
        return self._say(queue, using, on_change, create=create, paused=True, pause_reason=why)

    def resume(self, queue: str, *, on_change: OnChange | None = None, using: object = None) -> QueueSettings:
        """End the pause, and wake sleeping workers."""
        return self._say(queue, using, on_change, create=None, paused=False)

    @naming_options("queues.limit()")
    def limit(
        self,
        queue: str,
        *,
        concurrency: int | EllipsisType | None = ...,
        rate: tuple[int, timedelta | float] | EllipsisType | None = ...,
        concurrency_per_key: int | EllipsisType | None = ...,
        rate_per_key: tuple[int, timedelta | float] | EllipsisType | None = ...,
        create: bool = False,
        on_change: OnChange | None = None,
        using: object = None,
    ) -> QueueSettings:
        """Limit how many tasks in a queue run at once, or how many start per period: `rate=(100,
        timedelta(minutes=1))`. The limits per key apply to the running tasks with the same concurrency key, and to the
        starts per period of tasks with the same key. An omitted limit is not changed, and None removes a limit. Running
        tasks continue. `create` works as in `pause`. Raises InvalidArgument and QueueNotFound.
        """
        counts = {"concurrency": concurrency, "concurrency_per_key": concurrency_per_key}
        rates = {"rate": rate, "rate_per_key": rate_per_key}
        settings: dict[str, Any] = {
            name: None if value is None else check(value, name)
            for check, given in ((_count, counts), (_rate, rates))
            for name, value in given.items()
            if value is not ...
        }
        if not settings:
            raise InvalidArgument(
                "limit() requires at least one of concurrency, rate, concurrency_per_key and rate_per_key; None removes a limit"
            )
        return self._say(queue, using, on_change, create=create, **settings)

    def order(
        self,
        queue: str,
        *,
        fair: bool,
        create: bool = False,
        on_change: OnChange | None = None,
        using: object = None,
    ) -> QueueSettings:
        """Let keys take turns (the default), or let the key whose task has been due the longest come next.

        `create` works as in `pause`. Raises QueueNotFound.
        """
        if type(fair) is not bool:
            raise InvalidArgument(f"fair must be True or False, not {fair!r}")
        return self._say(queue, using, on_change, create=create, fair=fair)

    def forget(self, queue: str, *, using: object = None) -> QueueSettings:
        """Delete and return the settings of a queue without tasks, for example if its name was mistyped.

        Raises QueueNotFound for a queue without settings. Raises InvalidTransition while the queue has unfinished
        tasks or dead letters, which could start without the settings; use `resume` and `limit` instead.
        """
        values = {"queue": storable(queue, "queue")}

        def work(target: Target) -> QueueSettings:
            with target.atomic():
                rows = target.run(forget_all, values)
                if not rows:
                    raise QueueNotFound(f"the queue {queue!r} has no settings")
                if target.run(has_tasks, values):
                    raise InvalidTransition(
                        f"the queue {queue!r} has tasks, so its settings cannot be removed; resume it, or set its "
                        "limits to none"
                    )
                target.run(forget_key_rates, values)
            self._store.wake(target, [queue])
            return settings_of(rows[0])

        return self._store.run(
            work, using=using, committed=lambda target, _: queue not in {one.queue for one in self._settings(target)}
        )

    def is_known(self, queue: str, *, using: object = None) -> bool:
        """Return whether the queue is used by a task, a setting, a subscription, a schedule, a live worker or a
        declared task. Among the finished tasks, only the newest 10,000 are searched.
        """
        storable(queue, "queue")
        return self._store.run(lambda target: self._is_known(target, queue), using=using, begin=Begin.READ)

    def settings(self, *, using: object = None) -> builtins.list[QueueSettings]:
        """Return the queues that have settings, sorted by name."""
        return self._store.run(self._settings, using=using, begin=Begin.READ)

    def list(self, *, using: object = None) -> builtins.list[QueueSettings]:
        """Return all known queues, sorted by name: those that have settings, unfinished tasks or dead letters, those in
        the last sample, and those that a live worker serves. A queue without settings has the default settings.

        At most 10,000 dead letters are searched.
        """

        def work(target: Target) -> builtins.list[QueueSettings]:
            found = {one.queue: one for one in self._settings(target)}
            return [found.get(name) or QueueSettings(queue=name) for name in sorted(self._names(target))]

        return self._store.run(work, using=using, begin=Begin.READ)

    def unused(self, queues: Sequence[str], *, using: object = None) -> builtins.list[str]:
        """Return a warning for each of a worker's `queues` whose name may be mistyped, because no task, setting or
        declaration uses it.
        """

        def read(target: Target) -> builtins.list[str]:
            found = [one for one in queues if not self._is_used(target, one)]
            known = self._used_names(target) | {_DEFAULT, *self._store.declared()} if found else set()
            return [unused_queue(one, known) for one in found]

        return self._store.run(read, using=using, begin=Begin.READ)

    def _names(self, target: Target) -> set[str]:
        return self._used_names(target) | self._of_workers(target)

    def _used_names(self, target: Target) -> set[str]:
        values = self._store.values(target, most=_LOOKED_AT)
        return {row["queue"] for found in (queue_names, samples.latest) for row in target.run(found, values)}

    def _of_workers(self, target: Target) -> set[str]:
        return {name for worker in live_workers(target, self._store.now_in(target)) for name in worker.queues or ()}

    def _is_known(self, target: Target, queue: str) -> bool:
        return self._is_used(target, queue) or queue in self._of_workers(target)

    def _is_used(self, target: Target, queue: str) -> bool:
        if queue == _DEFAULT or queue in self._store.declared():
            return True
        return bool(target.run(is_named, {"queue": queue, "most": _LOOKED_AT}))

    def _settings(self, target: Target) -> builtins.list[QueueSettings]:
        return [settings_of(row) for row in target.run(settings)]

    def held_keys(self, queue: str, *, limit: int = 50, using: object = None) -> builtins.list[HeldKey]:
        """Return up to `limit` of a queue's partition keys that dead letters hold, longest held first."""
        storable(queue, "queue")
        read = partial(read_held_keys, queue=queue, limit=positive(limit))
        return self._store.run(read, using=using, begin=Begin.READ)

    def _say(
        self, queue: str, using: object, on_change: OnChange | None, *, create: bool | None, **settings: Any
    ) -> QueueSettings:
        """Change settings. If `create` is None, the change cannot create a queue."""
        if not queue:
            raise InvalidArgument("a queue name must not be empty")
        storable(queue, "queue")

        def work(target: Target) -> QueueSettings:
            if not create and not self._is_known(target, queue):
                creation = None if create is None else "pass create=True"
                raise QueueNotFound(no_queue(queue, self._names(target)), creation=creation)
            with target.atomic():
                row, differs = self._change(target, queue, settings)
                target.run(forget, {"queue": queue})
                if differs and on_change is not None:
                    on_change(target, 1)
            if settings.get("paused") is not True:
                self._store.wake(target, [queue])
            return settings_of(row)

        return self._store.run(work, using=using)

    def _change(self, target: Target, queue: str, settings: dict[str, Any]) -> tuple[Row, bool]:
        """Change the settings, and return the row and whether any setting has changed. A change to the rate per key
        refills all buckets.
        """
        # The row is locked before it is compared, so that no other change can happen in between, and no claim can use a
        # start under the old rate.
        old = self._write(target, queue, {})
        row = self._write(target, queue, settings)
        different = {name for name in row if name != "updated_at" and old[name] != row[name]}
        if different & {"key_rate_limit", "key_rate_seconds"}:
            target.run(forget_key_rates, {"queue": queue})
        return row, bool(different)

    def _write(self, target: Target, queue: str, settings: dict[str, Any]) -> Row:
        values = {
            "queue": queue,
            **{f"sets_{name}": name in settings for name in _COLUMNS},
            "paused": settings.get("paused", False),
            "pause_reason": settings.get("pause_reason"),
            "concurrency_limit": settings.get("concurrency"),
            "key_concurrency": settings.get("concurrency_per_key"),
            "fair": settings.get("fair", True),
        }
        values["rate_limit"], values["rate_seconds"] = settings.get("rate") or (None, None)
        values["key_rate_limit"], values["key_rate_seconds"] = settings.get("rate_per_key") or (None, None)
        return target.run(change, self._store.values(target, **values))[0]


def read_held_keys(target: Target, queue: str, limit: int) -> list[HeldKey]:
    """Return the same keys as `held_keys`, read in this transaction."""
    rows = target.run(held_keys, {"queue": queue, "limit": limit, "most": MOST_WAITING + 1})
    return [HeldKey(**{**row, "waiting": counted_to(MOST_WAITING, row["waiting"])}) for row in rows]


def settings_of(row: Row) -> QueueSettings:
    """Return the settings in a row."""
    return QueueSettings(
        **{name: row[name] for name in ("queue", "paused_at", "pause_reason", "fair", "updated_at")},
        concurrency=row["concurrency_limit"],
        rate=_span(row["rate_limit"], row["rate_seconds"]),
        concurrency_per_key=row["key_concurrency"],
        rate_per_key=_span(row["key_rate_limit"], row["key_rate_seconds"]),
    )


def _span(starts: int | None, seconds: float | None) -> tuple[int, timedelta] | None:
    return None if starts is None or seconds is None else (starts, timedelta(seconds=seconds))


def _rate(rate: object, name: str) -> tuple[int, float]:
    if not isinstance(rate, tuple) or len(rate) != 2:
        raise InvalidArgument(f"{name} must be a pair such as (100, timedelta(minutes=1)), not {rate!r}")
    number, span = _count(rate[0], name), duration(rate[1], name)
    if not timedelta(0) < span <= _LONGEST:
        raise InvalidArgument(
            f"the period of a {name.replace('_', ' ')} must be positive and at most {_LONGEST.days} days"
        )
    return number, span.total_seconds()


def _count(number: object, name: str) -> int:
    if type(number) is not int or not 1 <= number <= 2**31 - 1:
        raise InvalidArgument(
            f"{name} must be a whole number of at least 1, not {number!r}; to prevent all starts, pause the queue"
        )
    return number


_setting, _key_rate = tables.queue_settings.c, tables.key_rates.c
_queue = sa.bindparam("queue", type_=sa.Text, required=True)
_limit, _most = parameters(sa.BigInteger, "limit", "most")
_one: Any = sa.literal_column("1")
_claim, _dead_letter = tables.partition_claims.c, tables.dead_letters.c
_COLUMNS = {
    "paused": ("paused_at", "pause_reason"),
    "concurrency": ("concurrency_limit",),
    "rate": ("rate_limit", "rate_seconds"),
    "concurrency_per_key": ("key_concurrency",),
    "rate_per_key": ("key_rate_limit", "key_rate_seconds"),
    "fair": ("fair",),
}
"""The settings that can be changed, with their columns."""
_paused = sa.bindparam("paused", type_=sa.Boolean, required=True)
_sets = {name: sa.bindparam(f"sets_{name}", type_=sa.Boolean, required=True) for name in _COLUMNS}
"""True for each setting that a change sets. The other settings are not changed."""


def change(g: Grammar) -> sa.Insert:
    """Change the settings of :queue, and return all of them. A repeated pause keeps the time and the reason of the
    first pause.

    A change to the rate limit refills its bucket.
    """
    columns = [column for name in _COLUMNS for column in _COLUMNS[name] if name != "paused"]
    written = {
        "queue": _queue,
        "paused_at": sa.case((_paused, g.now), else_=sa.null()),
        "pause_reason": sa.bindparam("pause_reason", type_=sa.Text, required=True),
        **{column: sa.bindparam(column, type_=_setting[column].type, required=True) for column in columns},
        "updated_at": g.now,
    }
    new = g.insert(tables.queue_settings).from_select(list(written), sa.select(*written.values()))
    given = new.excluded
    is_repeated = sa.and_(given.paused_at.is_not(None), _setting.paused_at.is_not(None))
    sets = {**_sets, "paused": sa.and_(_sets["paused"], ~is_repeated)}
    values: dict[str, Any] = {
        column: sa.case((sets[name], given[column]), else_=_setting[column])
        for name, several in _COLUMNS.items()
        for column in several
    }
    changed = (_setting[column].is_distinct_from(given[column]) for column in _COLUMNS["rate"])
    values["rate_full_at"] = sa.case((sa.and_(_sets["rate"], sa.or_(*changed)), sa.null()), else_=_setting.rate_full_at)
    values["updated_at"] = g.now
    return new.on_conflict_do_update(index_elements=[_setting.queue], set_=values).returning(*_setting)  # type: ignore[no-any-return]


def forget(_: Grammar) -> sa.Delete:
    """Delete the row of a queue whose settings are the defaults."""
    unset = ("paused_at", "concurrency_limit", "rate_limit", "key_concurrency", "key_rate_limit")
    defaults = (*(_setting[name].is_(None) for name in unset), _setting.fair)
    return sa.delete(tables.queue_settings).where(_setting.queue == _queue, *defaults)


def settings(_: Grammar) -> sa.Select[Any]:
    """Select the settings of each queue."""
    return sa.select(tables.queue_settings).order_by(_setting.queue)


def forget_all(_: Grammar) -> Statement:
    """Delete the row of a queue, even if it has settings."""
    return sa.delete(tables.queue_settings).where(_setting.queue == _queue).returning(*_setting)


def has_tasks(_: Grammar) -> sa.Select[Any]:
    """Select one row if :queue has a waiting or running task, or a dead letter."""
    return _any_of(tables.task_outbox, tables.task_leases, tables.dead_letters)


def is_named(_: Grammar) -> sa.Select[Any]:
    """Select one row if :queue is used by settings, unfinished tasks, subscriptions, schedules, statistics or one of
    the newest :most tasks.
    """
    execution = tables.task_executions.c
    newest = sa.select(execution.queue).order_by(execution.id.desc()).limit(_most).subquery("newest")
    current = (tables.queue_settings, tables.task_outbox, tables.task_leases, tables.dead_letters)
    others = (tables.task_schedules, tables.queue_samples, tables.task_metrics)
    return _any_of(*current, tables.task_subscriptions, newest, *others)


def _any_of(*sources: sa.FromClause) -> sa.Select[Any]:
    """Select one row if any of these tables or queries names :queue."""
    named = (sa.exists(sa.select(source.c.queue).where(source.c.queue == _queue)) for source in sources)
    return sa.select(sa.literal_column("1").label("found")).where(sa.or_(*named))


def forget_key_rates(_: Grammar) -> sa.Delete:
    """Delete the rows that record how much of their rates the keys in :queue have used."""
    return sa.delete(tables.key_rates).where(_key_rate.queue == _queue)


def queue_names(_: Grammar) -> sa.Select[Any]:
    """Select the names of the queues that have settings, waiting or running tasks, or dead letters. At most :most
    dead letters are searched.
    """
    some_dead_letters = sa.select(_dead_letter.queue).limit(_most).subquery("letters")
    of_entries = (every_queue(), every_queue(with_key=True))
    parts: tuple[sa.FromClause, ...] = (*of_entries, tables.task_leases, tables.queue_settings, some_dead_letters)
    names = sa.union_all(*(sa.select(part.c.queue) for part in parts)).subquery("names")
    return sa.select(names.c.queue).where(names.c.queue.is_not(None)).distinct().order_by(names.c.queue)


def held_keys(_: Grammar) -> sa.Select[Any]:
    """Select the keys in :queue that are held by dead letters, oldest first, with the number of tasks waiting for each
    key, counted up to :most.
    """
    held = (
        sa.select(_claim.queue, _claim.partition_key, _claim.task_execution_id, _dead_letter.failed_at)
        .join_from(
            tables.partition_claims, tables.dead_letters, _dead_letter.task_execution_id == _claim.task_execution_id
        )
        .where(_claim.queue == _queue, _claim.held)
        .order_by(_dead_letter.failed_at, _claim.partition_key)
        .limit(_limit)
        .subquery("held")
    )
    entry = tables.task_outbox.alias("entry")
    of_key = sa.select(_one.label("one")).where(same_key(entry, held)).limit(_most).correlate(held)
    waiting: Any = sa.select(sa.func.count()).select_from(of_key.subquery("waiting")).label("waiting")
    dead_letter = held.c.task_execution_id.label("dead_letter")
    found = sa.select(held.c.queue, held.c.partition_key, dead_letter, held.c.failed_at, waiting)
    return found.order_by(held.c.failed_at, held.c.partition_key)
