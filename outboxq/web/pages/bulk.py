"""Changing many tasks: a page that shows how many tasks would change, and the form that changes them."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

from werkzeug.exceptions import Forbidden

from ...database.target import Target
from ...errors import InvalidArgument
from ...model import TaskStatus, Waiting
from ...model.actions import NewAction
from ...model.wording import grouped, plural
from ...operating.reading import read_number, read_since, read_utc
from ...operating.verbs import CANCEL, DISCARD, REDRIVE, RUN_NOW
from ...store import Count, Snapshot
from ...task.built_in import BULK, BULK_QUEUE, BulkAction, Selection
from ..rendering import number
from ..request import PageRequest, Redirect, View
from .actions import has_worker, operator_of, reason_of, unfound

_AT_ONCE = 500
"""The maximum number of tasks that are changed by the request itself, in one transaction. For larger changes, the
request enqueues a task.
"""
_PARTS = 50
_FEW = 5
"""The maximum numbers of rows on a page, for kinds of tasks and for the oldest tasks."""
_NAMES = frozenset({"queue", "task", "key", "topic", "exception"})
"""The filters that compare names. A name may begin or end with spaces."""
_FILTERS = _NAMES | {"group", "since", "until", "state", "limit"}
_VERBS = {BulkAction(verb.name): verb for verb in (REDRIVE, DISCARD, CANCEL, RUN_NOW)}
_WORDS = {
    BulkAction.REDRIVE: ("redriven", "been redriven or discarded"),
    BulkAction.DISCARD: ("discarded", "been redriven or discarded"),
    BulkAction.CANCEL: ("cancelled", "ended"),
    BulkAction.RUN_NOW: ("made due", "become due or ended"),
}
"""The words for what was done to the tasks, and for what had happened to the others in the meantime."""
_OF_TASKS = frozenset({BulkAction.CANCEL, BulkAction.RUN_NOW})
"""The actions on tasks that have not ended. The other actions change dead letters."""
_CANCELLABLE = {status.lower(): status for status in (TaskStatus.READY, TaskStatus.RUNNING)}
_LATER = {state.value: state for state in (Waiting.DELAYED, Waiting.RETRYING)}


def page(request: PageRequest) -> View:
    """Show how many tasks would change, and ask for confirmation."""
    try:
        # An empty form field is not a filter.
        given = {name: value for name, value in _asked(request).items() if value}
        wanted = _selection(request.query.get("action", ""), given, at=request.store.now())
    except InvalidArgument as error:
        return _refused(error)
    count = wanted.count(request.store)
    wanted = replace(wanted, snapshot=count.snapshot)
    filters = _without_limit(given)
    to_change = _up_to(wanted.limit, count)
    is_small = to_change <= _AT_ONCE and not (count.at_least and wanted.limit is None)
    is_served = is_small or has_worker(request, BULK_QUEUE, BULK)
    values = {
        "selection": wanted,
        "given": given,
        "number": to_change,
        "is_limited": to_change < count.number or (count.at_least and wanted.limit is not None),
        "parts": wanted.parts(request.store)[:_PARTS] if count.number else [],
        "oldest": wanted.oldest(request.store, limit=_FEW) if count.number else [],
        "unlimited": request.url("bulk", action=wanted.action, **filters),
        "what": in_words(wanted, in_number(count), _group_of(request, wanted)),
        "count": count,
        "is_small": is_small,
        "is_final": _VERBS[wanted.action].is_final,
        "of_tasks": wanted.action in _OF_TASKS,
        "may": _may(request, wanted),
        "worker": None if is_served else request.typed("worker", "-q", BULK_QUEUE),
        "back": _list_of(request, wanted, filters),
    }
    data = {"count": count, "filters": wanted.filters, "limit": wanted.limit, "parts": values["parts"]}
    section, title = "tasks" if wanted.action in _OF_TASKS else "failures", act_in_words(wanted, "many tasks")
    return View(template="pages/bulk.html", title=title, values=values, data=data, section=section)


def start(request: PageRequest) -> Redirect | View:
    """Change the tasks immediately if there are at most 500; otherwise, enqueue a task that changes them. If the person
    clicks twice, the second request finds nothing left to change, or finds the enqueued task.
    """
    try:
        given = _asked(request)
        if empty := sorted(name for name, value in given.items() if not value):
            raise InvalidArgument(f"the filter {empty[0]} is empty; leave it out, or start again from the list")
        at = read_utc(request.form.get("at", ""), "at")
        wanted = _selection(request.query.get("action", ""), given, at=at)
        wanted = replace(wanted, snapshot=Snapshot.parse(request.form.get("snapshot", "")))
        if request.form.get("confirm") != "yes":
            raise InvalidArgument("tick the box to confirm")
    except InvalidArgument as error:
        return _refused(error)
    if not _may(request, wanted):
        raise Forbidden(f"You are not allowed to use {_VERBS[wanted.action].recorded_as!r} here. Nothing was changed.")
    store, operator, reason = request.store, operator_of(request), reason_of(request)
    details = {**wanted.filters, "limit": wanted.limit}
    action = _VERBS[wanted.action].action(operator, details=details, reason=reason)
    count = wanted.count(store)
    to_change = _up_to(wanted.limit, count)
    if to_change > _AT_ONCE or (count.at_least and wanted.limit is None):
        task_id = store.run(partial(_enqueue, request, wanted, action, to_change))
        notice = f"The task {task_id} makes the change. This page shows its progress."
        return Redirect(url=request.url("task", task_id=task_id), notice=notice)
    on_change = store.actions.adding(action)
    limit = _AT_ONCE if wanted.limit is None else min(_AT_ONCE, wanted.limit)
    changed = wanted.run(store, reason=operator.because(reason), limit=limit, on_change=on_change)
    counted = request.form.get("counted", "")  # the number in the question
    asked = max(to_change, int(counted) if re.fullmatch("[0-9]{1,9}", counted) else 0)
    notice = _outcome(wanted.action, changed, asked=asked, left=to_change - changed)
    filters = _without_limit(given)
    return Redirect(url=_list_of(request, wanted, filters), notice=notice, is_warning=changed < asked or not changed)


def _may(request: PageRequest, wanted: Selection) -> bool:
    return request.viewer.may(_VERBS[wanted.action].recorded_as, wanted.queue)


def _without_limit(given: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in given.items() if name != "limit"}


def _up_to(limit: int | None, count: Count) -> int:
    """Return the number of counted tasks that a change with this limit affects."""
    return count.number if limit is None else min(count.number, limit)


def _enqueue(request: PageRequest, wanted: Selection, action: NewAction, counted: int, target: Target) -> UUID:
    """Enqueue the task that makes the change, record the action under the task's id, and return that id."""
    bound = request.outbox.tasks.built_in[BULK].using(target, idempotency_key=wanted.digest)
    handle = bound.enqueue(wanted.as_json, action.operator.because(action.reason), counted)
    if handle.created:  # otherwise a first click has recorded it
        request.store.actions.begin(replace(action, id=handle.id), using=target)
    return handle.id


