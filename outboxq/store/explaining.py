"""Why a task does not run: one sentence, the most fundamental reason first."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

from ..database.column_types import UnreadableInstant
from ..database.dialects import Begin
from ..database.statements import explaining
from ..database.statements.explaining import MOST
from ..database.target import Target
from ..model import LONGEST, EventType, ExecutionEvent, TaskExecution, TaskStatus, status_after
from ..model.running import Progress
from ..model.schedules import SCHEDULE_HEADER, TICK_HEADER, TRIGGER_HEADER
from .arguments import identifier
from .claims import limits_sql
from .claims.limits import KeyState, limits_keys, states_of
from .claims.workers import LiveWorker, live_workers, releases_as_unknown, worker
from .progress import read_progress
from .reasons import Cure, Explanation, Reason, cure_of, inconsistent, of_dead_letter, of_other, span_of, written
from .tasks import tasks
from .tasks.operations import futile_redrives
from .tasks.tasks import event_of, execution_of, no_task
from .transactions import Transactions

_OVERDUE = 0.6
"""The share of a lease after which a living worker has extended it: it does so at a third, and at half of it at the latest."""
_PRESENCE_DUE = timedelta(seconds=45)
"""The time within which a living worker reports its presence again: it does so every 30 seconds, and a report may be slow."""


def explain(store: Transactions, task_id: UUID, *, using: object = None) -> Explanation:
    """Return why the task does not run, or what it does; of several reasons, the one to be dealt with first.

    A task that follows a batch or another task of a chain, and is not enqueued yet, is explained too.
    All is as of one moment, unless `using` is a connection with a weaker isolation. Raises TaskNotFound.
    """
    values = {"task_id": identifier(task_id)}

    def work(target: Target) -> Explanation:
        now = target.run(tasks.select_now, store.values(target))[0]["now"]
        found = target.run(tasks.select_task, values)
        if not found:
            from .links import explanation_of_link  # imported when there is no task: few commands need it

            if (link := explanation_of_link(target, task_id)) is not None:
                return link
            raise no_task(task_id)
        task = execution_of(found[0])
        return explanation_of(store, target, task, now, running_progress(target, task))

    return store.run(work, using=using, begin=Begin.SNAPSHOT)


def running_progress(target: Target, task: TaskExecution) -> Progress | None:
    """Return the progress of a running task, as this transaction sees it."""
    return read_progress(target, [task.id]).get(task.id) if task.status is TaskStatus.RUNNING else None


def explanation_of(
    store: Transactions, target: Target, task: TaskExecution, now: datetime, progress: Progress | None = None
) -> Explanation:
    """Return why the task does not run, as `explain` does."""
    why, origin = replace(_state(store, target, task, now, progress), progress=progress), origin_of(task.headers)
    return why if origin is None else replace(why, sentence=f"{why.sentence}; {origin}")


def _state(
    store: Transactions, target: Target, task: TaskExecution, now: datetime, progress: Progress | None
) -> Explanation:
    if task.status is TaskStatus.READY:
        return _waiting(store, target, task, now)
    if task.status is TaskStatus.RUNNING:
        return _running(target, task, now, progress)
    history = target.run(tasks.select_history, {"task_id": task.id})
    moves = [event for event in map(event_of, history) if status_after(event.event_type) is not None]
    if task.status is TaskStatus.FAILED:
        return _failed(target, task)
    return _ended(task, moves[-1] if moves else None)


def origin_of(headers: str | None) -> str | None:
    """Return a clause that names the schedule and the tick of a task; None for one that no schedule made."""
    if headers is None or SCHEDULE_HEADER not in headers:
        return None
    try:
        found = json.loads(headers)
        schedule = found[SCHEDULE_HEADER]
        if (by := found.get(TRIGGER_HEADER)) is not None:
            return f"it was triggered from the schedule {schedule!r}{f' by {by}' if by else ''}"
        return f"it is the tick of the schedule {schedule!r} for {written(datetime.fromisoformat(found[TICK_HEADER]))}"
    except (ValueError, TypeError, LookupError, AttributeError):
        return None  # no schedule wrote these


def _failed(target: Target, task: TaskExecution) -> Explanation:
    from .links import advice, batch_that_waits

    waits = batch_that_waits(target, task)
    why = f": {task.last_error}" if task.last_error else ""
    waiting = "" if waits is None else f"the {waits.kind} {waits.id} waits for it; "
    cures = of_dead_letter(task.id, "it")
    if refused := futile_redrives(target, {task.id}):
        do, cures = str(refused[task.id]).replace(f"task {task.id}", "it", 1), cures[1:]
    else:
        do = "redrive or discard it" if waits is None else advice(waits, "it")
    sentence = f"it failed at {written(task.completed_at)} in attempt {task.attempt}{why}; {waiting}{do}"
    return Explanation(Reason.FAILED, sentence, cures)


def _ended(task: TaskExecution, last: ExecutionEvent | None) -> Explanation:
    at = written(task.completed_at)
    if task.status is TaskStatus.COMPLETED:
        return Explanation(Reason.COMPLETED, f"it completed at {at}")
    kind, data = (last.event_type, last.event_data) if last else (None, {})
    if kind is EventType.EXPIRED:
        return Explanation(Reason.CANCELLED, f"it expired: it was not to be started after {written(task.expires_at)}")
    verb = "discarded as a dead letter" if kind is EventType.DISCARDED else "cancelled"
    why = f": {data['reason']}" if data.get("reason") else ""
    return Explanation(Reason.CANCELLED, f"it was {verb} at {at}{why}")


def _running(target: Target, task: TaskExecution, now: datetime, progress: Progress | None) -> Explanation:
    ends, worker_id = task.lease_expires_at, task.worker_id
    if ends is None or worker_id is None:
        return inconsistent("it is Running without a lease")
    if is_impossible_lease(task):
        return inconsistent(f"its lease of {task.lease_seconds} seconds ends at {ends}")
    found = worker(target, worker_id)
    name = f"worker {found.label if found else worker_id}"
    if ends < now:
        ended = f"its lease ended {span_of(now - ends)} ago, and {name} has not extended it"
        if any(one.id != worker_id for one in live_workers(target, now)):
            return Explanation(Reason.LEASE_ENDED, f"{ended}; a live worker takes it back")
        sentence = f"{ended}; no other live worker is there to take it back; start one"
        return Explanation(Reason.LEASE_ENDED, sentence, _another_worker(task.queue))
    left = f"its lease ends in {span_of(ends - now)}"
    if task.cancel_requested_at is not None:
        asked = f"it was asked to stop at {written(task.cancel_requested_at)}"
        cures = cure_of("not wait for it", "task", "cancel", task.id, "--force")
        return Explanation(Reason.CANCEL_REQUESTED, f"{asked}, and {name} has not answered yet; {left}", cures)
    if found is None:
        return Explanation(Reason.WORKER_SILENT, f"its {name} is not registered; {left} and it is then taken back")
    if silent := silence(task, ends, now):
        overdue = f"its {name} has not extended its lease for {span_of(silent)}, as it should have"
        return Explanation(Reason.WORKER_SILENT, f"{overdue}; {left} and it is then taken back")
    done = "" if progress is None else f"; its handler reported {progress}"
    sentence = f"{name} runs it since {written(task.started_at)}{done}; {left} unless that extends it"
    return Explanation(Reason.RUNNING, sentence, cure_of("ask it to stop", "task", "cancel", task.id))


def is_impossible_lease(task: TaskExecution) -> bool:
    """Return whether no claim can have written the task's lease: its end is no time, or its length is not possible."""
    return isinstance(task.lease_expires_at, UnreadableInstant) or not 0 < task.lease_seconds <= LONGEST.total_seconds()


