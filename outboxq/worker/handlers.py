"""The threads of a worker that run handlers, and the child processes that they may run in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from ..errors import ConfigurationError
from ..integration import Integration
from ..integration.hooks import HookCalls, WorkerInfo
from ..model.forks import CAN_FORK
from ..model.records import fields_of
from ..store import Store
from ..task import TaskRegistry
from .completer import Completer
from .handler_log import KeeperPlace
from .leases import ActiveClaim
from .log_lines import EndLog
from .options import Isolation, WorkerSettings
from .task_runner import TaskRunner
from .thread_pool import HandlerPool
from .timeouts import Timeouts

if TYPE_CHECKING:
    from .isolation import Children


class Handlers:
    """The pool of handler threads of one worker."""

    def __init__(
        self,
        completer: Completer,
        settings: WorkerSettings,
        info: WorkerInfo,
        *,
        store: Store,
        own: Store,
        tasks: TaskRegistry,
        integration: Integration,
        hooks: HookCalls | None,
        on_kill: Callable[[ActiveClaim, int], object],
    ) -> None:
        """Make the pool; no thread and no process starts. Raises ConfigurationError for an isolation that this system has not."""
        fails = completer.on_thread_failure
        parts: dict[str, Any] = {
            "store": store,
            "own": own,
            "tasks": tasks,
            "leases": completer.leases,
            "completer": completer,
            "integration": integration,
            "on_failpoint": settings.on_failpoint,
            "ends": EndLog(tracebacks=settings.log_tracebacks, front_end=integration.front_end),
            "meter": completer.meter,
            "grace": settings.timeout_grace,
        }
        self._timeouts = Timeouts(fails)
        self._keeper = KeeperPlace() if settings.handler_log else None
        self._children: Children | None = None
        self._has_forked = False
        if settings.isolation is Isolation.PROCESS:
            if not CAN_FORK:
                raise ConfigurationError(
                    "isolation='process' needs a system that can fork, such as Linux or macOS; leave it out, or run the worker there"
                )
            from .child import ChildProcess
            from .fork_server import ForkServer
            from .isolation import Children, IsolatedRunner

            child = ChildProcess(settings, info, store=store, tasks=tasks, integration=integration, hooks=hooks)
            self._new_server = partial(ForkServer, child.serve, fails)
            self._children = Children(self._new_server(), tasks_per_child=settings.tasks_per_child)
            runner: TaskRunner = IsolatedRunner(**parts, children=self._children, hooks_of_ends=hooks)
        else:
            runner = TaskRunner(**parts, hooks=hooks, keeper=self._keeper, timeouts=self._timeouts, on_kill=on_kill)
        self.pool: HandlerPool[ActiveClaim] = HandlerPool(
            settings.concurrency,
            runner.run,
            prefetch=settings.prefetch,
            on_thread_failure=fails,
            on_thread_exit=integration.on_thread_exit,
            log_fields=lambda active: fields_of(active.claim),
        )

    @contextmanager
    def forking(self, has_begun: Callable[[], bool]) -> Iterator[None]:
        """Fork the server of the child processes, if there are to be any, and close it if the block fails before `has_begun`.

        The block starts the worker: before it there is no thread, no connection and no port that a child would have too. A start
        that failed may be repeated, with another server.
        """
        children = self._children
        if children is not None and not self._has_forked:
            self._has_forked = True
            children.server.start()
        try:
            yield
        except BaseException:
            if children is not None and not has_begun():
                children.close()
                children.server, self._has_forked = self._new_server(), False
            raise

    def print_stacks_of(self, child: int) -> None:
        """Have a child process print the stacks of its threads on stderr."""
        if self._children is not None:
            self._children.server.print_stacks(child)

    def close(self) -> None:
        """End the child processes. A handler that still runs in one is killed."""
        self._timeouts.stop()
        if self._keeper is not None:
            self._keeper.leave()
        if self._children is not None:
            self._children.close()
