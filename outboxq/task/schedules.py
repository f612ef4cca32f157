"""An outbox's schedules: tasks that are enqueued repeatedly, at times given by a cron expression or at a fixed
interval.
"""

from __future__ import annotations

import builtins
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, Final, Protocol, TypedDict, TypeVar, Unpack

from ..errors import ConfigurationError, InvalidTarget
from ..integration.ambient import CURRENT, OutboxRef, resolve_target
from ..model import Handle, duration
from ..model.options import choice
from ..model.rules import check_rule, parse_rule, rule_of, zone_of
from ..model.schedules import CatchUp, NewSchedule, Overlap, Schedule, Tick, is_older
from ..model.unknown_options import Answering, naming_options
from ..store import Store, check_schedule
from ..store.arguments import aware, positive
from .registry import TaskRegistry
from .results import AwaitedResults
from .task import Origin, Task, call_of

log = logging.getLogger("outboxq.worker")

RETENTION: Final = "outboxq.retention"
"""The name of the schedule that deletes old tasks."""
_NAMED = 5
"""The maximum number of schedules that a log line names."""


class ScheduleOptions(TypedDict, total=False):
    """The options for a schedule, as callers pass them. `Outbox.periodic` describes them."""

    tz: str
    args: Sequence[Any] | Mapping[str, Any]
    overlap: Overlap | str
    catch_up: CatchUp | str
    catch_up_limit: int
    grace: timedelta | float | None
    jitter: timedelta | float | None
    starts_at: datetime | None
    ends_at: datetime | None


_OF_A_SCHEDULE: Mapping[str, Any] = {
    **{one.name: one.default for one in fields(NewSchedule) if one.name in ScheduleOptions.__annotations__},
    "args": (),
}
"""The defaults of these options."""


class Scheduling(OutboxRef, Protocol):
    """The part of an Outbox that its schedules use."""

    tasks: TaskRegistry

    def task_of(self, task: object) -> Task[..., Any]:
        """Return the task of this outbox."""


