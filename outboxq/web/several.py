"""Several dashboards in one application, each at a path of its own, with links from each to the others."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from werkzeug.utils import redirect
from werkzeug.wrappers import Request, Response

from ..errors import ConfigurationError
from .answers import SIBLINGS
from .browser import quoted
from .dashboard import Dashboard, secure

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,49}")


class Dashboards:
    """The WSGI callable. The dashboard `shop` is at the path `/shop/`, and `/` leads to the first dashboard.

    Each dashboard decides who may see it, and keeps its own logins.
    """

    def __init__(self, dashboards: Mapping[str, Dashboard]) -> None:
        """Raises ConfigurationError for a name that cannot be part of a path, and if there are no dashboards."""
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
