"""Schedules: stored, changed, paused, and their ticks turned into tasks."""

from __future__ import annotations

import builtins
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeVar

from ..database.dialects import Begin
from ..database.statements import enqueue as enqueue_statements
from ..database.statements import schedules as statements
from ..database.statements import tasks
from ..database.statements.grammar import Builder
from ..database.target import Target
from ..errors import InvalidArgument, ScheduleNotFound
from ..model import Handle, NewTask, TaskStatus
from ..model.options import bad_name, is_name
from ..model.rules import Planted, stands_ahead, to_come
from ..model.schedules import HORIZON, REMOVED, NewSchedule, Schedule, Tick
from .arguments import aware, positive, storable
from .declarations import check_schedule, declared, fields_of, is_left_over, is_new, moments_of, refuse_another
from .failure_log import FailureLog
from .planting import (
    before,
    begin_anew,
    cancel_planted,
    enqueue_ticks,
    extra_task,
    now_of,
    plant,
    plant_page,
    prepare,
    rows_of,
    schedule_of,
    task_of,
    ticks_between,
)
from .rows import row
from .transactions import Transactions

T = TypeVar("T")
log = logging.getLogger("outboxq.store")

_TRIES = 10


class Schedules:
    """The schedules, and the ticks that they have had.

    What changes a schedule locks its row, and plants in the same transaction what is due within a minute.
    """

    def __init__(self, store: Transactions) -> None:
        self._store = store
        self._failing = FailureLog(log)
        self.horizon = HORIZON
        """Ticks that a change brings are planted in its transaction, so long ahead. A test has none planted ahead."""

    def put(self, schedule: NewSchedule, *, using: object = None) -> Schedule:
        """Store a schedule, or change the one of this name and task; returns it. Nothing is written where nothing changes.

        A new schedule starts at its next tick. When one is changed, its planted ticks that are not due yet are cancelled,
        and its next ticks are planted. One that is paused stays so. Raises InvalidArgument, before anything is written, for what
        could not be planted, for a name that belongs to a schedule of another task, and for one that is declared in code.
        """
        check_schedule(schedule)

        def work(target: Target) -> Schedule:
            return self._put(target, schedule, self._now(target))

        return self._run(work, using)

    def declare(
        self,
        schedules: Iterable[NewSchedule],
        *,
        declared_by: str = "",
        tasks: Iterable[str] = (),
        using: object = None,
    ) -> None:
        """Make these the schedules that the code of some tasks declares: those that they name, and `tasks`.

        A declared schedule of these tasks that is no longer among them is paused, with the reason. Only what differs is
        written, so every worker calls it at its start. `declared_by` is the version of the code: what a newer version has
        declared is left alone. Without versions, what was declared last counts. Raises InvalidArgument for a name that
        belongs to a schedule stored at run time.
        """
        wanted: dict[str, NewSchedule] = {}
        for one in schedules:
            check_schedule(one)
            if one.name in wanted:
                raise InvalidArgument(f"two schedules that the code declares have the name {one.name!r}; rename one")
            wanted[one.name] = one
        storable(declared_by, "declared_by")
        ours = {one.task_name for one in wanted.values()}.union(tasks)

        def differing(stored: Iterable[Schedule]) -> builtins.list[str]:
            found = {one.name: one for one in stored}
            changed = {name for name, one in wanted.items() if is_new(found.get(name), one, declared_by)}
            gone = {name for name, one in found.items() if name not in wanted and is_left_over(one, ours, declared_by)}
            return sorted(changed | gone)

        def work(target: Target) -> None:
            now = self._now(target)
            names = differing(_schedules(target, statements.schedules))
            locked = {one.name: one for one in self._lock(target, names)}
            for name in wanted.keys() & locked.keys():
                refuse_another(locked[name], wanted[name], declared_by)
            with target.atomic():
                for name in differing(locked.values()):
                    if name in wanted and name in names:
                        self._put(target, wanted[name], now, declared_by=declared_by)
                    elif name in locked:
                        by = f" of release {declared_by}" if declared_by else ""
                        self._pause(target, locked[name], now, f"{REMOVED}{by}")

        # Most workers start with what stands there already: they lock nothing, and on SQLite wait for no writer.
        if differing(self.list(using=using)):
            self._run(work, using)

    def get(self, name: str, *, using: object = None) -> Schedule:
        """Return one schedule. Raises ScheduleNotFound."""
        found = self._run(lambda target: self._lock(target, [name], lock=False), using, Begin.READ)
        return _found(found, name)

    def list(self, *, using: object = None) -> builtins.list[Schedule]:
        """Return all schedules, by name."""
        return self._run(lambda target: _schedules(target, statements.schedules), using, Begin.READ)

    def pause(self, name: str, *, reason: str = "", using: object = None) -> Schedule:
        """Plant no more ticks, and cancel those that are planted and not due yet. Returns the schedule.

        Once paused is paused: the first pause's moment and reason stay. Raises ScheduleNotFound.
        """
        storable(reason, "reason")

        def work(target: Target) -> Schedule:
            schedule = _found(self._lock(target, [name]), name)
            return schedule if schedule.paused_at else self._pause(target, schedule, self._now(target), reason)

        return self._run(work, using)

    def resume(self, name: str, *, using: object = None) -> Schedule:
        """End the pause. The catch-up policy decides about the ticks since. Returns the schedule. Raises ScheduleNotFound."""

        def work(target: Target) -> Schedule:
            schedule = _found(self._lock(target, [name]), name)
            return schedule if schedule.paused_at is None else self._resume(target, schedule, self._now(target))

        return self._run(work, using)

    def remove(self, name: str, *, using: object = None) -> None:
        """Delete a schedule, and cancel its ticks that are planted and not due yet. Raises ScheduleNotFound.

        Tasks that its ticks have become stay. A schedule that code declares comes back when a worker starts with that code.
        """
        was_there = False

        def work(target: Target) -> None:
            nonlocal was_there
            if found := self._lock(target, [name]):
                was_there = True
                cancel_planted(self._store, target, found[0], self._now(target), delayed=True, reason="removed")
                target.run(statements.remove, {"name": name})
            elif not was_there:  # else an earlier try has removed it, whose COMMIT was not answered
                raise _not_found(name)

        self._run(work, using)

    def trigger(self, name: str, *, by: str = "", using: object = None) -> Handle:
        """Enqueue one task of the schedule now, besides its ticks, also where it is paused. `by` says who asks.

        With an overlap other than `allow` it waits for a tick that runs. Raises ScheduleNotFound.
        """
        storable(by, "by")
        made: builtins.list[NewTask] = []

        def work(target: Target) -> Handle:
            schedule = _found(self._lock(target, [name]), name)
            now = self._now(target)
            made[:] = [extra_task(schedule, by)]
            with target.atomic():
                target.run(enqueue_statements.enqueue, self._store.values(target), [row(made[0])])
                self._plant_now(target, schedule, now)
            return Handle(id=made[0].id)

        def done(target: Target) -> Handle | None:
            written = made and target.run(tasks.get, {"task_id": made[0].id})
            return Handle(id=made[0].id) if written else None

        return self._run(work, using, done=done)

    def backfill(
        self, name: str, start: datetime, end: datetime, *, dry_run: bool = False, using: object = None
    ) -> builtins.list[datetime]:
        """Enqueue a task for each tick from `start` to before `end` that had none, whatever the catch-up policy says.

        Returns these ticks. `dry_run` only returns them. They are due at once, and never expire. A tick whose task was pruned
        counts as one that had none. Raises ScheduleNotFound, and InvalidArgument for an end that is still to come or for more
        than 10 000 ticks.
        """
        first, last = aware(start, "start"), aware(end, "end")
        if first >= last:
            raise InvalidArgument(f"a backfill ends after its start, not at {end}")
        made: builtins.list[NewTask] = []
        planted: builtins.list[datetime] = []

        def work(target: Target) -> builtins.list[datetime]:
            schedule, now = _found(self._lock(target, [name], lock=not dry_run), name), self._now(target)
            if last > now:
                raise InvalidArgument(
                    f"a backfill ends in the past, not at {end}: ticks to come are planted by themselves"
                )
            if not dry_run:
                self._plant_now(target, schedule, now)  # what was missed is for the catch-up policy
            values = self._store.values(target, name=name, first=first, last=last)
            there = {one["tick"] for one in target.run(statements.planted, values)}
            planted[:] = [tick for tick in ticks_between(schedule, first, last) if tick not in there]
            if not dry_run:
                rows = [(name, tick, replace(task_of(schedule, tick, now), expires_at=None)) for tick in planted]
                made[:] = [task for _, _, task in rows[:1]]
                with target.atomic():
                    enqueue_ticks(target, values, rows)
            return planted

        def done(target: Target) -> builtins.list[datetime] | None:
            return planted if made and target.run(tasks.get, {"task_id": made[0].id}) else None

        return self._run(work, using, Begin.READ if dry_run else Begin.WRITE, done=done)

    def ticks(self, name: str, limit: int = 100, *, using: object = None) -> builtins.list[Tick]:
        """Return up to `limit` ticks that became tasks, the newest first; also of a schedule that was removed."""
        values = {"name": storable(name, "name"), "limit": positive(limit)}
        found = self._run(lambda target: target.run(statements.ticks, values), using, Begin.READ)
        return [
            Tick(
                schedule=one["schedule"],
                tick=one["tick"],
                task_id=one["task_execution_id"],
                status=None if one["status"] is None else TaskStatus(one["status"]),
            )
            for one in found
        ]

    def upcoming(
        self, schedules: Iterable[Planted], number: int = 1, *, now: datetime | None = None, using: object = None
    ) -> dict[str, builtins.list[datetime]]:
        """Return up to `number` ticks to come of each of these schedules, by name; none of a paused one.

        Ticks that have had their tasks already, under a clock that was ahead, are not among them. A caller that has asked
        the database for the time gives it as `now`, which spares a statement.
        """
        active = [one for one in schedules if one.paused_at is None]
        count = positive(number)

        def work(target: Target) -> dict[str, builtins.list[datetime]]:
            present, given = now or self._now(target), _packed(target, [one.name for one in active])
            anew = {one["name"] for one in target.run(statements.planted_wrongly, self._store.values(target, **given))}
            planted: dict[str, dict[datetime, bool]] = {one.name: {} for one in active}
            for one in target.run(statements.to_come, self._store.values(target, moment=present, limit=count, **given)):
                planted[one["schedule"]][one["tick"]] = bool(one["comes"])
            return {
                one.name: to_come(
                    one,
                    now=present,
                    planted_until=present if one.name in anew else one.planted_until,
                    planted=planted[one.name],
                    count=count,
                )
                for one in active
            }

        found = self._run(work, using, Begin.READ) if active else {}
        return {one.name: found.get(one.name, []) for one in schedules}

    def plant(self, *, horizon: timedelta = HORIZON, stop: Callable[[], bool] = lambda: False) -> int:
        """Turn the ticks of all schedules up to `horizon` from now into tasks; returns how many. Any number of workers may do so.

        Each page of schedules is a transaction of its own. Schedules that another planter has locked are passed over. One that
        cannot be planted is logged, and keeps no other from it. `stop` is asked before each page.
        """
        number, after = 0, ""

        def is_any(target: Target) -> bool:
            values = self._store.values(target, until=self._now(target) + horizon)
            return bool(target.run(statements.some_due, values))

        # Where nothing is to be planted, nothing is locked, and on SQLite nobody waits for the writer.
        if not self._run(is_any, None, Begin.READ):
            return 0
        before_round, is_cut = 0, False
        while not stop():
            page = self._run(partial(plant_page, self._store, self._failing, after=after, horizon=horizon), None)
            number += page.tasks
            is_cut = is_cut or page.is_cut
            if page.last is not None:
                after = page.last
            elif is_cut and number > before_round:
                before_round, after, is_cut = number, "", False
            else:
                break
        return number

    def _put(self, target: Target, new: NewSchedule, now: datetime, declared_by: str | None = None) -> Schedule:
        for _ in range(_TRIES):
            with target.atomic():
                if found := self._lock(target, [new.name]):
                    if declared_by is not None and not is_new(found[0], new, declared_by):
                        return found[0]  # a newer release has stored it since this one looked
                    return self._change(target, found[0], new, now, declared_by)
                schedule = Schedule(
                    **{**fields_of(new), "starts_at": new.starts_at or now},
                    **declared(new, declared_by),
                    planted_until=now,
                    created_at=now,
                    updated_at=now,
                )
                if target.run(statements.create, self._store.values(target), rows_of([schedule])):
                    return self._plant_now(target, schedule, now)
        raise InvalidArgument(
            f"the schedule {new.name!r} is stored and removed faster than it can be changed; try again"
        )

    def _change(
        self, target: Target, old: Schedule, new: NewSchedule, now: datetime, declared_by: str | None
    ) -> Schedule:
        refuse_another(old, new, declared_by)
        stored, old = old, self._by_present_clock(target, old, now)
        values = {**fields_of(new), "starts_at": new.starts_at or old.starts_at}
        changed = replace(old, **values, **declared(new, declared_by))
        if declared_by is not None and (old.pause_reason or "").startswith(REMOVED):
            changed = replace(changed, paused_at=None, pause_reason=None)  # the code has it again
        if changed == old:
            return old if old is stored else self._plant_now(target, old, now)
        differs = any(getattr(old, name) != value for name, value in values.items())
        if differs and old.paused_at is None:
            # What was missed until now was missed under the old rule, unless that cannot be read here.
            with suppress(InvalidArgument):
                self._plant_now(target, old, now, timedelta(0))
            cancel_planted(self._store, target, old, now, delayed=False, reason="planted anew after a change")
        if differs and (old.paused_at is None or moments_of(old) != moments_of(changed)):
            changed = replace(changed, planted_until=now)
        changed = replace(changed, updated_at=now)
        target.run(statements.change, self._store.values(target), rows_of([changed]))
        return changed if changed.paused_at else self._plant_now(target, changed, now)

    def _pause(self, target: Target, schedule: Schedule, now: datetime, reason: str) -> Schedule:
        with target.atomic():
            why = f"paused: {reason}" if reason else "paused"
            first = cancel_planted(self._store, target, schedule, now, delayed=True, reason=why)
            until = min(schedule.planted_until, now, *([] if first is None else [before(first)]))
            paused = replace(schedule, paused_at=now, pause_reason=reason or None, planted_until=until, updated_at=now)
            target.run(statements.change, self._store.values(target), rows_of([paused]))
        return paused

    def _resume(self, target: Target, schedule: Schedule, now: datetime) -> Schedule:
        with target.atomic():
            schedule = self._by_present_clock(target, schedule, now)
            resumed = replace(schedule, paused_at=None, pause_reason=None, updated_at=now)
            target.run(statements.change, self._store.values(target), rows_of([resumed]))
            return self._plant_now(target, resumed, now)

    def _plant_now(
        self, target: Target, schedule: Schedule, now: datetime, horizon: timedelta | None = None
    ) -> Schedule:
        """Plant one locked schedule in the same transaction; returns it as it then is."""
        horizon = self.horizon if horizon is None else horizon
        if schedule.paused_at is not None:
            return schedule
        schedule = self._by_present_clock(target, schedule, now)
        if schedule.planted_until >= now + horizon:
            return schedule
        planting = prepare(schedule, now, horizon)
        plant(self._store, target, [planting])
        until = max(schedule.planted_until, planting.plan.planted_until)
        return replace(schedule, planted_until=until, updated_at=planting.anew_at or schedule.updated_at)

    def _by_present_clock(self, target: Target, schedule: Schedule, now: datetime) -> Schedule:
        """Return a locked schedule, which begins again from now if a clock that was ahead has planted it."""
        if not stands_ahead(schedule, now):
            return schedule
        found = target.run(statements.planted_wrongly, self._store.values(target, **_packed(target, [schedule.name])))
        return begin_anew(self._store, target, schedule, now) if found else schedule

    def _lock(self, target: Target, names: Iterable[str], *, lock: bool = True) -> builtins.list[Schedule]:
        """Return these schedules, locked until the transaction ends."""
        wanted = builtins.list(names)
        for name in wanted:
            if not is_name(name):
                raise bad_name("name", "a schedule")
        return _schedules(target, statements.lock if lock else statements.named, _packed(target, wanted))

    def _now(self, target: Target) -> datetime:
        return now_of(self._store, target)

    def _run(
        self,
        work: Callable[[Target], T],
        using: object,
        begin: Begin = Begin.WRITE,
        done: Callable[[Target], T | None] = lambda _: None,
    ) -> T:
        def whole(target: Target) -> T:
            # Each change is several statements, and planting may end in an error: a caller's transaction goes on without them.
            with target.atomic(savepoint=begin is Begin.WRITE and not target.own):
                return work(target)

        return self._store.run(whole, using=using, begin=begin, done=done)


def _schedules(target: Target, builder: Builder, values: Mapping[str, Any] | None = None) -> list[Schedule]:
    return [schedule_of(one) for one in target.run(builder, values or {})]


def _packed(target: Target, names: Iterable[str]) -> dict[str, Any]:
    return target.dialect.pack("names", statements.NAMES, [(name,) for name in sorted(names)])


def _found(schedules: list[Schedule], name: str) -> Schedule:
    if not schedules:
        raise _not_found(name)
    return schedules[0]


def _not_found(name: str) -> ScheduleNotFound:
    return ScheduleNotFound(f"there is no schedule {name!r}; `outboxq schedule list` shows those that there are")
