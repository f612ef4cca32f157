"""Store, change, pause and plant schedules."""

from __future__ import annotations

import builtins
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import fields, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypedDict, TypeVar, Unpack

from ...database.dialects import Begin, Row
from ...database.grammar import Builder
from ...database.target import Target
from ...errors import InvalidArgument, ScheduleNotFound
from ...model import EARLIEST, LATEST, Handle, OnDeadLetter, TaskStatus
from ...model.options import MAX_NAME, MICROSECOND, bad_name, bad_span, check_options, is_name, is_span, is_text
from ...model.rules import check_rule, rule_of, stands_ahead, to_come
from ...model.schedules import (
    HORIZON,
    REMOVED,
    CatchUp,
    NewSchedule,
    Overlap,
    Schedule,
    Tick,
    TickRun,
    digest_of,
    is_older,
)
from ...model.unknown_options import nearest
from ..arguments import aware, positive, storable
from ..failure_log import FailureLog
from ..task_rows import pack_ids, row
from ..tasks import tasks
from ..tasks.operations import OnChange
from ..transactions import Transactions
from . import enqueue, planting, schedules_sql

T = TypeVar("T")
log = logging.getLogger("outboxq.store")

_TRIES = 10


class Edited(TypedDict, total=False):
    """The values of a schedule that `edit` changes, with the same meanings as in `NewSchedule`."""

    rule: str
    tz: str
    args: str
    queue: str
    catch_up: CatchUp
    grace: timedelta | None


