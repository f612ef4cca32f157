"""The Integration: the transaction that a program's requests write in, and its work around each handler."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from .front_end import FrontEnd

if TYPE_CHECKING:  # SQLAlchemy would cost `outboxq --help` half a second
    from ..context import TaskContext
    from ..model import Outcome
    from ..model.unit_of_work import UnitOfWork
    from ..store import Store


class Integration:
    """An integration without a framework. One for a framework overrides the hooks that it needs."""

    front_end = FrontEnd()
    """The form in which the program's commands are typed, for messages that name one."""

    def transaction(self) -> AbstractContextManager[object | None]:
        """Yield the present transaction, as `using()` takes it; None if it is not known."""
        return nullcontext()

    def around_handler(self, context: TaskContext) -> AbstractContextManager[None]:  # noqa: ARG002 - for those who override it
        """Return a context manager around a handler and its transaction, in the handler's thread.

        An exception on entering it fails the attempt.
        """
        return nullcontext()

    def unit_of_work(self, store: Store, *, within: object = None) -> AbstractContextManager[UnitOfWork]:
        """Open the transaction of a transactional task; with `within`, a test's own transaction, a savepoint of that.

        It is committed after the block, and rolled back after an exception.
        """
        return store.unit(using=within)

    def after_handler(self, context: TaskContext, outcome: Outcome) -> None:
        """Take note of the handler's outcome; `context.error` is the exception of a failed one.

        The outcome of a transactional task is committed by then; any other is written afterwards.
        """

    def on_thread_exit(self) -> None:
        """Close what a handler thread has opened; called in the thread, before it ends."""
