"""The dashboard inside a Django project, for the project's users. The dashboard needs one line in `urls.py`."""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING, Any, Final

from django.contrib.auth.views import redirect_to_login
from django.db import DEFAULT_DB_ALIAS, transaction
from django.http import HttpResponse
from django.urls import NoReverseMatch, path, reverse
from django.views.decorators.csrf import csrf_exempt

from ...model.actions import CommandAction
from ...operating.verb import Noun, Verb
from ...operating.verbs import VERBS
from .django_outbox import outboxes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from django.http import HttpRequest
    from django.urls import URLPattern

    from ...web import Dashboard, Viewer

VIEW: Final = "outboxq.view_taskexecution"
"""The permission to see the dashboard."""
ENQUEUE: Final = "outboxq.enqueue_taskexecution"
"""The permission to enqueue tasks in the dashboard."""
_NOT_PERMITTED: Final = (
    f"You need the permission {VIEW} (Can view task execution) to see this dashboard. An administrator can give it to you "
    "or to one of your groups in Django's admin."
)
_VIEWER: Final = "outboxq.viewer"
_NAME: Final = "outboxq_dashboard_{}"
"""The name of the dashboard's URLs, which includes the database's alias."""


def dashboard_urls(
    using: str = DEFAULT_DB_ALIAS,
    *,
    allow_actions: bool = False,
    show_arguments: bool | Callable[[Any], bool] = False,
    redact: Callable[[str], str] | None = None,
    title: str | None = None,
) -> list[URLPattern]:
    """Return an outbox's dashboard for ``path("outboxq/", include(dashboard_urls()))``.

    Users need the permission to view task executions. For each kind of change, they also need a separate permission: to
    retry, cancel, discard or enqueue task executions, or to change queue settings, schedules, relays or workers.
    Visitors who are not logged in are redirected to the login page specified in the settings. The pages ignore
    ATOMIC_REQUESTS and use separate transactions.

    Args:
        using: The alias of the outbox's database.
        allow_actions: If True, users can make the changes for which they have permission.
        show_arguments: If True, users see tasks' arguments, results and headers; values whose names suggest secrets
            stay hidden. With a function, such as ``lambda user: user.is_staff``, only the users for whom the function
            returns True see arguments, results and headers.
        redact: A function that takes a string and returns it without its sensitive parts; see
            `outboxq.web.application`.
        title: A name that is shown in the header and the title of each page. None means the alias, or no name if the
            alias is "default".
    """
    from werkzeug.exceptions import Forbidden

    from ...web import (
        Permission,
        Viewer,
        application,
    )  # the admin imports this module even if the `web` extra is missing

    def authorize(environ: Mapping[str, Any]) -> Viewer:
        viewer: Viewer | None = environ[_VIEWER]
        if viewer is None:
            raise Forbidden(_NOT_PERMITTED)
        return viewer

    dashboard = application(
        outboxes[using],
        allow_actions=allow_actions,
        show_arguments=bool(show_arguments),  # a function is called for each user, below
        authorize=authorize,
        redact=redact,
        title=title if title is not None else "" if using == DEFAULT_DB_ALIAS else using,
    )

    @csrf_exempt  # the dashboard checks its own token
    @transaction.non_atomic_requests(using=using)  # it has its own transactions, for which SQLite's lock must be free
    def view(request: HttpRequest, page: str = "", **_prefix: object) -> HttpResponse:
        user = request.user
        if not user.is_authenticated:
            return redirect_to_login(request.get_full_path())
        if not user.has_perm(VIEW):
            return _answer(dashboard, request, page, None)
        actions = {verb.recorded_as for verb in VERBS if user.has_perm(permission_of(verb))}
        actions |= {CommandAction.ENQUEUE.value} if user.has_perm(ENQUEUE) else set()
        viewer = Viewer(
            name=str(user),
            may_act=bool(actions),
            permissions=[Permission(actions=actions)],
            may_see_arguments=bool(show_arguments(user)) if callable(show_arguments) else show_arguments,
        )
        return _answer(dashboard, request, page, viewer)

    name = _NAME.format(using)
    return [path("", view, name=name), path("<path:page>", view, name=name)]


def permission_of(verb: Verb) -> str:
    """Return the permission that a verb requires, in addition to the permission to view the page."""
    return f"outboxq.{verb.right}_{_MODELS[verb.noun]}"


_MODELS: Final = {
    Noun.TASK: "taskexecution",
    Noun.BATCH: "taskexecution",
    Noun.QUEUE: "queuesettings",
    Noun.SCHEDULE: "taskschedule",
    Noun.RELAY: "relay",
    Noun.WORKER: "liveworker",
    Noun.SESSION: "liveworker",
}


def page_of(page: str, using: str = DEFAULT_DB_ALIAS) -> str | None:
    """Return the URL of a dashboard page; None if the project's `urls.py` does not mount the dashboard for this
    database.
    """
    try:
        return reverse(_NAME.format(using), kwargs={"page": page})
    except NoReverseMatch:
        return None


def _answer(dashboard: Dashboard, request: HttpRequest, page: str, viewer: Viewer | None) -> HttpResponse:
    """Return the dashboard's response to a Django request, under WSGI or ASGI. A `viewer` of None is refused."""
    body = request.body
    root = request.path[: len(request.path) - len(page)].rstrip("/")
    environ: dict[str, Any] = {
        **request.META,
        "REQUEST_METHOD": request.method,
        "HTTP_HOST": request.get_host(),  # checked against the settings, even behind a proxy
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
