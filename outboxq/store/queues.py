"""Settings of a queue: paused or not, its limits, the order of its keys."""

from __future__ import annotations

import builtins
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import EllipsisType
from typing import Any
from uuid import UUID

from ..database.dialects import Begin, Row
from ..database.privileges import Role
from ..database.revisions import UPGRADE
from ..database.statements import key_limits, queues, samples, tasks
from ..database.statements import overview as statements
from ..database.target import Target
from ..errors import InvalidArgument, InvalidTransition, QueueNotFound, SchemaOutOfDate
from ..model import duration
from ..model.options import TaskOptions
from ..model.unknown_options import no_queue
from .arguments import positive, storable
from .availability import KEY_LIMITS, SCHEDULES, STATISTICS, can_read
from .counts import Count, counted_to
from .transactions import Transactions
from .workers import live_workers

_LONGEST = timedelta(days=3650)
_LOOKED_AT = 10_000
MOST_WAITING = 1_000
_DEFAULT = TaskOptions().queue


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueSettings:
    """The settings of a queue. A queue without a row has the defaults."""

    queue: str
    paused_at: datetime | None = None
    """Time since which none of its tasks is claimed; None: the queue is not paused."""
    concurrency: int | None = None
    """Maximum number of its tasks that run at once, on all machines together; None: no limit."""
    rate: tuple[int, timedelta] | None = None
    """Maximum number of starts in a time span, on all machines together; None: no limit."""
    concurrency_per_key: int | None = None
    """Maximum number of tasks of one concurrency key that run at once; None: 1."""
    rate_per_key: tuple[int, timedelta] | None = None
    """Maximum number of starts of one key in a time span, be it a concurrency key or a partition key; None: no limit."""
    fair: bool = True
    """True: partition keys take turns. False: the key whose task has been due the longest is next."""
    updated_at: datetime | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldKey:
    """A partition key that a dead letter holds."""

    queue: str
    partition_key: str
    dead_letter: UUID
    failed_at: datetime
    waiting: Count
    """Number of tasks that wait for the dead letter, counted up to 1 000."""