def silence(task: TaskExecution, ends: datetime, now: datetime) -> timedelta | None:
    """Return the time since the lease was extended; None where a living worker need not have extended it since."""
    silent = now - (ends - timedelta(seconds=task.lease_seconds))
    return silent if silent.total_seconds() > task.lease_seconds * _OVERDUE else None


def _waiting(store: Transactions, target: Target, task: TaskExecution, now: datetime) -> Explanation:
    """Try the rules in their order; the first that speaks is the reason."""
    values = {"now": now, "task_id": task.id, "queue": task.queue, "partition_key": task.partition_key}
    if not (entry := target.run(explaining.entry, values)):
        return inconsistent("it is Ready, but not in the outbox")
    settings = next(iter(target.run(explaining.settings, values)), {})
    state = None
    if limits_keys(settings):
        state = states_of(store, target, [(task.queue, task.partition_key)]).get((task.queue, task.partition_key))
    due, values = entry[0]["available_at"], {**values, **entry[0], "entry_id": entry[0]["id"]}
    found = (
        expired(task, now)
        or _given_back(target, task, due, now)
        or not_yet(task, due, now)
        or closed(task.queue, settings, now)
        or (None if runs_in_no_order(task, state) else _behind(target, task, values))
        or limited_key(task, state, now)
        or limited(
            task.queue,
            settings,
            now,
            lambda: int(target.run(limits_sql.running, values)[0]["tasks"]),
        )
    )
    if found is None:
        workers = live_workers(target, now)
        found = unmanned(task, workers) or _next(target, task, values, workers)
    return replace(found, due_at=due)


