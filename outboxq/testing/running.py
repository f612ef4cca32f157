"""Run a claim in the test's thread, with the same code as a worker."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from copy import copy
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from functools import wraps
from typing import Any
from uuid import UUID

from ..context import TaskContext, UnitOfWork
from ..errors import UnknownTask
from ..integration import Integration
from ..model import UNKNOWN_TASK, Claim, EventType, Outcome, Retry
from ..model.running import LogLine, Progress, Step, log_of, progress_of
from ..model.schedules import SCHEDULE_HEADER, ZONE_HEADER, NewSchedule
from ..model.unknown_options import nearest
from ..model.uuid7 import uuid7
from ..model.wording import plural
from ..outbox import Outbox
from ..store import NewStep, Store, Written
from ..task import Task
from ..worker.executor import context_of, released
from ..worker.failpoints import ignore_failpoint
from ..worker.handler_log import keeping
from ..worker.leases import ActiveClaim, ClaimState, Leases
from ..worker.steps import Call, StepRows, Steps
from ..worker.task_runner import Application, HandlerRunner, TaskRunner
from .enqueued import arguments_of, how_often
from .transaction import TestTransaction

_FAILURES = {EventType.FAILED, EventType.RETRY_SCHEDULED}


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskRun:
    """One attempt at a task, with its outcome."""

    id: UUID
    task_name: str
    args: Mapping[str, Any]
    """The arguments as the handler received them, or as JSON if they could not be read."""
    attempt: int
    outcome: EventType | None
    """COMPLETED, RETRY_SCHEDULED, FAILED, SNOOZED, CANCELLED or RELEASED; None if no outcome was recorded because the
    lease was lost.
    """
    result: Any = None
    """The returned value as it was stored, after conversion to JSON."""
    error: BaseException | None = field(default=None, repr=False)
    """The exception that the handler raised."""
    progress: Progress | None = None
    """The last progress that the handler reported."""
    log: tuple[LogLine, ...] = field(default=(), repr=False)
    """The last lines that the handler logged at INFO and above, if its loggers are configured to let them through."""
    steps: Mapping[str, Any] = field(default_factory=dict)
    """The results of the task's steps, by name, in the order in which the handler received them in this run."""

    @property
    def is_failure(self) -> bool:
        """True if the attempt failed. Snooze, Cancel, and a Retry that leads to another attempt do not count as
        failures.
        """
        if isinstance(self.error, Retry) and self.outcome is EventType.RETRY_SCHEDULED:
            return False
        return self.error is not None or self.outcome is None or self.outcome in _FAILURES

    def failure(self) -> BaseException:
        """Return the error, with a note that names the task and the attempt."""
        error = self.error or OutcomeDiscarded("the task lost its lease, so its outcome was discarded")
        given = ", ".join(f"{name}={value!r}" for name, value in self.args.items())
        note = f"in task {self.task_name}({given}), attempt {self.attempt}: {self.outcome or 'lease lost'}"
        if note not in getattr(error, "__notes__", ()):
            error.add_note(note)
        return error


def endless(ran: Sequence[TaskRun], claim: Claim) -> str:
    """Return the sentence about runs that do not end."""
    most = Counter(one.task_name for one in ran).most_common(5)
    often = ", ".join(f"{name} ({how_often(count)})" for name, count in most)
    return (
        f"drain() ran {len(ran)} {plural(len(ran), 'task')}, and {claim.task_name} is still due. It ran: {often}. If a task enqueues itself, "
        "drain() never ends: pass limit= to drain(), or raise Harness.max_runs if the test needs that many runs"
    )


class OutcomeDiscarded(AssertionError):
    """A task failed without an exception, because its lease was lost."""


