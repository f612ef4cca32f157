"""A task that a person enqueues, with its fields, its checks, and its record."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from ..errors import InvalidArgument, InvalidCall, PayloadError
from ..model import Handle, NewTask
from ..model.actions import CommandAction, NewAction, Operator
from . import fields

if TYPE_CHECKING:
    from ..database.target import Target
    from ..outbox import Outbox

FIELDS: Final = (
    fields.ARGUMENTS,
    replace(fields.QUEUE, label="Queue"),
    fields.IN,
    replace(fields.AT, label="Due at, such as 2026-11-23T02:30Z", inputs=None),
    fields.KEY,
    fields.REASON,
)
"""The fields of the form, in addition to the task."""
_ONCE: Final = timedelta(days=1)
"""Time during which a repeated submission of a form enqueues nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """A task that a person wants to enqueue."""

    task_name: str
    args: str = field(default="{}", repr=False)
    """The arguments as a JSON object."""
    queue: str | None = None
    """None means the declared queue."""
    delay: timedelta | None = None
    at: datetime | None = None
    key: str | None = None
    """The idempotency key; None if it has none of its own."""

    @classmethod
    def of_form(cls, form: Mapping[str, str]) -> Wanted:
        """Return what a form asks for. Raises InvalidArgument."""
        values = {one.name: one.of_form(form) for one in FIELDS if one is not fields.REASON}
        given = {name: value for name, value in values.items() if value not in (..., None)}
        return cls(task_name=form.get("task", ""), **given)

    def planned(self, outbox: Outbox) -> NewTask:
        """Return the task that would be written, after all checks. Raises InvalidArgument."""
        if self.task_name not in {one.name for one in outbox.tasks}:
            raise InvalidArgument(f"this dashboard does not know the task {self.task_name!r}; choose one from the list")
        task = outbox.tasks.get(self.task_name)
        try:
            task.parameters.check_call((), json.loads(self.args))
            return task.using(outbox, **self._options).planned(**task.parameters.load(self.args))
        except (InvalidCall, PayloadError) as error:
            raise InvalidArgument(str(error)) from None

    def enqueue(self, outbox: Outbox, *, operator: Operator, reason: str, form_id: str) -> Handle:
        """Enqueue the task, which `planned` has checked, and record the action in the same transaction.

        If the form with this id is sent again, or the key belongs to another task, the handle is that task's, and nothing
        is recorded.
        """
        task, store = outbox.tasks.get(self.task_name), outbox.store
        options = self._options
        if self.key is None:
            options |= {"idempotency_key": f"form:{form_id}", "unique_for": _ONCE}
        details = {"task": self.task_name, "queue": self.queue, "delay": self.delay, "at": self.at, "key": self.key}
        action = NewAction(
            operator=operator,
            action=CommandAction.ENQUEUE,
            details={name: value for name, value in details.items() if value is not None},
            reason=reason,
        )

        def write(target: Target) -> Handle:
            handle = task.using(target, **options).enqueue(**task.parameters.load(self.args))
            if handle.created:
                store.actions.adding(replace(action, target=str(handle.id)))(target, 1)
            return handle

        return store.run(write)

    @property
    def _options(self) -> dict[str, Any]:
        return {"queue": self.queue, "delay": self.delay, "run_after": self.at, "idempotency_key": self.key}
