"""Integrations with frameworks. They provide the transaction of the current request, the sessions for handlers, and the
form in which commands are written.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import ConfigurationError
from ..model.wording import IMPORT

if TYPE_CHECKING:
    from ..context import TaskContext, UnitOfWork
    from ..model import Outcome
    from ..store import Store

__all__ = ["FrontEnd", "Integration"]


@dataclass(frozen=True, kw_only=True, slots=True)
class FrontEnd:
    """The form in which commands are written, so that a command in a message or in a log can be copied and run."""

    program: str = "outboxq"
    finds_app: bool = False
    """True if the program can start a worker for the right application without being told the application's name."""
    app: str | None = None
    """The application (``module:outbox``) that a command needs; None if the program knows its database without an
    application.
    """
    options: str = ""
    """The options that specify the database, quoted for a shell: ``--url sqlite:///shop.db``. The command that starts a
    worker does not accept them.
    """

    def typed(self, command: Sequence[str]) -> str:
        """Return the command line for a command, whose words are given without the program's name: ``("queue",
        "resume", "mail")``.
        """
        options = [self.options] if self.options else []
        app = [shlex.quote(self.app)] if self.app else []
        if command[0] != "worker":
            words = [self.program, shlex.join(command), *(["-A", *app] if app else []), *options]
        else:
            own = options if self.finds_app else app or ["APP"]
            words = [self.program, "worker", *own, *map(shlex.quote, command[1:])]
        return " ".join(words)


class Integration:
    """The integration for an application without a framework. A framework's integration overrides the methods that it
    needs.
    """

    front_end = FrontEnd()
    """The form of the program's commands, for messages that contain one."""
    needs_front_end = False
    """If True, commands work only through `front_end`, which sets up the framework before it imports the application.
    """
    how_to_import = IMPORT
    """The remedy that messages name if a worker does not know a task."""

    @property
    def knows_transaction(self) -> bool:
        """Return whether `task.enqueue()` can find the current transaction. If so, messages do not name a session."""
        return False

    def is_in_a_test(self) -> bool:
        """Return whether everything that this thread does is inside one transaction, as in a test. A worker in the same
        process would not see the thread's tasks.
        """
        return False

    def transaction(self) -> AbstractContextManager[object | None]:
        """Yield the current transaction in the form that `using()` accepts; None if the transaction is unknown."""
        return nullcontext()

    def around_handler(self, context: TaskContext) -> AbstractContextManager[None]:  # noqa: ARG002 - used by methods that override this one
        """Return a context manager that wraps a handler and its transaction. The handler's thread enters and leaves it.

        An exception that is raised on entry makes the attempt fail.
        """
        return nullcontext()

    def around_pages(self, app: object) -> AbstractContextManager[None]:  # noqa: ARG002 - as above
        """Return a context manager that wraps the dashboard's handling of a request, in the request's thread. `app` is
        the framework application that the dashboard belongs to.

        Raises ConfigurationError if this integration has no such application.
        """
        raise ConfigurationError(
            "flask= takes the Flask application of an outboxq.contrib.flask.Outboxq; leave it out for any other outbox"
        )

    def unit_of_work(self, store: Store, *, within: object = None) -> AbstractContextManager[UnitOfWork]:
        """Open a transactional task's transaction, or a savepoint in `within`, which is a test's transaction.

        The transaction is committed after the block, or rolled back if the block raises an exception.
        """
        return store.unit(using=within)

    def after_handler(self, context: TaskContext, outcome: Outcome) -> None:
        """Observe the handler's outcome. After a failure, `context.error` is the exception.

        The completion of a transactional task has already been committed. Any other outcome is written afterwards.
        """

    def on_thread_exit(self) -> None:
        """Close a handler thread's resources. This method is called in the thread itself, before the thread ends."""
