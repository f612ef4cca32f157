# ruff: noqa: DJ008 - nobody reads their text
from django.db import models


class Order(models.Model):
    number = models.IntegerField(default=0)


class Booking(models.Model):
    """Bookings, without a unique constraint: a second booking of an order must be visible, not prevented."""

    order = models.IntegerField()
