"""The hooks that HOOKS in OUTBOXQ names. This module imports models, which the settings could not do."""

from contextlib import contextmanager

from django.db import connection

from outboxq import Hook
from shop.models import Booking

notes = []


class Noting(Hook):
    @contextmanager
    def sending(self, sent):
        notes.append(f"sends {sent.task_names[0].rpartition('.')[2]}")
        yield {"in-a-block": str(connection.in_atomic_block)}

    @contextmanager
    def handling(self, context):
        notes.append(f"handles {context.headers['in-a-block']}")
        yield

    def ended(self, context, outcome, seconds):
        notes.append(f"ends {outcome.event_type} with {Booking.objects.count()} bookings")


made = Noting()
broken = "no hook"
