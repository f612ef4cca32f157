"""The store of an outbox during a test."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar
from uuid import UUID

import tenacity
from sqlalchemy import Engine

from ..database.dialects import Begin, Dialect
from ..database.privileges import Feature
from ..database.target import Target
from ..errors import ConfigurationError, InvalidTarget
from ..model import Handle, NewTask, Outcome
from ..model.batches import BatchLink
from ..model.subscriptions import Emitted, NewEvent
from ..store import BatchStanding, Store
from ..store.units_of_work import Unit
from .clock import Clock
from .transaction import TestTransaction

N = TypeVar("N", NewTask, NewEvent)


class ObservingStore(Store):
    """A store with transactions of its own, as in production, which reports to the harness what is written."""

    runs_alone = True
    clock: Clock
    before_emit: Callable[[], object] = staticmethod(lambda: None)
    written: Callable[[object], object] = staticmethod(lambda _: None)
    """Called with its `using` after anything was enqueued."""

    def enqueue_many(self, tasks: Sequence[NewTask], *, using: object = None) -> list[Handle]:
        handles = super().enqueue_many([self._due(task) for task in tasks], using=using)
        self.written(using)
        return handles

    def emit(self, event: NewEvent, *, using: object = None) -> Emitted:
        self.before_emit()
        emitted = super().emit(self._due(event), using=using)
        self.written(using)
        return emitted

    def finish(
        self, outcomes: Sequence[Outcome], *, durable: bool = True, waits: bool = True, using: object = None
    ) -> frozenset[UUID]:
        for outcome in outcomes:
            self.clock.wait_for(outcome.available_at or self.clock() + outcome.delay)
        return super().finish(outcomes, durable=durable, waits=waits, using=using)

    def _due(self, given: N) -> N:
        due = self.clock.present(given.available_at)
        self.clock.wait_for(due or self.clock() + given.delay)
        return replace(given, available_at=due)


class TransactionBoundStore(ObservingStore):
    """Each method without ``using=`` is a savepoint of the test's transaction; rolled back with it, nothing is left."""

    def __init__(self, within: TestTransaction, *, schema: str | None, clock: Clock) -> None:
        super().__init__(None, schema=schema, clock=clock)
        self._within = within

    @property
    def dialect(self) -> Dialect:
        return self._within.target().dialect

    @property
    def bound_engine(self) -> Engine:
        """Raises ConfigurationError."""
        raise ConfigurationError(
            "during a test this outbox has no engine: it lives in the test's own transaction, which no worker can see; run "
            "tasks with drain(), or give the Harness no using= and let the test commit"
        )

    @contextmanager
    def unit(self, *, using: object = None) -> Iterator[Unit]:
        with super().unit(using=self._within.within if using is None else using) as unit:
            yield unit

    def batch_standings(
        self, links: Collection[BatchLink], *, everything: bool = True
    ) -> Mapping[BatchLink, BatchStanding]:
        with self.transaction(
            Begin.WRITE
        ):  # its tasks are counted at a commit, or by a savepoint of the test's transaction
            return super().batch_standings(links, everything=everything)

    def may_pass(self, error: BaseException) -> bool:  # noqa: ARG002
        """Return False: a test sees the error at once."""
        return False

    def join(self, using: object, enqueues: frozenset[Feature] | None = None) -> Target:
        target = super().join(using, enqueues)
        ours = self._within.target()
        if getattr(target, "connection", None) is getattr(ours, "connection", self):
            return target
        if type(target.dialect) is not type(ours.dialect) or target.database() != ours.database():
            raise InvalidTarget(
                f"this is a transaction in the database {target.database()!r} ({target.dialect.name}), but the test's own is "
                f"in {ours.database()!r} ({ours.dialect.name}); a task must be written where its business rows are"
            )
        return target

    @contextmanager
    def transaction(self, begin: Begin) -> Iterator[Target]:
        with self._within.transaction(begin) as target:
            self.ensure_schema(target)
            yield target

    def tries(self, gives_up: Callable[[BaseException], bool] | None = None) -> tenacity.Retrying:  # noqa: ARG002
        """Once: what a transaction of our own would run again is up to the test's here."""
        return tenacity.Retrying(stop=tenacity.stop_after_attempt(1), reraise=True)