def expired(task: TaskExecution, now: datetime) -> Explanation | None:
    if task.expires_at is None or task.expires_at > now:
        return None
    sentence = f"it expired at {written(task.expires_at)}; that is recorded as soon as a worker comes by it"
    return Explanation(Reason.EXPIRED, sentence)


def _given_back(target: Target, task: TaskExecution, due: datetime, now: datetime) -> Explanation | None:
    """A worker that did not know it gave it back, and there is still no live worker to run it."""
    if due <= now or not (found := releases_as_unknown(target, [(task.id, task.lease_token)])):
        return None
    if (missing := unmanned(task, live_workers(target, now))) is None:
        return None
    (times, since), when = found[task.id], f"it is tried again in {span_of(due - now)}, at {written(due)}"
    known = f"given back as unknown since {written(since)}, {times} times" if times > 1 else "given back as unknown"
    return replace(missing, sentence=f"{missing.sentence}; {known}; {when}")


def not_yet(task: TaskExecution, due: datetime, now: datetime) -> Explanation | None:
    if due <= now:
        return None
    when, cures = f"in {span_of(due - now)}, at {written(due)}", cure_of("run it now", "task", "run-now", task.id)
    if task.retry_at is None:
        return Explanation(Reason.DELAYED, f"it is due {when}", cures)
    why = f" ({task.last_error})" if task.last_error else ""
    return Explanation(Reason.RETRY_LATER, f"attempt {task.attempt} is due {when}{why}", cures)


def closed(queue: str, settings: Mapping[str, Any], now: datetime) -> Explanation | None:
    if (since := settings.get("paused_at")) is None:
        return None
    sentence = f"its queue is paused since {written(since)}, for {span_of(now - since)}; resume it"
    return Explanation(Reason.QUEUE_PAUSED, sentence, cure_of("resume it", "queue", "resume", queue))


def _behind(target: Target, task: TaskExecution, values: Mapping[str, Any]) -> Explanation | None:
    """Its key is another's, or another is before it."""
    if task.partition_key is None:
        return None
    key = _name_of_key(task)
    if owners := target.run(explaining.holder, values):
        other = owners[0]["task_execution_id"]
        if owners[0]["held"]:
            sentence = f"{key} is held by the dead letter {other}; redrive or discard that"
            return Explanation(Reason.KEY_HELD, sentence, of_dead_letter(other, "the dead letter"), other)
        sentence = f"task {other} of {key} is running, and one of a key runs at a time"
        return Explanation(Reason.KEY_RUNNING, sentence, of_other(other), other)
    head = target.run(explaining.head, values)
    if head and (other := head[0]["task_execution_id"]) != task.id:
        sentence = f"task {other} of {key} comes first; that is due at {written(head[0]['available_at'])}"
        return Explanation(Reason.KEY_WAITING, sentence, of_other(other), other)
    return None


def _name_of_key(task: TaskExecution) -> str:
    if task.concurrency_key is not None:
        return f"its concurrency key {task.concurrency_key!r}"
    return f"its partition key {task.partition_key!r}"


def runs_in_no_order(task: TaskExecution, state: KeyState | None) -> bool:
    """Return whether the tasks of its key run beside each other: it has a concurrency key, in a queue that limits its keys."""
    return state is not None and task.concurrency_key is not None


