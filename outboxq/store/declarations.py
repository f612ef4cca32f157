"""Check schedules, and compare what code declares with what is stored. Nothing here reads or writes the tables."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields
from typing import Any

from ..errors import InvalidArgument
from ..model import EARLIEST, LATEST, OnDeadLetter
from ..model.options import MAX_NAME, MICROSECOND, bad_name, bad_span, check_options, is_name, is_span, is_text
from ..model.rules import check_rule, rule_of
from ..model.schedules import REMOVED, CatchUp, NewSchedule, Overlap, Schedule, digest_of, is_older
from .arguments import aware
from .planting import KEY_PREFIX

LONGEST_NAME = MAX_NAME - len(KEY_PREFIX)
MOST_CAUGHT_UP = 10_000


def check_schedule(schedule: NewSchedule) -> None:  # noqa: C901 - one case a field
    """Raise InvalidArgument for what could not be stored, or whose ticks could not become tasks."""
    if not is_name(schedule.name) or len(schedule.name) > LONGEST_NAME:
        raise InvalidArgument(
            f"the name of a schedule must be 1 to {LONGEST_NAME} characters, without NUL or lone surrogates, not "
            f"{str(schedule.name)[:LONGEST_NAME]!r}"
        )
    name = f"the schedule {schedule.name!r}"
    if not is_name(schedule.task_name):
        raise bad_name("task_name", name)
    check_options(schedule, name)
    if not is_text(schedule.args):
        raise InvalidArgument(f"args of {name} must be text without NUL or lone surrogates")
    check_rule(schedule.rule, schedule.tz)
    if type(schedule.overlap) is not Overlap or type(schedule.catch_up) is not CatchUp:
        raise InvalidArgument(f"overlap of {name} must be an Overlap, and its catch_up a CatchUp")
    if schedule.on_dead_letter is OnDeadLetter.HOLD and schedule.overlap is Overlap.ALLOW:
        raise InvalidArgument(
            f"{name} cannot hold its ticks back when one fails unless its overlap is 'queue' or 'skip'"
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
            raise InvalidArgument(f"{key} of {name} must be in the years 1970 to 9000 (UTC)")
    if schedule.starts_at is not None and schedule.ends_at is not None and schedule.ends_at <= schedule.starts_at:
        raise InvalidArgument(f"ends_at of {name} must come after its starts_at")


def fields_of(new: NewSchedule) -> dict[str, Any]:
    """Return what a schedule is to be, its rule as it is stored."""
    return {**{one.name: getattr(new, one.name) for one in fields(NewSchedule)}, "rule": rule_of(new.rule, None)}


def declared(new: NewSchedule, declared_by: str | None) -> dict[str, Any]:
    return {"declared_by": declared_by, "declaration": None if declared_by is None else digest_of(new)}


def moments_of(schedule: Schedule) -> tuple[object, ...]:
    """Return what decides about the moments of its ticks."""
    return schedule.rule, schedule.tz, schedule.starts_at, schedule.ends_at


def is_new(stored: Schedule | None, declared: NewSchedule, declared_by: str) -> bool:
    """Return whether a declaration is to be written."""
    if stored is None or stored.declared_by is None:
        return True
    if is_older(declared_by, stored.declared_by):
        return False
    was_removed = (stored.pause_reason or "").startswith(REMOVED)
    return was_removed or (stored.declared_by, stored.declaration) != (declared_by, digest_of(declared))


def is_left_over(stored: Schedule, tasks: Collection[str], declared_by: str) -> bool:
    """Return whether the code of these tasks has declared a schedule, and it runs though the code has it no more."""
    is_ours = stored.declared_by is not None and stored.task_name in tasks
    return is_ours and stored.paused_at is None and not is_older(declared_by, stored.declared_by or "")


def refuse_another(stored: Schedule, new: NewSchedule, declared_by: str | None) -> None:
    """Raise InvalidArgument where the name belongs to another schedule."""
    name, task = repr(new.name), stored.task_name
    if declared_by is None and stored.declared_by is not None:
        raise InvalidArgument(
            f"the schedule {name} is declared in code, by the task {task}; change it there, or choose another name"
        )
    if declared_by is not None and stored.declared_by is None:
        raise InvalidArgument(
            f"the code declares a schedule {name} for the task {new.task_name}, but one of that name was stored at run time, "
            f"for the task {task}; rename one of them, or remove the stored one: outboxq schedule remove {new.name}"
        )
    if task != new.task_name and not (stored.pause_reason or "").startswith(REMOVED):
        raise InvalidArgument(
            f"the name {name} belongs to a schedule of the task {task}, not of {new.task_name}; choose another name, or remove "
            f"that schedule first: outboxq schedule remove {new.name}"
        )
