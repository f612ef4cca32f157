"""Why a task does not run: one sentence, the most fundamental reason first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any
from uuid import UUID

from ..database.column_types import UnreadableInstant
from ..database.dialects import Begin, Row
from ..database.statements import explaining, limits, reading
from ..database.statements.explaining import MOST
from ..database.target import Target
from ..errors import TaskNotFound
from ..model import LONGEST, EventType, ExecutionEvent, TaskExecution, TaskStatus, status_after
from .arguments import identifier
from .reading import event_of, execution_of
from .registry import LiveWorker, live_workers, worker
from .transactions import Transactions
from .unknown import releases_as_unknown

_OVERDUE = 0.6
"""The share of a lease after which a living worker has extended it: it does so at a third, and at half of it at the latest."""


_PRESENCE_DUE = timedelta(seconds=45)
"""The time within which a living worker reports its presence again: it does so every 30 seconds, and a report may be slow."""


class Reason(StrEnum):
    """The reason why a task is where it is."""

    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    CANCEL_REQUESTED = "cancel_requested"
    """The task runs, and was asked to stop."""
    LEASE_ENDED = "lease_ended"
    """The lease has ended; the task is about to be taken back."""
    WORKER_SILENT = "worker_silent"
    """The worker may be dead; the lease is not over yet."""
    RUNNING = "running"
    EXPIRED = "expired"
    RETRY_LATER = "retry_later"
    DELAYED = "delayed"
    QUEUE_PAUSED = "queue_paused"
    KEY_HELD = "key_held"
    """A dead letter holds the task's partition key."""
    KEY_RUNNING = "key_running"
    KEY_WAITING = "key_waiting"
    """An earlier task of the same partition key comes first."""
    CONCURRENCY_LIMIT = "concurrency_limit"
    RATE_LIMIT = "rate_limit"
    NO_WORKER = "no_worker"
    TOPIC_UNWANTED = "topic_unwanted"
    TASK_UNKNOWN = "task_unknown"
    DUE = "due"
    """Nothing prevents the task from starting."""
    INCONSISTENT = "inconsistent"
    """The tables disagree about the task; see `verify`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cure:
    """A command that helps."""

    purpose: str
    """Purpose of the command in words: ``resume it``."""
    command: tuple[str, ...]
    """Words after the program's name, for `FrontEnd.typed`: ``("queue", "resume", "mail")``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Explanation:
    """The answer of `explain`: the reason why a task does not run, and commands that help."""

    reason: Reason
    sentence: str
    waits_for: UUID | None = None
    """Id of the task that comes first."""
    due_at: datetime | None = None
    """Due time of a Ready task; None in any other status."""
    cures: tuple[Cure, ...] = ()
    """Commands that help; empty if none does."""


def explain(store: Transactions, task_id: UUID, *, using: object = None) -> Explanation:
    """Why the task does not run, or what it does; of several reasons, the one to be dealt with first.

    All is as of one moment, unless `using` is a connection with a weaker isolation. Raises TaskNotFound.
    """
    values = {"task_id": identifier(task_id)}

    def work(target: Target) -> Explanation:
        now = target.run(reading.now, store.values(target))[0]["now"]
        found = target.run(reading.get, values)
        if not found:
            raise TaskNotFound(f"there is no task {task_id}")
        task = execution_of(found[0])
        if task.status is TaskStatus.READY:
            return _waiting(target, task, now)
        if task.status is TaskStatus.RUNNING:
            return _running(target, task, now)
        history = target.run(reading.history, values)
        moves = [event for event in map(event_of, history) if status_after(event.event_type) is not None]
        return _ended(task, moves[-1] if moves else None)

    return store.run(work, using=using, begin=Begin.SNAPSHOT)


