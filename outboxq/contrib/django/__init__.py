"""outboxq in Django: add `"outboxq.contrib.django"` to INSTALLED_APPS and run `manage.py migrate`.

::

    from outboxq.contrib.django import outbox

    @outbox.task(queue="mail")
    def send_receipt(order_id: int) -> None: ...

`outbox` is that of the database `default`; `outboxes[alias]` that of another. `task` declares a task of `django.tasks`. Importing this needs neither settings nor models.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .aliases import DjangoOutbox, Outboxes, outboxes
    from .backend import OutboxqBackend
    from .django_task import task
    from .integration import DjangoIntegration

    outbox: DjangoOutbox

__all__ = ["DjangoIntegration", "DjangoOutbox", "Outboxes", "OutboxqBackend", "outbox", "outboxes", "task"]

_HOMES = {
    "DjangoIntegration": "integration",
    "DjangoOutbox": "aliases",
    "Outboxes": "aliases",
    "OutboxqBackend": "backend",
    "outboxes": "aliases",
    "task": "django_task",
}


def __getattr__(name: str) -> Any:
    """Django imports this package while the settings are being read: nothing of it may need them yet."""
    if name == "outbox":
        return __getattr__("outboxes")["default"]
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
