"""The run of a claim in the test's thread, by the same code as in a worker."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from ..context import TaskContext, UnitOfWork
from ..errors import UnknownTask
from ..integration import Integration
from ..model import UNKNOWN_TASK, Claim, EventType, Outcome, Retry
from ..model.running import LogLine, Progress, Step, log_of, progress_of
from ..model.uuid7 import uuid7
from ..outbox import Outbox
from ..payload.parameters import dump_result
from ..store import NewStep, Store, Written
from ..task import Task
from ..worker.completer import Completer
from ..worker.executor import context_of, execute, released
from ..worker.failpoints import ignore_failpoint
from ..worker.handler_log import keeping
from ..worker.leases import ActiveClaim, ClaimState, Leases
from ..worker.steps import HandlerSteps, Steps
from ..worker.task_runner import TaskRunner
from .enqueued import arguments_of
from .transaction import TestTransaction

_FAILURES = {EventType.FAILED, EventType.RETRY_SCHEDULED}


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskRun:
    """One attempt at a task, with its outcome."""

    id: UUID
    task_name: str
    args: Mapping[str, Any]
    """The arguments as the handler got them; as JSON if they could not be read."""
    attempt: int
    outcome: EventType | None
    """COMPLETED, RETRY_SCHEDULED, FAILED, SNOOZED, CANCELLED or RELEASED; None: the lease was lost, and nothing was written."""
    result: Any = None
    """The returned value after its way through JSON, as it is stored."""
    error: BaseException | None = field(default=None, repr=False)
    """The exception that the handler raised."""
    progress: Progress | None = None
    """The progress that the handler reported last."""
    log: tuple[LogLine, ...] = field(default=(), repr=False)
    """The last lines that the handler logged, at INFO and above, as far as its loggers let them pass."""
    steps: Mapping[str, Any] = field(default_factory=dict)
    """The results of its steps by name, as the handler got them in this run, in that order."""

    @property
    def is_failure(self) -> bool:
        """True if the attempt failed. Snooze, Cancel and a Retry that leads to another attempt are no failures."""
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


class OutcomeDiscarded(AssertionError):
    """A task failed without an exception: its lease was lost."""


class InlineRunner:
    """A worker without threads: runs one claim."""

    def __init__(
        self,
        outbox: Outbox,
        store: Store,
        transaction: TestTransaction | None,
        *,
        context: Callable[[], AbstractContextManager[Any]] = nullcontext,
        steps: Mapping[str, Any] | None = None,
    ) -> None:
        """Prepare the runner; `context` is entered around each handler and its hooks. `steps` are results given beforehand."""
        self._tasks = outbox.tasks
        self._store = store
        self._transaction = transaction
        self._integration = _RecordingIntegration(outbox.integration, transaction, context)
        self._leases = Leases(store, heartbeat=None, on_failpoint=ignore_failpoint)
        self._completer = _CollectingCompleter(store, self._leases)
        self._hooks = outbox.hooks
        self._runner = TaskRunner(
            store=store,
            own=store,
            tasks=self._tasks,
            leases=self._leases,
            completer=self._completer,
            integration=self._integration,
            on_failpoint=ignore_failpoint,
            hooks=self._hooks,
        )
        self._steps = self._runner.steps = HarnessSteps(
            store=store,
            own=store,
            integration=self._integration,
            leases=self._leases,
            on_failpoint=ignore_failpoint,
            given=steps or {},
        )

    def run(self, claim: Claim) -> TaskRun:
        """Run a claim, and write its outcome. Raises KeyboardInterrupt if the handler did."""
        if claim.task_name not in self._tasks:
            return self._release(claim)
        context = context_of(claim, self._tasks.get(claim.task_name), threading.Event(), keeps_log=True)
        [held] = self._leases.hold([context], sent=time.monotonic())
        with self._guard(), keeping():
            self._runner.run(held)
        kept = self._completer.kept
        lost = self._store.finish(kept)
        self._leases.drop(claim)
        outcome = kept[0] if kept else self._integration.outcome  # a transactional task's outcome is written already
        return self._ran(claim, None if lost else outcome, self._integration.error)

    def try_out(self, task: Task[..., Any], args: str, *, now: datetime) -> TaskRun:
        """Run a task without a row. The writes of a transactional task stay if it completes."""
        claim = _claim(task, args, now)
        context = context_of(claim, task, threading.Event(), keeps_log=True)
        context.step_runner, self._steps.in_memory = self._steps, True
        began = time.monotonic()
        with self._guard(), keeping(), nullcontext() if self._hooks is None else self._hooks.handling(context):
            with self._integration.around_handler(context):
                outcome = self._in_unit(task, context) if task.transactional else execute(task, context)
                self._integration.after_handler(context, outcome)
            if self._hooks is not None:
                self._hooks.ended(context, outcome, time.monotonic() - began)
        return self._ran(claim, outcome, self._integration.error)

    def _in_unit(self, task: Task[..., Any], context: TaskContext) -> Outcome:
        with suppress(_NotCompleted), self._integration.unit_of_work(self._store) as unit:
            context.unit = unit
            outcome = execute(task, context)
            if outcome.event_type is not EventType.COMPLETED:
                raise _NotCompleted
            unit.flush()
        return outcome

    def _guard(self) -> AbstractContextManager[None]:
        return nullcontext() if self._transaction is None else self._transaction.guard()

    def _release(self, claim: Claim) -> TaskRun:
        """Give the claim of an unknown task back, as a worker does."""
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
    """The application's integration in the test's transaction; it records the outcome and the error of the handler."""

    integration: Integration
    ours: TestTransaction | None
    context: Callable[[], AbstractContextManager[Any]]
    outcome: Outcome | None = None
    error: BaseException | None = None

    @contextmanager
    def around_handler(self, context: TaskContext) -> Iterator[None]:
        try:
            with ExitStack() as stack:
                stack.enter_context(self.context())
                stack.enter_context(self.integration.around_handler(context))
                if self.ours is not None:
                    stack.enter_context(self.ours.sessions(self.integration))
                yield
        except Exception as error:
            self.error = self.error or error  # a worker logs it; a test must fail
            raise

    def unit_of_work(self, store: Store, *, within: object = None) -> AbstractContextManager[UnitOfWork]:
        if within is None and self.ours is not None:
            within = self.ours.within
        return self.integration.unit_of_work(store, within=within)

    def after_handler(self, context: TaskContext, outcome: Outcome) -> None:
        self.outcome, self.error = outcome, context.error
        try:
            self.integration.after_handler(context, outcome)
        except Exception as error:
            self.error = self.error or error
            raise


class _CollectingCompleter(Completer):
    """A Completer that collects outcomes for the test's thread to write; its own thread is never started."""

    def __init__(self, store: Store, leases: Leases) -> None:
        super().__init__(store, leases, on_failpoint=ignore_failpoint, on_thread_failure=lambda _: None)
        self.kept: list[Outcome] = []

    def put(self, outcome: Outcome, active: ActiveClaim | None = None) -> None:
        if active is not None:
            active.state = ClaimState.HANDED_OVER
        self.kept.append(outcome)

    def flush(self, timeout: float | None = None) -> bool:  # noqa: ARG002 - each is written before the next begins
        return True


