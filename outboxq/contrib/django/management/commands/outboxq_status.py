"""`manage.py outboxq_status`: how the queues fare."""

from __future__ import annotations

from .....cli.status import status
from ..clicked import StoredCommand


class Command(StoredCommand):
    help = "Show what waits, runs and has failed, and what happened lately."
    source = status
