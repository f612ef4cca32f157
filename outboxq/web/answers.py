"""The dashboard's responses: pages as HTML or JSON, redirects, the login, and errors."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from werkzeug.datastructures import MultiDict
from werkzeug.exceptions import Forbidden, HTTPException, NotFound
from werkzeug.routing import MapAdapter
from werkzeug.utils import redirect
from werkzeug.wrappers import Request, Response

from .. import errors
from ..model.display import as_json, redacted
from ..store.failure_log import FailureLog
from .access import COOKIE, REFUSED, SECONDS, Grant, Sessions, TooManyTries
from .browser import Browser, Client, Comforts, check_form, own_path, quoted, without_comforts
from .freshness import Freshness, TooSlow, etag
from .pages import ROUTES, Route
from .rendering import NAVIGATION, StaticFiles, Templates
from .request import PAYLOAD, PRIVATE, PageRequest, Redact, Redirect, View

if TYPE_CHECKING:
    from ..outbox import Outbox

SIBLINGS: Final = "outboxq.siblings"
"""The key in the WSGI environment for the dashboards in the same application: the name and the address of each, and
whether it is the current one. A request header cannot set this key.
"""
LOG_OUT: Final = "log_out"
"""The name of the route that logs a person out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Visit:
    """A request with its sender."""

    request: Request
    grant: Grant
    browser: Browser
    comforts: Comforts
    asked: PageRequest

    @property
    def seen(self) -> tuple[object, ...]:
        """The address of the page, and the viewer."""
        return self.request.full_path, self.request.root_path, self.grant.viewer


