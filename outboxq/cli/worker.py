"""`outboxq worker`: run the tasks of an application, in this process or in several."""

from __future__ import annotations

import atexit
import gc
import logging
import math
import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import click
from sqlalchemy.engine import URL

from ..database.engine import parse_url
from ..errors import ConfigurationError, InvalidArgument, NotPermitted, SchemaOutOfDate
from ..integration.front_end import FrontEnd
from ..model.forks import CAN_FORK
from ..outbox import Outbox
from ..worker.options import WorkerSettings
from ..worker.signals import unignored_stop_signals
from ..worker.worker import Worker
from .console import EXIT_FILE, EXIT_USAGE, fail, span, speaking_plainly
from .database import APP, DATABASE_URL, Given, address, app_argument, app_option, application, leads_to, shown
from .lifeline import Orders
from .live import LiveHandler, show_live_line
from .loading import load
from .logs import LogFormat, configure, open_closed_streams
from .supervisor import INTRODUCED, Environment, Supervisor, watch_files

DEFAULTS = WorkerSettings()

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")

EPILOG = """\b
Exit codes:
   0  the worker stopped cleanly: every task that ran has ended
   1  running tasks were given back, a thread of the worker died, or the SQLite file is gone
   2  the usage is wrong: an option, APP, or the configuration of the outbox
   4  the database has no outboxq tables, has those of a release that does not fit this one, or its file does not exist
  66  the SQLite file was replaced beside the old log: delete that log before you start again
  69  the database cannot be reached, or its file is damaged
  77  the database role lacks a right
"""

log = logging.getLogger("outboxq.worker")

_EXIT_TIMEOUT = 5.0
"""Seconds after the work for which signals are ignored: the process needs them to end."""


