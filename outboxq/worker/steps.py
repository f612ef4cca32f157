"""Runs the steps of handlers: each result is written under the lease, and later claims of the task read it."""

from __future__ import annotations

import functools
import inspect
import logging
import math
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol, TypeAlias, TypeVar

from ..context import Asleep, TaskContext, UnitOfWork
from ..errors import ConfigurationError, LeaseLost, PayloadError, StepRefused
from ..integration import Integration
from ..model import Claim, duration
from ..model.records import fields_of
from ..model.running import LONGEST_NAME, MAX_STEPS, Step, time_asleep
from ..payload.parameters import ReturnValue, dump_result, parsed_result, sanitize
from ..store import NewStep, Store, Written
from ..store.failure_log import exception_field, sentence
from ..store.transactions import patience
from .executor import call_step
from .failpoints import Failpoint, OnFailpoint
from .leases import LeaseView

log = logging.getLogger("outboxq.worker")
T = TypeVar("T")

Call: TypeAlias = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]
"""A function, its positional arguments and its keyword arguments."""
_LONGEST_SLEEP = timedelta(days=3650)
_OWN_LOCK = (
    "; SQLite has one lock for all writers, which an open Session of the handler holds even if it only reads: end its "
    "transaction before the step"
)
_LAST_PATIENCE = 2.0
"""Seconds for which the end of an attempt that was killed waits for a database that is away."""
_RETRY_AFTER = 0.5
"""Seconds between two tries to store a result while the database does not answer."""


class StepStore(Protocol):
    """Loads and stores the steps of tasks."""

    def earlier(self, claim: Claim) -> list[Step]:
        """Return the steps that earlier claims of the task have completed."""

    def load(self, claim: Claim) -> list[Step]:
        """Return all steps of the task, also those that this claim has completed."""

    def complete(self, claim: Claim, step: NewStep, *, using: object = None) -> Written | None:
        """Store a step of a claim that still holds; None: it does not, or the step is stored already."""

    def is_written(self, claim: Claim, name: str) -> bool:
        """Return whether this claim has stored a step of this name."""


@dataclass(eq=False, repr=False)
class StoredSteps:
    """The steps of tasks in the database."""

    store: Store
    """The application's: transactional steps write on its connections."""
    own: Store
    """The worker's: all else is written there."""

    def earlier(self, claim: Claim) -> list[Step]:
        """Return the steps of earlier claims. The first claim of a task finds none, so it does not ask."""
        return self.load(claim) if claim.lease_token > 1 else []

    def load(self, claim: Claim) -> list[Step]:
        return self.own.steps.of_claim(claim)

    def complete(self, claim: Claim, step: NewStep, *, using: object = None) -> Written | None:
        return (self.own if using is None else self.store).steps.complete(claim, step, using=using)

    def is_written(self, claim: Claim, name: str) -> bool:
        return self.own.steps.is_written(claim, name)


@dataclass(eq=False, repr=False)
class HandlerSteps:
    """The steps of a task, as far as its present handler knows them."""

    stored: dict[str, Step]
    """The steps that were completed before this handler began."""
    count: int
    """The highest number of a step of the task."""
    used: set[str] = field(default_factory=set)
    """The names that this handler has used."""
    running: str | None = None
    """The step whose function runs now."""


