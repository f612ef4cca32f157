"""The form that enqueues a task: its page, the page that asks for confirmation, and the code that checks, enqueues and
records the task.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from werkzeug.exceptions import Forbidden

from ...errors import InvalidArgument, InvalidCall, PayloadError
from ...model import Handle, NewTask
from ...model.actions import CommandAction, NewAction, Operator
from ...model.display import redacted
from ...operating import fields
from ..request import PageRequest, Redirect, View
from .actions import has_worker, operator_of, reason_of

if TYPE_CHECKING:
    from ...database.target import Target
    from ...outbox import Outbox

FIELDS: Final = (
    fields.ARGUMENTS,
    replace(fields.QUEUE, label="Queue"),
    fields.IN,
    replace(fields.AT, label="Due at, such as 2026-11-23T02:30Z", inputs=None),
    fields.KEY,
    fields.REASON,
)
"""The fields of the form, except for the task."""
_ONCE: Final = timedelta(days=1)
"""The time during which a repeated submission of a form enqueues nothing."""
_TITLE: Final = "Enqueue a task"
_NAMES: Final = ("task", *(name for one in FIELDS for name in one.in_form))


def page(request: PageRequest) -> View:
    """Show the form. The URL can fill in the task and the queue."""
    return _form(request, {name: request.query.get(name, "") for name in ("task", "queue")})


def check(request: PageRequest) -> View:
    """Show what would be enqueued, and ask for confirmation. If the form is refused, show it again with the reason."""
    try:
        wanted = _wanted(request)
        planned = wanted.planned(request.outbox)
    except InvalidArgument as error:
        return _form(request, request.form, problem=f"Nothing was enqueued: {error}.")
    _refuse_unless_permitted(request, planned)
    is_served = has_worker(request, planned.queue, planned.task_name)
    values = {
        "wanted": wanted,
        "planned": planned,
        "due": wanted.at or (None if wanted.delay is None else request.store.now() + wanted.delay),
        "args": redacted(planned.args),
        "fields": {name: request.form.get(name, "") for name in _NAMES},
        "form_id": secrets.token_hex(8),
        "worker": None if is_served else request.typed("worker", "-q", planned.queue),
        "is_new_queue": not request.store.queues.is_known(planned.queue),
    }
    return View(template="pages/enqueue_check.html", title=_TITLE, values=values)


def start(request: PageRequest) -> Redirect | View:
    """Enqueue the task, and show it. A form that is sent twice enqueues only one task."""
    try:
        wanted, form_id = _wanted(request), request.form.get("form_id", "")
        _refuse_unless_permitted(request, wanted.planned(request.outbox))
        if not form_id.isalnum() or not form_id.isascii() or len(form_id) != 16:
            raise InvalidArgument("the form is incomplete; start again")
        operator, reason = operator_of(request), reason_of(request)
        handle = wanted.enqueue(request.outbox, operator=operator, reason=reason, form_id=form_id)
    except InvalidArgument as error:
        return _form(request, request.form, problem=f"Nothing was enqueued: {error}.")
    if handle.created:
        notice = f"The task {handle.id} was enqueued."
    elif wanted.key is None:
        notice = f"Nothing was enqueued: this form has already enqueued the task {handle.id}."
    else:
        notice = f"Nothing was enqueued: the task {handle.id} already has the idempotency key {wanted.key!r}."
    return Redirect(url=request.url("task", task_id=handle.id), notice=notice, is_warning=not handle.created)


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """A task that a person wants to enqueue."""

    task_name: str
    args: str = field(default="{}", repr=False)
    """The arguments as a JSON object."""
    queue: str | None = None
    """The queue that the person chose. None means the declared queue."""
    delay: timedelta | None = None
    at: datetime | None = None
    key: str | None = None
    """The idempotency key that the person entered; None if no key was entered."""

    @classmethod
    def of_form(cls, form: Mapping[str, str]) -> Wanted:
        """Return the task that a form requests. Raises InvalidArgument."""
        values = {one.name: one.of_form(form) for one in FIELDS if one is not fields.REASON}
        given = {name: value for name, value in values.items() if value not in (..., None)}
        return cls(task_name=form.get("task", ""), **given)

    def planned(self, outbox: Outbox) -> NewTask:
        """Perform all checks, and return the task that would be enqueued. Raises InvalidArgument."""
        if self.task_name not in {one.name for one in outbox.tasks}:
            raise InvalidArgument(f"this dashboard does not know the task {self.task_name!r}; choose one from the list")
        task = outbox.tasks.get(self.task_name)
        try:
            task.parameters.check_call((), json.loads(self.args))
            return task.using(outbox, **self._options).planned(**task.parameters.load(self.args, is_new=True))
        except (InvalidCall, PayloadError) as error:
            raise InvalidArgument(str(error)) from None

    def enqueue(self, outbox: Outbox, *, operator: Operator, reason: str, form_id: str) -> Handle:
        """Enqueue the task that `planned` has checked, and record the action in the same transaction.

        If the form with this id is sent again, or another task has the key, return the handle of the existing task, and
        record nothing.
        """
        task, store = outbox.tasks.get(self.task_name), outbox.store
        options = self._options
        if self.key is None:
            options |= {"idempotency_key": f"form:{form_id}", "unique_for": _ONCE}
        details = {"task": self.task_name, "queue": self.queue, "delay": self.delay, "at": self.at, "key": self.key}
        given = {name: value for name, value in details.items() if value is not None}
        action = NewAction(operator=operator, action=CommandAction.ENQUEUE, details=given, reason=reason)

        def write(target: Target) -> Handle:
            handle = task.using(target, **options).enqueue(**task.parameters.load(self.args, is_new=True))
            if handle.created:
                store.actions.adding(replace(action, target=str(handle.id)))(target, 1)
            return handle

        return store.run(write, committed=lambda target, _: store.actions.get(action.id, using=target) is not None)

    @property
    def _options(self) -> dict[str, Any]:
        return {"queue": self.queue, "delay": self.delay, "run_after": self.at, "idempotency_key": self.key}


def _wanted(request: PageRequest) -> Wanted:
    wanted = Wanted.of_form(request.form)
    if wanted.delay is not None and wanted.at is not None:
        raise InvalidArgument("give either the time span until the task is due, or the time at which it is due")
    return wanted


def _refuse_unless_permitted(request: PageRequest, planned: NewTask) -> None:
    if not request.viewer.may(CommandAction.ENQUEUE, planned.queue):
        raise Forbidden(f"You are not allowed to enqueue tasks in the queue {planned.queue!r}. Nothing was enqueued.")


def _form(request: PageRequest, typed: Mapping[str, str], *, problem: str = "") -> View:
    tasks = sorted((one.name, one.options.queue) for one in request.outbox.tasks)
    app = [] if request.outbox.integration.front_end.app else ["APP"]
    values: dict[str, Any] = {
        "tasks": tasks,
        "typed": {name: typed.get(name, "") for name in _NAMES},
        "problem": problem,
        "may": request.viewer.may_somewhere(CommandAction.ENQUEUE),
        "web": request.typed("web", *app, "--allow-actions"),
        "command": request.typed("enqueue", "TASK", "--args", "{}"),
    }
    data = {"tasks": [{"name": name, "queue": queue} for name, queue in tasks]}
    return View(template="pages/enqueue.html", title=_TITLE, values=values, data=data, status=400 if problem else 200)
