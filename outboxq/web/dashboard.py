"""The dashboard as a WSGI callable, and several dashboards in one application."""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy.exc import DBAPIError
from werkzeug.exceptions import BadRequest, Forbidden, HTTPException, MethodNotAllowed, NotFound
from werkzeug.routing import Map, MapAdapter, Rule
from werkzeug.utils import redirect
from werkzeug.wrappers import Request, Response

from ..database.dialects import statement_timeout
from ..errors import ConfigurationError
from ..model.display import as_json
from ..model.wording import plain
from ..store.failure_log import FailureLog
from ..store.transactions import patience
from .access import Access, Authorize, LoginNeeded
from .answers import LOG_IN, LOG_OUT, SIBLINGS, Answers, Login, Problems, Visit, elsewhere, path_of
from .browser import FIELD, Browser, Client, check_form, quoted
from .freshness import Freshness
from .pages import ROUTES, Route
from .rendering import PREFIX as STATIC
from .rendering import StaticFiles
from .request import PAYLOAD, Redact, Redirect

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

    from prometheus_client import CollectorRegistry

    from ..outbox import Outbox

log = logging.getLogger("outboxq.web")

_LARGEST_FORM: Final = 64 * 1024
"""The maximum size of a form in bytes."""
_PATIENCE: Final = 1.0
"""The time in seconds for which a statement is retried while the database is not responding. A worker waits longer; in
the dashboard, waiting would keep a thread from serving other requests.
"""
_LONGEST_STATEMENT: Final = timedelta(minutes=1)
"""The maximum time for a statement. This limit applies to all statements that read single tasks."""
_LONGEST_TITLE: Final = 60
"""The maximum number of characters in the dashboard's title, which the header shows on one line on a phone."""
_LONGEST_TEXT: Final = 500
"""The maximum number of characters in one part of a log line."""
_LOG_IN_PATH: Final = "/login"
_API: Final = "api:"
"""The prefix of the endpoints that return pages as JSON."""
_HEALTH: Final = "health"
_METRICS: Final = "metrics"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,49}")


def application(
    outbox: Outbox,
    *,
    allow_actions: bool = False,
    show_arguments: bool = False,
    token: str | None = None,
    authorize: Authorize | None = None,
    trust_header: str | None = None,
    trusted_proxies: Sequence[str] = (),
    trusted_hosts: Sequence[str] | None = None,
    redact: Callable[[str], str] | None = None,
    title: str = "",
    flask: object = None,
) -> Dashboard:
    """Return the dashboard for an outbox, to be served by a WSGI server or mounted in an application.

    If none of `token`, `authorize` and `trust_header` is given, only programs on this machine can see the dashboard.

    Args:
        outbox: The outbox whose tasks are shown.
        allow_actions: If True, the dashboard can also change tasks, queues and schedules.
        show_arguments: If True, the dashboard shows tasks' arguments, results and headers. Values whose names suggest
            secrets remain hidden.
        token: The secret with which people log in for 12 hours. Programs send it as `Authorization: Bearer …`, and can
            only read.
        authorize: A function that takes the WSGI environment and returns None, "read", "write" or a `Viewer`. To send a
            person to a login page, the function calls Werkzeug's `abort(redirect(…))`.
        trust_header: The header in which a proxy names the person, such as `X-Forwarded-User`.
        trusted_proxies: The networks of the proxies whose headers about the person, the address and HTTPS are trusted.
        trusted_hosts: The host names under which browsers reach the dashboard; other names are refused. None means that
            any name is accepted if people have to log in.
        redact: A function that takes a string and returns it without its sensitive parts. The function is
            applied to the arguments, results and headers that pages and their JSON show, to everything that handlers
            and brokers wrote (messages, tracebacks, logs, notes), and to the reasons that people gave.
        title: A name such as "shop, production", which distinguishes this dashboard from others in the header and the
            title of each page; at most 60 characters.
        flask: The Flask application whose database the dashboard shows, if the outbox is an `Outboxq()`.

    Raises ConfigurationError if these options contradict each other, if the token is too short or the title too long,
    or if the Flask application does not have this outbox.
    """
    access = Access(
        allow_actions=allow_actions,
        show_arguments=show_arguments,
        token=token,
        authorize=authorize,
        trust_header=trust_header,
        trusted_proxies=trusted_proxies,
        trusted_hosts=trusted_hosts,
    )
    if len(title) > _LONGEST_TITLE:
        raise ConfigurationError(f"title= has {len(title)} characters; shorten it to {_LONGEST_TITLE}")
    return Dashboard(outbox, access, redact or str, flask, title=title)


