"""The page on which a person gives the token, and the way back to the page that was asked for."""

from __future__ import annotations

import logging
from typing import Final
from urllib.parse import urlsplit

from werkzeug.routing import MapAdapter
from werkzeug.utils import redirect
from werkzeug.wrappers import Request, Response

from .addresses import Client
from .answers import Answers
from .api import PREFIX
from .forms import Browser, check_form
from .refreshing import own_path, quoted
from .sessions import COOKIE, SECONDS, Sessions

log = logging.getLogger("outboxq.web")

LOG_IN: Final = "log_in"
"""The name of the route of the page."""

_NEEDED: Final = "log in, or send the token in the header Authorization: Bearer\n"


class Login:
    """Logs people in and out."""

    def __init__(self, sessions: Sessions, answers: Answers) -> None:
        self._sessions, self._answers = sessions, answers

    def answer(self, request: Request, client: Client, urls: MapAdapter) -> Response:
        """Return the page, or what came of the token that was sent with it."""
        browser = Browser.of(request, client, self._sessions.key, person="log-in")
        if request.method != "POST":
            return self._page(request, browser, urls, request.args.get("next", ""))
        check_form(request, browser)
        wanted = request.form.get("next", "")
        if not self._sessions.check(request.form.get("token", "").strip(), client):
            return self._page(request, browser, urls, wanted, is_wrong=True)
        session_id, value = self._sessions.begin()
        log.info("somebody logged in from %s", client.address or "an unknown address")
        response = redirect(client.root + local_path(wanted), code=303, Response=Response)
        client.set_cookie(response, COOKIE, value, seconds=SECONDS)
        renewed = Browser.of(request, client, self._sessions.key, person=f"session {session_id}", is_renewed=True)
        renewed.remember(request, response)
        return response

    def needed(self, request: Request, urls: MapAdapter) -> Response:
        """Return the way to the page, for a request without a valid log-in."""
        if request.headers.get("HX-Request"):  # the page reloads itself, and comes here then
            return Response(status=401, headers={"HX-Refresh": "true"})
        if request.path.startswith(PREFIX) or not request.accept_mimetypes.accept_html:
            return Response(_NEEDED, status=401, mimetype="text/plain", headers={"WWW-Authenticate": "Bearer"})
        here = own_path(request)
        if request.method == "GET" and request.headers.get("Sec-Fetch-Site") == "cross-site":
            # Behind a link of another site, the browser sends the log-in with the next request only.
            return self._answers.lone(request, "again.html", {"title": "One moment", "here": here})
        wanted = here.removeprefix(quoted(request.root_path) if request.root_path else "")
        return redirect(
            urls.build(LOG_IN, {"next": wanted} if request.method == "GET" else {}), code=303, Response=Response
        )

    def log_out(self, client: Client, session_id: str, urls: MapAdapter) -> Response:
        """End the session, and return the way to the page."""
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


def local_path(wanted: str) -> str:
    """Return the path below the dashboard to go on to: the wanted one, or the first page if that leads elsewhere."""
    if not wanted.startswith("/") or wanted.startswith(("//", "/\\")) or "\\" in wanted or not wanted.isprintable():
        return "/"
    try:
        parts = urlsplit(wanted)
    except ValueError:
        return "/"
    return "/" if parts.scheme or parts.netloc else wanted
