"""The hand-written SQL of `benchmarks/raw_sqlite.py` on outboxq's tables, through sqlite3 only."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence

from benchmarks.peers.driver import BATCH, Driver, began, main
from benchmarks.peers.outboxq import RELAXED
from benchmarks.raw_sqlite import Hand
from outboxq import migrations
from outboxq.model.uuid7 import uuid7


class RawSqliteDriver(Driver):
    settings = (
        f"sqlite3; completion of {BATCH} and claim of the next {BATCH} in one BEGIN IMMEDIATE; data_version each 5 ms"
    )

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._path = url.removeprefix(RELAXED)
        self._hand: Hand | None = None

    @property
    def _opened(self) -> Hand:
        self._hand = self._hand or Hand(self._path, relaxed=self.url.startswith(RELAXED))
        return self._hand

    def setup(self) -> None:
        migrations.upgrade(f"sqlite:///{self._path}")

    def enqueue(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._opened.enqueue([uuid7()], [number])

    def bulk(self, numbers: Sequence[int]) -> None:
        self._opened.enqueue([uuid7() for _ in numbers], numbers)

    def prepare(self) -> None:
        self._opened.changes()

    def work(self) -> None:
        hand = self._opened
        while True:
            seen = hand.changes()
            claims = hand.complete_and_claim([], BATCH)
            while claims:
                for _, args in claims:
                    began(json.loads(args)["number"])
                claims = hand.complete_and_claim([identity for identity, _ in claims], BATCH)
            while hand.changes() == seen:
                time.sleep(0.005)


if __name__ == "__main__":
    main(RawSqliteDriver)
