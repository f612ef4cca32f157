"""Runs handlers' steps. Each result is written under the task's lease, and is read when the task is claimed again."""

from __future__ import annotations

import functools
import inspect
import logging
import math
import re
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Protocol, TypeAlias, TypeVar

from ..context import Asleep, TaskContext, UnitOfWork
from ..errors import ConfigurationError, LeaseLost, PayloadError, StepRefused
from ..integration import Integration
from ..model import Claim, duration
from ..model.records import fields_of
from ..model.running import LONGEST_NAME, MAX_STEPS, Step, time_asleep
from ..payload.parameters import ReturnValue, dump_result, parsed_result
from ..store import NewStep, Store, Written
from ..store.failure_log import exception_field, sentence
from ..store.transactions import patience
from .executor import call_step, wants_context
from .failpoints import Failpoint, OnFailpoint
from .leases import LeaseView

log = logging.getLogger("outboxq.worker")
T = TypeVar("T")

Call: TypeAlias = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]
"""A function, its positional arguments and its keyword arguments."""
_LONGEST_SLEEP = timedelta(days=3650)
_OWN_LOCK = (
    "; SQLite has one lock for all writers, and a Session that the handler left open holds it even after a read; end the "
    "Session's transaction before the step"
)
_LAST_PATIENCE = 2.0
"""Seconds for which recording the end of a killed attempt waits for a database that is down."""
_RETRY_AFTER = 0.5
"""Seconds between attempts to store a result while the database is not responding."""
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


class StepRows(Protocol):
    """Reads and writes the steps of tasks, as `Store.steps` does."""

    def of_claim(self, claim: Claim) -> list[Step]: ...

    def complete(self, claim: Claim, step: NewStep, *, using: object = None) -> Written | None: ...

    def is_written(self, claim: Claim, name: str) -> bool: ...


@dataclass(eq=False, repr=False)
class HandlerSteps:
    """The steps that a task's current handler knows about."""

    stored: dict[str, Step]
    """The steps that were completed before this handler began."""
    count: int
    """The highest step number in the task."""
    used: set[str] = field(default_factory=set)
    """The names that this handler has used."""
    running: str | None = None
    """The step whose function is running."""


