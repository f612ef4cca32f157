from __future__ import annotations

import uuid

from django.db import models


class Stock(models.Model):
    item = models.CharField(primary_key=True, max_length=100)
    cents = models.IntegerField()
    left = models.IntegerField()

    class Meta:
        db_table = "stock"

    def __str__(self) -> str:
        return f"{self.left} × {self.item}"


class Order(models.Model):
    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    reference = models.CharField(max_length=100, help_text="The customer's name for the order.")
    item = models.CharField(max_length=100)
    quantity = models.PositiveIntegerField()
    cents = models.IntegerField()
    task_id = models.UUIDField(unique=True, help_text="The task that books it.")

    class Meta:
        db_table = "orders"

    def __str__(self) -> str:
        return f"{self.reference}: {self.quantity} × {self.item}"


class LedgerEntry(models.Model):
    # Not a OneToOneField: outboxq ensures that each order is booked once.
    order = models.ForeignKey(Order, on_delete=models.PROTECT)
    cents = models.IntegerField()

    class Meta:
        db_table = "ledger"

    def __str__(self) -> str:
        return f"{self.order_id}: {self.cents}"