class Rerunnable(click.Command):
    """A command that remembers its arguments as they were written, for the processes it starts."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.obj = tuple(args)
        return super().parse_args(ctx, args)


def none_if_empty(
    _context: click.Context, _parameter: click.Parameter, value: tuple[str, ...]
) -> tuple[str, ...] | None:
    return value or None


# Options with the name of one in `WorkerOptions` are passed on to `Outbox.worker()`.
@click.command(cls=Rerunnable, epilog=EPILOG)
@app_argument
@app_option
@click.option(
    "--database-url",
    "database_urls",
    multiple=True,
    envvar="OUTBOXQ_DATABASE_URLS",
    show_envvar=True,
    help="Work on this database instead of APP's own. May be repeated: --processes then start for each database. Use the "
    "environment variable for URLs with passwords, and separate several by spaces.",
)
@click.option(
    "-q",
    "--queue",
    "queues",
    multiple=True,
    callback=none_if_empty,
    help="Work on this queue only. May be repeated. Default: all queues.",
)
@click.option(
    "--topic",
    "topics",
    multiple=True,
    callback=none_if_empty,
    help="Run only tasks that handle events of this topic, or of a pattern such as order.*. May be repeated. Default: all tasks.",
)
@click.option(
    "-c",
    "--concurrency",
    default=DEFAULTS.concurrency,
    show_default=True,
    type=click.IntRange(1),
    help="Number of handler threads.",
)
@click.option(
    "--prefetch",
    type=click.IntRange(0),
    help="Number of tasks to claim ahead of those that run. Default: what the handlers do in 50 ms.",
)
@click.option(
    "--poll",
    callback=span,
    help="Longest time between two looks for tasks, such as 500ms. Default: 30s on PostgreSQL with "
    "notifications, else 500ms.",
)
@click.option(
    "--notifications/--no-notifications",
    default=DEFAULTS.notifications,
    help="Wait for notifications of new tasks, or only poll.",
)
@click.option(
    "--listen-url",
    envvar="OUTBOXQ_LISTEN_URL",
    show_envvar=True,
    help="Listen for notifications at this database URL, which leads past a connection pooler. Use the "
    "environment variable for a URL with a password.",
)
@click.option(
    "--drain-timeout",
    default=f"{DEFAULTS.drain_timeout.total_seconds():g}s",
    show_default=True,
    callback=span,
    help="Time that running tasks have to finish when the worker stops.",
)
@click.option("--burst", is_flag=True, help="Stop when no task is left to run.")
@click.option(
    "--max-tasks",
    type=click.IntRange(1),
    help="Stop after this many tasks. With --processes, a new process takes over.",
)
@click.option(
    "--relaxed-durability",
    is_flag=True,
    help="Do not wait until outcomes are on disk. After a crash of the database server (SQLite: of the machine), the most "
    "recent tasks run again.",
)
@click.option("--processes", default=1, show_default=True, type=click.IntRange(1), help="Number of worker processes.")
@click.option(
    "--reload", is_flag=True, help="Restart the worker when a Python file below the working directory changes."
)
@click.option(
    "--log-level",
    default="INFO",
    show_default=True,
    type=click.Choice(LEVELS, case_sensitive=False),
    help="Lowest level of messages to log on stderr.",
)
@click.option(
    "--log-format",
    default=LogFormat.TEXT,
    show_default="text",
    type=click.Choice(LogFormat, case_sensitive=False),
    help="Format of the log. JSON: one object per line.",
)
@click.option(
    "--log-tracebacks/--no-log-tracebacks",
    default=None,
    help="Print the traceback of each failed attempt. Tracebacks may hold personal data. Default: only at the level DEBUG. "
    "--no-log-tracebacks also keeps them from error trackers.",
)
@click.option("--live/--no-live", default=None, help="Show a line with the current throughput. Default: on a terminal.")
@click.option("--lifeline", type=int, hidden=True, help="File descriptor of the socket to the supervisor.")
@click.pass_context
def worker(context: click.Context, /, app: str | None, app_argument: str | None, **options: Any) -> None:
    """Run the tasks of APP until SIGTERM, SIGINT or SIGHUP.

    Running tasks may finish. A second signal, or SIGQUIT, gives them back at once.
    """
    app = application(context, app_argument, app)
    urls = [_parsed(url) for url in options.pop("database_urls")]
    if len({address(url) for url in urls}) < len(urls):
        raise click.UsageError("--database-url names the same database twice; name each once")
    own = _parsed(os.environ[DATABASE_URL]) if urls and options["lifeline"] is not None else next(iter(urls), None)
    databases = [_environment(url) for url in urls]
    upgrade = Given(app=app).upgrade if own is None else f"outboxq upgrade --url {shown(own)}"
    serve(partial(_find, app, own), partial(_command, context.obj), databases=databases, upgrade=upgrade, **options)


def serve(
    find: Callable[[], Outbox],
    command: Callable[[int], list[str]],
    *,
    databases: Sequence[Environment] = (),
    upgrade: str | None = None,
    burst: bool,
    processes: int,
    reload: bool,
    log_level: str,
    log_format: LogFormat,
    live: bool | None,
    lifeline: int | None,
    **options: Any,
) -> NoReturn:
    """Run the outbox that `find` returns, with the options of `worker`. `command` returns the command of a process on that lifeline.

    `databases`: each gets that many processes. `upgrade`: the command that makes their tables; see `speaking_plainly`.
    """
    open_closed_streams()
    several = processes > 1 or len(databases) > 1
    if (several or reload) and not CAN_FORK:
        raise click.UsageError(
            "--processes, --reload and several databases need a system that can fork, such as Linux or macOS; start "
            "`outboxq worker` once for each process and each database"
        )
    if reload and (several or burst):
        raise click.UsageError("--reload cannot be combined with --processes, --burst or several databases")
    if burst and several and options["max_tasks"] is not None:
        raise click.UsageError("--burst with --max-tasks works with one process only: several would leave tasks behind")
    if len(databases) > 1 and options["listen_url"] is not None:
        raise click.UsageError("--listen-url works with one database only: each has an address of its own")
    if live and log_format is LogFormat.JSON:
        raise click.UsageError("--live cannot be combined with --log-format json")
    if live is None:
        live = log_format is LogFormat.TEXT and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    live = live and not several
    handler = LiveHandler() if live else None
    configure(log_level, log_format, handler, tracebacks=options["log_tracebacks"])
    if lifeline is None and (reload or several):
        supervisor = Supervisor(
            command,
            processes=processes,
            environments=databases or [Environment()],
            burst=burst,
            recycles=options["max_tasks"] is not None,
            reloads=reload,
        )
        with _stop_on_signals(lambda: supervisor.has_ended) as exit_if_stopped:
            exit_if_stopped()
            code = _run_reloading(supervisor) if reload else supervisor.run()
        sys.exit(code)
    sys.exit(_run(find, handler, lifeline, upgrade=upgrade, burst=burst, **options))


def leave_uncollected() -> None:
    """Exempt all objects that exist now from garbage collection. They live until the process ends, yet Python would look through
    them again and again while tasks come and go, which took a third of a busy worker's CPU.
    """
    gc.collect()
    gc.freeze()


def _parsed(url: str) -> URL:
    try:
        return parse_url(url)
    except ConfigurationError as error:
        fail(str(error), EXIT_USAGE)


def _environment(url: URL) -> Environment:
    """Return the environment of a process that works on this database."""
    return Environment(variables={DATABASE_URL: _written(url)}, name=url.set(query={}).render_as_string())


def _written(url: URL) -> str:
    return url.render_as_string(hide_password=False)


def _find(app: str, url: URL | None) -> Outbox:
    """Return the outbox of APP, bound to this database if one is given. An engine that APP has made for that database stays."""
    if url is None:
        outbox = _with_front_end(load(app), FrontEnd(app=None if os.environ.get(APP) == app else app))
        if not outbox.is_bound:
            fail(
                f"{app} has no database: give Outbox() a URL or an Engine, set {DATABASE_URL}, or give --database-url",
                EXIT_USAGE,
            )
        return outbox
    os.environ[DATABASE_URL] = _written(url)
    outbox = load(app)
    schema = "" if outbox.schema is None else f" --schema {shlex.quote(outbox.schema)}"
    _with_front_end(outbox, FrontEnd(options=f"--url {shown(url)}{schema}"))
    if not outbox.is_bound or not leads_to(outbox.store.bound_engine.url, url):
        outbox.bind(url)
    return outbox


def _with_front_end(outbox: Outbox, front_end: FrontEnd) -> Outbox:
    """Tell the outbox how its commands are typed, unless a framework knows better."""
    if outbox.integration.front_end == FrontEnd():
        outbox.integration.front_end = front_end
    return outbox


def _command(written: Sequence[str], lifeline: int) -> list[str]:
    return [sys.executable, "-m", "outboxq", "worker", "--lifeline", str(lifeline), *written]


def _run_reloading(supervisor: Supervisor) -> int:
    if find_spec("watchfiles") is None:
        fail("--reload needs watchfiles; run: pip install 'outboxq[reload]'", EXIT_USAGE)
    with watch_files(Path.cwd(), supervisor.reload):
        return supervisor.run()


def _run(
    find: Callable[[], Outbox],
    handler: LiveHandler | None,
    lifeline: int | None,
    *,
    upgrade: str | None,
    burst: bool,
    **options: Any,
) -> int:
    running: Worker | None = None
    with (
        speaking_plainly(upgrade),
        _stop_on_signals(lambda: running is not None and running.has_stopped) as exit_if_stopped,
        Orders(lifeline, interrupt=_interrupt) as orders,
    ):
        try:
            outbox = find()
            if not outbox.is_bound:
                fail("this outbox has no database; give Outbox() a URL or an Engine", EXIT_USAGE)
            running = outbox.worker(**options)
            running.introduces_itself = lifeline is None or INTRODUCED not in os.environ
            orders.attach(running)
            leave_uncollected()
            exit_if_stopped()
            try:
                with show_live_line(running, handler) if handler else nullcontext():
                    code = running.run(burst=burst)
                return code if running.may_start_again else EXIT_FILE
            finally:
                if outbox.store.engine is not None:
                    outbox.store.engine.dispose()
        except (SchemaOutOfDate, NotPermitted):
            raise
        except (ConfigurationError, InvalidArgument) as error:
            fail(str(error), EXIT_USAGE)


def _interrupt() -> None:
    """Send the main thread a signal that it does not ignore, so that it stops, whatever it waits for."""
    for number in unignored_stop_signals()[:1]:
        signal.pthread_kill(threading.main_thread().ident or 0, number)


@contextmanager
def _stop_on_signals(is_over: Callable[[], bool]) -> Iterator[Callable[[], None]]:
    """Handle stop signals before and after work that has signal handlers of its own.

    A signal before the work is a clean stop, for nothing was begun. A signal after it is ignored: a second request to stop must
    not change the exit code of a clean stop. One handler serves both, so that there is no moment without one. It stays in place,
    for a process takes a while to end.

    Yields a function that exits if a signal came and did not end the process: Python swallows an exception inside a weak
    reference's callback, and while modules are imported there are many of those.
    """
    heard = unignored_stop_signals()
    ended, stop_requested = math.inf, False

    def hear(number: int, _frame: FrameType | None) -> None:
        nonlocal stop_requested
        if time.monotonic() > ended + _EXIT_TIMEOUT:  # the program that called the command goes on after it
            restore()
            signal.raise_signal(number)
        elif not is_over():
            stop_requested = True
            sys.exit(0)

    def exit_if_stopped() -> None:
        if stop_requested:
            sys.exit(0)

    def restore() -> None:
        for number, before in previous.items():
            signal.signal(number, before)

    previous = {number: signal.getsignal(number) for number in heard}
    for number in heard:
        signal.signal(number, hear)
    try:
        yield exit_if_stopped
    finally:
        if is_over():
            ended = time.monotonic()
            atexit.register(_ignore, heard)  # Python makes every other handler deadly again while it ends
        else:
            restore()


def _ignore(numbers: Sequence[int]) -> None:
    for number in numbers:
        signal.signal(number, signal.SIG_IGN)