class OutboxSchedules(Answering):
    """An outbox's schedules: `outbox.schedules`.

    `using` has the same meaning as in `Outbox.emit`: it is the owner of the transaction, or the outbox itself for a
    separate transaction. Leave it out to use the current transaction. Reading does not need a transaction.
    """

    _noun = "outbox.schedules"

    def __init__(self, outbox: Scheduling) -> None:
        self._outbox = outbox

    @naming_options("schedules.put()", options=ScheduleOptions.__annotations__, defaults=_OF_A_SCHEDULE)
    def put(
        self,
        name: str,
        task: Task[..., Any] | str | Any,
        rule: str | None = None,
        *,
        every: timedelta | float | None = None,
        using: object = CURRENT,
        **options: Unpack[ScheduleOptions],
    ) -> Schedule:
        """Store a schedule, or change the existing schedule with this name and task. Return the stored schedule.

        The options are the same as for `Outbox.periodic`; `task` may also be a task's name. The task must be registered
        in the worker that runs it; it need not be registered in the worker that enqueues it. A paused schedule remains
        paused when it is changed. If nothing changes, the schedule is left alone. Raises InvalidArgument if an option
        is out of range, if the name belongs to a schedule for another task, or if the schedule is declared in code;
        InvalidCall or PayloadError if the arguments do not fit the task; and UnknownTask. All of these errors are
        raised before anything is written.
        """
        text = rule_of(rule, None if every is None else duration(every, "every"))
        schedule = schedule_for(self._outbox.task_of(task), name=name, rule=text, **options)
        with self._writing(using, "put", name) as target:
            return self._outbox.store.schedules.put(schedule, using=target)

    def pause(self, name: str, *, reason: str = "", using: object = CURRENT) -> Schedule:
        """Stop a schedule's ticks, and cancel its planted ticks that are not due yet. Raises ScheduleNotFound."""
        with self._writing(using, "pause", name) as target:
            return self._outbox.store.schedules.pause(name, reason=reason, using=target)

    def resume(self, name: str, *, using: object = CURRENT) -> Schedule:
        """Resume a paused schedule. `catch_up` decides what happens to the ticks that were missed during the pause.
        Raises ScheduleNotFound.
        """
        with self._writing(using, "resume", name) as target:
            return self._outbox.store.schedules.resume(name, using=target)

    def trigger(self, name: str, *, by: str = "", using: object = CURRENT) -> Handle:
        """Enqueue a task for the schedule now, in addition to its ticks, even if the schedule is paused. `by` is the
        name of the person who made the request.

        Raises ScheduleNotFound.
        """
        with self._writing(using, "trigger", name) as target:
            handle = self._outbox.store.schedules.trigger(name, by=by, using=target)
        return handle.asking(Origin(self._outbox, target))

    def remove(self, name: str, *, using: object = CURRENT) -> None:
        """Delete a schedule, and cancel its planted ticks that are not due yet. Raises ScheduleNotFound.

        If the code still declares the schedule, the next worker that starts stores it again.
        """
        with self._writing(using, "remove", name) as target:
            self._outbox.store.schedules.remove(name, using=target)

    def backfill(
        self, name: str, start: datetime, end: datetime, *, dry_run: bool = False, using: object = CURRENT
    ) -> builtins.list[datetime]:
        """Enqueue a task for each tick from `start` (inclusive) to `end` (exclusive) that does not have one, and return
        these ticks.

        A tick never gets a second task, however often this method is called. With `dry_run`, the ticks are returned,
        but no tasks are enqueued. Raises ScheduleNotFound, and InvalidArgument if `end` is in the future or there are
        more than 10,000 ticks.
        """
        open_target = self._reading(using) if dry_run else self._writing(using, "backfill", name)
        with open_target as target:
            return self._outbox.store.schedules.backfill(name, start, end, dry_run=dry_run, using=target)

    def list(self, *, using: object = CURRENT) -> builtins.list[Schedule]:
        """Return all schedules in the database, sorted by name, including other programs' schedules."""
        with self._reading(using) as target:
            return self._outbox.store.schedules.list(using=target)

    def get(self, name: str, *, using: object = CURRENT) -> Schedule:
        """Return one schedule. Raises ScheduleNotFound."""
        with self._reading(using) as target:
            return self._outbox.store.schedules.get(name, using=target)

    def ticks(self, name: str, limit: int = 100, *, using: object = CURRENT) -> builtins.list[Tick]:
        """Return the latest ticks that became tasks, newest first."""
        with self._reading(using) as target:
            return self._outbox.store.schedules.ticks(name, limit, using=target)

    def next(
        self,
        rule: str | None = None,
        *,
        every: timedelta | float | None = None,
        tz: str = "UTC",
        count: int = 5,
        after: datetime | None = None,
    ) -> builtins.list[datetime]:
        """Return a rule's next ticks, in its time zone. The database is neither read nor written.

        `after` is an aware datetime; None means this machine's current time. The first interval of `every` starts at
        `after`. Raises InvalidArgument for anything that `put` would refuse.
        """
        text = rule_of(rule, None if every is None else duration(every, "every"))
        positive(count, "count")
        after = datetime.now(UTC) if after is None else aware(after, "after")
        check_rule(text, tz)
        zone = zone_of(tz)
        return [tick.astimezone(zone) for tick in islice(parse_rule(text, tz, starts_at=after).ticks(after), count)]

    def _writing(self, using: object, method: str, name: str) -> AbstractContextManager[object]:
        return resolve_target(self._outbox, using, f"schedules.{method}({name!r})", is_option=True)

    @contextmanager
    def _reading(self, using: object) -> Iterator[object]:
        """Yield the target; None if the current transaction is not known, in which case the store begins its own."""
        with ExitStack() as stack:
            try:
                target = stack.enter_context(resolve_target(self._outbox, using, "schedules", is_option=True))
            except InvalidTarget:
                if using is not CURRENT:
                    raise
                target = None
            yield target


def schedule_for(task: Task[..., Any], *, name: str, rule: str, **options: Unpack[ScheduleOptions]) -> NewSchedule:
    """Return a schedule for a task, with its options checked. Raises the same exceptions as `OutboxSchedules.put`."""
    given: dict[str, Any] = {**_OF_A_SCHEDULE, **options}
    overlap = choice(Overlap, given["overlap"], "overlap")
    given["args"] = task.call_as_json(*call_of(given["args"]))
    given["catch_up"] = choice(CatchUp, given["catch_up"], "catch_up")
    for one in ("grace", "jitter"):
        given[one] = None if given[one] is None else duration(given[one], one)
    for one in ("starts_at", "ends_at"):
        given[one] = None if given[one] is None else aware(given[one], one).astimezone(UTC)
    stored = vars(task.options.with_key(None if overlap is Overlap.ALLOW else name))
    schedule = NewSchedule(**{**given, "overlap": overlap}, **stored, name=name, task_name=task.name, rule=rule)
    check_schedule(schedule)
    return schedule


def declare_schedules(store: Store, tasks: TaskRegistry, *, using: object = None) -> None:
    """Store the schedules that these tasks declare, and pause stored schedules that they no longer declare."""
    schedules = tasks.schedules
    names = [task.name for task in tasks]
    if not (schedules or names):
        return
    store.schedules.declare(schedules, declared_by=tasks.version, tasks=names, using=using)
    _tell_left_over(store.schedules.list(using=using), tasks)