def _ended(task: TaskExecution, last: ExecutionEvent | None) -> Explanation:
    at = _at(task.completed_at)
    if task.status is TaskStatus.COMPLETED:
        return Explanation(reason=Reason.COMPLETED, sentence=f"it completed at {at}")
    if task.status is TaskStatus.FAILED:
        why = f": {task.last_error}" if task.last_error else ""
        sentence = f"it failed at {at} in attempt {task.attempt}{why}; redrive or discard it"
        return Explanation(reason=Reason.FAILED, sentence=sentence, cures=_of_dead_letter(task.id, "it"))
    if last is not None and last.event_type is EventType.EXPIRED:
        sentence = f"it expired: it was not to be started after {_at(task.expires_at)}"
    else:
        discarded = last is not None and last.event_type is EventType.DISCARDED
        reason = last.event_data.get("reason") if last is not None else None
        verb = "discarded as a dead letter" if discarded else "cancelled"
        sentence = f"it was {verb} at {at}" + (f": {reason}" if reason else "")
    return Explanation(reason=Reason.CANCELLED, sentence=sentence)


def _running(target: Target, task: TaskExecution, now: datetime) -> Explanation:
    ends, worker_id = task.lease_expires_at, task.worker_id
    if ends is None or worker_id is None:
        return _inconsistent("it is Running without a lease")
    if isinstance(ends, UnreadableInstant) or not 0 < task.lease_seconds <= LONGEST.total_seconds():
        return _inconsistent(f"its lease of {task.lease_seconds} seconds ends at {ends}")
    found = worker(target, worker_id)
    name = f"worker {worker_id}" if found is None else f"worker {found.label}"
    left = f"its lease ends in {_span(ends - now)}"
    silent = now - (ends - timedelta(seconds=task.lease_seconds))
    cures: tuple[Cure, ...] = ()
    if ends < now:
        others = [one for one in live_workers(target, now) if one.id != worker_id]
        back = "a live worker takes it back" if others else "no other live worker is there to take it back; start one"
        sentence = f"its lease ended {_span(now - ends)} ago, and {name} has not extended it; {back}"
        reason, cures = Reason.LEASE_ENDED, () if others else (_another_worker(task.queue),)
    elif task.cancel_requested_at is not None:
        asked = f"it was asked to stop at {_at(task.cancel_requested_at)}"
        reason, sentence = Reason.CANCEL_REQUESTED, f"{asked}, and {name} has not answered yet; {left}"
        cures = (_cure("not wait for it", "task", "cancel", task.id, "--force"),)
    elif found is None:
        reason, sentence = Reason.WORKER_SILENT, f"its {name} is not registered; {left} and it is then taken back"
    elif is_overdue(silent, task):
        overdue = f"its {name} has not extended its lease for {_span(silent)}, as it should have"
        reason, sentence = Reason.WORKER_SILENT, f"{overdue}; {left} and it is then taken back"
    else:
        reason, sentence = Reason.RUNNING, f"{name} runs it since {_at(task.started_at)}; {left} unless that extends it"
    return Explanation(reason=reason, sentence=sentence, cures=cures)


def is_overdue(silent: timedelta, task: TaskExecution) -> bool:
    """Return whether a living worker would have extended the lease within this time."""
    return silent.total_seconds() > task.lease_seconds * _OVERDUE


def _waiting(target: Target, task: TaskExecution, now: datetime) -> Explanation:
    values = {"now": now, "task_id": task.id, "queue": task.queue, "partition_key": task.partition_key}
    entry = target.run(explaining.entry, values)
    if not entry:
        return _inconsistent("it is Ready, but not in the outbox")
    found = target.run(explaining.settings, values)
    settings: Row = found[0] if found else {}
    due = entry[0]["available_at"]
    return replace(_hindrance(target, task, {**values, **entry[0], "entry_id": entry[0]["id"]}, settings), due_at=due)


