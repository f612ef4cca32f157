"""The pages for watching: the overview, queues, workers, and the database."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from uuid import UUID

from werkzeug.exceptions import NotFound

from ...database.revisions import REVISION
from ...model import LATEST, TaskStatus
from ...model.schedules import is_older
from ...model.unknown_options import no_queue
from ...model.wording import sentence
from ...operating.verbs import Noun, State
from ...store import HealthLimits, LiveWorker, Problem, QueueSettings, Rule, Statistics, TakenBack
from ...store.claims.workers import KEPT, LIVE_WITHIN
from ...store.numbers.health import OF_SCHEDULES
from ...task.built_in import PRUNE
from ..charts import NOTHING, axis_of, charts_of, chosen, sparkline, tabs
from ..request import PageRequest, View
from .actions import offered, offers


def overview(request: PageRequest) -> View:
    """Show the problems first, then the numbers of all queues together, charts, and the queues in order of trouble."""
    found = request.store.overview(LIMITS)
    problems = once(found.problems)
    axis = axis_of(chosen(request), found.at)
    trends = request.store.trends(since=axis.since, until=axis.until, step=axis.step)
    charts = charts_of(axis, trends)
    return View(
        template="overview.html",
        title="Overview",
        values={
            "overview": found,
            "now": found.at,
            "problems": [(one, offers(request, one.cures)) for one in problems],
            "full": {name: in_full(found.queues, name) for name in ("ready", "delayed", "failed")},
            "is_late": any(one.rule is Rule.OLDEST for one in found.problems),
            "charts": charts,
            "nothing": NOTHING,
            "ranges": tabs(request, "overview"),
            "queues": in_order_of_trouble(found.queues, problems),
            "is_new": not (found.queues or found.live_workers or request.store.tasks(limit=1)),
            "start": request.outbox.integration.front_end.typed(("worker",)),
        },
        data={"overview": found, "trends": trends},
    )


LIMITS = HealthLimits(queue_paused=True)
"""The rules of what needs attention on a page: a pause too, though it may be meant."""
_KEYS = 50
"""Maximum number of held keys on a page."""


def queues(request: PageRequest) -> View:
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


def queue(request: PageRequest) -> View:
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


def system(request: PageRequest) -> View:
    """Show the sizes of the tables, the oldest snapshot, the partitions, and the revision of the schema."""
    found = request.store.system()
    return View(
        template="system.html",
        title="System",
        values={
            "system": found,
            "now": found.at,
            "release": _release(),
            "revision": REVISION,
            "upgrade": request.outbox.integration.front_end.typed(("upgrade",)),
            "retention": _retention(request),
            "add_retention": request.outbox.integration.front_end.typed(("schedule", "add-retention", "90d")),
            "whole": sum(one.size for one in found.tables) or 1,
        },
        data=found,
    )


def _retention(request: PageRequest) -> str | None:
    """Return the name of the schedule that deletes old tasks. None: there is none."""
    schedules = request.store.schedules.list()
    return next((one.name for one in schedules if one.task_name == PRUNE and one.paused_at is None), None)


def _release() -> str:
    try:
        return version("outboxq")
    except PackageNotFoundError:
        return "not installed"


_RUNNING = 100
"""Maximum number of running tasks on a workers, and of those that were taken back."""
_LOOKED_UP = 5
"""Maximum number of silent workers on the workers of all for which the log is asked what they ran: those started last."""


def workers(request: PageRequest) -> View:
    """Show the workers that live, and those that have fallen silent within a day."""
    presence = request.store.workers.presence(KEPT)
    workers, now = presence.workers, presence.at
    live = [one for one in workers if is_live(one, now)]
    silent = [one for one in workers if not is_live(one, now)]
    return View(
        template="workers.html",
        title="Workers",
        values={
            "now": now,
            "live": live,
            "start": request.outbox.integration.front_end.typed(("worker",)),
            "silent": silent,
            "ran": {one.id: _ran(request, one.id) for one in silent[-_LOOKED_UP:]},
            "skews": skews(live),
            "outdated": outdated(live),
            "is_described": not live or any(one.release is not None for one in live),
        },
        data=workers,
    )


def worker(request: PageRequest) -> View:
    """Show one worker with the tasks that it runs. Raises NotFound."""
    worker_id = request.path["worker_id"]
    presence = request.store.workers.presence(KEPT)
    workers, now = presence.workers, presence.at
    found = next((one for one in workers if one.id == worker_id), None)
    if found is None:
        raise NotFound(
            f"There is no worker {worker_id}. A worker that stops is forgotten at once, one that is killed after a day."
        )
    running = request.store.tasks(status=TaskStatus.RUNNING, worker=worker_id, limit=_RUNNING)
    progress = request.store.progress([one.id for one in running])
    taken = None if is_live(found, now) else request.store.workers.taken_back(worker_id, limit=_RUNNING)
    return View(
        template="worker.html",
        title=found.label,
        values={
            "now": now,
            "worker": found,
            "is_live": is_live(found, now),
            "is_outdated": found.id in outdated([one for one in workers if is_live(one, now)]),
            "running": running,
            "is_cut": len(running) == _RUNNING,
            "progress": progress,
            "taken": taken,
        },
        data={"worker": found, "running": running, "progress": progress, "taken_back": taken},
    )


def _ran(request: PageRequest, worker_id: UUID) -> tuple[int, TakenBack]:
    """Return how many tasks a silent worker still holds by their leases, and those that others took back from it."""
    held = request.store.tasks(status=TaskStatus.RUNNING, worker=worker_id, limit=_RUNNING)
    return len(held), request.store.workers.taken_back(worker_id, limit=_RUNNING)


def is_live(worker: LiveWorker, now: datetime) -> bool:
    """Return whether a worker was seen lately enough to count."""
    return worker.last_seen_at >= now - LIVE_WITHIN


def skews(workers: Iterable[LiveWorker]) -> list[tuple[str, list[tuple[str, int]]]]:
    """Return what differs between live workers: the application's version, outboxq's release; each with its numbers of workers."""
    found = list(workers)
    counts = {
        "versions of the application": Counter(one.version for one in found if one.version is not None),
        "releases of outboxq": Counter(one.release for one in found if one.release is not None),
    }
    return [(what, count.most_common()) for what, count in counts.items() if len(count) > 1]


def outdated(workers: Iterable[LiveWorker]) -> set[object]:
    """Return the ids of the workers that run an older version or release than another live one."""
    found = list(workers)
    versions, releases = ({getattr(one, name) for one in found} - {None} for name in ("version", "release"))
    return {
        one.id
        for one in found
        if any(is_older(one.version or "", other) for other in versions)
        or any(is_older(one.release or "", other) for other in releases)
    }
