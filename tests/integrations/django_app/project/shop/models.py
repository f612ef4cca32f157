# ruff: noqa: DJ008 - nobody looks at them
from django.db import models


class Order(models.Model):
    number = models.IntegerField(default=0)


class Booking(models.Model):
    """No unique constraint: a second booking of an order must be seen, not prevented."""

    order = models.IntegerField()