class InlineRunner:
    """A worker without threads that runs one claim. It serves as the `Outcomes` of the code that runs the handler."""

    def __init__(
        self,
        outbox: Outbox,
        store: Store,
        transaction: TestTransaction,
        *,
        context: Callable[[], AbstractContextManager[Any]],
        steps: GivenSteps,
        has_row: bool,
    ) -> None:
        """`context` is entered around each handler and its hooks. `steps` are the results that the test has set.

        If `has_row` is False, the task was not enqueued, so neither its outcome nor its steps are stored.
        """
        self._tasks = outbox.tasks
        self._store = store if has_row else _without_ends(store)
        self._transaction = transaction
        self._integration = integration = _RecordingIntegration(outbox.integration, transaction, context)
        self._leases = Leases(self._store)
        self._outcome: Outcome | None = None
        self._is_written = False
        """If True, a transactional task has committed its completion."""
        self._given = steps
        rows = _TestRows(store.steps, store.now, steps.results, in_memory=not has_row)
        self._steps = _RecordedSteps(store, store, rows, integration, self._leases, ignore_failpoint)
        application = Application(store=self._store, tasks=self._tasks, integration=integration, hooks=outbox.hooks)
        handlers = HandlerRunner(application, store, self._steps, self._leases, self, on_failpoint=ignore_failpoint)
        self._runner = TaskRunner(store, self._leases, self, store.begin, handlers.attempt)

    def run(self, claim: Claim, *, finish: Callable[[Outcome], frozenset[UUID]] | None = None) -> TaskRun:
        """Run the claim and record its outcome, using `finish` if given. Raises the handler's KeyboardInterrupt.

        `finish` returns the ids of lost claims, as the store's method does.
        """
        if claim.task_name not in self._tasks:
            return self._release(claim)
        context = context_of(claim, self._tasks.get(claim.task_name), threading.Event(), keeps_log=True)
        [held] = self._leases.hold([context], sent=time.monotonic())
        with self._transaction.guard(), keeping():
            self._runner.run(held)
        outcome = self._outcome
        if outcome is not None and not self._is_written:
            lost = self._store.finish([outcome]) if finish is None else finish(outcome)
            outcome = None if lost else outcome
        used = () if context.steps is None else context.steps.used
        self._given.note(used, is_complete=outcome is not None and outcome.event_type is EventType.COMPLETED)
        return self._ran(claim, outcome, self._integration.error)

    def put(self, outcome: Outcome, active: ActiveClaim | None = None) -> None:
        if active is not None:
            active.state = ClaimState.HANDED_OVER
        self._outcome = outcome

    def committed(self, outcome: Outcome, active: ActiveClaim) -> None:  # noqa: ARG002 - the test does not count it
        self._outcome, self._is_written = outcome, True

    def lost(self, active: ActiveClaim) -> None:
        self._leases.mark_lost(active.claim)

    def _release(self, claim: Claim) -> TaskRun:
        """Release the claim on an unknown task, as a worker does."""
        outcome = released(claim, UNKNOWN_TASK, delay=timedelta(seconds=15))
        self._store.finish([outcome])
        known = ", ".join(sorted(task.name for task in self._tasks)) or "none"
        error = UnknownTask(
            f"task {claim.task_name!r} is not registered in this process; import the module that declares it (registered: {known})"
        )
        return self._ran(claim, outcome, error)

    def _ran(self, claim: Claim, outcome: Outcome | None, error: BaseException | None) -> TaskRun:
        if isinstance(error, KeyboardInterrupt):
            raise error
        return TaskRun(
            id=claim.id,
            task_name=claim.task_name,
            args=arguments_of(claim, self._tasks),
            attempt=claim.attempt,
            outcome=None if outcome is None else outcome.event_type,
            result=None if outcome is None or outcome.result is None else json.loads(outcome.result),
            error=error,
            progress=None if outcome is None else progress_of(outcome.data.get("progress")),
            log=() if outcome is None else log_of(outcome.data),
            steps=dict(self._steps.results),
        )


@dataclass(eq=False)
class _RecordingIntegration(Integration):
    """The application's integration inside the test's transaction. It records the handler's error."""

    integration: Integration
    ours: TestTransaction
    context: Callable[[], AbstractContextManager[Any]]
    error: BaseException | None = None

    @contextmanager
    def around_handler(self, context: TaskContext) -> Iterator[None]:
        try:
            with self.context(), self.integration.around_handler(context), self.ours.sessions(self.integration):
                yield
        except Exception as error:
            self.error = self.error or error  # a worker would only log the error, but here the test must fail
            raise

    def unit_of_work(self, store: Store, *, within: object = None) -> AbstractContextManager[UnitOfWork]:
        return self.integration.unit_of_work(store, within=self.ours.within if within is None else within)

    def after_handler(self, context: TaskContext, outcome: Outcome) -> None:
        self.error = context.error
        try:
            self.integration.after_handler(context, outcome)
        except Exception as error:
            self.error = self.error or error
            raise


