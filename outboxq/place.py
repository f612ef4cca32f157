"""Which transaction is meant where a task is enqueued or an event emitted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Protocol

from .context import current
from .errors import InvalidTarget
from .host import Host
from .store import Store

HERE: Final = object()
"""Nothing was said: the transaction that the running task, or the framework, is in."""


class Holder(Protocol):
    """What a task needs of the outbox that it belongs to."""

    @property
    def store(self) -> Store: ...

    @property
    def host(self) -> Host: ...


@contextmanager
def place(holder: Holder, target: object, what: str) -> Iterator[object]:
    """What the store is to be given as `using`. Raises InvalidTarget where nobody knows the present transaction."""
    if target is holder:
        yield None
        return
    if target is None:
        raise nowhere(what, "using=None names no transaction")
    if target is not HERE:
        yield target
        return
    running = current.get()
    if running is not None and running.is_transactional and running.holder is holder:
        yield running
        return
    with holder.host.transaction() as known:
        if known is None:
            raise nowhere(what, "it is not known which transaction this belongs to")
        yield known


def nowhere(what: str, why: str) -> InvalidTarget:
    return InvalidTarget(
        f"{what}: {why}; write using(session) with the session or connection whose transaction it is, or using(outbox) for a "
        "transaction of its own"
    )
