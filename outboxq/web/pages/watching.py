"""The pages for monitoring: the overview, the queues, the workers, the relays to brokers, and the database."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any
from uuid import UUID

from werkzeug.exceptions import NotFound

from ...database.revisions import REVISION
from ...errors import RelayNotFound
from ...model import LATEST, TaskStatus
from ...model.relays import RelayState, state_of, task_of
from ...model.schedules import is_older
from ...model.unknown_options import no_queue
from ...model.wording import sentence
from ...operating.verb import Noun, State
from ...operating.worker_verbs import STACKS
from ...store import HealthLimits, LiveWorker, Problem, RecoveredTasks, Rule, Statistics
from ...store.claims.workers import KEPT
from ...store.numbers.maintenance_jobs import PRUNE
from ...store.numbers.problem import OF_QUEUES
from ..charts import axis_of, sparkline, trends_of
from ..request import PageRequest, View
from .actions import Offer, offered, offers

LIMITS = HealthLimits(queue_paused=True)
"""The limits for the health rules on the pages, which also show a paused queue as a problem."""
_KEYS = 50
"""The maximum number of held keys on a page."""
_RUNNING = 100
_RECOVERED = 1_000
_PARTS = 50
"""The maximum number of running tasks, and of recovered tasks, on a page."""
_TASKS = 50
"""The maximum number of task names on a queue's page."""
_ENDED = 100
"""The maximum number of ended workers on a page."""
_LOOKED_UP = 5
"""The maximum number of silent workers whose last tasks are shown on the page that lists all workers. The page shows
the last tasks of the workers that started most recently.
"""


def overview(request: PageRequest) -> View:
    """Show the problems first, then the totals for all queues, the charts, and the queues by urgency."""
    found = request.store.overview(LIMITS, retries=True)
    trends, charts = trends_of(request, "overview", found.at)
    values = {
        "overview": found,
        "now": found.at,
        "problems": _shown(request, found.problems),
        "full": {name: _in_full(found.queues, name) for name in ("due", "delayed", "failed")},
        "is_late": _is_late(found.queues, found.problems),
        "queues": _by_urgency(found.queues, found.problems),
        "is_new": not (found.queues or found.live_workers or request.store.tasks(limit=1)),
        "start": request.typed("worker"),
    }
    data = {"overview": found, "trends": trends}
    return View(template="pages/overview.html", title="Overview", values={**values, **charts}, data=data)


def queues(request: PageRequest) -> View:
    """Show all queues by urgency, including those that have settings or workers but no tasks."""
    found = request.store.overview(LIMITS, retries=True)
    shown = _by_urgency(found.queues, found.problems)
    axis = axis_of("1h", found.at)
    depths = request.store.samples.by_queue(since=axis.since, until=axis.until, step=2 * axis.step)
    sparks = {name: sparkline(numbers) for name, numbers in depths.items()}
    values = {"now": found.at, "queues": shown, "sparks": sparks}
    return View(template="pages/queues.html", title="Queues", values=values, data=shown)


def queue(request: PageRequest) -> View:
    """Show one queue. A queue that is only declared, or whose tasks are gone, is shown with the default settings.
    Raises NotFound.
    """
    name = request.query.get("name", "")
    found = request.store.overview(LIMITS, problems_of=[name], retries=True)
    names = [one.queue for one in found.queues]
    if name not in names and not request.store.queues.is_known(name):
        unknown = sentence(no_queue(name, names))
        raise NotFound(unknown if unknown.endswith("?") else f"{unknown}.")
    workers = [one for one in found.workers if one.works_on(name)]
    mine, settings = found.of_queue(name), found.settings_of(name)
    trends, charts = trends_of(request, "queue", found.at, name=name, held_keys=_KEYS)
    is_empty = not any((mine.due, mine.delayed, mine.retrying, mine.running, mine.failed))
    state = State(is_paused=settings.paused_at is not None, is_unused=is_empty and settings.updated_at is not None)
    counts = request.store.metrics.by_task(name, at=found.at)
    data = {"queue": mine, "settings": settings, "problems": found.problems, "trends": trends, "workers": workers}
    data["tasks"] = counts
    values = {
        **data,
        "name": name,
        "now": found.at,
        "acts": offered(request, Noun.QUEUE, name, state),
        "problems": _shown(request, found.problems),
        "is_late": _is_late([mine], found.problems),
        "counts": counts[:_TASKS],
        "more_counts": max(0, len(counts) - _TASKS),
        "held": trends.held,
        "is_cut": len(trends.held) == _KEYS,
        "start": request.typed("worker", "-q", name),
    }
    return View(template="pages/queue.html", title=name or "(empty name)", values={**values, **charts}, data=data)