def limited_key(task: TaskExecution, state: KeyState | None, now: datetime) -> Explanation | None:
    """Return the reason if the task's key may start nothing now. `state` is that of the key; None: it is not limited."""
    if state is None or task.partition_key is None:
        return None
    lift = partial(cure_of, "raise the limit", "queue", "limit", task.queue)
    most, rate = state.limits.key_concurrency, state.limits.key_rate
    if task.concurrency_key is not None and state.running >= most:
        sentence = f"{_name_of_key(task)} may run {most} at a time, and runs {state.running}"
        return Explanation(Reason.KEY_LIMIT, sentence, lift("--concurrency-per-key", most + 1))
    if rate is not None and rate.free(state.full_at, now) < 1 and state.full_at is not None:
        following = state.full_at - timedelta(seconds=rate.seconds - rate.interval)
        each = f"{rate.starts} in {span_of(timedelta(seconds=rate.seconds))}"
        sentence = f"{_name_of_key(task)} may start {each}; the next may start in {span_of(following - now)}"
        return Explanation(Reason.KEY_RATE, sentence, lift("--per-key", "none"))
    return None


def limited(queue: str, settings: Mapping[str, Any], now: datetime, running: Callable[[], int]) -> Explanation | None:
    """Return the reason if the queue starts no task now; `running` counts those that run there."""
    lift = partial(cure_of, "lift the limit", "queue", "limit", queue)
    if (most := settings.get("concurrency_limit")) is not None and (number := running()) >= most:
        sentence = f"its queue may run {most} at a time, and runs {number}"
        return Explanation(Reason.CONCURRENCY_LIMIT, sentence, lift("--concurrency", "none"))
    starts, seconds, full_at = (settings.get(name) for name in ("rate_limit", "rate_seconds", "rate_full_at"))
    if starts is not None and seconds is not None and full_at is not None:
        following = full_at - timedelta(seconds=seconds - seconds / starts)
        if following > now:
            each = f"{starts} in {span_of(timedelta(seconds=seconds))}"
            sentence = f"its queue may start {each}; the next may start in {span_of(following - now)}"
            return Explanation(Reason.RATE_LIMIT, sentence, lift("--rate", "none"))
    return None


def unmanned(task: TaskExecution, workers: list[LiveWorker]) -> Explanation | None:
    """Return the reason if no live worker takes the task, or none of those knows it."""
    here = [one for one in workers if one.works_on(task.queue)]
    if not here:
        sentence = f"no live worker works on its queue {task.queue!r}"
        return Explanation(Reason.NO_WORKER, sentence, _another_worker(task.queue))
    taking = [one for one in here if one.takes(task.topic)]
    if not taking:
        what = "tasks without a topic" if task.topic is None else f"the topic {task.topic!r}"
        sentence = f"no live worker on its queue takes {what}"
        return Explanation(Reason.TOPIC_UNWANTED, sentence, _another_worker(task.queue))
    if any(task.task_name in one.task_names for one in taking):
        return None
    known = f"no live worker that would take it knows the task {task.task_name!r}"
    cure = cure_of("start a worker that knows it", "worker", "-q", task.queue)
    return Explanation(Reason.TASK_UNKNOWN, f"{known}; import its module where the worker starts", cure)


def _next(target: Target, task: TaskExecution, values: Mapping[str, Any], workers: list[LiveWorker]) -> Explanation:
    seen_at = max(one.last_seen_at for one in workers if one.works_on(task.queue) and one.takes(task.topic))
    if (silent := values["now"] - seen_at) > _PRESENCE_DUE:
        sentence = f"it is due and free, but no worker on its queue has been seen for {span_of(silent)}"
        return Explanation(Reason.DUE, sentence, _another_worker(task.queue))
    before = target.run(explaining.ahead, values)[0]["tasks"]
    many = f"more than {MOST}" if before > MOST else str(before)
    place = f"; due tasks of its queue before it: {many}" if before else ", and the next claim takes it"
    return Explanation(Reason.DUE, f"it is due and free{place}")


def _another_worker(queue: str) -> tuple[Cure, ...]:
    return cure_of("start a worker", "worker", "-q", queue)
