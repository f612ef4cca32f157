"""Which transaction is meant where a task is enqueued or an event emitted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Final, Protocol

from ..context import current
from ..errors import InvalidTarget
from ..store import Store
from .base import Integration

CURRENT: Final = object()
"""Nothing was said: the transaction that the running task, or the framework, is in."""


class OutboxRef(Protocol):
    """What a task needs of the outbox that it belongs to."""

    @property
    def store(self) -> Store: ...

    @property
    def integration(self) -> Integration: ...


def resolve_target(outbox: OutboxRef, target: object, what: str) -> AbstractContextManager[object]:
    """What the store is to be given as `using`. Raises InvalidTarget where nobody knows the present transaction."""
    if target is outbox:
        return nullcontext()
    if target is None:
        raise no_transaction(what, "using=None names no transaction")
    return _present(outbox, what) if target is CURRENT else nullcontext(target)


def no_transaction(what: str, why: str) -> InvalidTarget:
    return InvalidTarget(
        f"{what}: {why}; write using(session) with the session or connection whose transaction it is, or using(outbox) for a "
        "transaction of its own"
    )


@contextmanager
def _present(outbox: OutboxRef, what: str) -> Iterator[object]:
    running = current.get()
    if running is not None and running.is_transactional and running.outbox is outbox:
        yield running
        return
    with outbox.integration.transaction() as known:
        if known is None:
            raise no_transaction(what, "it is not known which transaction this belongs to")
        yield known
