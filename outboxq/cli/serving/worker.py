"""`outboxq worker`: run an application's tasks, in this process or in several."""

from __future__ import annotations

import logging
import os
import shlex
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from ...context import process
from ...errors import ConfigurationError, InvalidArgument, NotPermitted, SchemaOutOfDate
from ...integration import FrontEnd
from ...model.forks import CAN_FORK
from ...worker.options import LAST_PORT, Isolation, WorkerSettings
from .. import database
from ..console import EXIT_FILE, fail, leave_uncollected, speaking_plainly
from ..database import app_argument, app_option, load
from ..parameters import QUEUE, flag, listen_options, number_option, option, repeated, span_option, stacked
from .logs import LiveHandler, LogFormat, configure, in_thread, show_live_line
from .starting import open_closed_streams
from .stop_requests import Orders, interrupt_main_thread, stacks_on_signal, stop_on_signals
from .supervisor import INTRODUCED, NUMBER, Environment, Supervisor

if TYPE_CHECKING:
    from sqlalchemy.engine import URL

    from ...outbox import Outbox
    from ...worker.worker import Worker

EPILOG = """\b
Exit codes:
   0  the worker stopped cleanly: all of its tasks have ended
   1  running tasks were released, a thread died, or the file was deleted
   2  wrong usage: an invalid option, APP or outbox configuration
   4  the file or the tables are missing, or are from an incompatible release
  66  the SQLite file was replaced, but its old log remains: delete the log
  69  the database cannot be reached, or its file is damaged
  75  a handler with timeout_action="kill" did not stop; restart the worker
  77  the database role lacks a privilege
"""

log = logging.getLogger("outboxq.supervisor")


class Rerunnable(click.Command):
    """A command that remembers its arguments as they were typed, so that it can pass them on to the processes that it
    starts.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.obj = tuple(args)
        return super().parse_args(ctx, args)


_OF_WORKERS = ("list", "show", "quiet", "resume", "stop", "stacks", "recover")
"""The `workers` commands, which people also look for under `worker`."""
DEFAULTS = WorkerSettings()


def none_if_empty(_context: click.Context, _option: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...] | None:
    return value or None


_worker_options = stacked(
    repeated(
        "--database-url",
        "database_urls",
        envvar="OUTBOXQ_DATABASE_URLS",
        show_envvar=True,
        help="URL of a database to use instead of APP's own. May be repeated; --processes applies to each "
        "database. To keep passwords off the command line, set OUTBOXQ_DATABASE_URLS to a space-separated list of URLs.",
    ),
    repeated(
        "-q",
        "--queue",
        "queues",
        type=QUEUE,
        callback=none_if_empty,
        help="Queue to serve. May be repeated. Default: all queues.",
    ),
    repeated(
        "--topic",
        "topics",
        callback=none_if_empty,
        help="Run only tasks for events whose topic matches this pattern, such as order.*. May be repeated. Default: all tasks.",
    ),
    number_option("-c", "--concurrency", help="Number of handler threads.", default=DEFAULTS.concurrency),
    number_option(
        "--prefetch", help="Number of tasks to claim in advance. Default: enough for 50 ms of work.", least=0
    ),
    span_option("--poll", help="Maximum time between two polls. Default: 30s with notifications, otherwise 500ms."),
    listen_options,
    click.option(
        "--relay/--no-relay",
        default=DEFAULTS.relay,
        help="Publish relayed events to brokers, or leave that to `outboxq relay run`.",
    ),
    span_option(
        "--drain-timeout",
        help="Time allowed for running tasks to finish when the worker stops.",
        default=f"{DEFAULTS.drain_timeout.total_seconds():g}s",
    ),
    span_option(
        "--timeout-grace",
        help='Time from a handler\'s timeout until its process is killed, with timeout_action="kill".',
        default=f"{DEFAULTS.timeout_grace.total_seconds():g}s",
    ),
    option(
        "--isolation",
        default=DEFAULTS.isolation,
        show_default="thread",
        type=click.Choice(Isolation, case_sensitive=False),
        help="Run each handler in a thread, or in a child process that can be killed.",
    ),
    number_option(
        "--tasks-per-child",
        help="Number of tasks per child process, with --isolation process.",
        default=DEFAULTS.tasks_per_child,
    ),
    flag(
        "--burst", help="Stop when no task is due. Retries and delayed tasks that are due later stay in their queues."
    ),
    number_option("--max-tasks", help="Stop after this many tasks. With --processes, a new process takes over."),
    flag(
        "--relaxed-durability",
        help="Do not wait for outcomes to be written to disk. If the database server or its machine crashes, the most recent tasks run again.",
    ),
    number_option(
        "--metrics-port",
        help="Port for Prometheus. Use 0 for a free port, which is logged. Each additional process uses the next port. Needs "
        "the `prometheus` extra.",
        least=0,
        most=LAST_PORT,
    ),
    option(
        "--metrics-host",
        default=DEFAULTS.metrics_host,
        show_default=True,
        help="Address for --metrics-port. Anyone who can reach this address can read the names of queues and tasks.",
    ),
    number_option("--processes", help="Number of worker processes.", default=1),
    flag("--reload", help="Restart when a Python file under the working directory changes."),
    option(
        "--log-level",
        default="INFO",
        show_default=True,
        type=click.Choice(("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"), case_sensitive=False),
        help="Minimum level of the messages that are logged to stderr.",
    ),
    option(
        "--log-format",
        default=LogFormat.TEXT,
        show_default="text",
        type=click.Choice(LogFormat, case_sensitive=False),
        help="Format of the log. With json, each line is one object.",
    ),
    click.option(
        "--log-tracebacks/--no-log-tracebacks",
        default=None,
        help="Print the traceback of each failed attempt; it may contain personal data. Default: only at DEBUG level. "
        "--no-log-tracebacks also hides tracebacks from error trackers.",
    ),
    click.option(
        "--handler-log/--no-handler-log",
        default=DEFAULTS.handler_log,
        show_default=True,
        help="Store the last 200 lines that the handler logs in each attempt. They may contain personal data.",
    ),
    click.option("--live/--no-live", default=None, help="Show a line with the throughput. Default: on a terminal."),
    option("--lifeline", type=int, hidden=True, help="File descriptor of the socket to the supervisor."),
)
"""Adds a worker's options. The options that `WorkerOptions` contains are passed on to `Outbox.worker()`."""


