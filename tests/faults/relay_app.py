"""An application that publishes its events to the broker of `tests/faults/test_broker_relays.py`. A variable sets the port."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Sequence
from typing import IO

from outboxq import CloudEvent, Confirmed, Outbox, Refused, Unsure
from outboxq.model.transports import Outcome


class Lines:
    """A transport that sends one line for each call and reads one line of answers."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.stream: IO[str] | None = None

    def publish(self, events: Sequence[CloudEvent], deadline: float) -> Sequence[Outcome]:
        if self.stream is None:
            connection = socket.create_connection(
                ("127.0.0.1", self.port), timeout=max(0.01, deadline - time.monotonic())
            )
            self.stream = connection.makefile("rw")
            connection.close()  # the stream keeps it
        try:
            self.stream.write(json.dumps([os.getpid(), [[str(one.id), one.data] for one in events]]) + "\n")
            self.stream.flush()
            answers = json.loads(self.stream.readline() or "null")
            if answers is None:
                raise ConnectionError("the broker has closed the connection")
        except BaseException:
            self.close()
            raise
        kinds = {"confirmed": Confirmed(), "refused": Refused("too large"), "unsure": Unsure("an error")}
        return [kinds[one] for one in answers]

    def close(self) -> None:
        stream, self.stream = self.stream, None
        if stream is not None:
            stream.close()


outbox = Outbox(source="shop")
outbox.relay("order.*", to=Lines(int(os.environ.get("BROKER_PORT", "1"))), name="orders", shards=2, on_refused="skip")
