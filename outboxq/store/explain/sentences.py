"""The rules that determine why a task is not running, each with its sentence. The same rules apply to one task and to a
page of tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from uuid import UUID

from ...database.column_types import UnreadableInstant
from ...database.dialects import Row
from ...model import LONGEST, TaskExecution, TaskStatus
from ...model.running import Progress
from ...model.wording import IMPORT, plural, unseen
from ...model.workers import WorkerOrder
from ..claims.limits import Bucket, KeyState
from ..claims.lost_workers import last_sign
from ..claims.workers import LiveWorker, is_lost
from .reasons import (
    Cure,
    Explanation,
    Reason,
    cure_of,
    inconsistent,
    of_dead_letter,
    of_lost,
    of_other,
    span_of,
    written,
)

_OVERDUE = 0.6
"""The fraction of a lease's length within which a live worker extends the lease. A worker extends a lease after a third
of this length or, at the latest, after half of it.
"""
_NAMED = 3
"""The maximum number of workers that a sentence names."""
_PRESENCE_DUE = timedelta(seconds=45)
"""Time within which a live worker reports again. Workers report every five seconds, but a report may be delayed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """The facts about one or more tasks that the rules use."""

    now: datetime
    rows: Mapping[UUID, Row] = field(default_factory=dict)
    """For each Ready task: its outbox entry, the owner and the head of its key, and the settings of its queue."""
    workers: Sequence[LiveWorker] = ()
    """The live workers."""
    labels: Mapping[UUID, str] = field(default_factory=dict)
    """Labels of the registered workers that run the tasks."""
    seen: Mapping[UUID, datetime] = field(default_factory=dict)
    """The time at which each of these workers was last seen."""
    keys: Mapping[tuple[str, str | None], KeyState] = field(default_factory=dict)
    """The states of the keys that have limits."""
    given_back: Mapping[UUID, tuple[int, datetime]] = field(default_factory=dict)
    """For each task, the number of consecutive releases as unknown, and the time of the first of these releases."""

    def key_of(self, task: TaskExecution) -> KeyState | None:
        """Return the state of the task's key; None if the task has no key, or its queue does not limit keys."""
        return self.keys.get((task.queue, task.partition_key))


def why(task: TaskExecution, facts: Facts, progress: Progress | None = None) -> Explanation:
    """Return the explanation of a Ready or Running task, as given by the first rule that applies.

    `progress` is the handler's last report, which the sentence mentions.
    """
    if task.status is TaskStatus.RUNNING:
        return _running(task, facts, progress)
    if (row := facts.rows.get(task.id)) is None:
        return inconsistent("it is Ready, but not in the outbox")
    found = (rule(task, row, facts) for rule in _RULES)
    return replace(next(one for one in found if one is not None), due_at=row["available_at"])


