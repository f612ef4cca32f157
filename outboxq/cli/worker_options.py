"""The options of `outboxq worker`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from ..worker.options import LAST_PORT, Isolation, WorkerSettings
from .console import span
from .logs import LogFormat

F = TypeVar("F", bound=Callable[..., Any])

DEFAULTS = WorkerSettings()


def worker_options(command: F) -> F:
    """Add the options of a worker to a command. Those with the name of one in `WorkerOptions` are passed on to `Outbox.worker()`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def none_if_empty(_context: click.Context, _option: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...] | None:
    return value or None


_OPTIONS = (
    click.option(
        "--database-url",
        "database_urls",
        multiple=True,
        envvar="OUTBOXQ_DATABASE_URLS",
        show_envvar=True,
        help="Work on this database instead of APP's own. May be repeated: --processes then start for each database. Use the "
        "environment variable for URLs with passwords, and separate several by spaces.",
    ),
    click.option(
        "-q",
        "--queue",
        "queues",
        multiple=True,
        callback=none_if_empty,
        help="Work on this queue only. May be repeated. Default: all queues.",
    ),
    click.option(
        "--topic",
        "topics",
        multiple=True,
        callback=none_if_empty,
        help="Run only tasks that handle events of this topic, or of a pattern such as order.*. May be repeated. Default: all tasks.",
    ),
    click.option(
        "-c",
        "--concurrency",
        default=DEFAULTS.concurrency,
        show_default=True,
        type=click.IntRange(1),
        help="Number of handler threads.",
    ),
    click.option(
        "--prefetch",
        type=click.IntRange(0),
        help="Number of tasks to claim ahead of those that run. Default: what the handlers do in 50 ms.",
    ),
    click.option(
        "--poll",
        callback=span,
        metavar="SPAN",
        help="Longest time between two looks for tasks, such as 500ms. Default: 30s on PostgreSQL with "
        "notifications, else 500ms.",
    ),
    click.option(
        "--notifications/--no-notifications",
        default=DEFAULTS.notifications,
        help="Wait for notifications of new tasks, or only poll.",
    ),
    click.option(
        "--listen-url",
        envvar="OUTBOXQ_LISTEN_URL",
        show_envvar=True,
        help="Listen for notifications at this database URL, which leads past a connection pooler. Use the "
        "environment variable for a URL with a password.",
    ),
    click.option(
        "--drain-timeout",
        default=f"{DEFAULTS.drain_timeout.total_seconds():g}s",
        show_default=True,
        callback=span,
        metavar="SPAN",
        help="Time that running tasks have to finish when the worker stops.",
    ),
    click.option(
        "--timeout-grace",
        default=f"{DEFAULTS.timeout_grace.total_seconds():g}s",
        show_default=True,
        callback=span,
        metavar="SPAN",
        help='Time that a handler with timeout_action="kill" has from its timeout on, before it is ended with its process.',
    ),
    click.option(
        "--isolation",
        default=DEFAULTS.isolation,
        show_default="thread",
        type=click.Choice(Isolation, case_sensitive=False),
        help="Run each handler in a thread, or in a child process that can be killed.",
    ),
    click.option(
        "--tasks-per-child",
        default=DEFAULTS.tasks_per_child,
        show_default=True,
        type=click.IntRange(1),
        help="With --isolation process: number of tasks after which a child process is replaced.",
    ),
    click.option("--burst", is_flag=True, help="Stop when no task is left to run."),
    click.option(
        "--max-tasks",
        type=click.IntRange(1),
        help="Stop after this many tasks. With --processes, a new process takes over.",
    ),
    click.option(
        "--relaxed-durability",
        is_flag=True,
        help="Do not wait until outcomes are on disk. After a crash of the database server (SQLite: of the machine), the most "
        "recent tasks run again.",
    ),
    click.option(
        "--metrics-port",
        type=click.IntRange(0, LAST_PORT),
        help="Serve metrics to Prometheus on this port; 0: on a free one, which the log names. With several processes, the first "
        "has this port, the second the next one, and so on. Needs the extra prometheus.",
    ),
    click.option(
        "--metrics-host",
        default=DEFAULTS.metrics_host,
        show_default=True,
        help="Address on which --metrics-port is opened. All who reach it read the names of queues and tasks.",
    ),
    click.option(
        "--processes", default=1, show_default=True, type=click.IntRange(1), help="Number of worker processes."
    ),
    click.option(
        "--reload", is_flag=True, help="Restart the worker when a Python file below the working directory changes."
    ),
    click.option(
        "--log-level",
        default="INFO",
        show_default=True,
        type=click.Choice(("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"), case_sensitive=False),
        help="Lowest level of messages to log on stderr.",
    ),
    click.option(
        "--log-format",
        default=LogFormat.TEXT,
        show_default="text",
        type=click.Choice(LogFormat, case_sensitive=False),
        help="Format of the log. JSON: one object per line.",
    ),
    click.option(
        "--log-tracebacks/--no-log-tracebacks",
        default=None,
        help="Print the traceback of each failed attempt. Tracebacks may hold personal data. Default: only at the level DEBUG. "
        "--no-log-tracebacks also keeps them from error trackers.",
    ),
    click.option(
        "--handler-log/--no-handler-log",
        default=DEFAULTS.handler_log,
        show_default=True,
        help="Keep the last 200 lines that a handler logs, with the end of its attempt. They may hold personal data.",
    ),
    click.option(
        "--live/--no-live", default=None, help="Show a line with the current throughput. Default: on a terminal."
    ),
    click.option("--lifeline", type=int, hidden=True, help="File descriptor of the socket to the supervisor."),
)