def _hindrance(
    target: Target, task: TaskExecution, values: Mapping[str, Any], settings: Mapping[str, Any]
) -> Explanation:
    """The rules in their order; the first that speaks is the reason."""
    now, due = values["now"], values["available_at"]
    if found := expired(task, now) or _given_back(target, task, due, now) or not_yet(task, due, now):
        return found
    if found := closed(task.queue, settings, now):
        return found
    if task.partition_key is not None and (found := _behind(target, task, values)):
        return found
    workers = live_workers(target, now)
    return limited(target, settings, values, now) or unmanned(task, workers) or _next(target, task, values, workers)


def expired(task: TaskExecution, now: datetime) -> Explanation | None:
    if task.expires_at is None or task.expires_at > now:
        return None
    sentence = f"it expired at {_at(task.expires_at)}; that is recorded as soon as a worker comes by it"
    return Explanation(reason=Reason.EXPIRED, sentence=sentence)


def _given_back(target: Target, task: TaskExecution, due: datetime, now: datetime) -> Explanation | None:
    """A worker that did not know it gave it back, and there is still no live worker to run it."""
    if due <= now or not (found := releases_as_unknown(target, [(task.id, task.lease_token)])):
        return None
    if (missing := unmanned(task, live_workers(target, now))) is None:
        return None
    (times, since), when = found[task.id], f"it is tried again in {_span(due - now)}, at {_at(due)}"
    known = f"given back as unknown since {_at(since)}, {times} times" if times > 1 else "given back as unknown"
    return replace(missing, sentence=f"{missing.sentence}; {known}; {when}")


def not_yet(task: TaskExecution, due: datetime, now: datetime) -> Explanation | None:
    if due <= now:
        return None
    when = f"in {_span(due - now)}, at {_at(due)}"
    if task.retry_at is not None:
        why = f" ({task.last_error})" if task.last_error else ""
        sentence, reason = f"attempt {task.attempt} is due {when}{why}", Reason.RETRY_LATER
    else:
        sentence, reason = f"it is due {when}", Reason.DELAYED
    return Explanation(reason=reason, sentence=sentence, cures=(_cure("run it now", "task", "run-now", task.id),))


def closed(queue: str, settings: Mapping[str, Any], now: datetime) -> Explanation | None:
    if (since := settings.get("paused_at")) is None:
        return None
    sentence = f"its queue is paused since {_at(since)}, for {_span(now - since)}; resume it"
    return Explanation(
        reason=Reason.QUEUE_PAUSED, sentence=sentence, cures=(_cure("resume it", "queue", "resume", queue),)
    )


def _behind(target: Target, task: TaskExecution, values: Mapping[str, Any]) -> Explanation | None:
    """Its key is another's, or another is before it."""
    key = f"its partition key {task.partition_key!r}"
    for owner in target.run(explaining.holder, values):
        other = owner["task_execution_id"]
        if owner["held"]:
            sentence = f"{key} is held by the dead letter {other}; redrive or discard that"
            return Explanation(
                reason=Reason.KEY_HELD,
                sentence=sentence,
                waits_for=other,
                cures=_of_dead_letter(other, "the dead letter"),
            )
        sentence = f"task {other} of {key} is running, and one of a key runs at a time"
        return Explanation(reason=Reason.KEY_RUNNING, sentence=sentence, waits_for=other, cures=_of_other(other))
    for head in target.run(explaining.head, values):
        if (other := head["task_execution_id"]) != task.id:
            sentence = f"task {other} of {key} comes first; that is due at {_at(head['available_at'])}"
            return Explanation(reason=Reason.KEY_WAITING, sentence=sentence, waits_for=other, cures=_of_other(other))
    return None


