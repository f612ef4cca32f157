"""`manage.py outboxq_prune`: delete old finished tasks."""

from __future__ import annotations

from .....cli.db import prune
from . import StoredCommand


class Command(StoredCommand):
    help = "Delete finished tasks and their events by age."
    source = prune
