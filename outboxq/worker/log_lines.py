"""The lines that are logged when a worker starts and when an attempt ends. The first line answers the usual questions
about a task that is not running. The line about a failure names its exception. An exception's message may contain
personal data. The traceback contains the messages of all exceptions that led to this exception, and a database error
contains the statement with its parameters. Therefore the line contains only the type and the first line of the message,
where libraries usually describe the error without the values. The whole exception is in `exc_info`, as usual in Python
when an error is logged: error trackers need it, and the application's formatter decides whether to print it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, timedelta

from ..context import TaskContext
from ..integration import FrontEnd
from ..integration.hooks import WorkerInfo
from ..model import EventType, Outcome
from ..model.records import OUTCOMES, fields_of
from ..model.wording import plural
from ..store import Store
from ..store.numbers.health import ADD_RETENTION
from ..store.numbers.maintenance_jobs import PRUNE

log = logging.getLogger("outboxq.worker")

_LEVELS = {EventType.RETRY_SCHEDULED: logging.WARNING, EventType.FAILED: logging.ERROR}
_LONGEST = 300
"""The maximum number of characters that are copied from a message into a line."""
_MOST = 10
"""The maximum number of names that a line contains."""


def introduce(worker: WorkerInfo, store: Store, *, hears: str, front_end: FrontEnd) -> None:
    """Log that the worker has started, and name its database, its queues, and the way in which it notices new tasks. If
    nothing deletes old tasks, or no worker runs the task that would delete them, name the command that fixes this. Warn
    about a worker that knows no tasks, and about a queue whose name may be mistyped.

    The record also has these values as fields, for programs that read the log.
    """
    queues, topics, task_names, url = worker.queues, worker.topics, worker.task_names, store.bound_engine.url
    where = store.dialect.place(url, lambda: None)
    takes = "all queues" if queues is None else f"the {_counted(queues, 'queue')}"
    of_topics = "" if topics is None else f", only tasks with the topics {_named(topics)}"
    knows = f"knows {_counted(task_names, 'task')}" if task_names else "knows no tasks"
    deletes = store.deletes_old_tasks()
    advice = "" if deletes else f"; nothing deletes old tasks ({front_end.typed(ADD_RETENTION.command)})"
    if (unserved := _unserved_retention(store, worker)) is not None:
        start = front_end.typed(("worker", "-q", unserved))
        advice += f"; no live worker serves the queue {unserved}, whose task {PRUNE} deletes old tasks ({start})"
    does = f"on {where}: {takes}{of_topics}, {worker.concurrency} at once; {hears}; {knows}{advice}"
    about = fields_of_worker(worker)
    fields = {
        **about,
        "database": store.dialect.address(url),
        "schema": store.schema,
        "queues": queues,
        "topics": topics,
        "concurrency": worker.concurrency,
        "hears": hears,
        "tasks": len(task_names),
        "task_names": task_names[:_MOST],
        "deletes_old_tasks": deletes,
    }
    log.info("worker %s (%s) started %s", worker.label, worker.id, does, extra=fields)
    if not task_names:
        idle = "this worker knows no tasks; where the worker starts, import the modules that declare them"
        log.warning("%s", idle, extra=about)
    for sentence in store.queues.unused(queues or ()):
        log.warning("%s", sentence, extra=about)


def fields_of_worker(worker: WorkerInfo) -> dict[str, str]:
    """Return the fields of a record about a worker, for `extra=`."""
    return {"worker": str(worker.id), "label": worker.label}


@dataclass(frozen=True, kw_only=True)
class EndLog:
    """Logs how attempts end: a failure at WARNING if another attempt follows, otherwise at ERROR; any other outcome at
    INFO.

    Each record has the fields that `fields_of` returns, and also `duration_ms`, `outcome` and `event`. A failure's
    record also has `exception`, a dict with the keys `type` (the module and the name) and `message` (the message's
    first line).
    """

    tracebacks: bool | None = None
    """The failure records that include `exc_info`. True means all of them, and False none of them. None means the
    records of final attempts, or all records if the level is DEBUG.
    """
    front_end: FrontEnd = field(default_factory=FrontEnd)
    """Knows how users type the command `task show`."""

    def write(self, outcome: Outcome, context: TaskContext, seconds: float) -> None:
        """Log how an attempt that ran for this many seconds ended. `context.error` is the exception that the attempt
        raised.
        """
        kind = outcome.event_type
        level = _LEVELS.get(kind, logging.INFO)
        if not log.isEnabledFor(level):
            return
        claim = outcome.claim
        extra = fields_of(
            claim, duration_ms=round(seconds * 1000, 3), outcome=OUTCOMES.get(kind, str(kind)), event=str(kind)
        )
        text = f"{claim}: {kind} in {seconds:.3f} s"
        if level == logging.INFO:
            because = f": {outcome.data['reason']}" if kind is EventType.SNOOZED and "reason" in outcome.data else ""
            log.log(level, "%s", text + _following(outcome) + because, extra=extra)
            return
        extra["exception"] = {"type": outcome.data.get("exception"), "message": _message(outcome)}
        of_all = "" if context.max_attempts is None else f" of {context.max_attempts}"
        text += f", attempt {claim.attempt}{of_all}{_following(outcome)}"
        if kind is EventType.FAILED and claim.attempt != context.max_attempts:
            text += ", which was the last one"
        text += f": {_first_line(outcome.error or '')}"
        if broken := outcome.data.get("policy_error"):
            text += f"; its retry policy failed: {_first_line(broken)}"
        if kind is EventType.FAILED:
            text += f"; see: {self.front_end.typed(('task', 'show', str(claim.id), '--traceback'))}"
        has_traceback = self.tracebacks
        if has_traceback is None:
            has_traceback = kind is EventType.FAILED or log.isEnabledFor(logging.DEBUG)
        log.log(level, "%s", text, extra=extra, exc_info=context.error if has_traceback else None)


def _unserved_retention(store: Store, worker: WorkerInfo) -> str | None:
    """Return the queue of the schedule that deletes old tasks if no live worker runs its task; otherwise None."""
    if worker.queues is None and worker.topics is None:
        return None
    for schedule in store.schedules.list():
        if schedule.task_name == PRUNE and schedule.paused_at is None:
            workers = store.workers.list()
            served = any(one.works_on(schedule.queue) and one.takes(None) for one in workers)
            return None if served else schedule.queue
    return None


def _following(outcome: Outcome) -> str:
    """Return a phrase that says when the task runs again; empty if it runs again immediately or not at all."""
    name = "next attempt" if outcome.event_type is EventType.RETRY_SCHEDULED else "runs again"
    if outcome.available_at is not None:
        return f", {name} at {outcome.available_at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
    if outcome.event_type is EventType.RETRY_SCHEDULED or outcome.delay > timedelta(0):
        return f", {name} in {outcome.delay.total_seconds():.1f} s"
    return ""


def _message(outcome: Outcome) -> str:
    """Return the first line of the message, without the type name that precedes it in `outcome.error`."""
    line = _first_line(outcome.error or "")
    name, _, message = line.partition(":")
    return message.strip() if str(outcome.data.get("exception", "")).endswith(f".{name}") else line


def _first_line(text: str) -> str:
    """Return the first line, shortened, with unprintable characters escaped, because a message must not control a
    terminal.
    """
    line = text.strip().partition("\n")[0].strip()
    cut = line if len(line) <= _LONGEST else f"{line[:_LONGEST]} ..."
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in cut)


def _counted(names: Sequence[str], noun: str) -> str:
    return f"{noun} {names[0]}" if len(names) == 1 else f"{len(names)} {plural(len(names), noun)} {_named(names)}"


def _named(names: Sequence[str]) -> str:
    left = len(names) - _MOST
    return ", ".join(names[:_MOST]) + (f" and {left} more" if left > 0 else "")
