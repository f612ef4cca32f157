"""Settings of a queue: paused or not, its limits, the order of its keys."""

from __future__ import annotations

import builtins
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import EllipsisType
from typing import Any
from uuid import UUID

from ..database.dialects import Begin, Row
from ..database.statements import overview as statements
from ..database.statements import queues, samples
from ..database.target import Target
from ..errors import InvalidArgument, InvalidTransition, QueueNotFound
from ..model import duration
from ..model.options import TaskOptions
from ..model.unknown_options import no_queue
from .arguments import positive, storable
from .claims.workers import live_workers
from .tasks import tasks
from .tasks.event_log import Count, counted_to
from .transactions import Transactions

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
        a time.

        What is left out stays; None removes that limit. What runs already is not stopped. `create` is that of `pause`. Raises
        InvalidArgument and QueueNotFound.
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
                target.run(queues.forget_key_rates, values)
            self._store.wake(target, [queue])
            return settings_of(rows[0])

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
        named = (
            row["queue"] for found in (statements.queue_names, samples.latest) for row in target.run(found, values)
        )
        return {*named, *self._of_workers(target)}

    def _of_workers(self, target: Target) -> set[str]:
        present = target.run(tasks.select_now, self._store.values(target))[0]["now"]
        return {name for worker in live_workers(target, present) for name in worker.queues or ()}

    def _is_known(self, target: Target, queue: str) -> bool:
        if queue == _DEFAULT or queue in self._store.declared():
            return True
        named = target.run(queues.is_named, {"queue": queue, "most": _LOOKED_AT})
        return bool(named) or queue in self._of_workers(target)

    def _ensure_known(self, target: Target, queue: str, *, may_create: bool) -> None:
        if not self._is_known(target, queue):
            known = self._names(target) | {_DEFAULT, *self._store.declared()}
            sentence = no_queue(queue, known)
            how = "o set it up before its first task, pass create=True (on the command line, --create)"
            raise QueueNotFound(
                f"{sentence}{' T' if sentence.endswith('?') else '; t'}{how}" if may_create else sentence
            )

    def _settings(self, target: Target) -> builtins.list[QueueSettings]:
        return [settings_of(row) for row in target.run(queues.settings)]

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
            return settings_of(row)

        return self._store.run(work, using=using)

    def _change(self, target: Target, queue: str, settings: dict[str, Any]) -> Row:
        """Change the settings, and return the row. A changed rate per key begins with full buckets."""
        # The row is locked before its rate is compared: no claim spends starts of the old rate meanwhile.
        old = self._write(target, queue, {}) if "rate_per_key" in settings else None
        row = self._write(target, queue, settings)
        if old is not None and any(old[name] != row[name] for name in ("key_rate_limit", "key_rate_seconds")):
            target.run(queues.forget_key_rates, {"queue": queue})
        return row

    def _write(self, target: Target, queue: str, settings: dict[str, Any]) -> Row:
        values = {
            "queue": queue,
            **{f"sets_{name}": name in settings for name in queues.SETTINGS},
            "paused": settings.get("paused", False),
            "concurrency_limit": settings.get("concurrency"),
            "key_concurrency": settings.get("concurrency_per_key"),
            "fair": settings.get("fair", True),
        }
        values["rate_limit"], values["rate_seconds"] = settings.get("rate") or (None, None)
        values["key_rate_limit"], values["key_rate_seconds"] = settings.get("rate_per_key") or (None, None)
        return target.run(queues.change, self._store.values(target, **values))[0]


def held_key_of(row: Row) -> HeldKey:
    return HeldKey(**{**row, "waiting": counted_to(MOST_WAITING, row["waiting"])})


def settings_of(row: Row) -> QueueSettings:
    """Return the settings of a row."""
    return QueueSettings(
        queue=row["queue"],
        paused_at=row["paused_at"],
        concurrency=row["concurrency_limit"],
        rate=_span(row["rate_limit"], row["rate_seconds"]),
        concurrency_per_key=row["key_concurrency"],
        rate_per_key=_span(row["key_rate_limit"], row["key_rate_seconds"]),
        fair=row["fair"],
        updated_at=row["updated_at"],
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
