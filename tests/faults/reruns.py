"""Handlers that ran more than once, and the faults that excuse it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from uuid import UUID

from outboxq.model import ENDS_CLAIM, INTERRUPTED, EventType, ExecutionEvent
from tests.faults.runs import Run

TAKEN_BACK = {EventType.RESET, EventType.ABANDONED}
AFTERMATH = 10.0
"""The number of seconds after a fault in which a recovered lease is attributed to that fault."""


@dataclass(kw_only=True)
class Struck:
    """A fault that the campaign caused, with its times in seconds of the wall clock."""

    kind: str
    began: float
    ended: float = math.inf
    pid: int | None = None
    """The affected worker, or None if all are affected."""
    task_id: UUID | None = None
    """The only task that an administrator's call affected."""


@dataclass(frozen=True, kw_only=True)
class Rerun:
    """Two consecutive runs of one task."""

    earlier: Run
    later: Run
    excuse: str | None
    """The reason that excuses the second run, or None if the first run's worker lived and lost its lease for no reason."""
    blow: str
    """The kind of the last fault before the earlier run's claim ended. Faults that end a single worker are ignored."""
    story: Sequence[ExecutionEvent]

    def __str__(self) -> str:
        lines = [f"task {self.earlier.task_id} ({self.earlier.task_name}) ran again after {self.blow}:"]
        lines += [
            f"  claimed {run.claimed or math.nan:.3f}, ran {run.began:.3f} to {f'{run.ended:.3f}' if run.ended else '-'} in process {run.pid}, "
            f"token {run.lease_token} of {run.worker_id}, attempt {run.attempt}, recoveries {run.recovery_attempts}"
            for run in (self.earlier, self.later)
        ]
        lines += [
            f"  {event.created_at.timestamp():.3f} {event.event_type} {event.event_data} token {event.lease_token} of {event.worker_id}"
            for event in self.story
        ]
        return "\n".join(lines)


class Judge:
    """A judge that knows all faults, and so which runs may be repeated."""

    def __init__(self, struck: Sequence[Struck], history: Callable[[UUID], Sequence[ExecutionEvent]], *, lease: float):
        """`lease`: a duration in seconds. A shorter freeze of a process is not an excuse."""
        self._struck, self._history, self._lease = struck, history, lease

    def reruns(self, runs: Iterable[Run]) -> Iterator[Rerun]:
        """Yield each run of a task except the last, in claim order. A frozen process may start an earlier claim's run last."""
        by_task: dict[UUID, list[Run]] = {}
        for run in runs:
            by_task.setdefault(run.task_id, []).append(run)
        for task_id, of_task in by_task.items():
            if len(of_task) > 1:
                story = self._history(task_id)
                ordered = sorted(of_task, key=lambda run: (run.lease_token, run.began))
                vanished = _without_claim(ordered, story)
                for earlier, later in pairwise(ordered):
                    yield self._judged(
                        earlier, later, story, vanished=[one for one in vanished if one in (earlier, later)]
                    )

    def _judged(self, earlier: Run, later: Run, story: Sequence[ExecutionEvent], *, vanished: Sequence[Run]) -> Rerun:
        """`vanished`: the runs, of these two, whose claim is not in the story."""
        mine = [event for event in story if _holder(event) == _run_holder(earlier) and earlier not in vanished]
        claimed = next((_moment(event) for event in mine if event.event_type is EventType.CLAIMED), earlier.began)
        end = next((event for event in mine if event.event_type in ENDS_CLAIM), None)
        over = _moment(end) if end else later.began
        return Rerun(
            earlier=earlier,
            later=later,
            excuse=self._excuse_crash(vanished, later.began) or self._excuse(earlier, end, claimed, over),
            blow=self._blow(claimed, over),
            story=story,
        )

    def _excuse_crash(self, vanished: Sequence[Run], over: float) -> str | None:
        """Excuse runs whose claim was undone by a crash. A worker that has claimed ahead may start the run after the crash."""
        for run in vanished:
            claimed = run.began - self._lease if run.claimed is None else run.claimed
            if not any(one.kind == "crash" and one.began <= over and one.ended >= claimed for one in self._struck):
                return None
        return "the server crashed and took its claim back" if vanished else None

    def _excuse(self, run: Run, end: ExecutionEvent | None, claimed: float, over: float) -> str | None:
        if end and end.event_type in {EventType.RETRY_SCHEDULED, EventType.SNOOZED}:
            return "its own policy"
        if end and end.event_type is EventType.RELEASED:
            return self._excuse_release(run, end, over)
        if end and end.event_type not in TAKEN_BACK:
            return None
        for one in self._struck:
            if one.began > over or one.ended < claimed:
                continue
            if one.pid == run.pid and one.kind == "kill":
                return "its worker was killed"
            if one.pid == run.pid and one.kind == "freeze" and one.ended - one.began >= self._lease:
                return "its worker was frozen past its lease"
            if one.task_id == run.task_id:
                return "an administrator's call held just this task"
        return None

    def _excuse_release(self, run: Run, end: ExecutionEvent, over: float) -> str | None:
        if end.event_data.get("reason") == INTERRUPTED:
            return "its transaction was interrupted, with all it did"
        told = any(one.kind == "stop" and one.pid == run.pid and one.began <= over for one in self._struck)
        return "its worker was told to stop" if told else None

    def _blow(self, claimed: float, over: float) -> str:
        found = [
            one
            for one in self._struck
            if one.kind not in {"kill", "stop"} and one.began <= over and max(claimed, over - AFTERMATH) <= one.ended
        ]
        # A single process's freeze counts as the cause of other workers' losses only if there is no other cause.
        return max(found, key=lambda one: (one.kind != "freeze", one.began)).kind if found else "nothing but kills"


def _without_claim(ordered: Sequence[Run], story: Sequence[ExecutionEvent]) -> list[Run]:
    """Return the runs whose claim is not in the story. Of several claims with the same token and worker, the last remains."""
    claims = Counter(_holder(event) for event in story if event.event_type is EventType.CLAIMED)
    remaining, found = Counter(map(_run_holder, ordered)), []
    for run in ordered:
        if remaining[_run_holder(run)] > claims[_run_holder(run)]:
            found.append(run)
        remaining[_run_holder(run)] -= 1
    return found


def _holder(event: ExecutionEvent) -> tuple[object, object]:
    return event.lease_token, event.worker_id


def _run_holder(run: Run) -> tuple[object, object]:
    return run.lease_token, run.worker_id


def _moment(event: ExecutionEvent) -> float:
    return event.created_at.timestamp()
