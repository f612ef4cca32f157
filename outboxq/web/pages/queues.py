"""The pages of queues: all of them, and one with its limits, its keys and its workers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from werkzeug.exceptions import NotFound

from ...model import LATEST
from ...model.unknown_options import no_queue
from ...model.wording import sentence
from ...operating.verbs import Noun, State
from ...store import HealthLimits, Problem, QueueSettings, Rule, Statistics
from ...store.numbers.health import OF_SCHEDULES
from ..charts import NOTHING, axis_of, charts_of, chosen, sparkline, tabs
from ..request import PageRequest, View
from .actions import offered, offers

LIMITS = HealthLimits(queue_paused=True)
"""The rules of what needs attention on a page: a pause too, though it may be meant."""
_KEYS = 50
"""Maximum number of held keys on a page."""


def page(request: PageRequest) -> View:
    """Show all queues, those with settings and those with tasks or workers, in order of trouble."""
    found = request.store.overview(LIMITS)
    queues = in_order_of_trouble(found.queues, found.problems)
    axis = axis_of("1h", found.at)
    depths = request.store.samples.by_queue(since=axis.since, until=axis.until, step=2 * axis.step)
    return View(
        template="queues.html",
        title="Queues",
        values={
            "now": found.at,
            "queues": queues,
            "sparks": {name: sparkline(ready) for name, ready in depths.items()},
        },
        data=queues,
    )


def one_page(request: PageRequest) -> View:
    """Show one queue. One that has nothing now, but is declared or had tasks, has the default settings. Raises NotFound."""
    name = request.query.get("name", "")
    found = request.store.overview(LIMITS)
    names = [one.queue for one in found.queues]
    if name not in names and not request.store.queues.is_known(name):
        unknown = sentence(no_queue(name, names))
        raise NotFound(unknown if unknown.endswith("?") else f"{unknown}.")
    mine = next((one for one in found.queues if one.queue == name), Statistics(queue=name))
    settings = next((one for one in found.settings if one.queue == name), QueueSettings(queue=name))
    axis = axis_of(chosen(request), found.at)
    trends = request.store.trends(since=axis.since, until=axis.until, step=axis.step, queue=name, held_keys=_KEYS)
    charts = charts_of(axis, trends)
    workers = [one for one in found.workers if one.works_on(name)]
    is_empty = not any((mine.ready, mine.delayed, mine.retrying, mine.running, mine.failed))
    state = State(is_paused=settings.paused_at is not None, is_unused=is_empty and settings.updated_at is not None)
    problems = [one for one in once(found.problems) if one.subject == name and one.rule not in OF_SCHEDULES]
    return View(
        template="queue.html",
        title=name or "(empty name)",
        values={
            "name": name,
            "now": found.at,
            "queue": mine,
            "settings": settings,
            "acts": offered(request, Noun.QUEUE, name, state),
            "problems": [(one, offers(request, one.cures)) for one in problems],
            "charts": charts,
            "nothing": NOTHING,
            "ranges": tabs(request, "queue", name=name),
            "held": trends.held,
            "is_cut": len(trends.held) == _KEYS,
            "workers": workers,
            "start": request.outbox.integration.front_end.typed(("worker", "-q", name)),
        },
        data={
            "queue": mine,
            "settings": settings,
            "problems": problems,
            "trends": trends,
            "workers": workers,
        },
    )


def once(problems: Sequence[Problem]) -> list[Problem]:
    """Return the problems without those that another one of the same queue explains: old tasks where no
    worker is, and a pause that is named already.
    """
    unmanned = {one.subject for one in problems if one.rule is Rule.NO_WORKER}
    kept = [one for one in problems if one.rule is not Rule.OLDEST or one.subject not in unmanned]
    named = {one.subject for one in kept if one.rule is Rule.OLDEST}
    return [one for one in kept if one.rule is not Rule.QUEUE_PAUSED or one.subject not in named]


def in_order_of_trouble(queues: Iterable[Statistics], problems: Sequence[Problem]) -> list[Statistics]:
    """Return the queues in the order of their most urgent problem, then those whose oldest due task waits the longest, then by
    name.
    """
    rules = list(dict.fromkeys(one.rule for one in problems))  # the most urgent first
    worst = {one.subject: rules.index(one.rule) for one in reversed(problems) if one.rule not in OF_SCHEDULES}

    def trouble(one: Statistics) -> tuple[int, datetime, str]:
        return (worst.get(one.queue, len(rules)), one.oldest_ready_at or LATEST, one.queue)

    return sorted(queues, key=trouble)


def in_full(queues: Iterable[Statistics], state: str) -> tuple[int, datetime] | None:
    """Return the number of tasks in a state by the last full counts, and the earliest moment of those; None: there are none."""
    found = list(queues)
    if not any(getattr(one, f"{state}_at_least") for one in found):
        return None
    samples = [one.sample for one in found if one.sample is not None]
    if not samples:
        return None
    exact = sum(getattr(one, state) for one in found if one.sample is None)
    return exact + sum(getattr(one, state) for one in samples), min(one.at for one in samples)
