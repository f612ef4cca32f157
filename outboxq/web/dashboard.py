"""The dashboard as a WSGI callable."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from werkzeug.datastructures import MultiDict
from werkzeug.exceptions import HTTPException
from werkzeug.routing import Map, Rule
from werkzeug.utils import redirect
from werkzeug.wrappers import Request, Response

from .rendering import NAVIGATION, environment
from .request import PageRequest, Redirect, View, Viewer
from .routes import ROUTES, Route

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

    from ..outbox import Outbox


def application(outbox: Outbox, *, allow_actions: bool = False, show_arguments: bool = False) -> Dashboard:
    """Return the dashboard of an outbox, for a WSGI server or for mounting in an application.

    Args:
        outbox: The outbox whose tasks are shown.
        allow_actions: True: the dashboard changes tasks, queues and schedules too.
        show_arguments: True: it shows arguments, results and headers of tasks; values of secret names stay hidden.
    """
    return Dashboard(outbox, allow_actions=allow_actions, show_arguments=show_arguments)


class Dashboard:
    """The WSGI callable."""

    def __init__(self, outbox: Outbox, *, allow_actions: bool, show_arguments: bool) -> None:
        self._outbox = outbox
        self._viewer = Viewer(name="", may_act=allow_actions, may_see_arguments=show_arguments)
        self._templates = environment()
        self._routes = {route.name: route for route in ROUTES}
        self._urls = Map(
            [
                Rule(route.path, endpoint=route.name, methods=["POST"] if route.is_action else ["GET"])
                for route in ROUTES
            ]
        )

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer one request."""
        request = Request(environ)
        try:
            response: Any = self._answer(request)
        except HTTPException as error:
            response = error
        return response(environ, start_response)  # type: ignore[no-any-return]

    def _answer(self, request: Request) -> Response:
        urls = self._urls.bind_to_environ(request.environ)
        name, path = urls.match()
        route = self._routes[name]
        asked = PageRequest(
            outbox=self._outbox,
            store=self._outbox.store,
            viewer=self._viewer,
            path=path,
            query=MultiDict(request.args),
            form=MultiDict(request.form),
            url=lambda to, **values: urls.build(to, values),
            refresh=timedelta(seconds=5),
        )
        answer = route.answer(asked)
        if isinstance(answer, Redirect):
            return redirect(answer.url, code=303)
        return self._rendered(asked, route, answer)

    def _rendered(self, asked: PageRequest, route: Route, view: View) -> Response:
        values = {
            **view.values,
            "title": view.title,
            "viewer": asked.viewer,
            "url": asked.url,
            "section": route.section or route.name,
            "navigation": [(name, words) for name, words in NAVIGATION if name in self._routes],
        }
        text = self._templates.get_template(view.template).render(values)
        return Response(text, status=view.status, mimetype="text/html")