@click.command(cls=Rerunnable, epilog=EPILOG)
@app_argument
@app_option
@_worker_options
@click.pass_context
def worker(context: click.Context, /, app: str | None, app_argument: str | None, **options: Any) -> None:
    """Run the tasks of APP until SIGTERM, SIGINT or SIGHUP.

    After the signal, the worker lets running tasks finish. A second signal, or SIGQUIT, releases them immediately.
    SIGUSR1 prints the stacks of all threads. `workers list` lists the live workers.
    """
    app = database.one_app(context, app_argument, app)
    if app is None:
        sentence = f"no application is named; name one as module:outbox, e.g. shop:outbox, or set {database.APP}"
        fail(f"{sentence}. To list the live workers, run: outboxq workers list")
    if app in _OF_WORKERS:
        fail(f"{app!r} is not an application; run: outboxq workers {app}")
    urls = [_parsed(url) for url in options.pop("database_urls")]
    if len({database.address(url) for url in urls}) < len(urls):
        raise click.UsageError("--database-url names the same database twice; name each database only once")
    own = next(iter(urls), None)
    if urls and options["lifeline"] is not None:
        own = _parsed(os.environ[database.DATABASE_URL])
    databases = [_environment(url) for url in urls]
    upgrade = database.Given(app=app).upgrade if own is None else f"outboxq upgrade --url {database.shown(own)}"

    def command(lifeline: int) -> list[str]:
        return [sys.executable, "-m", "outboxq", "worker", "--lifeline", str(lifeline), *context.obj]

    serve(partial(_find, app, own), command, databases=databases, upgrade=upgrade, **options)


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
    """Run workers for the outbox that `find` returns, with the options of `worker`.

    `command` returns the command line for a process, given its lifeline. Each of the `databases` gets its own
    processes. `upgrade` is the command that creates the databases' tables; see `speaking_plainly`.
    """
    open_closed_streams()
    several = processes > 1 or len(databases) > 1
    if (several or reload) and not CAN_FORK:
        cure = "start `outboxq worker` once for each process and each database"
        raise click.UsageError(f"--processes, --reload and several databases need a system that can fork; {cure}")
    if reload and (several or burst):
        raise click.UsageError("--reload cannot be combined with --processes, --burst or several databases")
    if burst and several and options["max_tasks"] is not None:
        why = "several processes would leave tasks behind"
        raise click.UsageError(f"--burst with --max-tasks works only with one process, because {why}")
    if len(databases) > 1 and options["listen_url"] is not None:
        raise click.UsageError("--listen-url works only with one database, because each database has its own address")
    if live and log_format is LogFormat.JSON:
        raise click.UsageError("--live cannot be combined with --log-format json")
    if live is None:
        live = log_format is LogFormat.TEXT and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    handler = LiveHandler() if live and not several else None
    configure(log_level, log_format, handler, tracebacks=options["log_tracebacks"])
    if lifeline is None and (reload or several):
        ensure_free(options["metrics_host"], options["metrics_port"], processes * max(1, len(databases)))
        supervisor = Supervisor(
            command,
            processes=processes,
            environments=databases or [Environment()],
            burst=burst,
            recycles=options["max_tasks"] is not None,
            reloads=reload,
        )
        with stop_on_signals(lambda: supervisor.has_ended) as exit_if_stopped:
            exit_if_stopped()
            with watch_files(Path.cwd(), supervisor.reload) if reload else nullcontext():
                code = supervisor.run()
        sys.exit(code)
    sys.exit(_run(find, handler, lifeline, upgrade=upgrade, burst=burst, **options))


