"""The list of tasks by state, in pages, with filters in the URL, and the action that changes the ticked tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from ...errors import AmbiguousTask, DuplicateTask, InvalidArgument, InvalidTransition, TaskNotFound
from ...model import TaskExecution, Waiting
from ...model.display import HIDDEN
from ...model.wording import grouped, plural, sentence
from ...operating.reading import read_argument, read_since, read_state, state_of
from ...operating.verb import Verb
from ...operating.verbs import CANCEL, DISCARD, REDRIVE, RUN_NOW
from ...store import Reason, Slow, TaskPage
from ...store.explain.explain import Outlook
from ..rendering import number
from ..request import PAYLOAD, PageRequest, Redirect, View, without
from .actions import may, operator_of, reason_of
from .task import most_attempts

_ROWS: Final = 50
_TABS: Final = ("due", "delayed", "retrying", "running", "failed", "completed", "cancelled")
_CALM: Final = frozenset({Reason.DUE, Reason.RUNNING})
"""The reasons that add nothing to the state."""
_NAMES: Final = ("queue", "task", "key", "topic", "exception", "idempotency_key", "argument")
"""The filters that compare names. A name may begin or end with spaces."""
_FINE: Final = ("worker", "batch", "exception", "idempotency_key", "argument")
"""The filters that a bulk change does not support."""
_SUGGESTED: Final = 200
"""The maximum number of suggested names of each kind."""
_OF_STATES: Final = {
    **dict.fromkeys(("due", "running"), (CANCEL,)),
    **dict.fromkeys(("delayed", "retrying", "ready"), (RUN_NOW, CANCEL)),
    "failed": (REDRIVE, DISCARD),
}
"""The verbs for tasks on a page that shows the tasks in one state."""
_VERBS: Final = {verb.key: verb for verb in (RUN_NOW, CANCEL, REDRIVE, DISCARD)}
_MOST: Final = 100
"""The maximum number of tasks that a form may change. A page lists 50."""
_PLACE: Final = ("state", "queue", "task", "key", "topic", "exception")
_MOMENTS, _IDS = ("since", "until"), ("worker", "batch")
_ORDERS: Final = {"newest": "", "longest run": Slow.DURATION.value, "longest wait": Slow.WAIT.value}
_COLUMNS: Final = {Slow.DURATION.value: "ran", Slow.WAIT.value: "waited"}


def page(request: PageRequest) -> View:
    """Show a page of tasks, with the reason why each unfinished task is waiting."""
    query = request.query
    filters = {name: query.get(name, "") for name in _NAMES} | {
        name: query.get(name, "").strip() for name in (*_MOMENTS, *_IDS)
    }
    given = {name: value for name, value in filters.items() if value}
    state, searched = query.get("state", "").lower(), query.get("id", "").strip()
    found, problem = TaskPage(tasks=[], older=None, newer=None, is_cut=False), ""
    several: tuple[UUID, ...] = ()
    sort = query.get("sort", "")
    times: Mapping[UUID, timedelta] = {}
    try:
        if searched:
            task = request.store.get(request.store.find(searched))
            found = TaskPage(tasks=[task], older=None, newer=None, is_cut=False)
        else:
            found, times = _listed(request, state, given, sort)
    except AmbiguousTask as error:
        several = error.task_ids
        problem = "Several ids begin with these characters. Enter more of the id, or choose a task."
    except (InvalidArgument, TaskNotFound) as error:
        problem = f"{sentence(str(error))}."
    outlooks, now = request.store.outlooks(found.tasks), request.store.now()
    of_state = {"state": state} if state else {}
    here: dict[str, str] = {**given, **of_state}
    counts = _counts(request, given) if not problem else {}
    tabs: list[tuple[str, str, str | None, bool]] = [("All", request.url("tasks", **given), None, state not in _TABS)]
    tabs += [
        (name.capitalize(), request.url("tasks", state=name, **given), counts.get(name), name == state)
        for name in _TABS
    ]
    queue = filters["queue"] or None
    # The button is not shown if it would cancel all tasks or could not cancel any, or if no task is listed.
    is_whole = bool(found.tasks) and not (sort or problem or searched or any(map(filters.get, _FINE)))
    may_cancel = is_whole and bool(given) and state in {"", "ready", "running"}
    may_cancel = may_cancel and request.viewer.may(CANCEL.recorded_as, queue)
    may_run = is_whole and state in {Waiting.DELAYED, Waiting.RETRYING}
    may_run = may_run and request.viewer.may(RUN_NOW.recorded_as, queue)
    verbs: Sequence[Verb] = _OF_STATES.get(state, ()) if found.tasks else ()
    values = {
        "tabs": tabs,
        "filters": filters,
        "given": given,
        "is_spaced": any(value != value.strip() for value in given.values()),
        "state": state,
        "searched": searched,
        "problem": problem,
        "several": several,
        "tasks": found.tasks,
        "outlooks": outlooks,
        "states": {one.id: state_of(one, _due(outlooks, one), now) for one in found.tasks},
        "most_attempts": {one.id: most_attempts(request, one) for one in found.tasks},
        "now": now,
        "sort": sort,
        "times": times,
        "orders": [(words, request.url("tasks", **here, sort=by or None), by == sort) for words, by in _ORDERS.items()],
        "calm": _CALM,
        "verbs": [one for one in verbs if request.viewer.may(one.recorded_as, queue)],
        "looked_at": found.looked_at if found.is_cut else None,
        "older": None if found.older is None else request.url("tasks", **here, before=found.older),
        "newer": None if found.newer is None else request.url("tasks", **here, after=found.newer),
        "clear": request.url("tasks", **of_state),
        "suggested": suggestions(
            request, queues=(one.queue for one in found.tasks), tasks=(one.task_name for one in found.tasks)
        ),
        "run_all": request.url("bulk", action="run-now", **here) if may_run else None,
        "cancel_all": request.url("bulk", action="cancel", **here) if may_cancel else None,
    }
    shown = [
        {
            **without(one, *PAYLOAD),
            "state": state_of(one, _due(outlooks, one), now),
            **({_COLUMNS[sort]: times[one.id]} if one.id in times else {}),
        }
        for one in found.tasks
    ]
    data = {"tasks": shown, "older": found.older, "newer": found.newer, "problem": problem or None}
    return View(template="pages/tasks.html", title="Tasks", values=values, data=data)


def act(request: PageRequest) -> Redirect:
    """Carry out the verb on each ticked task, and return to the list. Raises InvalidArgument for a form that no page
    contains.
    """
    form = request.form
    verb, ids = _VERBS.get(form.get("verb", "")), form.getlist("id")
    if verb is None or len(ids) > _MOST:
        raise InvalidArgument(f"choose one of {', '.join(_VERBS)}, and at most {_MOST} tasks")
    try:
        tasks = list(dict.fromkeys(map(UUID, ids)))
    except ValueError:
        raise InvalidArgument("one of the ids is not complete") from None
    url = request.url("tasks", **{name: form[name] for name in _PLACE if form.get(name)})
    if not tasks or (verb.is_final and form.get("confirm") != "yes"):
        missing = "tick the box to confirm" if tasks else "no task is selected"
        return Redirect(url=url, notice=f"Nothing was changed: {missing}.", is_warning=True)
    done, refused = Counter[tuple[str, str]](), list[str]()
    for task in tasks:
        try:
            if not may(request, verb, task):
                refused.append(f"you are not allowed to change task {task} in this way")
                continue
            outcome = verb.do(request.store, task, operator=operator_of(request), reason=reason_of(request))
            done[outcome.predicate, outcome.of_many] += 1
        except (DuplicateTask, InvalidArgument, InvalidTransition, TaskNotFound) as error:
            refused.append(str(error))
    sentences = [
        f"{grouped(number)} {plural(number, f'task {one}', f'tasks {many}')}." for (one, many), number in done.items()
    ]
    if refused:
        more = f" (and {len(refused) - 1} more)" if len(refused) > 1 else ""
        sentences.append(f"Not changed: {refused[0]}{more}.")
    return Redirect(url=url, notice=" ".join(map(sentence, sentences)), is_warning=bool(refused))


def suggestions(request: PageRequest, *, queues: Iterable[str], tasks: Iterable[str]) -> Mapping[str, Sequence[str]]:
    """Return the names of queues and tasks that this program has declared, and those that the page shows. The function
    does not query the database.
    """
    declared = [*request.outbox.tasks]
    found = {
        "queue": {*queues, *(one.options.queue for one in declared)},
        "task": {*tasks, *(one.name for one in declared)},
    }
    return {kind: sorted(names)[:_SUGGESTED] for kind, names in found.items()}


def _listed(
    request: PageRequest, state: str, given: Mapping[str, str], sort: str
) -> tuple[TaskPage, Mapping[UUID, timedelta]]:
    """Return the page of tasks that the URL specifies. If the page lists the slowest tasks, also return the duration or
    the wait of each task.

    Raises InvalidArgument.
    """
    status, waiting = read_state(state) if state else (None, None)
    beside = {name: request.query[name] for name in ("before", "after") if request.query.get(name)}
    wanted: dict[str, Any] = {**given, **beside}
    for name, text in wanted.items():
        if name == "argument":
            wanted[name] = _argument(request, text)
        elif name in _MOMENTS:
            wanted[name] = read_since(text, name, request.store.now())
        elif name not in _NAMES:
            try:
                wanted[name] = UUID(text)
            except ValueError:
                raise InvalidArgument(f"{name} must be a complete id, not {text!r}") from None
    look: dict[str, Any] = {**wanted, "status": status, "waiting": waiting, "limit": _ROWS}
    if not sort:
        return request.store.task_page(**look), {}
    if sort not in set(Slow):
        raise InvalidArgument(f"cannot sort by {sort!r}: choose one of {', '.join(Slow)}")
    if beside:
        raise InvalidArgument("the slowest tasks are on one page; leave out `before` and `after`")
    found = request.store.slowest(by=Slow(sort), **look)
    page = TaskPage(tasks=found.tasks, older=None, newer=None, is_cut=found.is_cut, looked_at=found.looked_at)
    return page, found.times


def _argument(request: PageRequest, text: str) -> tuple[str, object]:
    """Return the argument to search for. A viewer must not be able to guess hidden values by searching for them."""
    name, value = read_argument(text)
    if not request.viewer.may_see_arguments or HIDDEN.search(name):
        raise InvalidArgument(f"the argument {name!r} is hidden in this dashboard, so it cannot be searched for")
    return name, value


def _counts(request: PageRequest, given: Mapping[str, str]) -> dict[str, str]:
    """Return the number of tasks in each counted state; empty if there are filters besides the queue and the task."""
    if given.keys() - {"queue", "task"}:
        return {}
    found = request.store.state_counts(queue=given.get("queue"), task=given.get("task"))
    return {state: f"{number(one.number)}{'+' if one.at_least else ''}" for state, one in found.items()}


def _due(outlooks: Mapping[UUID, Outlook], task: TaskExecution) -> datetime | None:
    outlook = outlooks.get(task.id)
    return None if outlook is None else outlook.due_at