@dataclass(frozen=True, kw_only=True, slots=True)
class Shown:
    """A problem or a part of one, with its cures as a page offers them."""

    rule: Rule | None
    sentence: str
    offers: Sequence[Offer]
    parts: Sequence[Shown] = ()


def _shown(request: PageRequest, problems: Iterable[Problem]) -> list[Shown]:
    return [
        Shown(
            rule=one.rule,
            sentence=one.sentence,
            offers=offers(request, one.cures),
            parts=[Shown(rule=None, sentence=part.sentence, offers=offers(request, part.cures)) for part in one.parts],
        )
        for one in problems
    ]


def _is_late(queues: Iterable[Statistics], problems: Iterable[Problem]) -> bool:
    """Return whether a task in one of these queues has been due for too long. A pause is deliberate, so paused queues do
    not count.
    """
    running = {one.queue for one in queues if not one.paused}
    return any(one.rule is Rule.OLDEST and not running.isdisjoint(one.subjects) for one in problems)


def _by_urgency(queues: Iterable[Statistics], problems: Sequence[Problem]) -> list[Statistics]:
    """Return the queues sorted by their most urgent problem, then by the due time of their oldest task, then by name."""
    places = [(name, place) for place, one in enumerate(problems) if one.rule in OF_QUEUES for name in one.subjects]
    worst = dict(reversed(places))
    return sorted(queues, key=lambda one: (worst.get(one.queue, len(problems)), one.oldest_due_at or LATEST, one.queue))


def _in_full(queues: Sequence[Statistics], state: str) -> tuple[int, datetime] | None:
    """Return the number of tasks in a state according to the last full counts, and the time of the oldest of these
    counts; None if the current numbers are exact, or there are no full counts.
    """
    samples = [one.sample for one in queues if one.sample is not None]
    if not samples or not any(getattr(one, f"{state}_at_least") for one in queues):
        return None
    exact = sum(getattr(one, state) for one in queues if one.sample is None)
    return exact + sum(getattr(one, state) for one in samples), min(one.at for one in samples)


def system(request: PageRequest) -> View:
    """Show the sizes of the tables, the oldest snapshot, the partitions, and the schema revision."""
    found, schedules = request.store.system(), request.store.schedules.list()
    oldest = found.snapshots[0].session if found.snapshots else None
    try:
        release = version("outboxq")
    except PackageNotFoundError:
        release = "not installed"
    values = {
        "system": found,
        "now": found.at,
        "release": release,
        "revision": REVISION,
        "upgrade": request.typed("upgrade"),
        "retention": next((one.name for one in schedules if one.task_name == PRUNE and one.paused_at is None), None),
        "add_retention": request.typed("schedule", "add-retention", "90d"),
        "whole": sum(one.size for one in found.tables) or 1,
        "acts": offered(request, Noun.SESSION, oldest, State()) if oldest else {},
    }
    return View(template="pages/system.html", title="System", values=values, data=found)


def workers(request: PageRequest) -> View:
    """Show the live workers, and the workers that have fallen silent or ended within the last week."""
    presence = request.store.workers.presence(KEPT, with_ended=True)
    live = [one for one in presence.workers if one.is_live(presence.at)]
    silent = [one for one in presence.workers if one.ended_at is None and not one.is_live(presence.at)]
    ended = [one for one in presence.workers if one.ended_at is not None]
    blamed = request.store.dead_letters.blamed_versions()
    values = {
        "now": presence.at,
        "live": live,
        "start": request.typed("worker"),
        "silent": silent,
        "ended": sorted(ended, key=lambda one: one.last_seen_at, reverse=True)[:_ENDED],
        "more_ended": max(0, len(ended) - _ENDED),
        "ran": {one.id: _ran(request, one.id) for one in silent[-_LOOKED_UP:]},
        "skews": _skews(live),
        "outdated": _outdated(live, blamed),
        "failing": {one.id for one in live if one.is_blamed(blamed)},
        "is_described": not live or any(one.release is not None for one in live),
    }
    return View(template="pages/workers.html", title="Workers", values=values, data=presence.workers)