def _tell_left_over(stored: Iterable[Schedule], tasks: TaskRegistry) -> None:
    """Log which schedules keep running although this code does not declare them. Another program may declare them."""
    declared = {one.name for one in tasks.schedules}
    ours = [one for one in stored if one.declared_by is not None and one.paused_at is None and one.name not in declared]
    if RETENTION in {one.name for one in ours}:
        log.info(
            "the schedule %s deletes old tasks, although this code does not set a retention; if other programs do not set it either, remove the schedule: "
            "outboxq schedule remove %s",
            RETENTION,
            RETENTION,
        )
    unknown = [
        one.name for one in ours if one.task_name not in tasks and not is_older(tasks.version, one.declared_by or "")
    ]
    if unknown:
        more = f" and {len(unknown) - _NAMED} more" if len(unknown) > _NAMED else ""
        log.info(
            "this code does not declare the tasks of these running schedules: %s%s; if no other program declares them, remove each "
            "schedule: outboxq schedule remove NAME",
            ", ".join(unknown[:_NAMED]),
            more,
        )


T = TypeVar("T")


class PeriodicTasks(AwaitedResults):
    """An Outbox's schedules, which are declared in its code or stored at run time."""

    @naming_options("@outbox.periodic()", options=ScheduleOptions.__annotations__, defaults=_OF_A_SCHEDULE)
    def periodic(
        self,
        rule: str | None = None,
        /,
        *,
        every: timedelta | float | None = None,
        name: str | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> Callable[[T], T]:
        """Declare a schedule for a task: ``@outbox.periodic("30 2 * * *", tz="Europe/Berlin")`` above ``@outbox.task``.

        A task may have several schedules, each with its own name. Workers write the schedules to the database when they
        start, and `outboxq upgrade APP` does the same.

        Args:
            rule: A cron expression: minute, hour, day of the month, month and day of the week. An optional first field
                specifies the seconds. Names such as ``@hourly``, ``@daily``, ``@weekly``, ``@monthly`` and ``@yearly``
                are also accepted. None if `every` is given.
            every: The elapsed time from one tick to the next, in whole seconds, regardless of clock changes. The first
                tick is one interval after the schedule is stored, or at `starts_at`.
            name: The name of the schedule. None means the task's name.
            tz: The IANA name of the time zone in which the rule is read, such as "Europe/Berlin".
            args: The arguments for each task, as a tuple or a mapping.
            overlap: The policy for a tick's task while an earlier tick's task is running. "allow": they run side by
                side. "queue": they run one after another. "skip": the later task is cancelled if the earlier one is
                still running when the `grace` ends.
            catch_up: The ticks that still run if they were missed because no worker was running: "none", "latest" (only
                the newest one, immediately) or "all".
            catch_up_limit: The maximum number of missed ticks that "all" runs, oldest first. A `schedule_skipped` event
                records how many others were skipped.
            grace: The time after the tick until which its task may still be started. None means no limit or, with
                overlap="skip", the time until the next tick.
            jitter: The maximum delay that is added to a tick's due time to spread the load. Every worker computes the
                same delay for the same tick.
            starts_at: The time before which there are no ticks. None means the time at which the schedule is stored.
            ends_at: The time from which there are no more ticks. None means that the schedule never ends.

        Raises ConfigurationError for anything that is not a task and for a name that is already taken, InvalidArgument
        for a rule that never ticks or an option that is out of range, and InvalidCall or PayloadError for arguments
        that do not fit the task.
        """
        if callable(rule):
            raise ConfigurationError(
                '@outbox.periodic takes a rule or every=: @outbox.periodic("30 2 * * *"), above @outbox.task'
            )
        text = rule_of(rule, None if every is None else duration(every, "every"))
        check_rule(text, options.get("tz", _OF_A_SCHEDULE["tz"]))

        def declare(task: T) -> T:
            found = self.task_of(task)
            schedule = schedule_for(found, name=found.name if name is None else name, rule=text, **options)
            self.tasks.add_schedule(schedule, task)
            return task

        return declare

    @property
    def schedules(self) -> OutboxSchedules:
        """The schedules, which can be read and changed at run time."""
        return OutboxSchedules(self)

    def sync_schedules(self) -> None:
        """Store the schedules that this process's tasks declare, and pause stored schedules that they no longer
        declare.

        Every worker calls this method when it starts, and so does `outboxq upgrade APP`. Raises InvalidArgument for a
        name that belongs to a schedule stored at run time.
        """
        declare_schedules(self.store, self.tasks)

    def task_of(self, task: object) -> Task[..., Any]:
        """Return this outbox's task, given as a task or by name.

        Raises ConfigurationError for anything that is not one of this outbox's tasks, and UnknownTask for an unknown
        task.
        """
        if isinstance(task, str):
            return self.tasks.get(task)
        if not isinstance(task, Task):
            what = getattr(task, "__qualname__", None) or repr(task)
            raise ConfigurationError(
                f"{what} is not a task, but a schedule needs a task; decorators apply from the bottom up, so write @outbox.periodic(…) above @outbox.task"
            )
        owner: object = task.outbox
        if owner is not self:
            raise ConfigurationError(f"the task {task.name} is declared on another Outbox; schedule it there")
        return task