class Answers:
    """Turns pages into responses."""

    def __init__(self, outbox: Outbox, static: StaticFiles, freshness: Freshness, redact: Redact, title: str) -> None:
        self._outbox, self._static, self._freshness, self._redact = outbox, static, freshness, redact
        self._templates = Templates(redact)
        self._title = title
        self._release = version("outboxq")
        self._navigation = [(name, words) for name, words in NAVIGATION if name in {one.name for one in ROUTES}]

    def visit(
        self, request: Request, grant: Grant, browser: Browser, urls: MapAdapter, path: Mapping[str, Any]
    ) -> Visit:
        """Return the visit, including the request that is passed to the page's function."""
        comforts = Comforts.of(request, browser.client)
        asked = PageRequest(
            outbox=self._outbox,
            store=self._outbox.store,
            viewer=grant.viewer,
            path=path,
            query=without_comforts(request.args),
            form=MultiDict(request.form),
            redact=self._redact,
            url=lambda to, **values: urls.build(to, values),
        )
        return Visit(request=request, grant=grant, browser=browser, comforts=comforts, asked=asked)

    def data(self, visit: Visit, route: Route) -> Response:
        """Return the JSON for a page, or status 304 if the client already has the current version."""
        viewer = visit.grant.viewer
        shown = ("api", route.name, *visit.seen)

        def make() -> tuple[str | None, int]:
            view = _view(route, visit.asked)
            text = None if view.data is None else document(view.data, viewer.may_see_arguments, self._redact)
            return text, view.status

        mark = self._freshness.mark()
        tag = etag(self._release, mark, shown)
        if visit.request.if_none_match.contains_weak(tag):
            response = Response(status=304)
        else:
            text, status = self._freshness.shared((mark, shown), make)
            if text is None:
                raise NotFound("This page is not available as JSON.")
            response = Response(text, status=status, mimetype="application/json")
        response.set_etag(tag)
        return response

    def page(self, visit: Visit, route: Route) -> Response:
        """Return a page for a GET, or status 304 without a body if the browser already has the page."""
        request, browser = visit.request, visit.browser
        notice = browser.notice(request)
        if notice is not None:
            self._freshness.forget()  # another process may have changed the data that this process has kept
        may_log_out, chosen = visit.grant.session_id is not None, visit.comforts.chosen.values()
        shown = (route.name, *visit.seen, may_log_out, self._title, *chosen)
        mark = self._freshness.mark()
        tag = etag(self._release, mark, shown, browser.form_token)
        if notice is None and request.if_none_match.contains_weak(tag):
            response = Response(status=304)
        else:
            text, status = self._freshness.shared((mark, shown), lambda: self._rendered(visit, route))
            response = self._html(text, status, form_token=browser.form_token, notice=notice, tag=tag)
            browser.forget_notice(request, response)
        response.set_etag(tag)
        visit.comforts.remember(response)
        return response

    def result(self, visit: Visit, route: Route, view: View) -> Response:
        """Return the page that an action shows instead of redirecting."""
        text, status = self._rendered(visit, route, view)
        return self._html(text, status, form_token=visit.browser.form_token)

    def redirect(self, answer: Redirect, browser: Browser) -> Response:
        """Return the redirect that follows a form. The next page shows the redirect's notice."""
        response = redirect(answer.url, code=303, Response=Response)
        browser.leave_notice(response, answer)
        return response

    def lone(
        self, request: Request, template: str, values: Mapping[str, Any], *, status: int = 200, form_token: str = ""
    ) -> Response:
        """Return a page without the navigation."""
        text = self._templates.render(template, {**self._of_each_page(request), **values})
        return self._html(text, status, form_token=form_token)

    def problem(self, request: Request, problem: Problem) -> Response:
        """Return a page about the error, or JSON for programs."""
        if request.path.startswith(PREFIX):
            text = json.dumps({"error": problem.sentence or problem.title})
            response = Response(text, status=problem.status, mimetype="application/json")
        else:
            is_of_home = problem.status == HTTPStatus.FORBIDDEN and request.path == "/"  # the link would lead here
            home = "" if is_of_home else f"{request.root_path}/"
            values = {"title": problem.title, "problem": problem, "home": home}
            can_ask_again = problem.status == HTTPStatus.SERVICE_UNAVAILABLE and request.method == "GET"
            values["again"] = own_path(request) if can_ask_again else ""
            response = self.lone(request, "error.html", values, status=problem.status)
        response.headers.update(problem.headers)
        return response

    def _rendered(self, visit: Visit, route: Route, view: View | None = None) -> tuple[str, int]:
        view = view or _view(route, visit.asked)
        values = {
            **view.values,
            "title": view.title,
            "viewer": visit.grant.viewer,
            "may_log_out": visit.grant.session_id is not None,
            "url": visit.asked.url,
            **self._of_each_page(visit.request),
            "section": view.section or route.section or route.name,
            "navigation": self._navigation,
            "here": "" if route.is_action else own_path(visit.request),
            "refresh": visit.comforts.refresh,
            "chosen": visit.comforts.chosen,
            "comforts": visit.comforts.links(visit.request),
        }
        return self._templates.render(view.template, values), view.status

    def _of_each_page(self, request: Request) -> dict[str, Any]:
        """Return the values that the layout needs. If this dashboard is one of several and has no title, it uses the
        name from its path.
        """
        siblings = request.environ.get(SIBLINGS, ())
        name = self._title or next((one for one, _, is_this in siblings if is_this), "")
        static = partial(self._static.path, root=request.root_path)
        return {"static": static, "siblings": siblings, "dashboard_title": self._title, "dashboard_name": name}

    def _html(self, text: str, status: int, *, form_token: str, notice: Any = None, tag: str = "") -> Response:
        filled = self._templates.fill(text, form_token=form_token, notice=notice, etag=f'"{tag}"' if tag else "")
        return Response(filled, status=status, mimetype="text/html")


def _view(route: Route, asked: PageRequest) -> View:
    found = route.answer(asked)
    if isinstance(found, Redirect):
        raise TypeError(f"the page {route.name} returned a redirect, but only an action may do that")
    return found


PREFIX: Final = "/api/"


def path_of(page: str) -> str:
    """Return the path of a page's JSON, given the page's path."""
    return f"{PREFIX}{page.strip('/') or 'overview'}.json"


def document(data: object, may_see_arguments: bool, redact: Redact = str) -> str:
    """Return a page's data as JSON. Arguments, results and headers are null if the viewer may not see them. `redact` is
    applied to them, and to what handlers wrote.

    All non-ASCII characters are escaped, and large numbers keep their digits.
    """

    def shown(value: Any, name: str = "") -> Any:
        if name in PAYLOAD:
            return redact(redacted(value)) if may_see_arguments and isinstance(value, str) else None
        if name in PRIVATE and isinstance(value, str):
            return redact(value)
        if isinstance(value, Mapping):
            return {key: shown(one, key) for key, one in value.items()}
        return [shown(one) for one in value] if isinstance(value, list) else value

    return json.dumps(shown(as_json(data)), allow_nan=False) + "\n"


