"""`manage.py outboxq_prune`: deletes what is long done."""

from __future__ import annotations

from .....cli.history import cleanup_events
from ..clicked import StoredCommand


class Command(StoredCommand):
    help = "Delete tasks that ended longer ago than this, together with their events."
    source = cleanup_events
