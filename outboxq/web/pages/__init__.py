"""The dashboard's pages by name, path and function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from ...operating.verb import Noun
from ...operating.verbs import EDIT, VERBS
from ..request import PageRequest, Redirect, View
from . import actions, batches, bulk, enqueueing, failures, schedules, task, tasks, watching


@dataclass(frozen=True, kw_only=True, slots=True)
class Route:
    """A page or an action: its name, its path in the syntax of Werkzeug's rules, and its function."""

    name: str
    path: str
    answer: Callable[[PageRequest], View | Redirect]
    is_action: bool = False
    """True if the route changes something. Such a route accepts only POST, and requires a viewer who may act."""
    section: str = ""
    """The name of the route whose navigation entry is marked as current; "" means this route."""


# A queue, schedule or relay can have any name, so names are passed in the query. In a path, browsers and proxies would change
# "..", "a//b" and "%2F".
PAGES: Final = (
    Route(name="overview", path="/", answer=watching.overview),
    Route(name="queues", path="/queues", answer=watching.queues),
    Route(name="queue", path="/queue", answer=watching.queue, section="queues"),
    Route(name="workers", path="/workers", answer=watching.workers),
    Route(name="worker", path="/workers/<uuid:worker_id>", answer=watching.worker, section="workers"),
    Route(name="schedules", path="/schedules", answer=schedules.page),
    Route(name="schedule", path="/schedule", answer=schedules.one_page, section="schedules"),
    Route(name="relays", path="/relays", answer=watching.relays),
    Route(name="relay", path="/relay", answer=watching.relay, section="relays"),
    Route(name="system", path="/system", answer=watching.system),
    Route(name="tasks", path="/tasks", answer=tasks.page),
    Route(name="task", path="/tasks/<task_id>", answer=task.page, section="tasks"),
    Route(name="batches", path="/batches", answer=batches.page),
    Route(name="batch", path="/batches/<uuid:batch_id>", answer=batches.one_page, section="batches"),
    Route(name="failures", path="/failures", answer=failures.page),
    Route(name="failure_group", path="/failures/<group>", answer=failures.group, section="failures"),
    Route(name="actions", path="/actions", answer=actions.page),
    Route(name="bulk", path="/bulk", answer=bulk.page, section="tasks"),
    Route(name="enqueue", path="/enqueue", answer=enqueueing.page, section="tasks"),
    Route(name="enqueue_check", path="/enqueue/check", answer=enqueueing.check, is_action=True, section="tasks"),
    Route(name="enqueue_start", path="/enqueue/start", answer=enqueueing.start, is_action=True, section="tasks"),
    Route(name="selected", path="/selected", answer=tasks.act, is_action=True, section="tasks"),
    Route(name="bulk_start", path="/bulk/start", answer=bulk.start, is_action=True, section="tasks"),
)

_PATHS: Final = {one.name: one.path for one in PAGES} | {Noun.TASK: "/tasks/<uuid:task_id>", Noun.SESSION: "/system"}
"""The path of each page. The pages about one target have the name of its noun, except those of tasks and sessions."""

ACTIONS: Final = tuple(
    Route(
        name=f"{verb.noun}_{verb.key}",
        path=f"{_PATHS[verb.noun]}/{verb.name}",
        answer=schedules.edit if verb is EDIT else partial(actions.act, verb),
        is_action=True,
        section="schedules" if verb is EDIT else "",
    )
    for verb in VERBS
)
"""The actions, one for each verb."""

ROUTES: Final = (*PAGES, *ACTIONS)
"""All pages and actions. The navigation lists some of them; see `rendering.NAVIGATION`."""
