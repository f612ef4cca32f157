"""The pages of the dashboard by name, path and function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .pages import (
    batches,
    bulk,
    failures,
    overview,
    queue_actions,
    queues,
    schedule_actions,
    schedules,
    system,
    task,
    task_actions,
    tasks,
    workers,
)
from .request import PageRequest, Redirect, View


@dataclass(frozen=True, kw_only=True, slots=True)
class Route:
    """A page or an action: its name, its path as Werkzeug's rules are written, and its function."""

    name: str
    path: str
    answer: Callable[[PageRequest], View | Redirect]
    is_action: bool = False
    """True: it changes something, takes POST only, and needs a viewer who may act."""
    section: str = ""
    """The entry of the navigation that is marked on the page: the name of another route; "": its own."""


# Names of queues and schedules are any text, so they stand behind the question mark: as a part of the path, browsers and proxies
# would change "..", "a//b" and "%2F".
WATCHING = (
    Route(name="overview", path="/", answer=overview.page),
    Route(name="queues", path="/queues", answer=queues.page),
    Route(name="queue", path="/queue", answer=queues.one_page, section="queues"),
    Route(name="queue_pause", path="/queue/pause", answer=queue_actions.pause, is_action=True),
    Route(name="queue_resume", path="/queue/resume", answer=queue_actions.resume, is_action=True),
    Route(name="queue_limit", path="/queue/limit", answer=queue_actions.limit, is_action=True),
    Route(name="queue_order", path="/queue/order", answer=queue_actions.order, is_action=True),
    Route(name="workers", path="/workers", answer=workers.page),
    Route(name="worker", path="/workers/<uuid:worker_id>", answer=workers.one_page, section="workers"),
    Route(name="schedules", path="/schedules", answer=schedules.page),
    Route(name="schedule", path="/schedule", answer=schedules.one_page, section="schedules"),
    Route(name="schedule_pause", path="/schedule/pause", answer=schedule_actions.pause, is_action=True),
    Route(name="schedule_resume", path="/schedule/resume", answer=schedule_actions.resume, is_action=True),
    Route(name="schedule_trigger", path="/schedule/trigger", answer=schedule_actions.trigger, is_action=True),
    Route(name="system", path="/system", answer=system.page),
)

TASKS = (
    Route(name="tasks", path="/tasks", answer=tasks.page),
    Route(name="task", path="/tasks/<task_id>", answer=task.page, section="tasks"),
    Route(name="task_cancel", path="/tasks/<uuid:task_id>/cancel", answer=task_actions.cancel, is_action=True),
    Route(
        name="task_cancel_now", path="/tasks/<uuid:task_id>/cancel-now", answer=task_actions.cancel_now, is_action=True
    ),
    Route(name="task_redrive", path="/tasks/<uuid:task_id>/redrive", answer=task_actions.redrive, is_action=True),
    Route(name="task_discard", path="/tasks/<uuid:task_id>/discard", answer=task_actions.discard, is_action=True),
    Route(name="task_run_now", path="/tasks/<uuid:task_id>/run-now", answer=task_actions.run_now, is_action=True),
    Route(name="task_priority", path="/tasks/<uuid:task_id>/priority", answer=task_actions.prioritize, is_action=True),
    Route(name="batches", path="/batches", answer=batches.page),
    Route(name="batch", path="/batches/<uuid:batch_id>", answer=batches.one_page, section="batches"),
    Route(name="batch_cancel", path="/batches/<uuid:batch_id>/cancel", answer=batches.cancel, is_action=True),
    Route(name="failures", path="/failures", answer=failures.page),
    Route(name="failure_group", path="/failures/<group>", answer=failures.group, section="failures"),
    Route(name="bulk", path="/bulk", answer=bulk.page, section="tasks"),
    Route(name="bulk_start", path="/bulk/start", answer=bulk.start, is_action=True, section="tasks"),
)

ROUTES = (*WATCHING, *TASKS)
"""All pages and actions. The navigation lists some of them, see `rendering.NAVIGATION`."""
