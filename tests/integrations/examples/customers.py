"""Customers: threads that send orders over HTTP, some of them twice, and remember the answers."""

from __future__ import annotations

import json
import random
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from itertools import count

ITEMS = {"tea": 60, "biscuits": 15, "clotted cream": 20}
"""The items that are ordered, and their relative frequency. There is enough tea, too few biscuits, and no cream."""

UNKNOWN = 0
"""The status of a missing answer, or of one that says nothing about the order."""


@dataclass(kw_only=True)
class Wanted:
    """An order, as its customer knows it."""

    reference: str
    key: str | None
    body: str
    answers: list[tuple[int, str | None]] = field(default_factory=list)
    """The status and the order's id, for each answer."""

    @property
    def is_accepted(self) -> bool:
        return any(status in {200, 201} for status, _ in self.answers)

    @property
    def is_refused(self) -> bool:
        return not self.is_accepted and all(status != UNKNOWN for status, _ in self.answers)

    @property
    def ids(self) -> set[str]:
        return {order_id for _, order_id in self.answers if order_id is not None}


class Customers:
    """`threads` customers, who together place about `rate` orders per second."""

    def __init__(self, port: int, *, threads: int, rate: float, seed: int) -> None:
        self.wanted: list[Wanted] = []
        self.surprises: list[str] = []
        """Answers that no server should have given."""
        self.slowest = 0.0
        """The longest time until an answer, in seconds."""
        self._port = port
        self._pace = threads / rate
        self._numbers = count(1)
        self._recent: deque[Wanted] = deque(maxlen=4)
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._shop, args=(random.Random(seed + number),), daemon=True)
            for number in range(threads)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive(), "a customer is still waiting for an answer"

    def show(self, order_id: str) -> tuple[int, dict[str, object]]:
        connection = self._connection()
        try:
            return _ask(connection, "GET", f"/orders/{order_id}")
        finally:
            connection.close()

    def _connection(self) -> HTTPConnection:
        return HTTPConnection("127.0.0.1", self._port, timeout=30)

    def _shop(self, dice: random.Random) -> None:
        connection = self._connection()
        while not self._stop.is_set():
            began = time.monotonic()
            try:
                self._visit(connection, dice)
            except Exception as error:  # noqa: BLE001 - a thread reports its errors in `surprises`
                self.surprises.append(f"a customer failed: {error!r}")
            took = time.monotonic() - began
            self.slowest = max(self.slowest, took)
            self._stop.wait(max(0.0, self._pace - took))
        connection.close()

    def _visit(self, connection: HTTPConnection, dice: random.Random) -> None:
        wanted = self._same_again(dice) or self._new(dice)
        headers = {"Content-Type": "application/json"} | ({"Idempotency-Key": wanted.key} if wanted.key else {})
        if dice.random() < 0.03:  # disconnects before the answer
            connection.request("POST", "/orders", wanted.body, headers)
            connection.close()
            wanted.answers.append((UNKNOWN, None))
            return
        status, answer = _ask(connection, "POST", "/orders", wanted.body, headers)
        if status in {200, 201}:
            order_id = str(answer["id"])
            wanted.answers.append((status, order_id))
            if dice.random() < 0.2 and (status := _ask(connection, "GET", f"/orders/{order_id}")[0]) not in {
                200,
                UNKNOWN,
            }:
                self.surprises.append(f"order {wanted.reference} was accepted, and then not found: {status}")
        else:
            wanted.answers.append((status if 400 <= status < 500 else UNKNOWN, None))
            if status not in {409, 422, UNKNOWN}:
                self.surprises.append(f"order {wanted.reference} was answered with {status}: {answer}")

    def _same_again(self, dice: random.Random) -> Wanted | None:
        """Return a request that another customer may be sending at this moment."""
        if dice.random() < 0.15 and self._recent:
            return dice.choice(list(self._recent))
        return None

    def _new(self, dice: random.Random) -> Wanted:
        reference = f"PO-{next(self._numbers)}"
        (item,) = dice.choices(list(ITEMS), list(ITEMS.values()))
        quantity = dice.choice([1, 2, 3]) if dice.random() < 0.95 else 0
        body = json.dumps({"reference": reference, "item": item, "quantity": quantity})
        wanted = Wanted(reference=reference, key=f"key-{reference}" if dice.random() < 0.4 else None, body=body)
        self.wanted.append(wanted)
        if wanted.key:
            self._recent.append(wanted)
        return wanted


def _ask(
    connection: HTTPConnection, method: str, path: str, body: str | None = None, headers: dict[str, str] | None = None
) -> tuple[int, dict[str, object]]:
    try:
        connection.request(method, path, body, headers or {})
        response = connection.getresponse()
        said = response.read()
    except (OSError, HTTPException):
        connection.close()
        return UNKNOWN, {}
    try:
        return response.status, dict(json.loads(said))
    except ValueError:
        return response.status, {"said": said[:500].decode(errors="replace")}
