"""The part of an Outbox that declares schedules in code."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar

from ..errors import ConfigurationError
from ..model import duration
from ..model.rules import check_rule, rule_of
from ..model.schedules import CatchUp, Overlap
from ..model.unknown_options import OF_A_SCHEDULE, naming_options
from .results import AwaitedResults
from .schedules import Schedules, declare_schedules, schedule_for
from .task import Task

T = TypeVar("T")


class PeriodicTasks(AwaitedResults):
    """The schedules of an Outbox: those that its code declares, and those that are stored at run time."""

    @naming_options("@outbox.periodic()", OF_A_SCHEDULE)
    def periodic(
        self,
        rule: str | None = None,
        /,
        *,
        every: timedelta | float | None = None,
        name: str | None = None,
        tz: str = "UTC",
        args: Sequence[Any] | Mapping[str, Any] = (),
        overlap: Overlap | str = Overlap.ALLOW,
        catch_up: CatchUp | str = CatchUp.LATEST,
        catch_up_limit: int = 100,
        grace: timedelta | float | None = None,
        jitter: timedelta | float | None = None,
        starts_at: datetime | None = None,
        ends_at: datetime | None = None,
    ) -> Callable[[T], T]:
        """Declare a schedule of a task: ``@outbox.periodic("30 2 * * *", tz="Europe/Berlin")`` above ``@outbox.task``.

        A task may have several schedules, each with a name of its own. Workers write them to the database when they start, and
        `outboxq upgrade APP` does.

        Args:
            rule: A cron expression: minute, hour, day of the month, month and day of the week. A sixth field before them is the
                second. Also ``@hourly``, ``@daily``, ``@weekly``, ``@monthly`` and ``@yearly``. None: `every` is given.
            every: The time from one tick to the next, in whole seconds, whatever clocks show. The first one comes that long after
                the schedule was stored, or at `starts_at`.
            name: The name of the schedule. None: the task's name.
            tz: The IANA name of the time zone that the rule is read in, such as "Europe/Berlin".
            args: The arguments of each task, as a tuple or a mapping.
            overlap: What happens at a tick while an earlier one runs. "allow": they run side by side. "queue": one after the other.
                "skip": it is cancelled, if the earlier one still runs when its `grace` ends.
            catch_up: The ticks that run of those missed while no worker ran: "none", "latest" (the newest one, at once) or "all".
            catch_up_limit: The number of ticks that "all" runs, the oldest. An event `schedule_skipped` counts the others.
            grace: The time after which a tick's task is not started any more. None: it is, however late; with overlap="skip",
                until the next tick.
            jitter: The time by which a tick's task may be due later, to spread the load. Every worker computes the same delay for
                one tick.
            starts_at: The moment before which there is no tick. None: the present, when the schedule is stored.
            ends_at: The moment from which on there is no tick. None: there is no end.

        Raises ConfigurationError for what is no task and for a name that is taken, InvalidArgument for a rule that has no moment
        or an option out of its range, InvalidCall and PayloadError for arguments that do not fit the task.
        """
        if callable(rule):
            raise ConfigurationError(
                '@outbox.periodic takes a rule or every=: @outbox.periodic("30 2 * * *"), above @outbox.task'
            )
        text = rule_of(rule, None if every is None else duration(every, "every"))
        check_rule(text, tz)

        def declare(task: T) -> T:
            found = self.task_of(task)
            schedule = schedule_for(
                found,
                name=found.name if name is None else name,
                rule=text,
                tz=tz,
                args=args,
                overlap=overlap,
                catch_up=catch_up,
                catch_up_limit=catch_up_limit,
                grace=grace,
                jitter=jitter,
                starts_at=starts_at,
                ends_at=ends_at,
            )
            self.tasks.add_schedule(schedule, task)
            return task

        return declare

    @property
    def schedules(self) -> Schedules:
        """The schedules, to look at and to change at run time."""
        return Schedules(self)

    def sync_schedules(self) -> None:
        """Store the schedules that this process's tasks declare, and pause those that the tasks declare no more.

        Every worker does this when it starts, and `outboxq upgrade APP` calls it. Raises InvalidArgument for a name that a
        schedule has which was stored at run time.
        """
        declare_schedules(self.store, self.tasks)

    def task_of(self, task: object) -> Task[..., Any]:
        """Return the task of this outbox that a schedule names: the task itself, or one by its name.

        Raises ConfigurationError for what is no task of this outbox, UnknownTask for a name that is none.
        """
        if isinstance(task, str):
            return self.tasks.get(task)
        if not isinstance(task, Task):
            what = getattr(task, "__qualname__", None) or repr(task)
            raise ConfigurationError(
                f"{what} is no task, and a schedule needs one; decorators apply from below, so write @outbox.periodic(…) above @outbox.task"
            )
        owner: object = task.outbox
        if owner is not self:
            raise ConfigurationError(f"the task {task.name} is declared on another Outbox; schedule it there")
        return task