def worker(request: PageRequest) -> View:
    """Show one worker with the tasks that it is running. Raises NotFound."""
    worker_id = request.path["worker_id"]
    presence = request.store.workers.presence()
    now, found = presence.at, request.store.workers.get(worker_id)
    if found is None:
        fate = "A worker is forgotten a week after it was last seen."
        raise NotFound(f"There is no worker {worker_id}. {fate}")
    is_live, gone = found.is_live(now), found.ended_at is not None
    running = request.store.tasks(status=TaskStatus.RUNNING, worker=worker_id, limit=_RUNNING)
    taken = None if is_live or found.ended_at else request.store.workers.recovered(worker_id, limit=_RUNNING)
    counts = request.store.metrics.of_worker(worker_id, at=now) if is_live else []
    lost = [] if is_live or gone else request.store.lost_tasks(worker_id, limit=_RECOVERED)
    state = State(has_ended=gone, asked_to=found.asked_to, holds_lost_tasks=bool(lost))
    blamed = request.store.dead_letters.blamed_versions()
    progress = request.store.progress([one.id for one in running])
    data: dict[str, Any] = {"worker": found, "running": running, "progress": progress}
    values = {
        **data,
        "now": now,
        "is_live": is_live,
        "is_outdated": found.id in _outdated([one for one in presence.workers if one.is_live(now)], blamed),
        "is_failing": is_live and found.is_blamed(blamed),
        "is_cut": len(running) == _RUNNING,
        "taken": taken,
        "counts": counts,
        "acts": offered(request, Noun.WORKER, worker_id, state),
        "lost": Counter((one.task_name, one.queue, one.then) for one in lost).most_common(_PARTS),
        "lost_number": len(lost),
        "is_lost_cut": len(lost) == _RECOVERED,
        "recover": request.typed("workers", "recover", str(worker_id)),
        "commands": [] if gone else [request.typed("workers", one, str(worker_id)) for one in _ORDERS],
        "may_read_stacks": request.viewer.may(STACKS.recorded_as, None),
        "stacks": request.store.worker_orders.stacks(worker_id) if found.stacks_at is not None else None,
    }
    data |= {"recovered": taken, "lost": lost, "tasks": counts}
    return View(template="pages/worker.html", title=found.label, values=values, data=data)


_ORDERS = ("quiet", "resume", "stop", "stacks")


def _ran(request: PageRequest, worker_id: UUID) -> tuple[int, bool, RecoveredTasks]:
    """Return the number of tasks that a silent worker still holds through its leases, whether there may be more of
    them, and the tasks that other workers have recovered from it.
    """
    held = len(request.store.tasks(status=TaskStatus.RUNNING, worker=worker_id, limit=_RUNNING))
    return held, held == _RUNNING, request.store.workers.recovered(worker_id, limit=_RUNNING)


def _skews(live: Iterable[LiveWorker]) -> list[tuple[str, list[tuple[str, int]]]]:
    """Return the versions and the releases if they differ between live workers, each with the number of workers that
    run it.
    """
    found = []
    for words, name in (("versions of the application", "version"), ("releases of outboxq", "release")):
        counts = Counter(value for one in live if (value := getattr(one, name)) is not None)
        if len(counts) > 1:
            found.append((words, counts.most_common()))
    return found


def _outdated(live: Sequence[LiveWorker], blamed: Collection[str]) -> set[UUID]:
    """Return the ids of the workers that are running an older version or release than another live worker. A version
    that is blamed for recent failures does not make any other version look old.
    """
    found = set()
    for name in ("version", "release"):
        compared = live if name == "release" else [one for one in live if one.version not in blamed]
        others = {getattr(one, name) for one in compared} - {None}
        found |= {one.id for one in live if any(is_older(getattr(one, name) or "", other) for other in others)}
    return found


def relays(request: PageRequest) -> View:
    """Show all relays: first those with problems, then the others by name."""
    now, known = request.store.now(), request.store.relays.list()
    found = sorted(((one, state_of(one)) for one in known), key=lambda one: (_ORDER.index(one[1]), one[0].name))
    return View(template="pages/relays.html", title="Relays", values={"now": now, "relays": found}, data=known)


def relay(request: PageRequest) -> View:
    """Show a relay with its backlog, its shards, and the keys held by refused events. Raises NotFound."""
    name = request.query.get("name", "")
    try:
        detail = request.store.relays.show(name)
    except RelayNotFound:
        raise NotFound(f"There is no relay {name!r} to a broker.") from None
    now, found = detail.at, detail.relay
    waits = found.paused_at is not None or (found.next_try_at is not None and found.next_try_at > now)
    values = {
        "now": now,
        "relay": found,
        "backlogs": {one.shard: one for one in detail.backlogs},
        "held_keys": detail.held_keys,
        "state": state_of(found),
        "queue": task_of(name),
        "acts": offered(request, Noun.RELAY, name, State(is_paused=waits)),
        "start": request.typed("relay", "run"),
        "commands": [request.typed("relay", verb, name) for verb in ("pause", "resume")],
    }
    return View(template="pages/relay.html", title=name, values=values, data=detail)


_ORDER = (RelayState.FAILING, RelayState.UNSENT, RelayState.PAUSED, RelayState.ACTIVE, RelayState.IDLE)
