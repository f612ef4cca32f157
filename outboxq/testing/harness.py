"""What a test holds: the application's outbox, in the test's own transaction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from datetime import datetime, timedelta
from typing import Any, Self, TypeVar
from uuid import UUID, uuid4

from sqlalchemy.orm import Session, scoped_session

from ..errors import ConfigurationError
from ..model import Claim, duration
from ..model.subscriptions import Emitted
from ..outbox import Outbox
from ..store import Store
from ..store.base import aware
from ..task import Task
from .clock import Clock
from .enqueued import Enqueued, Expected, enqueued_of, listed
from .errors import EndlessDrain
from .running import InlineRunner, TaskRun
from .store import HeldStore, ToldStore
from .transaction import DjangoTransaction, TestTransaction, transaction_of

_KEPT = 10_000
"""So many tasks are looked at, the newest."""
_MAX_RUNS = 1000

__unittest = True  # its tracebacks end at the line of the test
O = TypeVar("O", bound=Outbox)  # noqa: E741


class Harness:
    """A context manager: from `with Harness(outbox, using=connection) as harness:` to its end, that outbox is the test's.

    `using` is the test's own open transaction, as `Task.using()` takes it: a SQLAlchemy Session or Connection, a psycopg or
    sqlite3 connection, a Django connection or alias. All that the outbox does by itself is then a savepoint of it, and gone
    when it is rolled back. Without one, an outbox of Django's lives on Django's connection; any other commits to its own
    database, as in production.

    Only what was enqueued since its beginning counts. Not for several threads at once.
    """

    def __init__(self, outbox: Outbox, *, using: object = None, flask: Any = None) -> None:
        """`flask` is the application of an `outboxq.contrib.flask.Outboxq`: its context is entered for what needs one here.

        So the test need push none. (A pushed one would be shared by the requests of a test client, `db.session` included.)
        """
        self.app = outbox
        """The application's Outbox."""
        self.clock = Clock()
        """Due times, leases and limits go by it."""
        self.max_runs = _MAX_RUNS
        """`drain()` takes so many runs for an endless loop."""
        self._using = using
        self._context: Callable[[], AbstractContextManager[Any]] = nullcontext if flask is None else flask.app_context
        self._worker = uuid4()
        self._open = ExitStack()
        self._store: Store | None = None
        self._transaction: TestTransaction | None = None
        self._before: frozenset[UUID] = frozenset()
        self._subscribed: list[Any] = []
        self._is_inline = self._is_running = False

    def __enter__(self) -> Self:
        """Raises InvalidTarget for a `using` without an open transaction, SchemaOutOfDate where our tables are not."""
        if self._store is not None:
            raise ConfigurationError("this Harness is in use; make another for another test")
        with self._context(), ExitStack() as stack:
            stack.callback(self._leave)
            self._transaction = self._find_transaction()
            self._store = stack.enter_context(self._replaced_store())
            self._before = frozenset(task.id for task in self._store.tasks(limit=_KEPT))
            self._subscribe()
            self._open = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    @property
    def store(self) -> Store:
        """The lower layer, in the test's transaction. Raises ConfigurationError outside of `with`."""
        if self._store is None:
            raise ConfigurationError(
                "a Harness is a context manager: with Harness(outbox, using=connection) as harness: …"
            )
        return self._store

    def enqueued(self, task: Task[..., Any] | str | None = None, /, *args: Any, **described: Any) -> list[Enqueued]:
        """What was enqueued during this test and is as described, oldest first, whatever became of it since.

        `args` are the first arguments of the call; further ones are named, or in `kwargs={…}` where their names are taken
        here. Besides, `queue`, `priority`, `partition_key`, `topic` (of the emitted event that it handles), `status`
        (where it stands now), `delay` (a timedelta or seconds) or `at` (aware): when it was due at first, give or take a
        second. What is not said may be anything. Values are compared as the handler would be given them, so that
        `unittest.mock.ANY` and the like work. Raises InvalidCall for arguments that the task does not take.
        """
        expected = Expected(self.app.tasks, task, args, **described)
        return [one for one in self._all() if not expected.misfits(one)]

    def assert_enqueued(
        self, task: Task[..., Any] | str, /, *args: Any, times: int | None = None, **described: Any
    ) -> list[Enqueued]:
        """At least one task was enqueued that is as described for `enqueued()`, or exactly `times`. Returns them.

        Raises AssertionError, which lists what was enqueued instead, the nearest first.
        """
        __tracebackhide__ = True
        expected = Expected(self.app.tasks, task, args, **described)
        found = self._all()
        fitting = [one for one in found if not expected.misfits(one)]
        if len(fitting) == times or (fitting and times is None):
            return fitting
        if not fitting:
            raise AssertionError(f"{expected} was not enqueued. {listed(found, expected)}")
        raise AssertionError(
            f"{expected} was enqueued {_times(len(fitting))}, not {_times(times or 0)}. {listed(found, expected)}"
        )

    def refute_enqueued(self, task: Task[..., Any] | str | None = None, /, *args: Any, **described: Any) -> None:
        """No task is as described for `enqueued()`; without a description: none at all. Raises AssertionError."""
        __tracebackhide__ = True
        if fitting := self.enqueued(task, *args, **described):
            expected = Expected(self.app.tasks, task, args, **described)
            raise AssertionError(f"{expected} was enqueued, and should not have been. {listed(fitting)}")

    def drain(
        self,
        *,
        queues: Sequence[str] | None = None,
        limit: int | None = None,
        until: datetime | timedelta | float | None = None,
        raises: bool = True,
    ) -> list[TaskRun]:
        """Run what is due, and what that enqueues, until nothing is: as one worker with one thread would. Returns what ran.

        The claims are real: of these `queues` (None: all), in their order, with keys, limits and pauses. `limit` ends it after
        so many. With `until` (from now, or an aware datetime) the clock is advanced to it, from one due time to the next, so
        that delayed tasks and retries run too. Tasks run in this thread; in a transaction of the test's each runs in a
        savepoint.

        A task that fails is recorded as in production, with its retry or as a dead letter; and when all have run, its error
        is raised here (of several: an ExceptionGroup), unless `raises` is False. Raises EndlessDrain.
        """
        __tracebackhide__ = True
        if not self._is_running:
            self.clock.run_on()
        ran = self._drain(queues, limit)
        if until is not None:
            until = self._moment(until)
            while limit is None or len(ran) < limit:
                moment = self.store.next_available_at(queues)
                if moment is None or moment > until:
                    break
                self.clock.set(moment)
                ran += self._drain(queues, None if limit is None else limit - len(ran), ran)
            if self.clock() < until:
                self.clock.set(until)
        if raises:
            _raise([one.failure() for one in ran if one.is_failure])
        return ran

    def run(self, task: Task[..., Any], /, *args: Any, **kwargs: Any) -> TaskRun:
        """Run one task here and now as a worker would, its arguments and result through JSON, without enqueueing it.

        It has a context of its own; a transactional task has its transaction. What it raises is raised here, but Snooze,
        Cancel and Retry, which are its outcome. Raises InvalidCall, PayloadError.
        """
        __tracebackhide__ = True
        ran = self._runner().try_out(task, task.parameters.dump(args, kwargs), now=self.clock())
        if self._transaction is not None:
            self._transaction.expire()
        if ran.is_failure:
            _raise([ran.failure()])
        return ran

    @contextmanager
    def inline(self) -> Iterator[None]:
        """Inside, `enqueue()` and `emit()` also run what is due, as `drain()` does, before they return; errors are raised there.

        In the same transaction, so it needs one. Raises ConfigurationError where the harness has none.
        """
        if self._transaction is None:
            raise ConfigurationError("inline() runs tasks in the test's own transaction; give the Harness using=")
        before, self._is_inline = self._is_inline, True
        try:
            yield
        finally:
            self._is_inline = before

    def emit(self, topic: str, payload: object = None, **options: Any) -> Emitted:
        """`Outbox.emit` in the test's transaction."""
        return self.app.emit(topic, payload, **{"using": self.app, **options})

    def _all(self) -> list[Enqueued]:
        if self._transaction is not None:
            self._transaction.flush()
        store = self.store
        rows = [row for row in store.tasks(limit=_KEPT) if row.id not in self._before]
        rows.sort(key=lambda row: (row.created_at, row.position, row.id))
        return [enqueued_of(row, self.app.tasks, lambda row=row: store.history(row.id)) for row in rows]  # type: ignore[misc]

    def _drain(self, queues: Sequence[str] | None, limit: int | None, before: Sequence[TaskRun] = ()) -> list[TaskRun]:
        store, runner = self.store, self._runner()
        ran: list[TaskRun] = []
        if self._transaction is not None:
            self._transaction.flush()
        was_running, self._is_running = self._is_running, True
        try:
            self._subscribe()
            store.recover()
            while limit is None or len(ran) < limit:
                claims = store.claim_ready_task(1, worker_id=self._worker, queues=queues)
                if not claims:
                    break
                if len(before) + len(ran) >= self.max_runs:
                    store.release(claims[0])
                    raise EndlessDrain(_endless([*before, *ran], claims[0]))
                ran.append(runner.run(claims[0]))
        finally:
            self._is_running = was_running
        if self._transaction is not None:
            self._transaction.expire()
        return ran

    def _runner(self) -> InlineRunner:
        return InlineRunner(self.app, self.store, self._transaction, context=self._context)

    def _written(self, using: object) -> None:
        """Something was enqueued."""
        if self._is_inline and not self._is_running:
            if isinstance(using, Session | scoped_session):
                using.flush()
            self.drain()

    def _subscribe(self) -> None:
        """As a worker does when it starts."""
        subscriptions = self.app.subscriptions
        if subscriptions != self._subscribed:
            self.app.sync_subscriptions()
            self._subscribed = subscriptions

    def _find_transaction(self) -> TestTransaction | None:
        if self._using is not None:
            return transaction_of(self._using, self.app.schema)
        alias = getattr(self.app.integration, "alias", None)
        return DjangoTransaction(alias, self.app.schema) if isinstance(alias, str) else None

    @contextmanager
    def _replaced_store(self) -> Iterator[ToldStore]:
        """The outbox has the store of the test meanwhile."""
        kind, schema = type(self.app), self.app.schema
        if self._transaction is None:
            store = ToldStore(self.app.store.bound_engine, schema=schema, clock=self.clock)
        else:
            store = HeldStore(self._transaction, schema=schema, clock=self.clock)
        store.before_emit, store.written = self._subscribe, self._written
        self.app.__class__ = _with_store(kind, store)
        try:
            yield store
        finally:
            self.app.__class__ = kind

    def _leave(self) -> None:
        self._store = self._transaction = None

    def _moment(self, until: datetime | timedelta | float) -> datetime:
        if isinstance(until, datetime):
            return aware(until, "until")
        return self.clock() + duration(until, "until")


def _with_store(kind: type[O], store: Store) -> type[O]:
    """An outbox of this kind whose store is the test's, whatever the kind itself makes of `store`."""
    return type(kind.__name__, (kind,), {"store": property(lambda _: store), "__module__": kind.__module__})


def _raise(failures: list[BaseException]) -> None:
    __tracebackhide__ = True
    distinct = list({id(one): one for one in failures}.values())
    if len(distinct) == 1:
        raise distinct[0]
    if distinct:
        raise BaseExceptionGroup(f"{len(distinct)} tasks failed", distinct)


def _endless(ran: Sequence[TaskRun], claim: Claim) -> str:
    often = ", ".join(
        f"{name} ({_times(count)})" for name, count in Counter(one.task_name for one in ran).most_common(5)
    )
    return (
        f"drain() ran {len(ran)} tasks and {claim.task_name} is due still. It ran: {often}. A task that enqueues itself, or "
        "snoozes for no time, never ends: give drain() a limit=, or raise `max_runs` if so many are meant"
    )


def _times(count: int) -> str:
    return {0: "not at all", 1: "once", 2: "twice"}.get(count, f"{count} times")