def _running(task: TaskExecution, facts: Facts, progress: Progress | None) -> Explanation:
    now, ends, worker_id = facts.now, task.lease_expires_at, task.worker_id
    if ends is None or worker_id is None:
        return inconsistent("it is Running without a lease")
    if _is_impossible_lease(task):
        return inconsistent(f"its lease of {task.lease_seconds} seconds ends at {ends}")
    label = facts.labels.get(worker_id)
    name = f"worker {label or worker_id}"
    if ends < now:
        ended = f"its lease expired {span_of(now - ends)} ago, and {name} has not extended it"
        if any(one.id != worker_id for one in facts.workers):
            return Explanation(Reason.LEASE_ENDED, f"{ended}; a live worker will recover the task")
        sentence = f"{ended}; there is no other live worker to recover the task; start one"
        return Explanation(Reason.LEASE_ENDED, sentence, _start(task))
    left = f"its lease expires in {span_of(ends - now)}"
    if task.cancel_requested_at is not None:
        asked = f"it was asked to stop at {written(task.cancel_requested_at)}"
        cures = cure_of("cancel it immediately", "task", "cancel", task.id, "--force")
        return Explanation(Reason.CANCEL_REQUESTED, f"{asked}, but {name} has not responded yet; {left}", cures)
    recovered = f"{left}, and the task is then recovered"
    signs = facts.seen.get(worker_id), task.started_at
    seen_at = last_sign(*signs, extended_until=ends, lease_seconds=task.lease_seconds, now=now)
    lost = of_lost(task.id) if is_lost(seen_at, now) else ()
    if label is None:
        return Explanation(Reason.WORKER_SILENT, f"its {name} is not registered; {recovered}", lost)
    if lost:
        silent_for = f"its {name} {unseen(now - seen_at)}: it was killed, cut off, or frozen"
        return Explanation(Reason.WORKER_SILENT, f"{silent_for}; {recovered}", lost)
    # A live worker would have extended the lease by now.
    silent = now - (ends - timedelta(seconds=task.lease_seconds))
    if silent.total_seconds() > task.lease_seconds * _OVERDUE:
        overdue = f"its {name} should have extended the lease, but has not done so in the last {span_of(silent)}"
        cures = cure_of("see the worker", "workers", "show", worker_id)
        return Explanation(Reason.WORKER_SILENT, f"{overdue}; {recovered}", cures)
    done = "" if progress is None else f"; its handler reported {progress}"
    sentence = f"{name} has been running it since {written(task.started_at)}{done}; {left} unless the worker extends it"
    if failing := next((one for one in facts.workers if one.id == worker_id and one.failure is not None), None):
        sentence += f"; the worker {failing.failure}"
    return Explanation(Reason.RUNNING, sentence, cure_of("ask it to stop", "task", "cancel", task.id))


def _is_impossible_lease(task: TaskExecution) -> bool:
    """Return whether the lease's end is not a time, or its length is impossible. No claim writes such a lease."""
    return isinstance(task.lease_expires_at, UnreadableInstant) or not 0 < task.lease_seconds <= LONGEST.total_seconds()


def _expired(task: TaskExecution, row: Row, facts: Facts) -> Explanation | None:
    """Return the reason if the task has expired. A claim records the expiry only if it could also have started the
    task.
    """
    if task.expires_at is None or task.expires_at > facts.now:
        return None
    expired = f"it expired at {written(task.expires_at)}"
    for rule in _KEEP_FROM_CLAIMS:
        if (found := rule(task, row, facts)) is not None:
            return replace(
                found, reason=Reason.EXPIRED, sentence=f"{expired}; the expiry is not recorded yet: {found.sentence}"
            )
    return Explanation(Reason.EXPIRED, f"{expired}; the next claim will record the expiry")


def _given_back(task: TaskExecution, row: Row, facts: Facts) -> Explanation | None:
    """Return the reason if a worker released the task as unknown and no live worker would run it."""
    due = row["available_at"]
    if task.id not in facts.given_back or due <= facts.now or (missing := _unmanned(task, row, facts)) is None:
        return None
    times, since = facts.given_back[task.id]
    released = "it has been released as unknown" + (f" {times} times since {written(since)}" if times > 1 else "")
    if missing.reason in {Reason.NO_WORKER, Reason.TOPIC_UNWANTED}:  # another worker like the last one would not help
        released += f", because the last worker did not know the task {task.task_name!r}; {IMPORT}"
        missing = replace(missing, cures=_start(task, "a worker that knows it"))
    when = f"it will be tried again in {span_of(due - facts.now)}, at {written(due)}"
    return replace(missing, sentence=f"{missing.sentence}; {released}; {when}")


def _not_yet(task: TaskExecution, row: Row, facts: Facts) -> Explanation | None:
    if (due := row["available_at"]) <= facts.now:
        return None
    when, cures = f"in {span_of(due - facts.now)}, at {written(due)}", cure_of("run it now", "task", "run-now", task.id)
    if task.retry_at is None:
        return Explanation(Reason.DELAYED, f"it is due {when}", cures)
    error = f" ({task.last_error})" if task.last_error else ""
    return Explanation(Reason.RETRY_LATER, f"attempt {task.attempt} is due {when}{error}", cures)