class Queues:
    """The settings of queues."""

    def __init__(self, store: Transactions) -> None:
        self._store = store

    def pause(self, queue: str, *, create: bool = False, using: object = None) -> QueueSettings:
        """From the commit on nothing of the queue is claimed; what runs, runs on, and tasks can be enqueued as always.

        Once paused is paused: the first pause's moment stays. Returns the queue's settings, as do the next three. All raise
        QueueNotFound for a name that may be mistyped: no task, setting, subscription, schedule or live worker names it, nor a task
        that the application declares. `create` sets such a queue up before its first task.
        """
        return self._say(queue, using, create=create, paused=True)

    def resume(self, queue: str, *, using: object = None) -> QueueSettings:
        """End the pause; sleeping workers are woken."""
        return self._say(queue, using, create=None, paused=False)

    def limit(
        self,
        queue: str,
        *,
        concurrency: int | EllipsisType | None = ...,
        rate: tuple[int, timedelta | float] | EllipsisType | None = ...,
        concurrency_per_key: int | EllipsisType | None = ...,
        rate_per_key: tuple[int, timedelta | float] | EllipsisType | None = ...,
        create: bool = False,
        using: object = None,
    ) -> QueueSettings:
        """Limit how many tasks of the queue run at once, or start in a time: `rate=(100, timedelta(minutes=1))`.

        The last two are limits of each key: how many tasks of one concurrency key run at once, and how many of one key start in
        a time. Workers of releases that do not know them claim nothing of such a queue.

        What is left out stays; None removes that limit. What runs already is not stopped. `create` is that of `pause`. Raises
        InvalidArgument; QueueNotFound; SchemaOutOfDate for limits per key where the schema is older than they are.
        """
        given = {
            "concurrency": concurrency,
            "rate": rate,
            "concurrency_per_key": concurrency_per_key,
            "rate_per_key": rate_per_key,
        }
        settings: dict[str, Any] = {
            name: None if value is None else (_rate if name.startswith("rate") else _count)(value, name)
            for name, value in given.items()
            if value is not ...
        }
        if not settings:
            raise InvalidArgument(
                "limit() takes concurrency, rate, concurrency_per_key, rate_per_key, or some of them; None removes a limit"
            )
        return self._say(queue, using, create=create, **settings)

    def order(self, queue: str, *, fair: bool, create: bool = False, using: object = None) -> QueueSettings:
        """Have keys take turns, which is the default, or have the key come next whose task has been due the longest.

        `create` is that of `pause`. Raises QueueNotFound.
        """
        if type(fair) is not bool:
            raise InvalidArgument(f"fair must be True or False, not {fair!r}")
        return self._say(queue, using, create=create, fair=fair)

    def forget(self, queue: str, *, using: object = None) -> QueueSettings:
        """Delete the settings of a queue without tasks, such as one that was set up under a mistyped name; returns what they were.

        Raises QueueNotFound for a queue without settings; InvalidTransition while a task of the queue waits or runs, or while the queue
        has dead letters: without its settings they would start. `resume` and `limit` decide that.
        """
        values = {"queue": storable(queue, "queue")}

        def work(target: Target) -> QueueSettings:
            with target.atomic():
                rows = target.run(queues.forget_all, values)
                if not rows:
                    raise QueueNotFound(f"the queue {queue!r} has no settings")
                if target.run(queues.has_tasks, values):
                    raise InvalidTransition(
                        f"the queue {queue!r} has tasks, so its settings stay; resume it, or set its limits to none"
                    )
                found = settings_from(self._store, target, rows)[0]
                if can_read(self._store, target, KEY_LIMITS, Role.OPERATOR):
                    target.run(queues.forget_key_limits, values)
                    target.run(queues.forget_key_rates, values)
            self._store.wake(target, [queue])
            return found

        return self._store.run(work, using=using)

    def is_known(self, queue: str, *, using: object = None) -> bool:
        """Return whether anything names the queue: a task, a setting, a subscription, a schedule, a live worker, or a task that the
        application declares. Of the tasks that have ended, the newest 10 000 are looked at.
        """
        storable(queue, "queue")
        return self._store.run(lambda target: self._is_known(target, queue), using=using, begin=Begin.READ)

    def settings(self, *, using: object = None) -> builtins.list[QueueSettings]:
        """Return the queues that have settings, by name."""
        return self._store.run(self._settings, using=using, begin=Begin.READ)

    def list(self, *, using: object = None) -> builtins.list[QueueSettings]:
        """Return all queues by name: those with settings, with waiting or running tasks, with dead letters, in the last sample, or
        named by a live worker. One without settings has the defaults.

        Of the dead letters, 10 000 are looked at.
        """

        def work(target: Target) -> builtins.list[QueueSettings]:
            found = {one.queue: one for one in self._settings(target)}
            return [found.get(name) or QueueSettings(queue=name) for name in sorted(self._names(target))]

        return self._store.run(work, using=using, begin=Begin.READ)

    def _names(self, target: Target) -> set[str]:
        values = self._store.values(target, most=_LOOKED_AT)
        names = {row["queue"] for row in target.run(statements.queue_names, values)} | self._of_workers(target)
        if can_read(self._store, target, STATISTICS):
            names.update(row["queue"] for row in target.run(samples.latest, values))
        return names

    def _of_workers(self, target: Target) -> set[str]:
        present = target.run(tasks.now, self._store.values(target))[0]["now"]
        return {name for worker in live_workers(target, present) for name in worker.queues or ()}

    def _is_known(self, target: Target, queue: str) -> bool:
        if queue == _DEFAULT or queue in self._store.declared():
            return True
        has_all = all(can_read(self._store, target, one) for one in (SCHEDULES, STATISTICS))
        named = queues.is_named_besides if has_all else queues.is_named
        return bool(target.run(named, {"queue": queue, "most": _LOOKED_AT})) or queue in self._of_workers(target)

    def _ensure_known(self, target: Target, queue: str, *, may_create: bool) -> None:
        if not self._is_known(target, queue):
            known = self._names(target) | {_DEFAULT, *self._store.declared()}
            sentence = no_queue(queue, known)
            how = "o set it up before its first task, pass create=True (on the command line, --create)"
            raise QueueNotFound(
                f"{sentence}{' T' if sentence.endswith('?') else '; t'}{how}" if may_create else sentence
            )

    def _settings(self, target: Target) -> builtins.list[QueueSettings]:
        return settings_from(self._store, target, target.run(queues.settings))

    def held_keys(self, queue: str, *, limit: int = 50, using: object = None) -> builtins.list[HeldKey]:
        """Return up to `limit` partition keys of a queue that dead letters hold, those held for longest first."""
        values = {"queue": storable(queue, "queue"), "limit": positive(limit), "most": MOST_WAITING + 1}
        rows = self._store.read(statements.held_keys, **values, using=using)
        return [held_key_of(row) for row in rows]

    def _say(self, queue: str, using: object, *, create: bool | None, **settings: Any) -> QueueSettings:
        """Change settings. `create` None: the change makes no queue, so there is no way to ask for that."""
        if not queue:
            raise InvalidArgument("a queue's name is not empty")
        storable(queue, "queue")

        def work(target: Target) -> QueueSettings:
            if not create:
                self._ensure_known(target, queue, may_create=create is False)
            with target.atomic():
                row = self._change(target, queue, settings)
                target.run(queues.forget, {"queue": queue})
            if settings.get("paused") is not True:
                self._store.wake(target, [queue])
            return settings_from(self._store, target, [row])[0]

        return self._store.run(work, using=using)

    def _change(self, target: Target, queue: str, settings: dict[str, Any]) -> Row:
        """Change the settings, those per key too, and return the row."""
        own = {name: value for name, value in settings.items() if not name.endswith("_per_key")}
        per_key = {name: value for name, value in settings.items() if name.endswith("_per_key")}
        if not per_key and "concurrency" not in own:
            return self._write(target, queue, own)
        # The concurrency limit last: where it is stored depends on the limits per key, which this first write locks.
        concurrency = own.pop("concurrency", ...)
        row = self._write(target, queue, own)
        stored: Row | None = None
        if can_read(self._store, target, KEY_LIMITS, Role.OPERATOR):
            stored = next(iter(target.run(key_limits.of_queue, {"queue": queue})), None)
        elif (wanted := any(value is not None for value in per_key.values())) or row["concurrency_limit"] == 0:
            if target.run(key_limits.is_there) and (
                lacking := self._store.rights.lacking_for(KEY_LIMITS, Role.OPERATOR, target)
            ):
                raise lacking
            if wanted:
                raise SchemaOutOfDate("the schema of this database has no limits per key yet", remedy=UPGRADE)
        # A row beside another limit than 0: an older release has set that since, and so ended the limits per key.
        old: Row = stored if stored is not None and row["concurrency_limit"] == 0 else {}
        old_rate = (old.get("key_rate_limit"), old.get("key_rate_seconds"))
        rate, seconds = (per_key["rate_per_key"] or (None, None)) if "rate_per_key" in per_key else old_rate
        limits = {
            "queue": queue,
            "concurrency_limit": old.get("concurrency_limit", row["concurrency_limit"])
            if concurrency is ...
            else concurrency,
            "key_concurrency": per_key.get("concurrency_per_key", old.get("key_concurrency")),
            "key_rate_limit": rate,
            "key_rate_seconds": seconds,
        }
        is_limited = limits["key_concurrency"] is not None or rate is not None
        if is_limited:
            target.run(queues.limit_keys, limits)
        elif stored is not None:
            target.run(queues.forget_key_limits, limits)
        if stored is not None and (rate, seconds) != old_rate:
            target.run(queues.forget_key_rates, limits)
        # Zero: no release that does not know the limits per key claims anything of the queue.
        return self._write(target, queue, {"concurrency": 0 if is_limited else limits["concurrency_limit"]})

    def _write(self, target: Target, queue: str, settings: dict[str, Any]) -> Row:
        values = {
            "queue": queue,
            **{f"sets_{name}": name in settings for name in ("paused", "concurrency", "rate", "fair")},
            "paused": settings.get("paused", False),
            "concurrency_limit": settings.get("concurrency"),
            "fair": settings.get("fair", True),
        }
        values["rate_limit"], values["rate_seconds"] = settings.get("rate") or (None, None)
        return target.run(queues.change, self._store.values(target, **values))[0]