def _parsed(url: str) -> URL:
    from ...database.engine import parse_url

    try:
        return parse_url(url)
    except ConfigurationError as error:
        fail(str(error))


def _environment(url: URL) -> Environment:
    """Return the environment for a process that works on this database."""
    variables = {database.DATABASE_URL: url.render_as_string(hide_password=False)}
    return Environment(variables=variables, name=url.set(query={}).render_as_string())


def _find(app: str, url: URL | None) -> Outbox:
    """Return APP's outbox, bound to the database at `url` if `url` is given. If APP already has an engine for that
    database, the engine is kept.
    """
    if url is not None:
        os.environ.update(_environment(url).variables)
    outbox = load(app)
    if url is None:
        if not outbox.is_bound:
            cure = f"give Outbox() a URL or an Engine, set {database.DATABASE_URL}, or give --database-url"
            database.fail_without_database(app, outbox, cure)
        front_end = FrontEnd(app=None if os.environ.get(database.APP) == app else app)
    else:
        if not outbox.is_bound or database.address(outbox.store.bound_engine.url) != database.address(url):
            outbox.bind(url)
        schema = "" if outbox.schema is None else f" --schema {shlex.quote(outbox.schema)}"
        front_end = FrontEnd(options=f"--url {database.shown(url)}{schema}")
    if outbox.integration.front_end == FrontEnd():  # a framework knows best how its commands are typed
        outbox.integration.front_end = front_end
    return outbox


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
        process.as_worker(),
        speaking_plainly(upgrade),
        stacks_on_signal(lambda: running),
        stop_on_signals(lambda: running is not None and running.has_stopped) as exit_if_stopped,
        Orders(lifeline, interrupt=interrupt_main_thread) as orders,
    ):
        try:
            outbox = find()
            if not outbox.is_bound:
                fail("this outbox has no database; give Outbox() a URL or an Engine")
            number = 1 if lifeline is None else int(os.environ.get(NUMBER, "1"))
            options["metrics_port"] = port_of(number, options["metrics_port"])
            running = outbox.worker(**options)
            running.introduces_itself = lifeline is None or INTRODUCED not in os.environ
            orders.attach(running)
            leave_uncollected()
            exit_if_stopped()
            with (
                database.disposing(outbox.store.bound_engine),
                show_live_line(running, handler) if handler else nullcontext(),
            ):
                code = running.run(burst=burst)
            return code if running.may_start_again else EXIT_FILE
        except (SchemaOutOfDate, NotPermitted):
            raise
        except (ConfigurationError, InvalidArgument) as error:
            fail(str(error))


def port_of(number: int, first: int | None) -> int | None:
    """Return the port of the worker process with this number, counted from 1. None means no port, and 0 means a free
    port.
    """
    return first + number - 1 if first else first


def ensure_free(host: str, first: int | None, processes: int) -> None:
    """Exit if one of the ports is taken. This check runs before any process starts; each process opens its own port
    later.
    """
    if not first:
        return
    last = first + processes - 1
    if last > LAST_PORT:
        cure = f"choose a port up to {LAST_PORT - processes + 1}"
        raise click.UsageError(f"--metrics-port {first} with {processes} processes would need port {last}; {cure}")
    for port in range(first, last + 1):
        try:
            [(family, kind, protocol, _, address), *_] = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            with socket.socket(family, kind, protocol) as found:
                found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                found.bind(address)
                found.listen()
        except OSError as error:
            why, cure = error.strerror or error, "free that port or choose others with --metrics-port"
            fail(f"metrics cannot be served on {host} port {port}: {why}; {cure}")


@contextmanager
def watch_files(directory: Path, changed: Callable[[], None]) -> Iterator[None]:
    """Call `changed` whenever a Python file under `directory` changes during the block."""
    try:
        from watchfiles import PythonFilter, watch
    except ModuleNotFoundError as error:
        if error.name != "watchfiles":
            raise
        fail("--reload needs watchfiles; run: pip install 'outboxq[reload]'")

    def look(over: threading.Event) -> None:
        for changes in watch(directory, watch_filter=PythonFilter(), stop_event=over, raise_interrupt=False):
            log.info("%s changed", ", ".join(sorted({os.path.relpath(path, directory) for _, path in changes})))
            changed()

    with in_thread(look, "outboxq-watch"):
        yield