def _outcome(action: BulkAction, changed: int, *, asked: int, left: int) -> str:
    """Return a sentence about how many of the tasks were changed. `asked` is the number that was shown to the person,
    and `left` the number of tasks that still match.
    """
    if not changed and not left:
        return "Nothing was changed: there are no longer any matching tasks."
    done, otherwise = _WORDS[action]
    how = "; running tasks were asked to stop" if action is BulkAction.CANCEL else ""
    of = f" of {number(asked)}" if changed < asked else ""
    sentences = [f"{number(changed)}{of} {plural(changed, 'was', 'were')} {done}{how}."]
    if left > 0:
        reasons = ("its status has changed", "their statuses have changed")
        if action is BulkAction.REDRIVE:
            reasons = ("another task now has its idempotency key", "other tasks now have their idempotency keys")
        why = plural(left, *reasons)
        sentences.append(f"{number(left)} {plural(left, 'was', 'were')} left out: {why}.")
    if (gone := asked - changed - max(0, left)) > 0:
        sentences.append(f"{number(gone)} had {otherwise} in the meantime.")
    return " ".join(sentences)


def _asked(request: PageRequest) -> dict[str, str]:
    """Return the filters in the URL as they were typed, by name. Raises InvalidArgument for a filter that would be
    ignored.

    The action's URL also contains the filters, because form fields would change line breaks and invisible characters.
    """
    for name, values in request.query.lists():
        if name not in _FILTERS and name != "action":
            raise InvalidArgument(f"there is no filter {name!r}: choose one of {', '.join(sorted(_FILTERS))}")
        if len(values) > 1:
            raise InvalidArgument(f"{name} is given {len(values)} times; give it only once")
    given = {name: value for name, value in request.query.items() if name in _FILTERS}
    return {name: value if name in _NAMES else value.strip() for name, value in given.items()}


