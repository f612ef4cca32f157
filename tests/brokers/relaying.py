"""A campaign's shop, which publishes events. The variable CAMPAIGN names its folder."""

from __future__ import annotations

import os
from pathlib import Path

from outboxq import Outbox
from outboxq.model.transports import Transport
from tests.brokers.faulty import Faulty, read_place

SHARDS = 4


def shop(transport: Transport) -> Outbox:
    """Return the shop's outbox. A refused event does not hold its key, so that the effects of all other events can be counted."""
    outbox = Outbox(source="shop")
    outbox.relay("order.*", to=transport, name="orders", shards=SHARDS, on_refused="skip")
    return outbox


if "CAMPAIGN" in os.environ:
    folder = Path(os.environ["CAMPAIGN"])
    outbox = shop(Faulty(read_place(folder / "transport"), folder))
