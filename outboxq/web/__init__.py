"""The dashboard: a WSGI application that shows the tasks in an outbox, and can change them if that is allowed."""

from __future__ import annotations

from ..errors import ConfigurationError

try:
    from .access import Authorize
    from .dashboard import Dashboard, Dashboards, application
    from .request import Permission, Viewer
except ModuleNotFoundError as error:
    if error.name not in {"jinja2", "markupsafe", "werkzeug"}:
        raise
    cure = "run: pip install 'outboxq[web]'"
    raise ConfigurationError(f"the dashboard needs the package {error.name}; {cure}") from error

__all__ = ["Authorize", "Dashboard", "Dashboards", "Permission", "Viewer", "application"]
