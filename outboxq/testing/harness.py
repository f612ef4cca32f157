"""The Harness, which puts an application's outbox into a test's transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial, wraps
from typing import Any, ParamSpec, Self, TypeVar
from uuid import UUID

from sqlalchemy.orm import Session, scoped_session

from ..database.dialects import Begin
from ..errors import ConfigurationError, InvalidArgument
from ..integration.uncommitted import forget
from ..model import Claim, EventType, Outcome, TaskStatus, duration, unknown_options
from ..model.rules import next_tick, stands_ahead
from ..model.schedules import TICK_HEADER, NewSchedule
from ..model.subscriptions import Emitted
from ..model.unknown_options import Answering
from ..outbox import Outbox
from ..store import Store
from ..store.arguments import aware
from ..store.claims import due
from ..store.claims.due import Look
from ..task import Task
from ..task.batches import StandIn
from .claims import Claimer, Series
from .clock import Clock
from .enqueued import DjangoTask, Enqueued, Expected, enqueued_of, how_often, listed
from .running import GivenSteps, InlineRunner, TaskRun, claim_without_row, endless
from .transaction import (
    DjangoTransaction,
    NoTransaction,
    ObservingStore,
    TestTransaction,
    TransactionBoundStore,
    transaction_of,
)

_AHEAD = timedelta(hours=1)
"""The span for which `drain(until=…)` plants schedule ticks in one step."""
_KEPT = 10_000
"""The number of tasks, newest first, that a harness reads at once."""

__unittest = True  # tracebacks end at the test's line


P = ParamSpec("P")
R = TypeVar("R")


def naming_options(public: str, *, positional: str = "") -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Do what `unknown_options.naming_options` does, but from a frame at which unittest ends its tracebacks."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        answering = unknown_options.naming_options(public, positional=positional)(function)

        @wraps(function)
        def called(*args: P.args, **kwargs: P.kwargs) -> R:
            __tracebackhide__ = True
            return answering(*args, **kwargs)

        return called

    return decorate


class Harness(Answering):
    """A context manager for using an outbox in a test: `with Harness(outbox, using=connection) as harness:`.

    `using` is the test's open transaction in any form that `Task.using()` accepts: a SQLAlchemy Session or Connection,
    a psycopg or sqlite3 connection, or a Django connection or alias. With `using`, every outbox transaction is a
    savepoint in the test's transaction, and is undone when that transaction is rolled back. Without `using`, a Django
    outbox uses Django's connection, and any other outbox commits to its own database, as in production.

    A harness reports only the tasks that were enqueued after the harness was entered. Use a harness in one thread only.
    """

    _noun = "the harness"

    @naming_options("Harness()", positional="Harness(outbox, using=session)")
    def __init__(self, outbox: Outbox, *, using: object = None, flask: Any = None) -> None:
        """Prepare a harness. A harness has no effect until a `with` statement enters it.

        `flask` is the application of an `outboxq.contrib.flask.Outboxq`. The harness enters the application's context
        when it needs one, so the test does not have to push one. (A test client's requests would share a pushed
        context, including `db.session`.)
        """
        self.app: Outbox = outbox
        """The application's Outbox."""
        self.clock: Clock = Clock()
        """The clock for due times, leases and limits."""
        self.max_runs: int = 1000
        """The number of runs in a row, without a schedule tick, after which `drain()` raises EndlessDrain."""
        self._using = using
        self._context: Callable[[], AbstractContextManager[Any]] = nullcontext if flask is None else flask.app_context
        self._open = ExitStack()
        self._store: Store | None = None
        self._transaction: TestTransaction = NoTransaction()
        self._before: frozenset[UUID] = frozenset()
        self._subscribed: list[Any] = []
        self._declared: list[NewSchedule] = []
        self._steps = GivenSteps()
        self._is_inline = self._is_running = False
        self._since_tick = 0
        """The number of runs since the last schedule tick, in the current `drain()`."""

    def __enter__(self) -> Self:
        """Enter the harness. Raises InvalidTarget if `using` has no open transaction or, on SQLite, no real savepoints, and
        SchemaOutOfDate if the tables are missing.
        """
        if self._store is not None:
            raise ConfigurationError("this Harness is already in use; create a new one for each test")
        with self._context(), ExitStack() as stack:
            stack.callback(self._leave)
            self._transaction = self._find_transaction()
            self._transaction.check()
            self._store = stack.enter_context(self._replaced_store())
            self._claimer = Claimer(store=self._store, clock=self.clock)
            self._before = frozenset(task.id for task in self._store.tasks(limit=_KEPT))
            self._subscribe()
            self._open = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    @property
    def store(self) -> Store:
        """The Store in the test's transaction. Raises ConfigurationError outside `with`."""
        if self._store is None:
            raise ConfigurationError(
                "a Harness works only inside a with block: with Harness(outbox, using=connection) as harness: …"
            )
        return self._store

    def enqueued(
        self, task: Task[..., Any] | DjangoTask | str | None = None, /, *args: Any, **described: Any
    ) -> list[Enqueued]:
        """Return the tasks that were enqueued in this test and match the description, oldest first, whatever their
        current status.

        `args` are the first arguments of the call. Pass the other arguments by name, or in `kwargs={…}` if an option
        has the same name. The options are `queue`, `priority`, `partition_key`, `concurrency_key`, `topic` (of the
        emitted event that the task handles), `status` (the current status), and `delay` (a timedelta or seconds) or
        `at` (an aware datetime) for the first due time, which may differ by up to a second. An option that is left out
        matches any value. Values are compared in the form that the handler would receive, so `unittest.mock.ANY` and
        similar objects work. Raises InvalidCall for arguments that the task does not accept.
        """
        expected = self._expected(task, args, described)
        return [one for one in self._all() if not expected.misfits(one)]

    def assert_enqueued(
        self, task: Task[..., Any] | DjangoTask | str, /, *args: Any, times: int | None = None, **described: Any
    ) -> list[Enqueued]:
        """Assert that at least one enqueued task matches the description, or that exactly `times` tasks do. Return
        these tasks.

        See `enqueued()` for how to describe a task. The AssertionError lists the enqueued tasks, the closest matches
        first.
        """
        __tracebackhide__ = True
        expected = self._expected(task, args, described)
        found = self._all()
        fitting = [one for one in found if not expected.misfits(one)]
        if len(fitting) == times or (fitting and times is None):
            return fitting
        but = f"enqueued {how_often(len(fitting))}, not {how_often(times or 0)}" if fitting else "not enqueued"
        raise AssertionError(f"{expected} was {but}{expected.hint(found)}. {listed(found, expected)}")

    def refute_enqueued(
        self, task: Task[..., Any] | DjangoTask | str | None = None, /, *args: Any, **described: Any
    ) -> None:
        """Assert that no enqueued task matches the description; see `enqueued()` for how to describe a task. Without a
        description, assert that no task was enqueued. Raises UnknownTask for a name that is neither declared in this
        process nor used by a subscription, because the name may be misspelled.
        """
        __tracebackhide__ = True
        expected = self._expected(task, args, described)
        found = self._all()
        if fitting := [one for one in found if not expected.misfits(one)]:
            raise AssertionError(f"{expected} was enqueued, but should not have been. {listed(fitting)}")
        if not expected.is_declared:
            expected.ensure_known(found, frozenset(one.task_name for one in self.store.subscriptions.list()))

    @naming_options("drain()")
    def drain(
        self,
        *,
        queues: Sequence[str] | None = None,
        limit: int | None = None,
        until: datetime | timedelta | float | None = None,
        raises: bool = True,
    ) -> list[TaskRun]:
        """Run the due tasks and the tasks that they enqueue, as a worker with one thread would. Return the runs.

        The claims are real: tasks are claimed from these `queues` (None means all) in the queues' order, and keys,
        limits and pauses apply. At most `limit` tasks run. With `until` (a time span from now, or an aware datetime),
        the clock moves to that time, stopping at each due time, so that delayed tasks, retries and schedule ticks run
        too. Tasks run in this thread. If the test has a transaction, each task runs in a savepoint.

        A failed task is recorded as in production: its retry is scheduled, or it becomes a dead letter. Unless `raises`
        is False, the error from the task's last attempt is raised after the last run. Errors from several tasks are
        raised in an ExceptionGroup. Raises EndlessDrain after `max_runs` runs in a row without a schedule tick.
        """
        __tracebackhide__ = True
        if not self._is_running:
            self._subscribe()
            self._begin_schedules()
            self._wait_for_ticks()
            self.clock.run_on()
        ran: list[TaskRun] = []
        self._since_tick = 0
        self._drain(queues, limit, ran, recovers=True)
        if until is not None:
            until = aware(until, "until") if isinstance(until, datetime) else self.clock() + duration(until, "until")
            recovers = bool(self.store.tasks(status=TaskStatus.RUNNING, limit=1))
            if limit is None:
                self._run_until(until, queues, ran, recovers=recovers)
            while limit is not None and len(ran) < limit:
                moments = [self.store.next_available_at(queues), self._next_tick()]
                ahead = [one for one in moments if one is not None and one <= until]
                if not ahead:
                    break
                self.clock.set(min(ahead))
                self._drain(queues, limit, ran, recovers=recovers)
            if self.clock() < until:
                self.clock.set(until)
        if raises:
            _raise([one for one in ran if one.is_failure])
        return ran

    @naming_options("advance()")
    def advance(
        self, by: timedelta | float, *, queues: Sequence[str] | None = None, raises: bool = True
    ) -> list[TaskRun]:
        """Move the clock forward by a timedelta or a number of seconds, and run the tasks that become due in that
        period: ticks, delayed tasks and retries.

        The clock stops at each tick and each due time along the way, so that each tick runs at its own time. (After
        `clock.advance()`, `drain()` would find that ticks were missed, and `catch_up` would decide which of them run.)
        Return the runs. Raises the same errors as `drain()`.
        """
        __tracebackhide__ = True
        span = duration(by, "advance()")
        if span < timedelta(0):
            raise InvalidArgument("advance() can only move the clock forward; use clock.set() to move it back")
        return self.drain(queues=queues, until=self.clock() + span, raises=raises)

    def run(self, task: Task[..., Any] | DjangoTask, /, *args: Any, **kwargs: Any) -> TaskRun:
        """Run one task immediately, as a worker would, without enqueueing it. The arguments and the result are
        converted to JSON and back.

        The task gets a context and, if it is transactional, a transaction. This method raises the task's exceptions,
        except Snooze, Cancel and Retry, which are outcomes. If the code declares schedules for the task, the task runs
        as if the first of them were triggered now: `ctx.tick` is the clock's time. Raises InvalidCall and PayloadError
        for the same reasons as `enqueue()`.
        """
        __tracebackhide__ = True
        task = self._own(task)
        schedule = next((one for one in self.app.tasks.schedules if one.task_name == task.name), None)
        claim = claim_without_row(task, task.call_as_json(args, kwargs), self.clock(), schedule=schedule)
        ran = self._runner(has_row=False).run(claim)
        self._transaction.expire()
        if ran.is_failure:
            _raise([ran])
        return ran

    @contextmanager
    def inline(self) -> Iterator[None]:
        """Make `enqueue()` and `emit()` run the due tasks before they return, as `drain()` does, and raise the tasks'
        errors.

        The tasks in a batch run at the end of its `with` block, followed by its `then` tasks. The tasks in a chain run
        when the chain is enqueued. All of them run in the test's transaction. Raises ConfigurationError if the harness
        has no transaction.
        """
        if isinstance(self._transaction, NoTransaction):
            raise ConfigurationError(
                "inline() runs tasks in the test's own transaction, but this Harness has none; pass using= to it"
            )
        with _temporarily(self, "_is_inline", True):
            yield

    @contextmanager
    def steps(self, results: Mapping[str, Any]) -> Iterator[None]:
        """Set the results of steps by name until the end of the block. These steps' functions are not called.

        Each of these steps returns the given value, converted to JSON and back, and is not stored. If a name is that of
        a sleep, the sleep ends immediately. If a task with steps completes in the block, but one of the names does not
        belong to any step, the block ends with an AssertionError. If the name is mistyped, the step has called its
        function instead of returning the given result.
        """
        __tracebackhide__ = True
        given = GivenSteps(results={**self._steps.results, **results}, within=self._steps)
        with _temporarily(self, "_steps", given):
            yield
        given.ensure_used(results)

    def emit(self, topic: str, payload: object = None, **options: Any) -> Emitted:
        """Emit an event in the test's transaction, as `Outbox.emit` does."""
        return self.app.emit(topic, payload, **{"using": self.app, **options})

    def _cure(self, name: str) -> str:
        cure = super()._cure(name)
        if not cure and hasattr(self.app, name):
            called = "(…)" if callable(getattr(self.app, name)) else ""
            cure = f"harness.app.{name}{called}, because harness.app is the application's Outbox"
        return cure

    def _all(self) -> list[Enqueued]:
        self._transaction.flush()
        store = self.store
        page = store.tasks(limit=_KEPT)
        rows = [row for row in page if row.id not in self._before]
        while len(page) == _KEPT and self._before.isdisjoint(row.id for row in page):  # more than one page is new
            page = store.tasks(limit=_KEPT, before=page[-1].id)
            rows += [row for row in page if row.id not in self._before]
        rows.sort(key=lambda row: (row.created_at, row.position, row.id))
        return [enqueued_of(row, self.app.tasks, lambda row=row: store.history(row.id)) for row in rows]  # type: ignore[misc]

    def _drain(
        self,
        queues: Sequence[str] | None,
        limit: int | None,
        ran: list[TaskRun],
        *,
        recovers: bool,
        plants: bool = True,
    ) -> None:
        """Run the tasks that are due now until there are `limit` runs, and add the runs to `ran`."""
        store = self.store
        self._transaction.flush()
        with _temporarily(self, "_is_running", True):
            self._subscribe()
            if plants:
                store.schedules.plant(horizon=timedelta(0))
            if recovers:
                store.recover()
            while limit is None or len(ran) < limit:
                claim = self._claimer.claim(queues)
                if claim is None:
                    break
                self._run_claim(claim, ran)
        self._transaction.expire()

    def _run_claim(
        self, claim: Claim, ran: list[TaskRun], finish: Callable[[Outcome], frozenset[UUID]] | None = None
    ) -> None:
        is_tick = TICK_HEADER in (claim.headers or "")  # ticks do not count: the time span limits their number
        self._since_tick = 0 if is_tick else self._since_tick + 1
        if self._since_tick > self.max_runs:
            self.store.release(claim)
            raise EndlessDrain(endless(ran, claim))
        ran.append(self._runner().run(claim, finish=finish))
        if ran[-1].outcome is EventType.FAILED:
            self.store.batches.continue_cancelling()

    def _run_until(self, until: datetime, queues: Sequence[str] | None, ran: list[TaskRun], *, recovers: bool) -> None:
        """Move the clock to `until`, from one due time to the next, and run the tasks that become due."""
        planted, is_drained = self.clock(), True
        while True:
            planted, ahead = self._look_ahead(planted, until, queues)
            if ahead.due and not is_drained:
                self._drain(queues, None, ran, recovers=False, plants=False)
                is_drained = True
                continue
            now = self.clock()
            moment = None if ahead.seconds is None else now + timedelta(seconds=ahead.seconds)
            if moment is not None and moment <= planted:
                self.clock.set(moment)
                before = len(ran)
                self._run_series(planted, queues, ran, recovers=recovers)
                is_drained = len(ran) == before
                continue
            tick = self._next_tick()
            # The next tick is in the past if its schedule cannot be planted.
            stops = [moment, None if tick is None else max(tick, planted)]
            ahead_of = [one for one in stops if one is not None and now < one <= until]
            if not ahead_of:
                return
            self.clock.set(min(ahead_of))
            is_drained = False

    def _run_series(
        self, planted: datetime, queues: Sequence[str] | None, ran: list[TaskRun], *, recovers: bool
    ) -> None:
        """Run the task that is due now and, as long as nothing else has to be done first, the tasks that become due
        after it.
        """

        def may_go_on() -> bool:
            is_behind = self.app.subscriptions != self._subscribed or self.app.tasks.schedules != self._declared
            return self._transaction.is_flushed and not recovers and not is_behind

        series = Series(claimer=self._claimer, queues=queues, planted=planted, may_go_on=may_go_on)
        self._transaction.flush()
        with _temporarily(self, "_is_running", True), self._transaction.series():
            self._subscribe()
            if recovers:
                self.store.recover()
            series.begin()
            while series.claim is not None:
                if series.moment > self.clock():
                    self._transaction.expire()
                    self.clock.set(series.moment)
                self._run_claim(series.take(), ran, series.finish)
        self._transaction.expire()

    def _look_ahead(self, planted: datetime, until: datetime, queues: Sequence[str] | None) -> tuple[datetime, Look]:
        """Plant the ticks of the next hour (but none after `until`), and the ticks of schedules that a handler has
        changed in the meantime. Return the time up to which ticks are planted, whether a task is due now, and when the
        next task is due.
        """
        now = self.clock()
        end = planted if planted > now else min(now + _AHEAD, until)
        look = partial(due.look_with_schedules, self.store, queues=queues, until=end)
        ahead = self.store.run(look, begin=Begin.READ)
        if ahead is None:
            self.store.schedules.plant(horizon=end - now)
            ahead = self.store.look_ahead(queues)
        return end, ahead

    def _runner(self, *, has_row: bool = True) -> InlineRunner:
        return InlineRunner(
            self.app, self.store, self._transaction, context=self._context, steps=self._steps, has_row=has_row
        )

    def _written(self, using: object) -> None:
        """Run the due tasks after an enqueue inside `inline()`."""
        if self._is_inline and not self._is_running:
            if isinstance(using, Session | scoped_session):
                using.flush()
            self.drain()

    @contextmanager
    def _making(self, made: AbstractContextManager[object]) -> Iterator[object]:
        """Create a batch or a chain. Inside `inline()`, run its tasks after the block, as workers do."""
        with _temporarily(self, "_is_inline", False), made as target:
            yield target
        self._written(target)

    def _subscribe(self) -> None:
        """Store the subscriptions and schedules, as a worker does when it starts."""
        subscriptions = self.app.subscriptions
        if subscriptions != self._subscribed:
            self.app.sync_subscriptions()
            self._subscribed = subscriptions
        if (schedules := self.app.tasks.schedules) != self._declared:
            self.app.sync_schedules()
            self._declared = schedules

    def _begin_schedules(self) -> None:
        """Make the schedules in the code begin now if the test has set the clock to a time before they were stored."""
        now = self.clock()
        stored = [one for one in self.store.schedules.list() if one.paused_at is None]
        early = {one.name for one in stored if one.declared_by is not None and one.starts_at > now}
        begun = [
            replace(one, starts_at=now) if one.name in early and one.starts_at is None else one
            for one in self._declared
        ]
        if begun != self._declared:
            self.store.schedules.declare(begun, declared_by=self.app.tasks.version)

    def _next_tick(self) -> datetime | None:
        """Return the next tick that is not planted yet."""
        now = self.clock()
        schedules = self.store.schedules.list()
        ticks = (next_tick(one, now if stands_ahead(one, now) else one.planted_until) for one in schedules)
        return min((tick for tick in ticks if tick is not None), default=None)

    def _wait_for_ticks(self) -> None:
        """Make sure that only the test can move the clock past a tick."""
        for one in self.store.schedules.list():
            if (tick := next_tick(one, self.clock())) is not None:
                self.clock.wait_for(tick)

    def _expected(self, task: object, args: tuple[Any, ...], described: dict[str, Any]) -> Expected:
        __tracebackhide__ = True
        own = task if task is None or isinstance(task, str) else self._own(task)
        return Expected(self.app.tasks, own, args, **described)

    def _own(self, task: object) -> Task[..., Any]:
        """Return this outbox's task, which may also be given as a `django.tasks` task. Raises ConfigurationError for
        another outbox's task, and for anything that is not a task.
        """
        __tracebackhide__ = True
        self._refuse_foreign(task)
        return task if isinstance(task, Task) else self.app.task_of(task)

    def _refuse_foreign(self, task: object) -> None:
        """Raise ConfigurationError for another outbox's task. Without this error, that task would look as if it had not
        been enqueued.
        """
        __tracebackhide__ = True
        if not isinstance(task, Task) or task.outbox is self.app or task.name in self.app.tasks:
            return
        its, tested = (getattr(one.integration, "alias", None) for one in (task.outbox, self.app))
        if its is None or tested is None:
            raise ConfigurationError(
                f"the task {task.name} belongs to another Outbox; pass that Outbox to the harness, or return it from the outboxq_app fixture"
            )
        raise ConfigurationError(
            f"the task {task.name} belongs to the outbox of the database {its!r}, but this harness tests the outbox of {tested!r}; set "
            f"outboxq_app (a fixture, or an attribute of the OutboxTests class) to outboxes[{its!r}]"
        )

    def _find_transaction(self) -> TestTransaction:
        if self._using is not None:
            return transaction_of(self._using, self.app.schema)
        alias = getattr(self.app.integration, "alias", None)
        return DjangoTransaction(alias, self.app.schema) if isinstance(alias, str) else NoTransaction()

    @contextmanager
    def _replaced_store(self) -> Iterator[ObservingStore]:
        """Make the application's outbox use the test's store until the end of the block."""
        schema = self.app.schema
        if isinstance(self._transaction, NoTransaction):
            store = ObservingStore(self.app.store.bound_engine, schema=schema, clock=self.clock)
        else:
            store = TransactionBoundStore(self._transaction, schema=schema, clock=self.clock)
        store.declared = self.app.tasks.queues
        store.before_emit, store.written = self._subscribe, self._written
        store.schedules.horizon = timedelta(0)
        with _temporarily(self.app, "_stand_in", StandIn(store=store, making=self._making)):
            yield store

    def _leave(self) -> None:
        forget(self._using)  # the test decides how to end the transaction
        self._store, self._transaction = None, NoTransaction()


@contextmanager
def _temporarily(target: object, attribute: str, value: object) -> Iterator[None]:
    """Set an attribute until the end of the block."""
    before = getattr(target, attribute)
    setattr(target, attribute, value)
    try:
        yield
    finally:
        setattr(target, attribute, before)


class EndlessDrain(AssertionError):
    """`drain()` ran `Harness.max_runs` tasks, and tasks were still due."""


def _raise(failed: Sequence[TaskRun]) -> None:
    """Raise the error from the failed task's last attempt or, if several tasks failed, a group of such errors."""
    __tracebackhide__ = True
    last = {one.id: one for one in failed}
    distinct = list({id(error): error for error in (one.failure() for one in last.values())}.values())
    if len(distinct) == 1:
        raise distinct[0]
    if distinct:
        raise BaseExceptionGroup(f"{len(last)} tasks failed", distinct)
