"""The ambient transaction, which an enqueue or an emit joins if the caller does not pass one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from typing import Any, Final, Protocol
from uuid import UUID

from ..context import current
from ..errors import InvalidTarget
from ..store import Store
from . import Integration
from .hooks import HookCalls

CURRENT: Final = object()
"""The default for `using`: the current transaction of the running task or of the framework."""


class OutboxRef(Protocol):
    """The part of an Outbox that its tasks use."""

    @property
    def store(self) -> Store: ...

    @property
    def integration(self) -> Integration: ...

    @property
    def hooks(self) -> HookCalls | None: ...

    def wait_for_result(self, task_id: UUID | str, timeout: timedelta | float | None, origin: Any) -> Any: ...


def resolve_target(
    outbox: OutboxRef, target: object, what: str, *, is_option: bool = False
) -> AbstractContextManager[object]:
    """Return a context manager that yields the `using` argument for the store. Raises InvalidTarget if the current
    transaction is unknown.

    `is_option` is True if the caller writes `using=session`, not `using(session)`.
    """
    if target is outbox:
        return nullcontext()
    if getattr(type(target), "takes_tasks", None) is not None:
        raise no_transaction(what, f"{target!r} accepts only tasks, through task.using(batch)", is_option=is_option)
    if target is None:
        raise no_target(outbox, what, is_option=is_option)
    return present_target(outbox, what, is_option=is_option) if target is CURRENT else nullcontext(target)


def no_target(outbox: OutboxRef, what: str, *, is_option: bool = False) -> InvalidTarget:
    """Return the error for a call of `using(None)`."""
    given = "using=None" if is_option else "using(None)"
    if not outbox.integration.knows_transaction:
        return no_transaction(what, f"{given} does not name a transaction", is_option=is_option)
    current, own = ("leave out using=", "using=outbox") if is_option else ("pass using()", "using(outbox)")
    return InvalidTarget(
        f"{what}: {given} does not name a transaction; {current} to write in the current transaction, or pass {own} for a "
        "separate transaction"
    )


def no_transaction(what: str, why: str, *, is_option: bool = False) -> InvalidTarget:
    session, own = ("using=session", "using=outbox") if is_option else ("using(session)", "using(outbox)")
    return InvalidTarget(
        f"{what}: {why}; write {session} with the session or connection that owns the transaction, or {own} for a "
        "separate transaction"
    )


@contextmanager
def present_target(outbox: OutboxRef, what: str, *, is_option: bool = False) -> Iterator[object]:
    """Yield the current transaction in the form that `using` accepts. Raises InvalidTarget if the transaction is not
    known.
    """
    running = current.get()
    if running is not None and running.is_transactional and running.outbox is outbox:
        yield running
        return
    with outbox.integration.transaction() as known:
        if known is None:
            raise no_transaction(what, "the current transaction is not known", is_option=is_option)
        yield known