class Dashboard:
    """The WSGI callable."""

    def __init__(
        self, outbox: Outbox, access: Access, redact: Redact = str, app: object = None, *, title: str = ""
    ) -> None:
        if app is not None:
            outbox.integration.around_pages(app)  # raises ConfigurationError
        self._app = app
        self._access = access
        self._static = StaticFiles()
        self._problems = Problems()
        self._outbox = outbox
        self._freshness = Freshness(self._mark)
        self._probes = Probes(outbox, self._freshness)
        self._answers = Answers(outbox, self._static, self._freshness, redact, title)
        self._login = None if access.sessions is None else Login(access.sessions, self._answers)
        self._routes = {route.name: route for route in ROUTES}
        self._urls = _urls(tuple(ROUTES), has_login=self._login is not None)

    @property
    def is_open_to_this_machine(self) -> bool:
        """True if people cannot be identified, so requests from other machines are refused."""
        return self._access.is_open_to_this_machine

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer one request."""
        with self._context():
            return self._answered(environ, start_response)

    def _context(self) -> AbstractContextManager[None]:
        """Return a context manager around code that may need the framework's application."""
        return nullcontext() if self._app is None else self._outbox.integration.around_pages(self._app)

    def _answered(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        request = Request(environ)
        request.max_content_length = request.max_form_memory_size = _LARGEST_FORM
        try:
            with patience(_PATIENCE), statement_timeout(_LONGEST_STATEMENT):
                response = self._respond(request)
        except Exception as error:  # noqa: BLE001
            response = self._answers.problem(request, self._problems.problem(error, request.path))
        secure(response)
        return response(environ, start_response)

    def _respond(self, request: Request) -> Response:
        try:
            request.query_string.decode()
        except UnicodeDecodeError:
            raise BadRequest("The address contains invalid UTF-8.") from None
        if (response := self._for_everyone(request)) is not None:
            return response
        client = Client.of(request, self._access.proxies)
        self._access.check_host(client)
        urls = self._urls.bind(client.host, script_name=client.root or "/", path_info=request.path)
        if self._login is not None and request.path == _LOG_IN_PATH:
            urls.match(method=request.method)
            return self._login.answer(request, client, urls)
        try:
            # In a separate context, so that a session that `authorize` uses is closed before the page writes. On
            # SQLite, the transaction of that session would lock the file.
            with self._context():
                grant = self._access.grant(request, client)
        except (LoginNeeded, HTTPException) as refused:
            return self._refused(request, urls, refused)
        if request.method == "OPTIONS":
            return Response(status=204, headers={"Allow": ", ".join(sorted(urls.allowed_methods()))})
        name, path = urls.match(method=request.method)
        browser = Browser.of(request, client, self._access.key, person=grant.person)
        if request.method == "POST":
            check_form(request, browser)
        try:
            return self._known(self._answers.visit(request, grant, browser, urls, path), name, urls)
        except DBAPIError as error:
            # This is done only here, because only the dashboard's viewers may learn who holds the lock.
            raise self._outbox.store.why_locked(error) or error from error

    def _refused(self, request: Request, urls: MapAdapter, reason: LoginNeeded | HTTPException) -> Response:
        """Return the response that sends a person to a login page. Raises `reason` if there is no login page."""
        if isinstance(reason, LoginNeeded) and self._login is not None:
            return self._login.needed(request, urls)
        if isinstance(reason, HTTPException) and reason.response is not None:
            return elsewhere(request, reason.response)
        raise reason

    def _for_everyone(self, request: Request) -> Response | None:
        """Return the response to a request that anyone may make; None for any other request."""
        is_read = request.method in {"GET", "HEAD"}
        if request.path.startswith(STATIC):
            if not is_read:
                raise MethodNotAllowed(["GET", "HEAD"])
            return self._static.answer(request)
        return self._probes.health() if request.path == HEALTH and is_read and "deep" not in request.args else None

    def _known(self, visit: Visit, name: str, urls: MapAdapter) -> Response:
        """Return a route's response to a viewer who may see the dashboard."""
        store = self._outbox.store
        store.ensure_file()  # connecting would create an empty file
        if store.runs_alone:  # a test, whose transaction may have been rolled back since the last request
            self._freshness.forget()
        if name == _HEALTH:
            return self._probes.deep_health()
        if name == _METRICS:
            return self._probes.metrics(visit.request)
        if name == LOG_OUT:
            if self._login is None or visit.grant.session_id is None:
                raise NotFound
            return self._login.log_out(visit.browser.client, visit.grant.session_id, urls)
        if name.startswith(_API):
            return self._answers.data(visit, self._routes[name.removeprefix(_API)])
        route = self._routes[name]
        response = self._action(visit, route) if route.is_action else self._answers.page(visit, route)
        self._problems.worked()
        visit.browser.remember(visit.request, response)
        return response

    def _mark(self) -> str:
        """Return the mark of the tables. The mark is read through the outbox, which may be bound to its database after
        the dashboard is created.
        """
        return self._outbox.store.change_mark()

    def _action(self, visit: Visit, route: Route) -> Response:
        asked = visit.asked
        if not asked.viewer.may_act:
            raise Forbidden("You can read this dashboard, but you are not allowed to change anything.")
        try:
            answer = route.answer(asked)
        except Exception as error:
            _log_action(visit, route, f"failed with {type(error).__name__}")
            raise
        finally:
            self._freshness.forget()
        _log_action(visit, route, answer.notice if isinstance(answer, Redirect) else answer.title)
        if isinstance(answer, Redirect):
            return self._answers.redirect(answer, visit.browser)
        return self._answers.result(visit, route, answer)


def _log_action(visit: Visit, route: Route, outcome: str) -> None:
    asked = visit.asked
    form = {name: value for name, value in asked.form.items() if name != FIELD and name not in PAYLOAD}
    target = {**asked.path, **asked.query, **form}
    who = asked.viewer.name or f"a viewer at {visit.browser.client.address}"
    log.info("%s: %s %s: %s", *map(one_line, (who, route.name, target, outcome)))


def one_line(value: object) -> str:
    """Return the value as text for one line of a log, with line breaks and invisible characters written as escapes."""
    return plain(str(value)[:_LONGEST_TEXT])


HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""Restrictions for browsers: only the dashboard's own scripts run, pages are not shown in frames, and data is not
passed to other sites.
"""


def secure(response: Response) -> None:
    """Add the security headers. By default, caches must not keep a page, because it may contain data that only this
    viewer may see.
    """
    response.headers.update(HEADERS)
    response.headers.setdefault("Cache-Control", "no-store")


HEALTH: Final = "/healthz"
METRICS: Final = "/metrics"


class Probes:
    """Answers `/healthz` and `/metrics`."""

    def __init__(self, outbox: Outbox, freshness: Freshness) -> None:
        self._outbox, self._freshness = outbox, freshness
        self._outage = FailureLog(logging.getLogger("outboxq.web"))
        self._registry: CollectorRegistry | None = None

    def health(self) -> Response:
        """Return 200 if the database is responding, otherwise 503, and report whether the tables are locked. Anyone may
        request this page, so it does not report anything else.

        The check uses its own connection and does not wait for locks.
        """
        try:
            locked = self._freshness.shared("healthz", self._look)
        except Exception as error:  # noqa: BLE001
            self._outage.failed("the dashboard cannot reach the database", error)
            return _text("the database is not responding\n", status=503)
        self._outage.worked("the dashboard can reach the database again")
        return _text("ok, but another session has locked the tables, so pages cannot be shown\n" if locked else "ok\n")

    def _look(self) -> bool:
        """Return whether the tables are locked. Raises an exception if the database is not responding."""
        store = self._outbox.store
        store.ensure_file()  # connecting would create an empty file
        try:
            alone = store.reserved(threading.Event())
        except ConfigurationError:  # in a test, one connection serves all threads
            return store.tables_are_locked()
        try:
            alone.now()
            return alone.tables_are_locked()
        finally:
            alone.bound_engine.dispose()

    def deep_health(self) -> Response:
        """Return 200, or 503 with a line of JSON for each problem that `outboxq check` finds."""
        problems: list[Any] = self._freshness.shared("health", self._outbox.store.health)
        lines = "".join(f"{json.dumps(as_json(one))}\n" for one in problems)
        return Response(lines, status=503 if problems else 200, mimetype="application/x-ndjson")

    def metrics(self, request: Request) -> Response:
        """Return the database's gauges in Prometheus's format."""
        try:
            from prometheus_client import CollectorRegistry
            from prometheus_client.exposition import choose_encoder
        except ModuleNotFoundError:
            sentence = "/metrics needs the package prometheus-client; run: pip install 'outboxq[prometheus]'\n"
            return _text(sentence, status=501)
        if self._registry is None:
            from ..worker.prometheus import DatabaseCollector

            registry = CollectorRegistry()
            registry.register(DatabaseCollector(self._outbox.store))
            self._registry = registry
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        return Response(encode(self._registry), content_type=content_type)


class Dashboards:
    """Several dashboards, with links from each to the others. The dashboard `shop` is at the path `/shop/`, and `/`
    leads to the first dashboard.

    Each dashboard decides who may see it, and keeps its own logins.
    """

    def __init__(self, dashboards: Mapping[str, Dashboard]) -> None:
        """Raise ConfigurationError for a name that cannot be part of a path, or if there are no dashboards."""
        if not dashboards:
            raise ConfigurationError('give at least one dashboard: Dashboards({"shop": application(outbox)})')
        for name in dashboards:
            if not _NAME.fullmatch(name):
                raise ConfigurationError(
                    f"{name!r} cannot be part of a path; use letters, digits, dots, dashes and underscores"
                )
        self._dashboards = dict(dashboards)

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer one request."""
        request = Request(environ)
        name, _, rest = request.environ.get("PATH_INFO", "").lstrip("/").partition("/")
        root = request.root_path
        addresses = {one: f"{quoted(root) if root else ''}/{one}/" for one in self._dashboards}
        found = self._dashboards.get(name)
        if found is None:
            answer = (
                Response("There is no such dashboard.\n", status=404, mimetype="text/plain")
                if name
                else redirect(next(iter(addresses.values())), code=303, Response=Response)
            )
            secure(answer)
            return answer(environ, start_response)
        siblings = tuple((one, address, one == name) for one, address in addresses.items())
        mounted = {"SCRIPT_NAME": f"{environ.get('SCRIPT_NAME', '').rstrip('/')}/{name}", "PATH_INFO": f"/{rest}"}
        return found({**environ, **mounted, SIBLINGS: siblings}, start_response)


def _text(text: str, *, status: int = 200) -> Response:
    return Response(text, status=status, mimetype="text/plain")


@cache
def _urls(routes: tuple[Route, ...], *, has_login: bool) -> Map:
    """Return the URL map, which all dashboards in a process share because compiling its rules takes 40 ms."""
    rules = [
        *((one.path, one.name, "POST" if one.is_action else "GET") for one in routes),
        *((path_of(one.path), f"{_API}{one.name}", "GET") for one in routes if not one.is_action),
        ("/log-out", LOG_OUT, "POST"),
        (HEALTH, _HEALTH, "GET"),
        (METRICS, _METRICS, "GET"),
    ]
    if has_login:
        rules += [(_LOG_IN_PATH, LOG_IN, "GET"), (_LOG_IN_PATH, LOG_IN, "POST")]
    return Map([Rule(path, endpoint=name, methods=[method]) for path, name, method in rules], merge_slashes=False)