log = logging.getLogger("outboxq.web")

LOG_IN: Final = "log_in"
"""The name of the login page's route."""

_NEEDED: Final = "log in, or send the token in the Authorization: Bearer header\n"


class Login:
    """Logs people in and out."""

    def __init__(self, sessions: Sessions, answers: Answers) -> None:
        self._sessions, self._answers = sessions, answers

    def answer(self, request: Request, client: Client, urls: MapAdapter) -> Response:
        """Return the login page, or the response to the token that was sent from it."""
        browser = Browser.of(request, client, self._sessions.key, person="login")
        if request.method != "POST":
            return self._page(request, browser, urls, request.args.get("next", ""))
        check_form(request, browser)
        wanted = request.form.get("next", "")
        if not self._sessions.check(request.form.get("token", "").strip(), client):
            return self._page(request, browser, urls, wanted, is_wrong=True)
        session_id, value = self._sessions.begin()
        log.info("someone logged in from %s", client.address or "an unknown address")
        response = redirect(client.root + local_path(wanted), code=303, Response=Response)
        client.set_cookie(response, COOKIE, value, seconds=SECONDS)
        renewed = Browser.of(request, client, self._sessions.key, person=f"session {session_id}", is_renewed=True)
        renewed.remember(request, response)
        return response

    def needed(self, request: Request, urls: MapAdapter) -> Response:
        """Return a redirect to the login page, for a request without a valid login."""
        if request.headers.get("HX-Request"):
            return _reload()
        if _is_programs(request):
            return Response(_NEEDED, status=401, mimetype="text/plain", headers={"WWW-Authenticate": "Bearer"})
        here = own_path(request)
        if request.method == "GET" and request.headers.get("Sec-Fetch-Site") == "cross-site":
            # After a link from another site, the browser sends the login only with the next request.
            return self._answers.lone(request, "again.html", {"title": "One moment", "here": here})
        wanted = here.removeprefix(quoted(request.root_path) if request.root_path else "")
        query = {"next": wanted} if request.method == "GET" else {}
        return redirect(urls.build(LOG_IN, query), code=303, Response=Response)

    def log_out(self, client: Client, session_id: str, urls: MapAdapter) -> Response:
        """End the session, and return a redirect to the login page."""
        self._sessions.end(session_id)
        response = redirect(urls.build(LOG_IN), code=303, Response=Response)
        client.delete_cookie(response, COOKIE)
        return response

    def _page(
        self, request: Request, browser: Browser, urls: MapAdapter, wanted: str, *, is_wrong: bool = False
    ) -> Response:
        values = {"title": "Log in", "action": urls.build(LOG_IN), "next": local_path(wanted), "is_wrong": is_wrong}
        status = 403 if is_wrong else 200
        response = self._answers.lone(request, "login.html", values, status=status, form_token=browser.form_token)
        browser.remember(request, response)
        return response


def elsewhere(request: Request, response: Any) -> Response:
    """Return the response with which the application's `authorize` sends a person to its own login page. Raises
    Forbidden if a program sent the request.
    """
    if request.headers.get("HX-Request"):
        return _reload()
    if _is_programs(request):
        raise Forbidden(REFUSED)
    return response  # type: ignore[no-any-return]


def _reload() -> Response:
    """Make the page reload itself, which leads to the login page."""
    return Response(status=401, headers={"HX-Refresh": "true"})


def _is_programs(request: Request) -> bool:
    return request.path.startswith(PREFIX) or not request.accept_mimetypes.accept_html


def local_path(wanted: str) -> str:
    """Return the path inside the dashboard at which to continue: the requested path, or the first page if that path
    leads elsewhere.
    """
    if not wanted.startswith("/") or wanted.startswith(("//", "/\\")) or "\\" in wanted or not wanted.isprintable():
        return "/"
    try:
        parts = urlsplit(wanted)
    except ValueError:
        return "/"
    return "/" if parts.scheme or parts.netloc else wanted