class Schedules:
    """The schedules and their ticks.

    Changing a schedule locks its row, and plants the ticks for the next minute in the same transaction.
    """

    def __init__(self, store: Transactions) -> None:
        self._store = store
        self._failing = FailureLog(log)
        self.horizon = HORIZON
        """The period, counted from now, whose ticks are planted in the transaction that changes a schedule. A test may
        set it to zero.
        """

    def put(self, schedule: NewSchedule, *, on_change: OnChange | None = None, using: object = None) -> Schedule:
        """Store a schedule, or change the one with this name and task, and return it. Nothing is written if there is no
        change; otherwise, `on_change` is called in the transaction.

        A new schedule starts at its next tick. A changed schedule is planted again: its planted ticks that are not due
        yet are cancelled. A paused schedule stays paused. Raises InvalidArgument before anything is written: for a
        schedule that cannot be planted, for a name that belongs to another task, and for a schedule that is declared in
        code.
        """
        check_schedule(schedule)

        def work(target: Target) -> Schedule:
            before = [] if on_change is None else self._lock(target, [schedule.name])
            stored = self._put(target, schedule, self._store.now_in(target))
            return self._changed(target, stored, None if _given(stored) in map(_given, before) else on_change)

        return self._run(work, using)

    def edit(
        self, name: str, *, on_change: OnChange | None = None, using: object = None, **values: Unpack[Edited]
    ) -> Schedule:
        """Change some values of a schedule that was stored at run time, and return it. `on_change` is called in the
        transaction if a value changes. In all other respects, `edit` works like `put`. Raises ScheduleNotFound and
        InvalidArgument.
        """

        def work(target: Target) -> Schedule:
            old = self._one(target, name)
            new = NewSchedule(**{**_given(old), **values})
            check_schedule(new)
            changed = self._change(target, old, new, self._store.now_in(target), None)
            return self._changed(target, changed, None if _given(old) == fields_of(new) else on_change)

        return self._run(work, using)

    def declare(
        self,
        schedules: Iterable[NewSchedule],
        *,
        declared_by: str = "",
        tasks: Iterable[str] = (),
        using: object = None,
    ) -> None:
        """Declare all schedules of `tasks`, and of the tasks named in `schedules`.

        A declared schedule of these tasks that is not in `schedules` is paused, and the reason is recorded. Only
        changes are written, so every worker can call this when it starts. `declared_by` is the version of the code:
        declarations by a newer version are kept. Without versions, the last declaration takes effect. Raises
        InvalidArgument for a name that belongs to a schedule stored at run time.
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
            now = self._store.now_in(target)
            names = differing(_schedules(target, schedules_sql.schedules))
            locked = {one.name: one for one in self._lock(target, names)}
            for name in wanted.keys() & locked.keys():
                refuse_another(locked[name], wanted[name], declared_by)
            for name in differing(locked.values()):
                if name in wanted and name in names:
                    self._put(target, wanted[name], now, declared_by=declared_by)
                elif name in locked:
                    by = f" of release {declared_by}" if declared_by else ""
                    self._pause(target, locked[name], now, f"{REMOVED}{by}")

        # Most workers start with unchanged schedules. They do not lock any rows, and on SQLite they do not wait for the
        # writer.
        if differing(self.list(using=using)):
            self._run(work, using)

    def get(self, name: str, *, using: object = None) -> Schedule:
        """Return one schedule. Raises ScheduleNotFound."""
        return self._run(lambda target: self._one(target, name, lock=False), using, Begin.READ)

    def list(self, *, using: object = None) -> builtins.list[Schedule]:
        """Return all schedules, sorted by name."""
        return self._run(lambda target: _schedules(target, schedules_sql.schedules), using, Begin.READ)

    def pause(
        self, name: str, *, reason: str = "", on_change: OnChange | None = None, using: object = None
    ) -> Schedule:
        """Pause a schedule: plant no more ticks, and cancel planted ticks that are not due yet. Returns the schedule.

        Pausing a paused schedule keeps the original time and reason. `on_change` is called in the transaction if the
        schedule was not paused. Raises ScheduleNotFound.
        """
        storable(reason, "reason")

        def work(target: Target) -> Schedule:
            schedule = self._one(target, name)
            if schedule.paused_at is not None:
                return schedule
            return self._changed(target, self._pause(target, schedule, self._store.now_in(target), reason), on_change)

        return self._run(work, using)

    def resume(self, name: str, *, on_change: OnChange | None = None, using: object = None) -> Schedule:
        """End a schedule's pause, and return the schedule. The catch-up policy decides what happens to the ticks missed
        during the pause. `on_change` is called in the transaction if the schedule was paused. Raises ScheduleNotFound.
        """

        def work(target: Target) -> Schedule:
            schedule = self._one(target, name)
            if schedule.paused_at is None:
                return schedule
            now = self._store.now_in(target)
            schedule = self._by_present_clock(target, schedule, now)
            resumed = replace(schedule, paused_at=None, pause_reason=None, updated_at=now)
            self._write(target, resumed)
            return self._changed(target, self._plant_now(target, resumed, now), on_change)

        return self._run(work, using)

    def remove(self, name: str, *, using: object = None) -> None:
        """Delete a schedule, and cancel its planted ticks that are not due yet. Raises ScheduleNotFound.

        Tasks of earlier ticks are kept. A schedule that is declared in code is stored again when a worker starts with
        that code.
        """

        def work(target: Target) -> None:
            schedule, now = self._one(target, name), self._store.now_in(target)
            planting.cancel_planted(self._store, target, schedule, now, delayed=True, reason="removed")
            target.run(schedules_sql.remove, {"name": name})

        self._run(work, using, committed=lambda target, _: not self._lock(target, [name]))

    def trigger(self, name: str, *, by: str = "", using: object = None) -> Handle:
        """Enqueue one task of the schedule now, in addition to its ticks, even if the schedule is paused. `by` is the
        name of the person who triggers the schedule.

        With an overlap other than `allow`, the task waits until a running tick's task has ended. Raises
        ScheduleNotFound.
        """
        storable(by, "by")

        def work(target: Target) -> Handle:
            schedule, now = self._one(target, name), self._store.now_in(target)
            task = planting.extra_task(schedule, by)
            target.run(enqueue.insert_tasks, self._store.values(target), [row(task)])
            self._plant_now(target, schedule, now)
            return Handle(id=task.id)

        def committed(target: Target, extra: Handle) -> bool:
            return bool(target.run(tasks.select_task, {"task_id": extra.id}))

        return self._run(work, using, committed=committed)

    def backfill(
        self, name: str, start: datetime, end: datetime, *, dry_run: bool = False, using: object = None
    ) -> builtins.list[datetime]:
        """Enqueue a task for each tick that does not have one, from `start` up to, but not including, `end`, regardless
        of the catch-up policy.

        The ticks include those before the start of the schedule, but none after its end. Returns these ticks. With
        `dry_run`, no tasks are enqueued. The tasks are due immediately and never expire. A tick whose task was pruned
        counts as a tick without a task. Raises ScheduleNotFound, and InvalidArgument for an end in the future or for
        more than 10,000 ticks.
        """
        first, last = aware(start, "start"), aware(end, "end")
        if first >= last:
            raise InvalidArgument(f"a backfill must end after its start, not at {end}")

        def planted_between(target: Target) -> set[datetime]:
            values = {"name": name, "first": first, "last": last}
            return {one["tick"] for one in target.run(schedules_sql.planted, values)}

        def work(target: Target) -> builtins.list[datetime]:
            schedule, now = self._one(target, name, lock=not dry_run), self._store.now_in(target)
            if last > now:
                raise InvalidArgument(
                    f"a backfill must end in the past, not at {end}: future ticks are planted automatically"
                )
            if not dry_run:
                self._plant_now(target, schedule, now)  # the catch-up policy decides what happens to missed ticks
            there = planted_between(target)
            upto = last if schedule.ends_at is None else min(last, schedule.ends_at)
            planted = [tick for tick in planting.ticks_between(schedule, first, upto) if tick not in there]
            if not dry_run:
                rows = [(name, tick, planting.past_task_of(schedule, tick, now)) for tick in planted]
                planting.enqueue_ticks(target, self._store.values(target), rows)
            return planted

        def committed(target: Target, planted: builtins.list[datetime]) -> bool:
            return {*planted} <= planted_between(target)

        return self._run(work, using, Begin.READ if dry_run else Begin.WRITE, committed)

    def ticks(self, name: str, limit: int = 100, *, using: object = None) -> builtins.list[Tick]:
        """Return up to `limit` ticks that became tasks, newest first, even for a removed schedule."""
        values = {"name": storable(name, "name"), "limit": positive(limit)}
        found = self._run(lambda target: target.run(schedules_sql.ticks, values), using, Begin.READ)
        return [Tick(**{**row, "status": row["status"] and TaskStatus(row["status"])}) for row in found]

    def runs(self, names: Iterable[str], limit: int = 20, *, using: object = None) -> dict[str, builtins.list[TickRun]]:
        """Return, for each of these schedules, the newest `limit` ticks that became tasks, oldest first, keyed by name."""
        wanted, most = builtins.list(dict.fromkeys(names)), positive(limit)

        def work(target: Target) -> dict[str, builtins.list[TickRun]]:
            found: dict[str, builtins.list[TickRun]] = {name: [] for name in wanted}
            rows = target.run(schedules_sql.last_ticks, {**_packed(target, wanted), "limit": most})
            ran = target.run(schedules_sql.runs, pack_ids(target, "tasks", [one["task_id"] for one in rows]))
            by_id = {one["id"]: one for one in ran}
            for one in rows:
                found[one["schedule"]].append(_run_of(one, by_id.get(one["task_id"])))
            return found

        return self._run(work, using, Begin.READ) if wanted else {}

    def upcoming(
        self, schedules: Iterable[Schedule], number: int = 1, *, now: datetime | None = None, using: object = None
    ) -> dict[str, builtins.list[datetime]]:
        """Return up to `number` future ticks for each of these schedules, keyed by name. A paused schedule does not
        have future ticks.

        Ticks whose tasks already ran while the clock was running fast are left out. A caller that knows the database's
        time passes it as `now`, which saves a statement.
        """
        active = [one for one in schedules if one.paused_at is None]
        count = positive(number)

        def work(target: Target) -> dict[str, builtins.list[datetime]]:
            present, names = now or self._store.now_in(target), _packed(target, [one.name for one in active])
            values = self._store.values(target, moment=present, limit=count, **names)
            anew = {one["name"] for one in target.run(schedules_sql.planted_wrongly, values)}
            planted: dict[str, dict[datetime, bool]] = {one.name: {} for one in active}
            for one in target.run(schedules_sql.to_come, values):
                planted[one["schedule"]][one["tick"]] = bool(one["comes"])
            until = {one.name: present if one.name in anew else one.planted_until for one in active}
            coming = partial(to_come, now=present, count=count)
            return {one.name: coming(one, planted_until=until[one.name], planted=planted[one.name]) for one in active}

        found = self._run(work, using, Begin.READ) if active else {}
        return {one.name: found.get(one.name, []) for one in schedules}

    def plant(self, *, horizon: timedelta = HORIZON, stop: Callable[[], bool] = lambda: False) -> int:
        """Plant the ticks of all schedules up to `horizon` from now, and return the number of tasks. Any number of
        workers may call this method at the same time.

        Each page of schedules is a separate transaction. Schedules that another planter has locked are skipped. A
        schedule that cannot be planted is logged, and the others are still planted. `stop` is called before each page.
        """
        # If no schedule is due, no rows are locked, and on SQLite the call does not wait for the writer.
        if not self.has_ticks_to_plant(horizon=horizon):
            return 0
        number, before_round, after, is_cut = 0, 0, "", False
        while not stop():
            work = partial(planting.plant_page, self._store, self._failing, after=after, horizon=horizon)
            page = self._run(work, None)
            number += page.tasks
            is_cut = is_cut or page.is_cut
            if page.last is not None:
                after = page.last
            elif is_cut and number > before_round:
                before_round, after, is_cut = number, "", False
            else:
                break
        return number

    def has_ticks_to_plant(self, *, horizon: timedelta = HORIZON, using: object = None) -> bool:
        """Return whether `plant` with this horizon would find a schedule to plant. This does not take a lock."""

        def work(target: Target) -> bool:
            values = self._store.values(target, until=self._store.now_in(target) + horizon)
            return bool(target.run(schedules_sql.some_due, values))

        return self._run(work, using, Begin.READ)

    def _put(self, target: Target, new: NewSchedule, now: datetime, declared_by: str | None = None) -> Schedule:
        for _ in range(_TRIES):
            if found := self._lock(target, [new.name]):
                if declared_by is not None and not is_new(found[0], new, declared_by):
                    return found[0]  # a newer release has since stored it
                return self._change(target, found[0], new, now, declared_by)
            schedule = Schedule(
                **{**fields_of(new), "starts_at": new.starts_at or now},
                **declared(new, declared_by),
                planted_until=now,
                created_at=now,
                updated_at=now,
            )
            if target.run(schedules_sql.create, self._store.values(target), planting.rows_of([schedule])):
                return self._plant_now(target, schedule, now)
        raise InvalidArgument(f"the schedule {new.name!r} is being created and removed repeatedly; try again")

    def _change(
        self, target: Target, old: Schedule, new: NewSchedule, now: datetime, declared_by: str | None
    ) -> Schedule:
        refuse_another(old, new, declared_by)
        stored, old = old, self._by_present_clock(target, old, now)
        # A start that is still to come was given. Without it, the ticks begin now.
        starts_at = new.starts_at or min(old.starts_at, max(now, old.created_at))
        values = {**fields_of(new), "starts_at": starts_at}
        changed = replace(old, **values, **declared(new, declared_by))
        if declared_by is not None and (old.pause_reason or "").startswith(REMOVED):
            changed = replace(changed, paused_at=None, pause_reason=None)  # the code has declared it again
        if changed == old:
            return old if old is stored else self._plant_now(target, old, now)
        differs = any(getattr(old, name) != value for name, value in values.items())
        if differs and old.paused_at is None:
            # Ticks that were missed until now belong to the old rule, unless the old rule is unreadable.
            with suppress(InvalidArgument):
                self._plant_now(target, old, now, timedelta(0))
            planting.cancel_planted(self._store, target, old, now, delayed=False, reason="planted again after a change")
        if differs and (old.paused_at is None or moments_of(old) != moments_of(changed)):
            changed = replace(changed, planted_until=now)
        changed = replace(changed, updated_at=now)
        self._write(target, changed)
        return changed if changed.paused_at else self._plant_now(target, changed, now)

    @staticmethod
    def _changed(target: Target, schedule: Schedule, on_change: OnChange | None) -> Schedule:
        if on_change is not None:
            on_change(target, 1)
        return schedule

    def _pause(self, target: Target, schedule: Schedule, now: datetime, reason: str) -> Schedule:
        why = f"paused: {reason}" if reason else "paused"
        first = planting.cancel_planted(self._store, target, schedule, now, delayed=True, reason=why)
        until = min(schedule.planted_until, now, *([] if first is None else [planting.before(first)]))
        paused = replace(schedule, paused_at=now, pause_reason=reason or None, planted_until=until, updated_at=now)
        self._write(target, paused)
        return paused

    def _write(self, target: Target, changed: Schedule) -> None:
        target.run(schedules_sql.change, self._store.values(target), planting.rows_of([changed]))

    def _plant_now(
        self, target: Target, schedule: Schedule, now: datetime, horizon: timedelta | None = None
    ) -> Schedule:
        """Plant one locked schedule in the transaction that holds the lock, and return its new state."""
        horizon = self.horizon if horizon is None else horizon
        if schedule.paused_at is not None:
            return schedule
        schedule = self._by_present_clock(target, schedule, now)
        if schedule.planted_until >= now + horizon:
            return schedule
        prepared = planting.prepare(schedule, now, horizon)
        planting.plant(self._store, target, [prepared])
        until = max(schedule.planted_until, prepared.plan.planted_until)
        return replace(schedule, planted_until=until, updated_at=prepared.restarted_at or schedule.updated_at)

    def _by_present_clock(self, target: Target, schedule: Schedule, now: datetime) -> Schedule:
        """Return a locked schedule, restarted from now if it was planted while the clock was running fast."""
        if not stands_ahead(schedule, now):
            return schedule
        values = self._store.values(target, **_packed(target, [schedule.name]))
        found = target.run(schedules_sql.planted_wrongly, values)
        return planting.restart(self._store, target, schedule, now) if found else schedule

    def _one(self, target: Target, name: str, *, lock: bool = True) -> Schedule:
        """Return one schedule, locked until the transaction ends. Raises ScheduleNotFound."""
        if not (found := self._lock(target, [name], lock=lock)):
            hint = nearest(name, [one.name for one in _schedules(target, schedules_sql.schedules)])
            or_list = "; `outboxq schedule list` shows the schedules"
            raise ScheduleNotFound(f"there is no schedule {name!r}{hint or or_list}")
        return found[0]

    def _lock(self, target: Target, names: Collection[str], *, lock: bool = True) -> builtins.list[Schedule]:
        """Return these schedules, locked until the transaction ends."""
        if not all(map(is_name, names)):
            raise bad_name("name", "a schedule")
        return _schedules(target, schedules_sql.lock if lock else schedules_sql.named, _packed(target, names))

    def _run(
        self,
        work: Callable[[Target], T],
        using: object,
        begin: Begin = Begin.WRITE,
        committed: Callable[[Target, T], bool] = lambda *_: False,
    ) -> T:
        def whole(target: Target) -> T:
            if begin is Begin.READ:
                return work(target)
            # Planting may fail after some statements. The savepoint keeps the caller's transaction usable.
            with target.atomic(savepoint=not target.own):
                return work(target)

        return self._store.run(whole, using=using, begin=begin, committed=committed)


def _schedules(target: Target, builder: Builder, values: Mapping[str, Any] | None = None) -> list[Schedule]:
    return [planting.schedule_of(one) for one in target.run(builder, values or {})]


def _run_of(tick: Row, task: Row | None) -> TickRun:
    if task is None:
        return TickRun(**tick, status=None, ran=None)
    begun, ended, status = task["started_at"], task["completed_at"], TaskStatus(task["status"])
    # A discarded dead letter ends only when it is discarded.
    has_run = begun is not None and ended is not None and status is not TaskStatus.CANCELLED
    return TickRun(**tick, status=status, ran=max(ended - begun, timedelta(0)) if has_run else None)


def _packed(target: Target, names: Iterable[str]) -> dict[str, Any]:
    return target.dialect.pack("names", schedules_sql.NAMES, [(name,) for name in sorted(names)])


LONGEST_NAME = MAX_NAME - len(planting.KEY_PREFIX)
MOST_CAUGHT_UP = 10_000


def check_schedule(schedule: NewSchedule) -> None:  # noqa: C901 - one case per field
    """Raise InvalidArgument for a schedule that cannot be stored or whose ticks cannot become tasks."""
    if not is_name(schedule.name) or len(schedule.name) > LONGEST_NAME:
        raise InvalidArgument(
            f"a schedule name must be 1 to {LONGEST_NAME} characters long, without NUL or lone surrogates; "
            f"{str(schedule.name)[:LONGEST_NAME]!r} is not"
        )
    name = f"the schedule {schedule.name!r}"
    check_options(schedule, name, task_name=schedule.task_name)
    if not is_text(schedule.args):
        raise InvalidArgument(f"args of {name} must be a string without NUL or lone surrogates")
    check_rule(schedule.rule, schedule.tz)
    if type(schedule.overlap) is not Overlap or type(schedule.catch_up) is not CatchUp:
        raise InvalidArgument(f"overlap of {name} must be an Overlap, and its catch_up must be a CatchUp")
    if schedule.on_dead_letter is OnDeadLetter.HOLD and schedule.overlap is Overlap.ALLOW:
        raise InvalidArgument(
            f"{name} can hold its ticks back after a failure only if its overlap is 'queue' or 'skip'"
        )
    limit = schedule.catch_up_limit
    if type(limit) is not int or not 1 <= limit <= MOST_CAUGHT_UP:
        raise InvalidArgument(
            f"catch_up_limit of {name} must be a whole number from 1 to {MOST_CAUGHT_UP}, not {limit!r}"
        )
    for key, span in (("grace", schedule.grace), ("jitter", schedule.jitter)):
        if span is not None and not is_span(span, MICROSECOND):
            raise bad_span(key, name)
    for key, moment in (("starts_at", schedule.starts_at), ("ends_at", schedule.ends_at)):
        if moment is not None and not EARLIEST <= aware(moment, f"{key} of {name}") <= LATEST:
            raise InvalidArgument(f"{key} of {name} must be between the years 1970 and 9000 (UTC)")
    if schedule.starts_at is not None and schedule.ends_at is not None and schedule.ends_at <= schedule.starts_at:
        raise InvalidArgument(f"ends_at of {name} must come after its starts_at")


def fields_of(new: NewSchedule) -> dict[str, Any]:
    """Return the fields of a new schedule, with its rule as stored."""
    return {**_given(new), "rule": rule_of(new.rule, None)}


def _given(schedule: NewSchedule) -> dict[str, Any]:
    return {one.name: getattr(schedule, one.name) for one in fields(NewSchedule)}


def declared(new: NewSchedule, declared_by: str | None) -> dict[str, Any]:
    return {"declared_by": declared_by, "declaration": None if declared_by is None else digest_of(new)}


def moments_of(schedule: Schedule) -> tuple[object, ...]:
    """Return the fields that determine the times of the ticks."""
    return schedule.rule, schedule.tz, schedule.starts_at, schedule.ends_at


def is_new(stored: Schedule | None, declared: NewSchedule, declared_by: str) -> bool:
    """Return whether a declaration must be written."""
    if stored is None or stored.declared_by is None:
        return True
    if is_older(declared_by, stored.declared_by):
        return False
    was_removed = (stored.pause_reason or "").startswith(REMOVED)
    return was_removed or (stored.declared_by, stored.declaration) != (declared_by, digest_of(declared))


def is_left_over(stored: Schedule, tasks: Collection[str], declared_by: str) -> bool:
    """Return whether this declared schedule is active although the code of these tasks no longer declares it."""
    is_ours = stored.declared_by is not None and stored.task_name in tasks
    return is_ours and stored.paused_at is None and not is_older(declared_by, stored.declared_by or "")


def refuse_another(stored: Schedule, new: NewSchedule, declared_by: str | None) -> None:
    """Raise InvalidArgument if the name belongs to another schedule."""
    name, task = repr(new.name), stored.task_name
    if declared_by is None and stored.declared_by is not None:
        raise InvalidArgument(
            f"the schedule {name} is declared in code, by the task {task}; change it there, or choose another name"
        )
    if declared_by is not None and stored.declared_by is None:
        raise InvalidArgument(
            f"the code declares a schedule {name} for the task {new.task_name}, but a schedule with that name was stored at run time, "
            f"for the task {task}; rename one of them, or remove the stored schedule: outboxq schedule remove {new.name}"
        )
    if task != new.task_name and not (stored.pause_reason or "").startswith(REMOVED):
        raise InvalidArgument(
            f"the name {name} belongs to a schedule of the task {task}, not of {new.task_name}; choose another name, or remove "
            f"that schedule first: outboxq schedule remove {new.name}"
        )
