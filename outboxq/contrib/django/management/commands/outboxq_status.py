"""`manage.py outboxq_status`: show counts, rates and durations of the queues."""

from __future__ import annotations

from .....cli.status import status
from . import StoredCommand


class Command(StoredCommand):
    help = "Show counts, rates and durations of each queue."
    source = status
