"""`outboxq web`: serve the dashboard."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

import click

from ...errors import ConfigurationError
from ...integration import FrontEnd
from .. import database
from ..console import fail, leave_uncollected, speaking_plainly
from ..database import app_argument, app_option, schema_option, url_option
from ..parameters import flag, number_option, option, repeated
from .logs import LogFormat, configure
from .starting import open_closed_streams
from .stop_requests import stop_on_signals

if TYPE_CHECKING:
    from wsgiref.types import WSGIApplication

    from waitress.server import BaseWSGIServer

TOKEN = "OUTBOXQ_WEB_TOKEN"  # noqa: S105  # the name of the variable
_EVERY_ADDRESS = {"", "*", "0.0.0.0", "::"}  # noqa: S104
_OF_SERVER = frozenset({"app", "app_argument", "host", "port", "threads"})
"""The parameters that also apply to a dashboard that the application has created."""
_LARGEST_REQUEST = 2**20
"""The maximum number of bytes in a request. The dashboard itself refuses forms larger than 64 kB."""


@click.command()
@app_argument
@app_option
@url_option
@schema_option
@option("--host", default="127.0.0.1", show_default=True, help="Address to serve on.")
@number_option(
    "--port", help="Port to serve on. Use 0 for a free port, which is printed.", least=0, most=65535, default=8080
)
@flag("--allow-actions", help="Allow changes. Default: the dashboard is read-only.")
@flag("--show-arguments", help="Show arguments, results and headers. Secret values stay hidden.")
@option(
    "--redact",
    metavar="MODULE:FUNCTION",
    help="Function that takes a string and returns it without its sensitive parts. It is applied to arguments, messages and tracebacks.",
)
@option("--title", default="", help='Name in the header and title of each page, such as "shop, production".')
@option(
    "--token-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help=f"File with the token for logging in. The variable {TOKEN} can contain the token itself.",
)
@option("--trust-header", metavar="NAME", help="Header with the user's name, such as X-Forwarded-User. Needs --from.")
@repeated(
    "--from",
    "trusted_proxies",
    metavar="NETWORK",
    help="Network of proxies whose headers are trusted, such as 10.0.0.0/8. May be repeated.",
)
@repeated(
    "--trusted-host",
    "hosts",
    metavar="NAME",
    help="Host name that browsers use for the dashboard, such as tasks.example.org. May be repeated. Default: --host.",
)
@number_option("--threads", help="Number of threads that answer requests.", most=64, default=4)
@click.pass_context
def web(context: click.Context, /, **options: Any) -> None:
    """Serve the dashboard until SIGTERM, SIGINT or SIGHUP.

    The dashboard shows APP's database, or the database that --url specifies. Without APP, the dashboard does not know
    the application's tasks. APP can also name a dashboard that your code creates with `application(…)`, or several with
    `Dashboards({…})`. These dashboards have their own options.
    """
    open_closed_streams()
    configure("INFO", LogFormat.TEXT)
    with speaking_plainly():  # the extra may be missing
        from ...outbox import Outbox
        from ...web import application
        from ...web.browser import is_loopback_name
    is_over = False
    if (made := _made(context, options)) is not None:
        with stop_on_signals(lambda: is_over) as exit_if_stopped, speaking_plainly():
            _serve(made, options, exit_if_stopped)
            is_over = True
        return
    host = options["host"]
    token = _token(options["token_file"])
    if not is_loopback_name(_written(host)) and token is None and options["trust_header"] is None:
        cure = f"set a token (--token-file FILE, or {TOKEN}), or name a proxy that identifies people (--trust-header with --from)"
        fail(f"anyone who can reach {host or 'this machine'} could open the dashboard; {cure}")
    redact = None if options["redact"] is None else _function(options["redact"])
    found = database.given(context, options)
    with stop_on_signals(lambda: is_over) as exit_if_stopped, database.opened(found) as store:
        store.ensure_current()
        outbox = database.present_outbox() or Outbox(store.bound_engine, schema=found.schema)
        if outbox.integration.front_end == FrontEnd():  # a framework knows best how its commands are typed
            outbox.integration.front_end = database.front_end("web")
        try:
            names = ("allow_actions", "show_arguments", "trust_header", "trusted_proxies", "title")
            passed = {name: options[name] for name in names}
            hosts = [*options["hosts"], *_own_names(host)]
            dashboard = application(outbox, token=token, trusted_hosts=hosts, redact=redact, **passed)
        except ConfigurationError as error:
            fail(str(error))
        _serve(dashboard, options, exit_if_stopped)
        is_over = True


def _made(context: click.Context, options: Mapping[str, Any]) -> WSGIApplication | None:
    """Return the dashboard or dashboards that APP names; None if it names an outbox. Exit if an option does not apply."""
    from ...web import Dashboard, Dashboards

    app = database.one_app(context, options["app_argument"], options["app"])
    if app is None or (
        database.is_typed(context, "url") and not (options["app_argument"] or database.is_typed(context, "app"))
    ):
        return None
    with speaking_plainly():
        found = database.named(app)
    if not isinstance(found, Dashboard | Dashboards):
        return None
    own = [one for one in context.command.params if one.name not in _OF_SERVER]
    if names := ", ".join(one.opts[0] for one in own if database.is_typed(context, str(one.name))):
        fail(f"{app} is a dashboard with its own options; pass the equivalents of {names} to application()")
    return found


def _serve(dashboard: WSGIApplication, options: Mapping[str, Any], exit_if_stopped: Callable[[], object]) -> None:
    """Serve the dashboard until a signal arrives."""
    host = options["host"]
    with _listening(host, options["port"]) as listening:
        server = _server(dashboard, listening, options["threads"])
        exit_if_stopped()
        leave_uncollected()
        name = "localhost" if host in _EVERY_ADDRESS else _written(host)
        click.echo(f"The dashboard is at http://{name}:{listening.getsockname()[1]}/ (press Ctrl-C to stop).")
        server.run()  # until a signal arrives
        server.close()


def _function(name: str) -> Callable[[str], str]:
    """Return the function with this name. Exit if there is no such function."""
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found = resolve_name(name)
    except (AttributeError, ImportError, ValueError) as error:
        fail(f"--redact {name} cannot be imported: {error}; write module:function, such as shop.privacy:redact")
    if not callable(found):
        fail(f"--redact {name} is a {type(found).__name__}, not a function")
    return found  # type: ignore[no-any-return]


def _token(file: Path | None) -> str | None:
    """Return the token from the file or, if no file is given, from the environment. Exit if the file cannot be read or
    is empty.
    """
    if file is None:
        return os.environ.get(TOKEN) or None
    try:
        token = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        fail(f"the token cannot be read from {file}: {error}")
    if not token:
        fail(f"the token file {file} is empty; write a token to it")
    return token


def _own_names(host: str) -> list[str]:
    """Return the server's host names, not counting its addresses and localhost."""
    name = socket.gethostname() if host in _EVERY_ADDRESS else host
    return [] if ":" in name else [name]