@dataclass(eq=False, repr=False)
class Steps:
    """Runs the steps of all handlers in a worker. Each handler's context holds the state of that handler's steps."""

    store: Store
    """The application's store. Transactional steps write through its connections."""
    own: Store
    """The worker's store, which is used for everything else, because handlers may occupy all of the application's
    connections.
    """
    rows: StepRows
    """The stored steps: `own.steps`, except in a test."""
    integration: Integration
    leases: LeaseView
    on_failpoint: OnFailpoint

    def run(self, context: TaskContext, name: str, call: Call, *, transactional: bool) -> Any:
        """Return the stored result of a step. If no result is stored, call the function, and store and return its
        result.

        Until the step has ended, the handler's TaskTimeout can be raised only inside the function.
        """
        with self._holding_back(context):
            known = self._begin(context, name)
            step = StepCall(name, call, context)
            if (found := known.stored.get(name)) is not None:
                if found.due_at is not None:
                    raise _refused(context, f"{name!r} is the name of a sleep; give the step another name")
                known.used.add(name)
                return step.load(found.result)
            self._ensure_may_write(context, known)
            known.running = name
            try:
                self.on_failpoint(Failpoint.BEFORE_STEP)
                result = (self._in_transaction if transactional else self._plain)(context, known, step)
            finally:
                known.running = None
            known.used.add(name)
            self.on_failpoint(Failpoint.STEP_WRITTEN)
            return result

    def sleep(self, context: TaskContext, name: str, delay: timedelta | float) -> None:
        """Return immediately if the sleep with this name is over. Otherwise, begin the sleep if it has not begun yet,
        and raise Asleep.
        """
        with self._holding_back(context):
            span = duration(delay, "ctx.sleep()")
            known = self._begin(context, name)
            if span < timedelta(0):
                raise _refused(context, f"the duration of the sleep {name!r} must not be negative")
            if span > _LONGEST_SLEEP:
                limit = f"a task can sleep for at most {_LONGEST_SLEEP.days:,} days"
                raise _refused(context, f"the sleep {name!r} is {span.days:,} days long; {limit}")
            if (found := known.stored.get(name)) is None:
                self._ensure_may_write(context, known)
                self.on_failpoint(Failpoint.BEFORE_STEP)
                until = self._write(context, known, NewStep(name=name, number=known.count + 1, delay=span)).due_at
                self.on_failpoint(Failpoint.STEP_WRITTEN)
            elif found.due_at is None:
                raise _refused(context, f"{name!r} is the name of a step; give the sleep another name")
            else:
                until = found.due_at
            if until is not None and until > self._until_answered(context, self.own.now):
                raise Asleep(name, until)
            known.used.add(name)

    def uncounted_time(self, context: TaskContext) -> timedelta:
        """Return how much of the time between the start of the first attempt and the current claim does not count for a
        retry policy: the time before the first attempt since the task's last restart (`Store.restarted_at`), and the
        sleeps since then. The method never raises an error.
        """
        claim = context.claim
        if claim.started_at <= claim.first_started_at:
            return timedelta(0)
        restarted_at: datetime | None = None
        steps: Iterable[Step] = ()
        try:
            if context.was_killed:  # timeouts of other tasks wait for this thread, and its process is about to exit
                with patience(_LAST_PATIENCE):
                    restarted_at = self.own.restarted_at(claim.id)
                    steps = self.rows.of_claim(claim) if context.steps is None else context.steps.stored.values()
            else:
                restarted_at = self._until_answered(context, lambda: self.own.restarted_at(claim.id))
                steps = (context.steps or self._known(context)).stored.values()
        except Exception as error:  # noqa: BLE001 - the attempt has already failed, and that outcome must be kept
            text = "%s: its history could not be read, so its retry policy may count too much time: %s"
            log.warning(text, claim, sentence(error), extra=fields_of(claim, exception=exception_field(error)))
        since = max(restarted_at or claim.first_started_at, claim.first_started_at)
        return since - claim.first_started_at + time_asleep(steps, since=since, until=claim.started_at)

    def _holding_back(self, context: TaskContext) -> AbstractContextManager[None]:
        """Keep the handler's TaskTimeout out of the block. This is not needed in another thread, where the call is
        refused anyway.
        """
        if context.limit is None or threading.get_ident() != context.thread:
            return nullcontext()
        return context.limit.holding_back()  # type: ignore[no-any-return]

    def _begin(self, context: TaskContext, name: Any) -> HandlerSteps:
        """Return the handler's steps. Raises StepRefused if the handler may not begin a step with this name."""
        if not isinstance(name, str) or not 1 <= len(name) <= LONGEST_NAME:
            raise _refused(
                context, f"a step name must be a string of 1 to {LONGEST_NAME} characters, not {name!r:.100}"
            )
        if _UNSTORABLE.search(name) is not None:
            raise _refused(context, f"the step name {name!r} contains NUL or a lone surrogate, which cannot be stored")
        if threading.get_ident() != context.thread:
            raise _refused(
                context,
                f"step {name!r} was called in a thread other than the handler's; call the steps one after the other in "
                "the handler, and start threads inside a step's function",
            )
        known: HandlerSteps | None = context.steps
        if known is not None and known.running is not None:
            raise _refused(
                context,
                f"step {name!r} was called inside step {known.running!r}, whose result covers everything that happens inside it; "
                "call the two steps one after the other",
            )
        if context.unit is not None:
            raise StepRefused(
                f"{context.task_name} is declared transactional=True, so all its writes are committed together, and no "
                "step can be stored earlier; remove that option, and call ctx.step(…, transactional=True)"
            )
        if known is None:
            known = context.steps = self._known(context)
        if name in known.used:
            raise _refused(
                context,
                f"the step name {name!r} is used twice in one run, so the second step would get the result of the first; in a "
                'loop, give each step a different name: ctx.step(f"ship:{line.id}", …)',
            )
        return known

    def _known(self, context: TaskContext) -> HandlerSteps:
        """Read the steps that earlier claims of the task have completed. The first claim does not query the database,
        because there are no earlier steps.
        """
        claim = context.claim
        steps = self._until_answered(context, lambda: self.rows.of_claim(claim)) if claim.lease_token > 1 else []
        return HandlerSteps(stored={step.name: step for step in steps}, count=_highest_number(steps))

    def _ensure_may_write(self, context: TaskContext, known: HandlerSteps) -> None:
        """Raise StepRefused or LeaseLost if the result of another step could not be stored."""
        if known.count >= MAX_STEPS:
            raise _refused(
                context,
                f"it has completed {MAX_STEPS:,} steps, which is the limit; do more in each step, or enqueue the rest as "
                "another task",
            )
        if context.was_lost:
            raise self._lost(context)

    def _plain(self, context: TaskContext, known: HandlerSteps, step: StepCall) -> Any:
        """Call the function, then store its result in a separate transaction."""
        began = time.monotonic()
        with _letting_through(context):
            text, result = step.run(context)
        new = NewStep(name=step.name, number=known.count + 1, result=text, milliseconds=_milliseconds(began))
        self.on_failpoint(Failpoint.AFTER_STEP)
        try:
            found = self._write(context, known, new)
        except Exception as error:
            error.add_note(f"step {step.name!r} has run, but its result is not stored, so its function is called again")
            raise
        return step.load(found.result) if isinstance(found, Step) else result

    def _in_transaction(self, context: TaskContext, known: HandlerSteps, step: StepCall) -> Any:
        """Call the function inside a transaction that also commits the function's result."""
        claim, holds = context.claim, self.store.dialect.one_writer
        unit: UnitOfWork | None = None
        before: float | None = None
        extended: float | None = None
        is_ours, is_committing = True, False
        try:
            with self.integration.unit_of_work(self.store) as unit:
                if holds:
                    before = extended = self._hold_lease(context, unit)
                self.on_failpoint(Failpoint.TRANSACTION_BEGUN)
                context.unit, is_ours = unit, False
                began = time.monotonic()
                try:
                    with _letting_through(context):
                        text, result = step.run(context)
                        unit.flush()
                finally:
                    context.unit = None
                new = NewStep(name=step.name, number=known.count + 1, result=text, milliseconds=_milliseconds(began))
                is_ours = True
                self.on_failpoint(Failpoint.AFTER_STEP)
                if holds:
                    sent = time.monotonic()
                    if self._extend(claim, unit):
                        extended = sent + claim.lease_seconds
                if self.rows.complete(claim, new, using=unit.target) is None:
                    raise _NotWritten
                is_committing = True
                self.on_failpoint(Failpoint.BEFORE_COMMIT)
            before = extended
            self.on_failpoint(Failpoint.AFTER_COMMIT)
        except _NotWritten:
            return step.load(self._after_all(context, known, step.name).result)
        except Exception as error:
            # If the answer to the COMMIT was lost, the row shows whether it succeeded.
            if not is_committing or not self._until_answered(context, lambda: self.rows.is_written(claim, step.name)):
                if interrupted(self.store, error, unit, is_ours=is_ours):
                    context.interruption = error
                raise
            before = extended
        finally:
            if before is not None:
                self.leases.hold_until(context, before)
        known.count += 1
        return result

    def _hold_lease(self, context: TaskContext, unit: UnitOfWork) -> float:
        """Keep the lease until the end of the transaction, which holds the only lock. Returns the previous deadline,
        which heartbeats may have extended while this thread waited for the lock. Raises LeaseLost if another worker has
        the lease.
        """
        if context.lost and not self._extend(context.claim, unit):
            raise self._lost(context)
        before = context.deadline
        self.leases.hold_until(context, math.inf)
        return before

    def _extend(self, claim: Claim, unit: UnitOfWork) -> bool:
        """Extend the lease in the step's transaction, during which no heartbeat can be written."""
        return bool(self.store.heartbeat([claim], using=unit.target))

    def _write(self, context: TaskContext, known: HandlerSteps, new: NewStep) -> Written | Step:
        """Store a step; if it is already stored, return it. Raises LeaseLost if the claim is no longer valid."""
        written = self._until_answered(context, lambda: self.rows.complete(context.claim, new))
        if written is None:
            return self._after_all(context, known, new.name)
        known.count += 1
        return written

    def _after_all(self, context: TaskContext, known: HandlerSteps, name: str) -> Step:
        """Return the stored step that prevented a write. Raises LeaseLost if the claim is no longer valid.

        An earlier COMMIT whose answer was lost may have stored the step after all.
        """
        claim = context.claim
        if self._until_answered(context, lambda: self.own.heartbeat([claim])):
            steps = self._until_answered(context, lambda: self.rows.of_claim(claim))
            known.count = _highest_number(steps)
            for step in steps:
                if step.name == name:
                    return step
        raise self._lost(context)

    def _lost(self, context: TaskContext) -> LeaseLost:
        self.leases.mark_lost(context.claim)
        return LeaseLost(f"{context.claim}: its lease was lost, so this worker stores no more of its steps")

    def _until_answered(self, context: TaskContext, ask: Callable[[], T]) -> T:
        """Return the database's answer. If the database is down, repeat the query as long as the claim is valid and the
        worker is running.

        Raises TimeoutError if SQLite's lock does not become free before the lease ends, because the handler itself may
        hold the lock.
        """
        has_warned, hint = False, _OWN_LOCK if self.own.dialect.one_writer else ""
        while True:
            try:
                return ask()
            except Exception as error:
                is_busy = self.own.may_pass(error)
                if not (is_busy or self.own.cannot_write_now(error)) or context.was_lost or self.own.gone.is_set():
                    raise
                if hint and is_busy and time.monotonic() >= context.deadline:
                    raise TimeoutError(
                        f"a step waited for the database until the task's lease expired{hint}"
                    ) from error
                if not has_warned:
                    has_warned = True
                    text = "%s: a step is waiting for the database: %s%s"
                    log.warning(text, context.claim, sentence(error), hint, extra=fields_of(context.claim))
                self.own.gone.wait(_RETRY_AFTER)


