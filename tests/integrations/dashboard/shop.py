"""The tasks of the shop whose tables are filled, and ids with a given time."""

from __future__ import annotations

import os
from datetime import datetime
from uuid import UUID

RECEIPT, CHARGE, PARCEL = "shop.send_receipt", "shop.charge_card", "shop.pack_parcel"
LETTER, EXPORT, BOOK = "shop.send_newsletter", "shop.export_orders", "shop.book"
KNOWN = (RECEIPT, CHARGE, PARCEL, LETTER, EXPORT, BOOK, "shop.call_webhook", "shop.close_day", "shop.sweep")


def id_at(moment: datetime) -> UUID:
    """A version 7 UUID with this time."""
    milliseconds = int(moment.timestamp() * 1000)
    random = int.from_bytes(os.urandom(10))
    return UUID(int=milliseconds << 80 | 7 << 76 | (random >> 68) << 64 | 2 << 62 | random & (2**62 - 1))
