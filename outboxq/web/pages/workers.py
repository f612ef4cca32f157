"""The pages of workers: all that live or were there lately, and one with what it runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from uuid import UUID

from werkzeug.exceptions import NotFound

from ...model import TaskStatus
from ...model.schedules import is_older
from ...store import LiveWorker, TakenBack
from ...store.claims.workers import KEPT, LIVE_WITHIN
from ..request import PageRequest, View

_RUNNING = 100
"""Maximum number of running tasks on a page, and of those that were taken back."""
_LOOKED_UP = 5
"""Maximum number of silent workers on the page of all for which the log is asked what they ran: those started last."""


def page(request: PageRequest) -> View:
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


def one_page(request: PageRequest) -> View:
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
