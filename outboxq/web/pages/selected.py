"""Changing the tasks whose boxes are ticked on a page: each is changed and recorded on its own, as by its own page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final
from uuid import UUID

from ...errors import DuplicateTask, InvalidArgument, InvalidTransition, TaskNotFound
from ...model.wording import grouped, plural, sentence
from ...operating.verb import Verb
from ...operating.verbs import CANCEL, DISCARD, REDRIVE, RUN_NOW
from ..request import PageRequest, Redirect
from .actions import may, operator_of, reason_of

_OF_STATES: Final = {
    **dict.fromkeys(("due", "running"), (CANCEL,)),
    **dict.fromkeys(("delayed", "retrying", "ready"), (RUN_NOW, CANCEL)),
    "failed": (REDRIVE, DISCARD),
}
"""The verbs for the tasks of a page that shows one state."""
_VERBS: Final = {verb.key: verb for verb in (RUN_NOW, CANCEL, REDRIVE, DISCARD)}
_MOST: Final = 100
"""The maximum number of tasks that a form may change. A page lists 50."""
_PLACE: Final = ("state", "queue", "task", "key", "topic", "exception")


def verbs_for(request: PageRequest, state: str, queue: str | None) -> Sequence[Verb]:
    """Return the verbs that a list of tasks in this state offers to the viewer for the ticked tasks."""
    return [one for one in _OF_STATES.get(state, ()) if request.viewer.may(one.recorded_as, queue)]


def act(request: PageRequest) -> Redirect:
    """Carry out the verb on each ticked task, and return to the list. Raises InvalidArgument for a form that no page
    has sent.
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
                refused.append(f"you may not change task {task} in this way")
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