@dataclass(eq=False, repr=False)
class Steps:
    """Runs the steps of all handlers of a worker. What it knows of one handler is in that handler's context."""

    store: Store
    """The application's: transactional steps write on its connections."""
    own: Store
    """The worker's: all else is written there, since the handler may have every connection of the application's."""
    rows: StepStore
    integration: Integration
    leases: LeaseView
    on_failpoint: OnFailpoint

    def run(self, context: TaskContext, name: str, call: Call, *, transactional: bool) -> Any:
        """Return the result of a step: the stored one, or else what its function returns now, once that is stored.

        The handler's TaskTimeout may come in the function, and else not before the step has ended.
        """
        with self._holding_back(context):
            return self._run(context, name, call, transactional=transactional)

    def sleep(self, context: TaskContext, name: str, delay: timedelta | float) -> None:
        """Return if the sleep of this name is over. Otherwise begin it, if that was not done before, and raise Asleep."""
        with self._holding_back(context):
            self._sleep(context, name, delay)

    def time_asleep(self, context: TaskContext) -> timedelta:
        """Return for how long the task has slept since its first attempt began, until the present claim. Never raises."""
        claim = context.claim
        if claim.started_at <= claim.first_started_at:
            return timedelta(0)
        try:
            if context.steps is not None:
                steps = context.steps.stored.values()
            elif context.was_killed:  # the timeouts of other tasks wait for this thread, which ends its process
                with patience(_LAST_PATIENCE):
                    steps = self.rows.load(claim)
            else:
                steps = self._known(context).stored.values()
        except Exception as error:  # noqa: BLE001 - the attempt has failed already, and must end so
            text = "%s: its sleeps could not be read, so its policy counts them: %s"
            log.warning(text, claim, sentence(error), extra=fields_of(claim, exception=exception_field(error)))
            return timedelta(0)
        return time_asleep(steps, since=claim.first_started_at, until=claim.started_at)

    def _run(self, context: TaskContext, name: str, call: Call, *, transactional: bool) -> Any:
        known = self._begin(context, name)
        result = StepResult(call[0], what=f"{context.task_name}: step {name!r}")
        found = known.stored.get(name)
        if found is not None:
            if found.due_at is not None:
                raise StepRefused(f"{context.task_name}: {name!r} is the name of a sleep; give the step another name")
            known.used.add(name)
            return result.load(found.result)
        self._ensure_may_write(context, known)
        known.running = name
        try:
            self.on_failpoint(Failpoint.BEFORE_STEP)
            how = self._in_transaction if transactional else self._plain
            text = how(context, known, name, call, result)
        finally:
            known.running = None
        known.used.add(name)
        self.on_failpoint(Failpoint.STEP_WRITTEN)
        return result.load(text)

    def _sleep(self, context: TaskContext, name: str, delay: timedelta | float) -> None:
        span = duration(delay, "ctx.sleep()")
        known = self._begin(context, name)
        if span < timedelta(0):
            raise StepRefused(f"{context.task_name}: the sleep {name!r} must not be shorter than nothing")
        if span > _LONGEST_SLEEP:
            raise StepRefused(
                f"{context.task_name}: the sleep {name!r} is {span.days:,} days long; a task can sleep for "
                f"{_LONGEST_SLEEP.days:,} days at most"
            )
        found = known.stored.get(name)
        if found is not None and found.due_at is None:
            raise StepRefused(f"{context.task_name}: {name!r} is the name of a step; give the sleep another name")
        if found is not None:
            until = found.due_at
        else:
            self._ensure_may_write(context, known)
            self.on_failpoint(Failpoint.BEFORE_STEP)
            new = NewStep(name=name, number=known.count + 1, delay=span)
            until = self._write(context, known, new).due_at
            self.on_failpoint(Failpoint.STEP_WRITTEN)
        if until is not None and until > self._until_answered(context, self.own.now):
            raise Asleep(name, until)
        known.used.add(name)

    def _holding_back(self, context: TaskContext) -> AbstractContextManager[None]:
        """Around what the handler's TaskTimeout must not tear. In a foreign thread, which is refused, it holds nothing back."""
        if context.limit is None or threading.get_ident() != context.thread:
            return nullcontext()
        return context.limit.holding_back()  # type: ignore[no-any-return]

    def _begin(self, context: TaskContext, name: str) -> HandlerSteps:
        """Return what is known of the handler's steps, once it may have one of this name. Raises StepRefused."""
        task = context.task_name
        _check_name(task, name)
        if threading.get_ident() != context.thread:
            raise StepRefused(
                f"{task}: step {name!r} was called in another thread than the handler's; call the steps one after the other "
                "in the handler, and start threads inside a step's function"
            )
        known: HandlerSteps | None = context.steps
        if known is not None and known.running is not None:
            raise StepRefused(
                f"{task}: step {name!r} is inside step {known.running!r}, whose one result stands for all of it; make two "
                "steps that follow each other"
            )
        if context.is_transactional:
            raise StepRefused(
                f"{task} is declared transactional=True, so all that it writes is one commit and no step can outlive it; "
                "declare it without, and call ctx.step(…, transactional=True)"
            )
        if known is None:
            known = context.steps = self._known(context)
        if name in known.used:
            raise StepRefused(
                f"{task}: the step name {name!r} is used twice in one run, so the second would get the result of the first; "
                'in a loop, make the name of what differs: ctx.step(f"ship:{line.id}", …)'
            )
        return known

    def _known(self, context: TaskContext) -> HandlerSteps:
        """Read the steps that earlier claims of the task have completed."""
        steps = self._until_answered(context, lambda: self.rows.earlier(context.claim))
        return HandlerSteps(
            stored={step.name: step for step in steps}, count=max((step.number for step in steps), default=0)
        )

    def _ensure_may_write(self, context: TaskContext, known: HandlerSteps) -> None:
        """Raise StepRefused or LeaseLost where the result of a further step could not be stored."""
        if known.count >= MAX_STEPS:
            raise StepRefused(
                f"{context.task_name} has completed {MAX_STEPS:,} steps, which is the limit; do several things in one step, or "
                "enqueue the rest as a task of its own"
            )
        if context.was_lost:
            raise self._lost(context)

    def _plain(
        self, context: TaskContext, known: HandlerSteps, name: str, call: Call, result: StepResult
    ) -> str | None:
        """Call the function, then store its result in a transaction of its own."""
        began = time.monotonic()
        with _letting_through(context):
            text = result.dump(call_step(call, context))
        new = NewStep(name=name, number=known.count + 1, result=text, milliseconds=_milliseconds(began))
        self.on_failpoint(Failpoint.AFTER_STEP)
        try:
            found = self._write(context, known, new)
        except Exception as error:
            error.add_note(
                f"the function of step {name!r} had returned, and its result is not stored: it is called again"
            )
            raise
        return found.result if isinstance(found, Step) else text

    def _in_transaction(
        self, context: TaskContext, known: HandlerSteps, name: str, call: Call, result: StepResult
    ) -> str | None:
        """Call the function inside a transaction that also commits its result."""
        claim, holds, before = context.claim, self.store.dialect.one_writer, context.deadline
        unit: UnitOfWork | None = None
        is_ours, is_committing = True, False
        try:
            with self.integration.unit_of_work(self.store) as unit:
                if holds:
                    self._hold_lease(context, unit)
                self.on_failpoint(Failpoint.TRANSACTION_BEGUN)
                context.unit, is_ours = unit, False
                began = time.monotonic()
                try:
                    with _letting_through(context):
                        text = result.dump(call_step(call, context))
                        unit.flush()
                finally:
                    context.unit = None
                new = NewStep(name=name, number=known.count + 1, result=text, milliseconds=_milliseconds(began))
                is_ours = True
                self.on_failpoint(Failpoint.AFTER_STEP)
                if holds:
                    sent = time.monotonic()
                    if self._extend(claim, unit):
                        before = sent + claim.lease_seconds
                if self.rows.complete(claim, new, using=unit.target) is None:
                    raise _NotWritten
                is_committing = True
                self.on_failpoint(Failpoint.BEFORE_COMMIT)
            self.on_failpoint(Failpoint.AFTER_COMMIT)
        except _NotWritten:
            return self._after_all(context, known, name).result
        except Exception as error:
            # An answer to the COMMIT that did not come: the row says whether it happened.
            if not is_committing or not self._until_answered(context, lambda: self.rows.is_written(claim, name)):
                if self._was_interrupted(error, unit, is_ours=is_ours):
                    context.interruption = error
                raise
        finally:
            if holds:
                self.leases.hold_until(context, before)
        known.count += 1
        return text

    def _was_interrupted(self, error: BaseException, unit: UnitOfWork | None, *, is_ours: bool) -> bool:
        """Return whether an error from outside ended the transaction, or kept it from beginning.

        `is_ours`: it came from what is done around the function.
        """
        passes = self.store.may_pass(error) or self.store.cannot_write_now(error)
        return (is_ours and passes) or (unit is not None and unit.was_interrupted(error))

    def _extend(self, claim: Claim, unit: UnitOfWork) -> bool:
        """Extend the lease in the step's own transaction, during which no heartbeat can be written."""
        return bool(self.store.heartbeat([claim], using=unit.target))

    def _hold_lease(self, context: TaskContext, unit: UnitOfWork) -> None:
        """Keep the lease until the transaction ends: it has the only lock there is. Raises LeaseLost if another worker has it."""
        if context.lost and not self._extend(context.claim, unit):
            raise self._lost(context)
        self.leases.hold_until(context, math.inf)

    def _write(self, context: TaskContext, known: HandlerSteps, new: NewStep) -> Written | Step:
        """Store a step of a claim that still holds; returns the stored one if it is there already. Raises LeaseLost."""
        written = self._until_answered(context, lambda: self.rows.complete(context.claim, new))
        if written is None:
            return self._after_all(context, known, new.name)
        known.count += 1
        return written

    def _after_all(self, context: TaskContext, known: HandlerSteps, name: str) -> Step:
        """Return the step that stood in the way of a write, if the claim still holds. Raises LeaseLost if it does not.

        A COMMIT of this handler, whose answer did not come, may have happened later.
        """
        claim = context.claim
        if self._until_answered(context, lambda: self.own.heartbeat([claim])):
            steps = self._until_answered(context, lambda: self.rows.load(claim))
            known.count = max((step.number for step in steps), default=0)
            for step in steps:
                if step.name == name:
                    return step
        raise self._lost(context)

    def _lost(self, context: TaskContext) -> LeaseLost:
        self.leases.mark_lost(context.claim)
        return LeaseLost(f"{context.claim}: its lease was lost, so no further step of it is stored here")

    def _until_answered(self, context: TaskContext, ask: Callable[[], T]) -> T:
        """Return what the database answers; while it is away, wait for it as long as the claim and the worker last.

        Raises TimeoutError where SQLite's lock is not free before the end of the lease: the handler itself may hold it.
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
                    raise TimeoutError(f"a step waited for the database until its lease ended{hint}") from error
                if not has_warned:
                    has_warned = True
                    text = "%s: a step waits for the database: %s%s"
                    log.warning(text, context.claim, sentence(error), hint, extra=fields_of(context.claim))
                self.own.gone.wait(_RETRY_AFTER)


def _letting_through(context: TaskContext) -> AbstractContextManager[None]:
    """Around the code of the handler's inside of a step."""
    return nullcontext() if context.limit is None else context.limit.letting_through()


