"""What the program around a task brings along: where its requests write, and what its handlers need about them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

from .front_end import FrontEnd

if TYPE_CHECKING:  # SQLAlchemy would cost `outboxq --help` half a second
    from ..context import TaskContext, UnitOfWork
    from ..model import Outcome
    from ..store import Store


class Integration:
    """A program without a framework. One for a framework overrides what it knows better."""

    front_end = FrontEnd()
    """The words that call the program's commands, for the sentences that name one."""

    @contextmanager
    def transaction(self) -> Iterator[object | None]:
        """The transaction that is written in when none was named: what `using()` would be given. None: nobody knows."""
        yield None

    def around_handler(self, context: TaskContext) -> AbstractContextManager[None]:  # noqa: ARG002 - for those who override it
        """Around a handler and the transaction of its task, in its thread. What it raises at its beginning fails the attempt."""
        return nullcontext()

    def unit_of_work(self, store: Store, *, within: object = None) -> AbstractContextManager[UnitOfWork]:
        """The transaction of a transactional task; `within` a test's own transaction, a savepoint of that.

        Committed after the block, rolled back with any error of it.
        """
        return store.unit(using=within)

    def after_handler(self, context: TaskContext, outcome: Outcome) -> None:
        """The handler ended so (`context.error` is why, where it failed): about to be written, or committed if it was transactional."""

    def on_thread_exit(self) -> None:
        """A handler thread ends: close what it opened."""
