"""An application that sends each of its events to the endpoint that a variable names: `tests/faults/test_webhooks.py`."""

from __future__ import annotations

import os

from outboxq import Outbox, RetryPolicy, Webhook
from tests.endpoints import LOCAL

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
ATTEMPTS = 5
"""High enough that random errors, 1 in 50 answers, do not produce a dead letter."""

outbox = Outbox(source="shop")
outbox.relay(
    "order.*",
    to=Webhook(
        url=os.environ.get("ENDPOINT", "http://localhost:1/"),
        secret=SECRET,
        allow_http=True,
        allowed_networks=LOCAL,
    ),
    name="crm",
    retry=RetryPolicy(max_attempts=ATTEMPTS, wait=0.05),
)