class _NotWritten(Exception):
    """Rolls the transaction of a step back that was not stored."""


def _check_name(task: str, name: object) -> None:
    """Raise StepRefused for what is no name that both databases store as it is."""
    if not isinstance(name, str) or not 1 <= len(name) <= LONGEST_NAME:
        raise StepRefused(f"{task}: the name of a step is a text of 1 to {LONGEST_NAME} characters, not {name!r:.100}")
    if sanitize(name) != name:
        raise StepRefused(
            f"{task}: the step name {name!r} has a character that cannot be stored: NUL or a lone surrogate"
        )


def _milliseconds(began: float) -> int:
    return round((time.monotonic() - began) * 1000)


class StepResult:
    """The result of a step's function, as JSON and back."""

    def __init__(self, function: Callable[..., Any], *, what: str) -> None:
        """Raises StepRefused for an async function, and for a return annotation that results cannot be read by."""
        self._what = what
        if not callable(function):
            raise StepRefused(f"{what}: a step takes a function and its arguments, not {type(function).__name__}")
        plain = _plain_function(function)
        if inspect.iscoroutinefunction(plain) or inspect.isasyncgenfunction(plain):
            raise StepRefused(
                f"{what}: async functions cannot be steps: pass a plain one, with asyncio.run() inside it"
            )
        if inspect.isgeneratorfunction(plain):
            raise StepRefused(f"{what}: a generator function does nothing when it is called: return a list")
        self._returned = None if plain is None else ReturnValue(plain, name=what)
        if self._returned is not None:
            try:
                self._returned.check()
            except ConfigurationError as error:
                raise StepRefused(str(error).partition("; the result as it is stored")[0]) from None

    def dump(self, value: object) -> str | None:
        """Return the value as JSON that the annotation reads. Raises StepRefused."""
        if inspect.iscoroutine(value):
            value.close()
            raise StepRefused(
                f"{self._what}: its function returned a coroutine: pass one that awaits it by asyncio.run()"
            )
        try:
            text = dump_result(value, name=self._what)
            self.load(text)
        except PayloadError as error:
            raise StepRefused(str(error)) from None
        return text

    def load(self, text: str | None) -> Any:
        """Return the value, read by the return annotation. Raises PayloadError for one that does not fit it."""
        return parsed_result(text, name=self._what) if self._returned is None else self._returned.load(text)


def _plain_function(function: Callable[..., Any]) -> Callable[..., Any] | None:
    """Return the function that has the annotations; None: there is no signature to look at."""
    while isinstance(function, functools.partial):
        function = function.func
    if not hasattr(inspect.unwrap(function), "__globals__"):
        function = getattr(type(function), "__call__", function)  # noqa: B004 - an object that can be called
    try:
        inspect.signature(function)
    except (ValueError, TypeError):
        return None
    return function if hasattr(inspect.unwrap(function), "__globals__") else None