def _without_ends(store: Store) -> Store:
    """Return a copy of the store that accepts every outcome but does not record any."""
    rowless = copy(store)
    rowless.finish = lambda *_, **__: frozenset()  # type: ignore[method-assign]
    return rowless


def claim_without_row(task: Task[..., Any], args: str, now: datetime, *, schedule: NewSchedule | None = None) -> Claim:
    """Return a claim on a task that was not enqueued. With `schedule`, the task is one that a person has triggered."""
    number, known = uuid7(), {one.name for one in fields(Claim)}
    headers = None if schedule is None else {SCHEDULE_HEADER: schedule.name, ZONE_HEADER: schedule.tz}
    return Claim(
        **{column: cell for column, cell in task.options.stored.items() if column in known},
        id=number,
        pipeline_execution_id=number,
        task_name=task.name,
        args=args,
        headers=None if headers is None else json.dumps(headers),
        attempt=1,
        recovery_attempts=0,
        lease_token=1,
        worker_id=number,
        lease_expires_at=now + task.options.lease,
        created_at=now,
        first_started_at=now,
        started_at=now,
    )


@dataclass(eq=False, repr=False)
class _TestRows:
    """A task's stored steps. Steps whose results the test has set are not stored."""

    stored: StepRows
    now: Callable[[], datetime]
    given: Mapping[str, Any]
    in_memory: bool = False
    """True if the task has no row, so none of its steps are stored."""

    def of_claim(self, claim: Claim) -> list[Step]:
        return [] if self.in_memory else self.stored.of_claim(claim)

    def complete(self, claim: Claim, step: NewStep, *, using: object = None) -> Written | None:
        if step.name in self.given:
            return Written(due_at=None)
        if self.in_memory:
            return Written(due_at=None if step.delay is None else self.now() + step.delay)
        return self.stored.complete(claim, step, using=using)

    def is_written(self, claim: Claim, name: str) -> bool:
        return self.in_memory or self.stored.is_written(claim, name)


@dataclass(eq=False, repr=False)
class _RecordedSteps(Steps):
    """Runs a handler's steps, and records their results for the test. If the test has set a result, the function is not
    called.
    """

    rows: _TestRows
    results: dict[str, Any] = field(default_factory=dict)
    """The results in the current run, as the handler received them."""

    def run(self, context: TaskContext, name: str, call: Call, *, transactional: bool) -> Any:
        function, args, kwargs = call
        if name in self.rows.given:
            function = wraps(function)(lambda *_args, **_kwargs: self.rows.given[name])
        result = super().run(context, name, (function, args, kwargs), transactional=transactional)
        self.results[name] = result
        return result


@dataclass(eq=False, kw_only=True)
class GivenSteps:
    """The results that a test has set for steps, by name, and the steps that ran while these results applied."""

    results: Mapping[str, Any] = field(default_factory=dict)
    within: GivenSteps | None = None
    """The results of the enclosing block, whose names may also be used in this block."""
    _used: set[str] = field(default_factory=set)
    _is_complete: bool = False
    """True if a task with steps has completed."""

    def note(self, names: Collection[str], *, is_complete: bool) -> None:
        """Record the names of the steps that one run has used, and whether it completed the task."""
        self._used.update(names)
        self._is_complete = self._is_complete or (is_complete and bool(names))
        if self.within is not None:
            self.within.note(names, is_complete=is_complete)

    def ensure_used(self, names: Collection[str]) -> None:
        """Raise AssertionError if a task with steps has completed, but one of these names does not belong to any step.
        If the name is mistyped, the step has called its function instead of returning the given result.
        """
        __tracebackhide__ = True
        unused = sorted(set(names) - self._used)
        if not unused or not self._is_complete:
            return
        known = sorted(self._used)
        hint = nearest(unused[0], known) if len(unused) == 1 else ""
        raise AssertionError(
            f"steps() was given {plural(len(unused), 'a result', 'results')} for {' and '.join(map(repr, unused))}, but no step "
            f"had {plural(len(unused), 'this name', 'these names')}{hint or '.'} The steps were: {', '.join(map(repr, known))}"
        )
