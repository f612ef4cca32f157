"""Create some stock to sell."""

from __future__ import annotations

from typing import Any

from django.db import migrations

STOCK = {"tea": (995, 1_000_000), "biscuits": (250, 40), "clotted cream": (400, 0)}


def fill(apps: Any, _schema_editor: Any) -> None:
    stock = apps.get_model("shop", "Stock")
    stock.objects.bulk_create(stock(item=item, cents=cents, left=left) for item, (cents, left) in STOCK.items())


class Migration(migrations.Migration):
    dependencies = [("shop", "0001_initial")]
    operations = [migrations.RunPython(fill, migrations.RunPython.noop)]