_TITLES = {
    400: "The request is invalid",
    403: "Not permitted",
    404: "Not found",
    405: "Method not allowed",
    413: "The request is too large",
    415: "Unsupported format",
    429: "Too many attempts",
    500: "The dashboard failed",
    503: "The database is not responding",
}
_SENTENCES = {
    404: "This page does not exist.",
    405: "This address does not support that method: use GET to read a page, and POST to send a form.",
    413: "The form is larger than 64 kB, or has too many fields.",
    415: "A form must be sent as application/x-www-form-urlencoded.",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """An error, as a page shows it."""

    status: int
    title: str
    sentence: str
    headers: Mapping[str, str]


class Problems:
    """Turns exceptions into problems to show, and logs them for the operator."""

    def __init__(self) -> None:
        self._outage = FailureLog(log)
        self._refusals = FailureLog(log)
        self._locks = FailureLog(log)

    def worked(self) -> None:
        """Record that a page could be rendered, which means that any outage is over."""
        self._outage.worked("the dashboard can reach the database again")
        self._locks.worked("the dashboard is no longer waiting for a lock")

    def problem(self, error: Exception, path: str) -> Problem:
        """Return the problem to show for an error. An unexpected error is logged with its traceback."""
        soon, refused = {"Retry-After": "5"}, "the database refuses the dashboard's statements"
        match error:
            case HTTPException():
                status, own = error.code or 500, type(error).description
                sentence = error.description if error.description != own else _SENTENCES.get(status)
                headers = {name: value for name, value in error.get_headers() if name in {"Allow", "Retry-After"}}
                return _problem(status, sentence or own or "", headers)
            case (
                OperationalError()
                | InterfaceError()
                | PoolTimeout()
                | TooSlow()
                | DBAPIError(connection_invalidated=True)
            ):
                self._outage.failed("the dashboard cannot reach the database", error)
                return _problem(503, "The dashboard's log gives the reason. Reload the page in a moment.", soon)
            case errors.NotPermitted():
                self._refusals.failed(refused, error)
                return _problem(403, f"{error}.", title="The database does not permit that")
            case DBAPIError() if _takes_no_writes(error):
                self._refusals.failed(refused, error)
                sentence = "It is a standby server. Start the dashboard with the URL of the primary server."
                return _problem(503, sentence, title="The database does not accept writes")
            case errors.FileUnusable() | errors.ConfigurationError():
                self._outage.failed("the dashboard cannot read the database", error)
                return _problem(503, str(error), soon, title="The database cannot be used")
            case errors.TablesLocked():
                self._locks.failed("the dashboard is waiting for a lock", error)
                return _problem(503, f"The database is responding, but {error}.", soon, title="The tables are locked")
            case TooManyTries(seconds=seconds):
                wait = str(max(1, math.ceil(seconds)))
                sentence = f"Too many wrong tokens were entered. Try again in {wait} s."
                return _problem(429, sentence, {"Retry-After": wait})
            case errors.TaskNotFound() | errors.ScheduleNotFound() | errors.QueueNotFound() | errors.RelayNotFound():
                return _problem(404, _unfound(error))
            case errors.OutboxqError():
                return _problem(400, str(error))
        log.error("the dashboard failed at %r", path, exc_info=error)
        return _problem(500, "The dashboard's log gives the reason.")


def _unfound(error: errors.OutboxqError) -> str:
    """Return the sentence about a name or an id that does not exist."""
    if isinstance(error, errors.QueueNotFound):  # no form has a field that sets up a queue
        return f"{error.mended_by('start a worker that serves it')}."
    return str(error)


def _problem(status: int, sentence: str, headers: Mapping[str, str] | None = None, *, title: str = "") -> Problem:
    title = title or _TITLES.get(status, _TITLES[400])
    return Problem(status=status, title=title, sentence=sentence, headers=headers or {})


def _takes_no_writes(error: DBAPIError) -> bool:
    """Return whether a standby server refused a write. Such a server reports "not supported" when a writing transaction
    begins.
    """
    state = getattr(error.orig, "sqlstate", None)
    return state == "25006" or (state == "0A000" and (error.statement or "").startswith("BEGIN"))