def _listening(host: str, port: int) -> socket.socket:
    """Return a listening socket. Exit if the address or the port is not available."""
    try:
        name = None if host in {"", "*"} else host
        found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, *_, address = min(found, key=lambda one: one[0] != socket.AF_INET)
        return socket.create_server(address[:2], family=family, backlog=1024)
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or error
        cure = "free that port or choose another one with --port"
        fail(f"the dashboard cannot be served on {host} port {port}: {why}; {cure}")


def _server(dashboard: Any, listening: socket.socket, threads: int) -> BaseWSGIServer:
    """Return the server, with an extra thread that only answers /healthz."""
    from waitress import create_server
    from waitress.task import ThreadedTaskDispatcher

    from ...web.dashboard import HEALTH

    class Dispatcher(ThreadedTaskDispatcher):  # type: ignore[misc]
        """A dispatcher that answers health checks even while all page threads are waiting for a lock."""

        def __init__(self) -> None:
            super().__init__()
            self._health = ThreadedTaskDispatcher()
            self._health.set_thread_count(1)
            self.set_thread_count(threads)

        def add_task(self, task: Any) -> None:
            request = task.requests[0]
            is_health = request.path == HEALTH and not request.query
            if is_health:
                self._health.add_task(task)
            else:
                super().add_task(task)

        def shutdown(self, *arguments: Any, **options: Any) -> Any:
            self._health.shutdown(*arguments, **options)
            return super().shutdown(*arguments, **options)

    return create_server(
        dashboard,
        _dispatcher=Dispatcher(),
        sockets=[listening],
        threads=threads,
        ident=None,
        max_request_body_size=_LARGEST_REQUEST,
        clear_untrusted_proxy_headers=False,  # the dashboard must notice a proxy
    )


def _written(host: str) -> str:
    """Return the host as it is written in a URL."""
    return f"[{host}]" if ":" in host else host