def settings_from(store: Transactions, target: Target, rows: builtins.list[Row]) -> builtins.list[QueueSettings]:
    """Return the settings of these rows. Limits per key are read only where a row says that there are some."""
    by_queue: dict[str, Row] = {}
    if any(row["concurrency_limit"] == 0 for row in rows) and can_read(store, target, KEY_LIMITS):
        by_queue = {row["queue"]: row for row in target.run(queues.key_limits_of_all)}
    return [settings_of(row, by_queue.get(row["queue"])) for row in rows]


def held_key_of(row: Row) -> HeldKey:
    return HeldKey(**{**row, "waiting": counted_to(MOST_WAITING, row["waiting"])})


def settings_of(row: Row, per_key: Row | None = None) -> QueueSettings:
    """Return the settings of a row, with its limits per key. Those do not hold if the row has a concurrency limit of its own."""
    concurrency, limits = row["concurrency_limit"], {}
    if concurrency == 0 and per_key is not None:
        concurrency = per_key["concurrency_limit"]
        limits = {
            "concurrency_per_key": per_key["key_concurrency"],
            "rate_per_key": _span(per_key["key_rate_limit"], per_key["key_rate_seconds"]),
        }
    return QueueSettings(
        queue=row["queue"],
        paused_at=row["paused_at"],
        concurrency=concurrency,
        rate=_span(row["rate_limit"], row["rate_seconds"]),
        fair=row["fair"],
        updated_at=row["updated_at"],
        **limits,
    )


def _span(starts: int | None, seconds: float | None) -> tuple[int, timedelta] | None:
    return None if starts is None or seconds is None else (starts, timedelta(seconds=seconds))


def _rate(rate: object, name: str) -> tuple[int, float]:
    if not isinstance(rate, tuple) or len(rate) != 2:
        raise InvalidArgument(f"{name} takes a number and a time, as (100, timedelta(minutes=1)), not {rate!r}")
    number, span = _count(rate[0], name), duration(rate[1], name)
    if not timedelta(0) < span <= _LONGEST:
        raise InvalidArgument(
            f"the time of a {name.replace('_', ' ')} must be longer than nothing and at most {_LONGEST.days} days"
        )
    return number, span.total_seconds()


def _count(number: object, name: str) -> int:
    if type(number) is not int or not 1 <= number <= 2**31 - 1:
        raise InvalidArgument(
            f"{name} must be a whole number of at least 1, not {number!r}; to let nothing start, pause the queue"
        )
    return number