def _paused(task: TaskExecution, row: Row, facts: Facts) -> Explanation | None:
    if (since := row["paused_at"]) is None:
        return None
    why = f": {reason}" if (reason := row["pause_reason"]) else ""
    sentence = f"its queue has been paused since {written(since)}, for {span_of(facts.now - since)}{why}; resume it"
    return Explanation(Reason.QUEUE_PAUSED, sentence, cure_of("resume it", "queue", "resume", task.queue))


def _behind(task: TaskExecution, row: Row, facts: Facts) -> Explanation | None:
    """Return the reason if another task owns the key or comes before this task. In a queue that limits its keys, the
    tasks with a concurrency key are not ordered.
    """
    if task.partition_key is None or (task.concurrency_key is not None and facts.key_of(task) is not None):
        return None
    key = _name_of_key(task)
    if (other := row["owner"]) is not None:
        if row["held"]:
            sentence = f"its {key} is held by the dead letter {other}; redrive or discard the dead letter"
            return Explanation(Reason.KEY_HELD, sentence, of_dead_letter(other, "the dead letter"), other)
        sentence = f"task {other} has the same {key} and is running; only one task per key runs at a time"
        return Explanation(Reason.KEY_RUNNING, sentence, of_other(other), other)
    if (first := row["head"]) not in {None, task.id}:
        sentence = f"task {first} has the same {key} and comes first; it is due at {written(row['head_due'])}"
        return Explanation(Reason.KEY_WAITING, sentence, of_other(first), first)
    return None


def _name_of_key(task: TaskExecution) -> str:
    if task.concurrency_key is not None:
        return f"concurrency key {task.concurrency_key!r}"
    return f"partition key {task.partition_key!r}"


def _limited_key(task: TaskExecution, _row: Row, facts: Facts) -> Explanation | None:
    """Return the reason if the limits of the task's key do not allow a start now."""
    state, now = facts.key_of(task), facts.now
    if state is None or task.partition_key is None:
        return None
    most, rate = state.limits.key_concurrency, state.limits.key_rate
    if task.concurrency_key is not None and state.running >= most:
        sentence = (
            f"at most {_tasks(most)} with the {_name_of_key(task)} may run at a time; running now: {state.running}"
        )
        cure = cure_of("raise the limit", "queue", "limit", task.queue, "--concurrency-per-key", most + 1)
        return Explanation(Reason.KEY_LIMIT, sentence, cure)
    if rate is not None and rate.free(state.full_at, now) < 1 and state.full_at is not None:
        following = span_of(rate.next_start(state.full_at) - now)
        sentence = (
            f"at most {_tasks(rate.starts)} with the {_name_of_key(task)} may start in {_period(rate)}; the next start is possible in "
            f"{following}"
        )
        cure = cure_of("lift the limit", "queue", "limit", task.queue, "--per-key", "none")
        return Explanation(Reason.KEY_RATE, sentence, cure)
    return None


def _limited(task: TaskExecution, row: Row, facts: Facts) -> Explanation | None:
    """Return the reason if the limits of the task's queue do not allow a start now."""
    lift = partial(cure_of, "lift the limit", "queue", "limit", task.queue)
    if (most := row["concurrency_limit"]) is not None and (number := row["running"]) >= most:
        sentence = f"its queue may run at most {_tasks(most)} at a time; running now: {number}"
        return Explanation(Reason.CONCURRENCY_LIMIT, sentence, lift("--concurrency", "none"))
    rate, full_at = Bucket.of(row["rate_limit"], row["rate_seconds"]), row["rate_full_at"]
    if rate is not None and full_at is not None and rate.free(full_at, facts.now) < 1:
        sentence = (
            f"its queue may start at most {_tasks(rate.starts)} in {_period(rate)}; the next start is possible in "
            f"{span_of(rate.next_start(full_at) - facts.now)}"
        )
        return Explanation(Reason.RATE_LIMIT, sentence, lift("--rate", "none"))
    return None