def limited(
    target: Target, settings: Mapping[str, Any], values: Mapping[str, Any], now: datetime
) -> Explanation | None:
    queue = values["queue"]
    if (most := settings.get("concurrency_limit")) is not None:
        running = target.run(limits.running, values)[0]["tasks"]
        if running >= most:
            sentence = f"its queue may run {most} at a time, and runs {running}"
            cures = (_cure("lift the limit", "queue", "limit", queue, "--concurrency", "none"),)
            return Explanation(reason=Reason.CONCURRENCY_LIMIT, sentence=sentence, cures=cures)
    if (starts := settings.get("rate_limit")) is not None and settings["rate_full_at"] is not None:
        seconds = settings["rate_seconds"]
        following = settings["rate_full_at"] - timedelta(seconds=seconds - seconds / starts)
        if following > now:
            each = f"{starts} in {_span(timedelta(seconds=seconds))}"
            sentence = f"its queue may start {each}; the next may start in {_span(following - now)}"
            cures = (_cure("lift the limit", "queue", "limit", queue, "--rate", "none"),)
            return Explanation(reason=Reason.RATE_LIMIT, sentence=sentence, cures=cures)
    return None


def unmanned(task: TaskExecution, workers: list[LiveWorker]) -> Explanation | None:
    """Return the reason if no live worker takes the task, or none of those knows it."""
    here = [one for one in workers if one.works_on(task.queue)]
    taking = [one for one in here if one.takes(task.topic)]
    cures: tuple[Cure, ...] = (_another_worker(task.queue),)
    if not here:
        reason, sentence = Reason.NO_WORKER, f"no live worker works on its queue {task.queue!r}"
    elif not taking:
        what = "tasks without a topic" if task.topic is None else f"the topic {task.topic!r}"
        reason, sentence = Reason.TOPIC_UNWANTED, f"no live worker on its queue takes {what}"
    elif not any(task.task_name in one.task_names for one in taking):
        known = f"no live worker that would take it knows the task {task.task_name!r}"
        reason, sentence, cures = Reason.TASK_UNKNOWN, f"{known}; import its module where the worker starts", ()
    else:
        return None
    return Explanation(reason=reason, sentence=sentence, cures=cures)


def _next(target: Target, task: TaskExecution, values: Mapping[str, Any], workers: list[LiveWorker]) -> Explanation:
    seen_at = max(one.last_seen_at for one in workers if one.works_on(task.queue) and one.takes(task.topic))
    if (silent := values["now"] - seen_at) > _PRESENCE_DUE:
        sentence = f"it is due and free, but no worker on its queue has been seen for {_span(silent)}"
        return Explanation(reason=Reason.DUE, sentence=sentence, cures=(_another_worker(task.queue),))
    before = target.run(explaining.ahead, values)[0]["tasks"]
    many = f"more than {MOST}" if before > MOST else str(before)
    place = f"; due tasks of its queue before it: {many}" if before else ", and the next claim takes it"
    sentence = f"it is due and free{place}"
    return Explanation(reason=Reason.DUE, sentence=sentence)


def _inconsistent(what: str) -> Explanation:
    cures = (_cure("put it right", "verify", "--repair"),)
    return Explanation(reason=Reason.INCONSISTENT, sentence=f"{what}; verify and repair the tables", cures=cures)


def _of_dead_letter(task_id: UUID, which: str) -> tuple[Cure, ...]:
    redrive = _cure(f"redrive {which}", "failed", "redrive", task_id)
    return redrive, _cure(f"discard {which}", "failed", "discard", task_id)


def _of_other(task_id: UUID) -> tuple[Cure, ...]:
    return (_cure("see why that does not end", "task", "explain", task_id),)


def _another_worker(queue: str) -> Cure:
    return _cure("start a worker", "worker", "-q", queue)


def _cure(purpose: str, *words: object) -> Cure:
    return Cure(purpose=purpose, command=tuple(str(word) for word in words))


def _at(moment: datetime | None) -> str:
    return "an unknown time" if moment is None else f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def _span(span: timedelta) -> str:
    """Return the span in one or two units: 0.2 s, 12 s, 3 min 5 s, 2 h, 4 d 1 h."""
    seconds = span.total_seconds()
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole, parts = round(seconds), []
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        count, whole = divmod(whole, length)
        if count:
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2])