def _selection(action: str, given: dict[str, str], *, at: datetime) -> Selection:
    """Return the selection that these filters describe. Raises InvalidArgument."""
    if action not in set(BulkAction):
        raise InvalidArgument(f"there is no action {action!r}: choose one of {', '.join(BulkAction)}")
    found: dict[str, Any] = {name: value for name, value in given.items() if name != "state"}
    for name in found.keys() & {"since", "until"}:
        found[name] = read_since(found[name], name, at)
    if "limit" in found:
        found["limit"] = read_number(found["limit"], "limit")
    if wrong := sorted(given.keys() & ({"exception", "group"} if action in _OF_TASKS else {"state"})):
        noun = plural(len(wrong), "the filter", "the filters")
        raise InvalidArgument(f"{action} does not support {noun} {', '.join(wrong)}")
    if state := given.get("state"):
        found |= _state(BulkAction(action), state)
    wanted = Selection(action=BulkAction(action), at=at, **found)
    if not wanted.filters and _VERBS[wanted.action].is_final:
        raise InvalidArgument(f"in the dashboard, {action} needs a filter; without one, it would change all tasks")
    return wanted


def _state(action: BulkAction, state: str) -> dict[str, Any]:
    """Return the field that a filter by state sets in a selection. Raises InvalidArgument."""
    if action is BulkAction.RUN_NOW:
        if state not in _LATER:
            raise InvalidArgument(f"only delayed and retrying tasks can be run now, not {state!r}")
        return {"waiting": _LATER[state]}
    if state not in _CANCELLABLE:
        raise InvalidArgument(f"only Ready and Running tasks can be cancelled, not {state!r}")
    return {"status": _CANCELLABLE[state]}


def in_number(count: Count) -> str:
    """Return a count in words: ``1 234``, or ``100 000 or more``."""
    return grouped(count.number) + (" or more" if count.at_least else "")


def act_in_words(wanted: Selection, what: str) -> str:
    """Return the action on these tasks in words: ``Redrive 12 dead letters``, or ``Run 12 delayed tasks now``."""
    return f"Run {what} now" if wanted.action is BulkAction.RUN_NOW else f"{wanted.action.capitalize()} {what}"


def in_words(wanted: Selection, many: str = "all", group: str = "") -> str:
    """Return the selection in words: ``1 234 dead letters in the queue 'mail' that failed with 'SMTPError'``."""
    plural = "" if many == "1" else "s"
    if wanted.action is BulkAction.CANCEL:
        state = {TaskStatus.READY: "waiting", TaskStatus.RUNNING: "running", None: "waiting or running"}[wanted.status]
        words, verb = [f"{many} {state} task{plural}"], "enqueued"
    elif wanted.action is BulkAction.RUN_NOW:
        words, verb = [f"{many} {wanted.waiting or 'delayed or retrying'} task{plural}"], "enqueued"
    else:
        words, verb = [f"{many} dead letter{plural}"], "failed"
    named = {
        "of the task": None if group else wanted.task,
        "in the queue": wanted.queue,
        "with the partition key": wanted.key,
        "with the topic": wanted.topic,
        "that failed with": None if group else wanted.exception,
    }
    words += [f"{what} {value!r}" for what, value in named.items() if value is not None]
    if wanted.group is not None:
        words.append(group or f"in the group {wanted.group}")
    for limit, moment in (("since", wanted.since), ("before", wanted.until)):
        if moment is not None:
            words.append(f"{verb} {limit} {moment:%Y-%m-%d %H:%M:%S %Z}")
    return " ".join(words)


def _group_of(request: PageRequest, wanted: Selection) -> str:
    """Return the selected group in words, or "" if no group is selected."""
    narrowed: dict[str, Any] = {"group": wanted.group, "task": wanted.task, "exception": wanted.exception}
    found = [] if wanted.group is None else request.store.dead_letters.groups(limit=1, **narrowed).groups
    for one in found:
        return f"of {one.task_name} that failed with {one.message or one.exception or 'no exception'}"
    return ""


def _list_of(request: PageRequest, wanted: Selection, given: dict[str, str]) -> str:
    if wanted.action in _OF_TASKS:
        return request.url("tasks", **given)
    return request.url("failures")


def _refused(error: InvalidArgument) -> View:
    return unfound("Change many tasks", f"Nothing was done: {error}.", status=400)
