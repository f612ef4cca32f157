"""The rule about live workers that an error keeps from their work."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta

from ..claims.workers import LiveWorker
from ..explain.reasons import Cure, span_of
from .problem import Problem, Rule
from .statistics import Statistics

_NAMED = 3


def failing_workers(
    workers: Sequence[LiveWorker], queues: Sequence[Statistics], now: datetime, disks: Mapping[str, str]
) -> Iterator[Problem]:
    """Yield a problem for each error. It holds up the tasks that are due in the queues of the workers that have it.
    `disks` has a sentence for each error that is due to a full disk.
    """
    found: dict[str, list[LiveWorker]] = {}
    for one in workers:
        if one.failure is not None:
            found.setdefault(one.failure, []).append(one)
    for failure, several in found.items():
        several.sort(key=lambda one: (one.failing_since or now, one.label))
        first, labels = several[0], [one.label for one in several]
        age = max(now - (first.failing_since or now), timedelta(0))
        more = f" and {len(labels) - _NAMED} more" if len(labels) > _NAMED else ""
        who = f"the worker {first.label}"
        if len(several) > 1:
            who = f"each of {len(several)} workers ({', '.join(labels[:_NAMED])}{more})"
        disk, see = disks.get(failure), Cure("see the worker", ("workers", "show", str(first.id)))
        yield Problem(
            rule=Rule.WORKER_FAILING,
            subjects=tuple(labels),
            sentence=f"{who} {failure}; this has lasted for {span_of(age)}{f'; {disk}' if disk else ''}",
            cures=(see, Cure("see which tables are the largest", ("db", "sizes"))) if disk else (see,),
            tasks=sum(queue.due for queue in queues if any(one.works_on(queue.queue) for one in several)),
            age=age,
        )
