"""outboxq in Django: add `"outboxq.contrib.django"` to INSTALLED_APPS and run `manage.py migrate`.

::

    from outboxq.contrib.django import outbox

    @outbox.task(queue="mail")
    def send_receipt(order_id: int) -> None: ...

`outbox` is the outbox in the `default` database, and `outboxes[alias]` is the outbox in another database. `task`
declares a task for `django.tasks`. This package can be imported before the settings and the models.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .backend import OutboxqBackend
    from .django_outbox import DjangoOutbox, Outboxes, outboxes
    from .django_task import task
    from .integration import DjangoIntegration

    outbox: DjangoOutbox

__all__ = ["DjangoIntegration", "DjangoOutbox", "Outboxes", "OutboxqBackend", "outbox", "outboxes", "task"]

_HOMES = {
    "DjangoIntegration": "integration",
    "DjangoOutbox": "django_outbox",
    "Outboxes": "django_outbox",
    "OutboxqBackend": "backend",
    "outboxes": "django_outbox",
    "task": "django_task",
}


def __getattr__(name: str) -> Any:
    """Import a name's module when the name is first used, because Django imports this package while it reads the
    settings.
    """
    if name == "outbox":
        return __getattr__("outboxes")["default"]
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
