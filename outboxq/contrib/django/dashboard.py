"""The dashboard inside a Django project, for the project's users. It takes one line in `urls.py`."""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING, Any, Final

from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.db import DEFAULT_DB_ALIAS
from django.http import HttpResponse
from django.urls import NoReverseMatch, path, reverse
from django.views.decorators.csrf import csrf_exempt

from .django_outbox import outboxes

if TYPE_CHECKING:
    from django.http import HttpRequest
    from django.urls import URLPattern

    from ...web import Dashboard, Viewer

VIEW: Final = "outboxq.view_taskexecution"
"""The permission to see the dashboard."""
ACT: Final = (
    "outboxq.retry_taskexecution",
    "outboxq.cancel_taskexecution",
    "outboxq.discard_taskexecution",
    "outboxq.change_queuesettings",
    "outboxq.change_taskschedule",
    "outboxq.change_relay",
)
"""The permissions to make changes. A user needs all of them, because the dashboard has a single right for all actions."""
_VIEWER: Final = "outboxq.viewer"
_NAME: Final = "outboxq_dashboard_{}"
"""Name of the dashboard's URLs, which includes the alias of the database."""


def dashboard_urls(
    using: str = DEFAULT_DB_ALIAS, *, allow_actions: bool = False, show_arguments: bool = False
) -> list[URLPattern]:
    """Return an outbox's dashboard for ``path("outboxq/", include(dashboard_urls()))``.

    Users need the permission to view task executions. To make changes, they also need the permissions to retry, cancel
    and discard task executions, and to change queues, schedules and relays. Visitors who are not logged in are redirected to
    the login page that the settings name.

    Args:
        using: Alias of the outbox's database.
        allow_actions: True: users with these permissions can change tasks, queues, schedules and relays.
        show_arguments: True: users see arguments, results and headers of tasks; values of secret names stay hidden.
    """
    from ...web import Viewer, application  # the admin imports this module where the extra `web` may be missing

    dashboard = application(
        outboxes[using],
        allow_actions=allow_actions,
        show_arguments=show_arguments,
        authorize=lambda environ: environ.get(_VIEWER),
    )

    @csrf_exempt  # the dashboard checks a token of its own
    def view(request: HttpRequest, page: str = "", **_prefix: object) -> HttpResponse:
        user = request.user
        if not user.is_authenticated:
            return redirect_to_login(request.get_full_path())
        if not user.has_perm(VIEW):
            raise PermissionDenied
        viewer = Viewer(name=str(user), may_act=user.has_perms(ACT), may_see_arguments=True)
        return _answer(dashboard, request, page, viewer)

    name = _NAME.format(using)
    return [path("", view, name=name), path("<path:page>", view, name=name)]


def page_of(page: str, using: str = DEFAULT_DB_ALIAS) -> str | None:
    """Return the URL of a dashboard page; None if the project's `urls.py` does not mount the dashboard for this
    database.
    """
    try:
        return reverse(_NAME.format(using), kwargs={"page": page})
    except NoReverseMatch:
        return None


def _answer(dashboard: Dashboard, request: HttpRequest, page: str, viewer: Viewer) -> HttpResponse:
    """Return the dashboard's response to a Django request, under WSGI or ASGI."""
    body = request.body
    root = request.path[: len(request.path) - len(page)].rstrip("/")
    environ: dict[str, Any] = {
        **request.META,
        "REQUEST_METHOD": request.method,
        "HTTP_HOST": request.get_host(),  # checked against the settings, also behind a proxy
        "SCRIPT_NAME": _bytes_as_text(root),
        "PATH_INFO": _bytes_as_text(request.path[len(root) :]),
        "CONTENT_LENGTH": str(len(body)),
        "wsgi.input": BytesIO(body),
        "wsgi.url_scheme": request.scheme,
        _VIEWER: viewer,
    }
    response = HttpResponse()

    def start(status: str, headers: list[tuple[str, str]], _error: object = None) -> Any:
        response.status_code = int(status.partition(" ")[0])
        del response.headers["Content-Type"]
        for name, value in headers:
            if name.lower() == "set-cookie":
                response.cookies.load(value)
            else:
                response.headers[name] = value
        return response.write

    response.content = b"".join(dashboard(environ, start))
    return response


def _bytes_as_text(path: str) -> str:
    """Return a path in the form that WSGI requires, in which each byte is a character."""
    return path.encode().decode("latin-1")