def _tasks(number: int) -> str:
    return f"{number} {plural(number, 'task')}"


def _period(rate: Bucket) -> str:
    return span_of(timedelta(seconds=rate.seconds))


def _unmanned(task: TaskExecution, _row: Row, facts: Facts) -> Explanation | None:
    """Return the reason if no live worker knows the task and would run it."""
    here = [one for one in facts.workers if one.works_on(task.queue)]
    if not here:
        sentence = f"no live worker serves its queue {task.queue!r}"
        return Explanation(Reason.NO_WORKER, sentence, _start(task))
    taking = [one for one in here if one.takes(task.topic)]
    if not taking:
        what = "tasks without a topic" if task.topic is None else f"the topic {task.topic!r}"
        sentence = f"no live worker on its queue handles {what}"
        return Explanation(Reason.TOPIC_UNWANTED, sentence, _start(task))
    if knowing := [one for one in taking if task.task_name in one.task_names]:
        return None if any(one.asked_to is None for one in knowing) else _quiet(task, knowing)
    known = f"no live worker for its queue and topic knows the task {task.task_name!r}"
    return Explanation(Reason.TASK_UNKNOWN, f"{known}; {IMPORT}", _start(task, "a worker that knows it"))


def _quiet(task: TaskExecution, workers: Sequence[LiveWorker]) -> Explanation:
    named = ", ".join(f"{one.label} ({one.asked_to})" for one in workers[:_NAMED])
    sentence = f"all live workers that could run it were told to stop claiming tasks: {named}"
    if len(workers) > _NAMED:
        sentence += f" and {len(workers) - _NAMED} more"
    resumed = [one for one in workers if one.asked_to is WorkerOrder.QUIET]
    cure = cure_of("resume one of them", "workers", "resume", resumed[0].id) if resumed else _start(task)
    return Explanation(Reason.WORKERS_QUIET, sentence, cure)


def _due(task: TaskExecution, _row: Row, facts: Facts) -> Explanation:
    """Return the explanation for a due task that can start. If the task's workers have been silent or are failing, the
    sentence says so.
    """
    here = [one for one in facts.workers if one.works_on(task.queue) and one.takes(task.topic)]
    if (silent := facts.now - max(one.last_seen_at for one in here)) > _PRESENCE_DUE:
        sentence = f"it is due and can start, but no worker on its queue has been seen for {span_of(silent)}"
        return Explanation(Reason.DUE, sentence, _start(task))
    able = [one for one in here if task.task_name in one.task_names and one.asked_to is None]
    if able and all(one.failure is not None for one in able):
        first = min(able, key=lambda one: one.failing_since or facts.now)
        since = "" if first.failing_since is None else f", since {written(first.failing_since)}"
        cures = cure_of("see the worker", "workers", "show", first.id)
        return Explanation(
            Reason.DUE, f"it is due and can start, but worker {first.label} {first.failure}{since}", cures
        )
    return Explanation(Reason.DUE, "it is due and can start")


def _start(task: TaskExecution, what: str = "a worker") -> tuple[Cure, ...]:
    return cure_of(f"start {what}", "worker", "-q", task.queue)


_Rule = Callable[[TaskExecution, Row, Facts], Explanation | None]
_KEEP_FROM_CLAIMS: tuple[_Rule, ...] = (_not_yet, _paused, _behind, _limited_key, _limited)
"""The rules about what keeps a task from being claimed, no matter which workers are live."""
_RULES: tuple[_Rule, ...] = (_expired, _given_back, *_KEEP_FROM_CLAIMS, _unmanned, _due)
