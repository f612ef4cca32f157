"""A thread that waits on a distributor and can be observed, and a worker that only claims tasks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, Self
from uuid import UUID, uuid4

import psycopg
from sqlalchemy.engine import make_url

from outboxq.model import EventType, Outcome
from outboxq.store import ClaimCursor, Store
from outboxq.worker.distributor import PostgresDistributor
from tests.waiting import PATIENCE, until

SENTINEL = "sentinel "


@contextmanager
def ear(url: str) -> Iterator[Callable[[], list[str]]]:
    """Listen without being a sleeping worker. Each call returns the queues of all notifications committed since the last call."""
    address = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("LISTEN task_ready")

        def heard() -> list[str]:
            word, queues = SENTINEL + uuid4().hex, list[str]()
            connection.execute("SELECT pg_notify('task_ready', %s)", [word])
            for notice in connection.notifies(timeout=PATIENCE):
                if notice.payload == word:
                    return queues
                if not notice.payload.startswith(SENTINEL):
                    queues.append(notice.payload.partition(" ")[2])
            raise AssertionError("the sentinel was not received")

        yield heard


class Sleeper:
    """A thread that waits for work. It ignores waits that return before it has really slept, such as the first one."""

    def __init__(self, distributor: Any) -> None:
        self.distributor = distributor
        self.notified = isinstance(distributor, PostgresDistributor)
        self.waits = self.rings = self._rings_before = 0
        self.slept: float | None = None
        """The longest time, in seconds, that its current or last sleep can take."""
        self.last = 0.0
        """The longest time, in seconds, that its last wait of any kind can take."""
        self._sentinels: set[str] = set()
        wakeup = distributor._wakeup
        self._wait, self._ring, wakeup.wait, wakeup.notify = wakeup.wait, wakeup.notify, self._see_wait, self._see_ring
        if self.notified:
            self._heard = distributor._listener.on_notify
            distributor._listener.on_notify = self._see_heard

    def falls_asleep(self) -> Future[float]:
        """Wait until it sleeps, and return a future for the time at which it wakes."""
        result = self._starts()
        until(lambda: self.slept is not None or result.done(), every=0.001)
        assert not result.done(), result.result()
        return result

    def _starts(self) -> Future[float]:
        result: Future[float] = Future()
        self.slept = None

        def run() -> None:
            try:
                while self.slept is None:
                    self.distributor.wait_for_work()
                result.set_result(time.monotonic())
            except BaseException as error:  # noqa: BLE001 - handed to the test
                result.set_exception(error)

        threading.Thread(target=run, name="sleeper", daemon=True).start()
        return result

    @contextmanager
    def asleep(self) -> Iterator[Future[float]]:
        """Let it sleep during the block. If nothing has woken it by the end, wake it."""
        result = self.falls_asleep()
        try:
            yield result
        finally:
            if not result.done():
                self.distributor.wake()
            result.exception(60)

    def sleeps_on(self, result: Future[float]) -> bool:
        """Wait until it has noticed all commits, and return whether none of them woke it."""
        if not self.notified:
            seen = self.waits  # it checks the file between two waits
            until(lambda: self.waits >= seen + 3 or result.done())
            return not result.done()
        # Notifications arrive in commit order, so all earlier ones have arrived when this one does.
        store, word = self.distributor.store, SENTINEL + uuid4().hex
        with store.bound_engine.connect() as connection:
            connection.exec_driver_sql("SELECT pg_notify(%s, %s)", (self.distributor._listener._channel, word))
        until(lambda: word in self._sentinels)
        return self.rings == self._rings_before and not result.done()

    def _see_wait(self, seconds: float) -> bool:
        self.waits, self.last = self.waits + 1, seconds
        if seconds > (0.1 if self.notified else 0) and self.slept is None:
            self.slept, self._rings_before = seconds, self.rings
        return self._wait(seconds)

    def _see_ring(self) -> None:
        self.rings += 1
        self._ring()

    def _see_heard(self, queue: str) -> None:
        if queue.startswith(SENTINEL):
            self._sentinels.add(queue)
        else:
            self._heard(queue)


class Claimer:
    """A thread that claims and completes tasks and waits for more, as a worker does, but without handlers."""

    def __init__(
        self,
        store: Store,
        distributor: Any,
        *,
        queues: Sequence[str] | None = None,
        limit: int = 10,
        tells: bool = True,
        cursor: ClaimCursor | None = None,
    ) -> None:
        """If `tells` is False, the claimer never reports that it is at work, so it falls asleep after each task."""
        self.cursor = cursor
        self.store, self.distributor, self.queues, self.limit, self.tells = store, distributor, queues, limit, tells
        self.id = uuid4()
        self.claimed: dict[UUID, float] = {}
        """The time at which each task was claimed."""
        self.claims = 0
        self._stopping = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="claimer", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping = True
        self.distributor.close()
        self._thread.join(60)
        assert not self._thread.is_alive(), "the claimer did not stop"
        if self._error is not None:
            raise self._error

    def lag(self, task_id: UUID, since: float) -> float:
        """Return the seconds from `since` until the task was claimed."""
        until(lambda: task_id in self.claimed or self._error, seconds=30, every=0.001)
        if self._error is not None:
            raise self._error
        return self.claimed[task_id] - since

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._work()
        except BaseException as error:  # noqa: BLE001 - handed to the test
            self._error = error

    def _work(self) -> None:
        self.claims += 1
        claims = self.store.claim_ready_task(self.limit, worker_id=self.id, queues=self.queues, cursor=self.cursor)
        now = time.monotonic()
        self.claimed |= {claim.id: now for claim in claims}
        if claims:
            if self.tells:
                self.distributor.at_work()
            self.store.finish([Outcome(claim=claim, event_type=EventType.COMPLETED) for claim in claims])
        if len(claims) < self.limit:
            self.distributor.wait_for_work()