def interrupted(store: Store, error: BaseException, unit: UnitOfWork | None, *, is_ours: bool) -> bool:
    """Return whether an external error ended this transaction or prevented it from beginning.

    `is_ours` is True if the error came from the worker's statements around the user's function, not from the function.
    """
    if is_ours and (store.may_pass(error) or store.cannot_write_now(error)):
        return True
    return unit is not None and unit.was_interrupted(error)


class StepCall:
    """A call to a step's function, and the conversion of its result to JSON and back."""

    def __init__(self, name: str, call: Call, context: TaskContext) -> None:
        """Raise StepRefused for an async function, a generator, or a return annotation that cannot be used to read a
        result.
        """
        self.name, self._call = name, call
        self._what = what = f"{context.task_name}: step {name!r}"
        function = call[0]
        if not callable(function):
            raise StepRefused(f"{what}: a step takes a function and its arguments, not {type(function).__name__}")
        plain = _plain_function(function)
        if inspect.iscoroutinefunction(plain) or inspect.isasyncgenfunction(plain):
            raise StepRefused(
                f"{what}: an async function cannot be a step; pass a plain function that calls asyncio.run()"
            )
        if inspect.isgeneratorfunction(plain):
            raise StepRefused(f"{what}: a generator function does nothing when it is called; return a list")
        self._returned = None if plain is None else ReturnValue(plain, name=what)
        if self._returned is not None:
            try:
                self._returned.check()
            except ConfigurationError as error:
                raise StepRefused(str(error).partition("; the result as it is stored")[0]) from None

    def run(self, context: TaskContext) -> tuple[str | None, Any]:
        """Call the function. Returns its result twice: as JSON, and as decoded using the annotation. Raises
        StepRefused.
        """
        try:
            value = call_step(self._call, context)
        except TypeError:
            self._ensure_arguments_fit(context)
            raise
        if inspect.iscoroutine(value):
            value.close()
            raise StepRefused(
                f"{self._what}: its function returned a coroutine; pass a plain function that calls asyncio.run()"
            )
        try:
            text = dump_result(value, name=self._what)
            return text, self.load(text)
        except PayloadError as error:
            raise StepRefused(str(error)) from None

    def _ensure_arguments_fit(self, context: TaskContext) -> None:
        """Raise StepRefused if the function cannot be called with these arguments, because a retry would pass the same
        ones.
        """
        function, args, kwargs = self._call
        with suppress(ValueError):  # its signature is unknown
            signature = inspect.signature(function)
            try:
                signature.bind(*((context, *args) if wants_context(function) else args), **kwargs)
            except TypeError as misfit:
                named = getattr(function, "__qualname__", repr(function))
                raise StepRefused(
                    f"{self._what}: {named}{signature} cannot be called with these arguments: {misfit}"
                ) from None

    def load(self, text: str | None) -> Any:
        """Return a stored result, decoded using the return annotation. Raises PayloadError if the result does not match
        the annotation.
        """
        return parsed_result(text, name=self._what) if self._returned is None else self._returned.load(text)


class _NotWritten(Exception):
    """Rolls back the transaction of a step that was not stored."""


def _refused(context: TaskContext, why: str) -> StepRefused:
    return StepRefused(f"{context.task_name}: {why}")


def _letting_through(context: TaskContext) -> AbstractContextManager[None]:
    """Allow the handler's TaskTimeout inside the block, which runs the handler's code within a step."""
    return nullcontext() if context.limit is None else context.limit.letting_through()


def _highest_number(steps: Iterable[Step]) -> int:
    return max((step.number for step in steps), default=0)


def _milliseconds(began: float) -> int:
    return round((time.monotonic() - began) * 1000)


def _plain_function(function: Callable[..., Any]) -> Callable[..., Any] | None:
    """Return the function that has the annotations, or None if its signature is unknown."""
    while isinstance(function, functools.partial):
        function = function.func
    if not hasattr(inspect.unwrap(function), "__globals__"):
        function = getattr(type(function), "__call__", function)  # noqa: B004 - a callable object
    try:
        inspect.signature(function)
    except (ValueError, TypeError):
        return None
    return function if hasattr(inspect.unwrap(function), "__globals__") else None
