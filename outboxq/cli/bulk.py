"""Change all tasks that match filters: check the names in the filters, ask for confirmation, show the progress, print
the result, and record the action.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import timedelta
from functools import cache, partial, wraps
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click

from ..model.unknown_options import nearest, no_queue, no_task_name
from ..operating.verb import Verb
from .changes import FEW, Counted, changed, confirmation_options, confirmed, outcome, progress, up_to
from .console import EXIT_NOT_FOUND, fail, tell
from .database import present_outbox
from .parameters import Add, Command, filtered, flag, in_words, number_option, stacked
from .verbs import present_operator, with_fields

if TYPE_CHECKING:
    from ..store import Count, Store


@dataclass(frozen=True, kw_only=True, slots=True)
class Chosen:
    """The tasks that a person chose to change: those that match filters, or all of them. Also the reason for the change,
    and the answers that were given in advance.
    """

    wanted: dict[str, Any]
    """The filters."""
    everything: bool
    limit: int | None
    reason: str
    yes: bool
    dry_run: bool

    def check(self, ids: Sequence[str], *, noun: str = "tasks") -> None:
        """Raise UsageError unless exactly one of ids, filters and --all was given."""
        if ids and (self.wanted or self.everything or self.limit):
            of = "id" if noun.startswith("a ") else "ids"
            raise click.UsageError(f"give the {of} of {noun}, or filters, but not both")
        if self.everything and self.wanted:
            raise click.UsageError("--all cannot be combined with filters; leave out either --all or the filters")
        if not (ids or self.wanted or self.everything):
            raise click.UsageError("give ids, or filters, or --all")


def choosing(
    verb: Verb, filters: Sequence[Add[Any]], *more: Add[Any], everything: str, most: str, database: Add[Any]
) -> Add[Any]:
    """Return a decorator that adds the options of a bulk change. The command receives their values as `chosen`, except
    those of `more`. `everything` and `most` are the help texts of `--all` and `--limit`.
    """
    options = (flag("--all", "everything", help=everything), *more, number_option("--limit", help=most))
    stack = stacked(*options, with_fields(*verb.fields), confirmation_options, database, filtered(*filters))

    def add(command: Command) -> Command:
        @wraps(command)
        def wrapped(*, store: Store, **given: Any) -> None:
            chosen = Chosen(**{one.name: given.pop(one.name) for one in fields(Chosen)})
            command(store=store, chosen=chosen, **given)

        added: Command = stack(wrapped)
        return added

    return add


def change_all(
    store: Store,
    verb: Verb,
    chosen: Chosen,
    *,
    act: Callable[..., int],
    count: Callable[..., Count],
    first: Callable[[int], list[str]],
    noun: str,
    happened: str,
    done: str,
    sentence: str = "",
    others: str,
) -> None:
    """Act on the matching tasks that were counted, and record the verb in their histories and in the list of actions.
    `sentence` describes the result; the default is `done`.
    """
    wanted, limit, reason = chosen.wanted, chosen.limit, chosen.reason
    answers = {"yes": chosen.yes, "dry_run": chosen.dry_run}
    counted, what = cache(partial(count, **wanted)), in_words(noun, wanted, limit=limit, verb=happened)

    def to_change() -> Counted:
        return up_to(limit, counted())

    if not counted().number:
        ensure_known(store, wanted)
    if not confirmed(to_change, what, done=done, first=lambda: first(min(FEW, limit or FEW)), **answers):
        return
    if not counted().number:
        tell(none_matched(store, noun, wanted), changed(done, 0, to_change()))
        return
    operator = present_operator()
    action = verb.action(operator, details={**wanted, "limit": limit}, reason=reason)
    act = partial(act, limit=limit, reason=operator.because(reason), on_change=store.actions.adding(action), **wanted)
    with progress(done, to_change(), stoppable=True) as on_progress:
        moved = act(snapshot=counted().snapshot, on_progress=on_progress, stop=on_progress.stop)
    tell(outcome(sentence or done, moved, to_change(), others), changed(done, moved, to_change()))


def oldest(
    store: Store, wanted: Mapping[str, Any], number: int, name: str, states: Iterable[object], **more: object
) -> list[str]:
    """Return a line about each of the oldest matching tasks. The filter `name` is set to each of these states in turn,
    unless it is among the filters that are wanted.
    """
    given: dict[str, Any] = {**wanted, **more, "after": UUID(int=0), "limit": number}
    chosen = [wanted[name]] if name in wanted else states
    found = [(one, state) for state in chosen for one in store.tasks(**{**given, name: state})]
    found.sort(key=lambda pair: pair[0].id)
    return [f"{one.id}  {one.task_name}  {state}" for one, state in found[:number]]


_COUNTED_WITHIN = timedelta(days=30)
_MOST_GROUPS = 1_000


def ensure_known(store: Store, wanted: Mapping[str, object]) -> None:
    """Exit if the filters name a queue or a task that exists neither in the database nor in the application. The
    message suggests the most similar name.
    """
    queue, task = wanted.get("queue"), wanted.get("task")
    if isinstance(queue, str) and not store.queues.is_known(queue):
        fail(no_queue(queue, [one.queue for one in store.queues.list()]), EXIT_NOT_FOUND)
    if isinstance(task, str) and task not in (known := _task_names(store)) and not store.tasks(task=task, limit=1):
        fail(no_task_name(task, known), EXIT_NOT_FOUND)


def none_matched(store: Store, noun: str, wanted: Mapping[str, object]) -> str:
    """Return the sentence about filters that match nothing. If no dead letter has the given exception, the sentence
    suggests similar exceptions.
    """
    sentence, exception = f"0 {noun} matched", wanted.get("exception")
    if not isinstance(exception, str):
        return sentence
    names = {one.exception for one in store.dead_letters.groups(limit=_MOST_GROUPS).groups if one.exception is not None}
    if "." not in exception:
        names = {name.rpartition(".")[2] for name in names}
    if exception in names:
        return f"{sentence}: the dead letters with the exception {exception!r} do not match the other filters"
    return f"{sentence}: no dead letter has the exception {exception!r}{nearest(exception, names)}"


def _task_names(store: Store) -> set[str]:
    """Return the names of the tasks in the application, in schedules, subscriptions, dead letters and recent
    statistics, and in the workers that were seen in the last week.
    """
    from ..store.claims.workers import KEPT

    outbox = present_outbox()
    return {
        *(() if outbox is None else (one.name for one in outbox.tasks)),
        *(one.task_name for one in store.schedules.list()),
        *(one.task_name for one in store.subscriptions.list()),
        *(one.task_name for one in store.dead_letters.groups(limit=_MOST_GROUPS).groups),
        *(name for one in store.workers.presence(KEPT, with_ended=True).workers for name in one.task_names),
        *(one.task_name for one in store.stats(window=_COUNTED_WITHIN, by="task") if one.task_name is not None),
    }