def _claim(task: Task[..., Any], args: str, now: datetime) -> Claim:
    number, known = uuid7(), {one.name for one in fields(Claim)}
    return Claim(
        **{column: cell for column, cell in task.options.stored.items() if column in known},
        id=number,
        pipeline_execution_id=number,
        task_name=task.name,
        args=args,
        headers=None,
        attempt=1,
        recovery_attempts=0,
        lease_token=1,
        worker_id=number,
        lease_expires_at=now + task.options.lease,
        created_at=now,
        first_started_at=now,
        started_at=now,
    )


class _NotCompleted(Exception):
    """A transactional task did not complete, so its transaction is rolled back."""


@dataclass(kw_only=True, eq=False, repr=False)
class HarnessSteps(Steps):
    """The steps of the runs of a harness. What a test gave stands for a stored result; of a sleep, it says that it is over."""

    given: Mapping[str, Any] = field(default_factory=dict)
    in_memory: bool = False
    """True: the task has no row, so neither have its steps."""
    results: dict[str, Any] = field(default_factory=dict)
    """The results of the present run, as the handler got them."""

    def run(
        self,
        context: TaskContext,
        name: str,
        call: tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]],
        *,
        transactional: bool,
    ) -> Any:
        result = super().run(context, name, call, transactional=transactional)
        self.results[name] = result
        return result

    def sleep(self, context: TaskContext, name: str, delay: timedelta | float) -> None:
        if name in self.given:
            self._begin(context, name).used.add(name)
            return
        super().sleep(context, name, delay)

    def _known(self, context: TaskContext) -> HandlerSteps:
        known = HandlerSteps(stored={}, count=0) if self.in_memory else super()._known(context)
        for name, value in self.given.items():
            known.stored.setdefault(name, _given(context.claim, name, value))
        return known

    def _complete(self, claim: Claim, step: NewStep, using: object = None) -> Written | None:
        if not self.in_memory:
            return super()._complete(claim, step, using)
        return Written(due_at=None if step.delay is None else self.store.now() + step.delay)

    def _is_written(self, claim: Claim, name: str) -> bool:
        return self.in_memory or super()._is_written(claim, name)


def _given(claim: Claim, name: str, value: object) -> Step:
    return Step(
        task_execution_id=claim.id,
        name=name,
        number=1,
        lease_token=claim.lease_token,
        result=dump_result(value, name=f"{claim.task_name}: the given result of step {name!r}"),
        due_at=None,
        created_at=claim.started_at,
    )
