"""The actions that the admin offers, each one call of the store and its result in words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from ...model import TaskStatus
from ...store import Store


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """The result of a verb, in words."""

    subject: str
    predicate: str

    @property
    def sentence(self) -> str:
        return f"{self.subject} {self.predicate}"

    @property
    def of_many(self) -> str:
        """The predicate of several things."""
        verb, _, rest = self.predicate.partition(" ")
        return f"{ {'was': 'were', 'is': 'are'}.get(verb, verb) } {rest}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Verb:
    """A change of one thing that a user can ask for in a list."""

    key: str
    label: str
    right: str
    """First word of the permission's codename."""
    act: Callable[[Store, Any, str, object], str]
    """Function that makes the change. It takes the store, the target, the reason and `using`, and returns the predicate."""

    def do(self, store: Store, target: Any, *, by: str, using: object) -> Outcome:
        subject = f"task {target}" if isinstance(target, UUID) else f"the schedule {target!r}"
        return Outcome(subject=subject, predicate=self.act(store, target, by, using))


def _cancel(store: Store, task_id: UUID, why: str, using: object) -> str:
    asked = store.cancel(task_id, reason=why, using=using) is TaskStatus.RUNNING
    return "was asked to stop, and runs until the handler ends" if asked else "was cancelled"


def _cancel_now(store: Store, task_id: UUID, why: str, using: object) -> str:
    store.cancel(task_id, reason=why, force=True, using=using)
    return "was cancelled; the outcome of its worker will be refused"


def _run_now(store: Store, task_id: UUID, why: str, using: object) -> str:
    return "is due now" if store.run_now(task_id, reason=why, using=using) else "was due already"


def _redrive(store: Store, task_id: UUID, why: str, using: object) -> str:
    store.redrive(task_id, reason=why, using=using)
    return "was redriven, to run now from the first attempt"


def _discard(store: Store, task_id: UUID, why: str, using: object) -> str:
    store.discard(task_id, reason=why, using=using)
    return "was discarded"


def _pause(store: Store, name: str, why: str, using: object) -> str:
    store.schedules.pause(name, reason=why, using=using)
    return "is paused; its planted ticks that were not due yet are cancelled"


def _resume(store: Store, name: str, _why: str, using: object) -> str:
    store.schedules.resume(name, using=using)
    return "is resumed; its catch-up policy decides about the ticks since the pause"


def _trigger(store: Store, name: str, why: str, using: object) -> str:
    return f"was triggered: its task {store.schedules.trigger(name, by=why, using=using).id} is enqueued"


RUN_NOW = Verb(key="run_now", label="Run now", right="retry", act=_run_now)
CANCEL = Verb(key="cancel", label="Cancel", right="cancel", act=_cancel)
CANCEL_NOW = Verb(key="cancel_now", label="Cancel at once", right="cancel", act=_cancel_now)
REDRIVE = Verb(key="redrive", label="Redrive", right="retry", act=_redrive)
DISCARD = Verb(key="discard", label="Discard", right="discard", act=_discard)
PAUSE_SCHEDULE = Verb(key="pause", label="Pause", right="change", act=_pause)
RESUME_SCHEDULE = Verb(key="resume", label="Resume", right="change", act=_resume)
TRIGGER = Verb(key="trigger", label="Trigger one task now", right="change", act=_trigger)
