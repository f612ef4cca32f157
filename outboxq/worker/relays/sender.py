"""The thread that publishes one relay's messages."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from uuid import UUID

from ...database.dialects import Row
from ...errors import FileUnusable
from ...model.cloud_events import CloudEvent
from ...model.options import headers_of_json
from ...model.relays import OnRefused, ShardLease
from ...store import RelayFailure, RelayLook, Store, TailCursor
from ...store.failure_log import FailureLog
from ...store.messages.relays import AT_ONCE
from ...task.registry import BrokerConnection, BrokerRelay
from .publishing import Care, Message, Report, publish
from .waiting import Waiting

log = logging.getLogger("outboxq.relay")

_TAKE_EVERY = 2.0
"""Seconds between two attempts to lease one more shard. This interval lets processes that start together share the
shards.
"""
_LONGEST_SLEEP = 5.0
"""Seconds after which a sender searches even if it has not been notified. For example, a held key may have become free.
"""
_ANNOUNCED_FOR = timedelta(seconds=30)
_POLL = 0.5
"""Seconds between two searches by a sender that is not notified, or whose relay is paused."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.001, 0.05
"""Seconds between two searches while open transactions hide whether the messages are complete."""
_BUSY_AFTER = 3
"""After this many consecutive searches that found messages, the sender does not need to be notified."""
_BATCHES = 8
"""The number of full batches that a shard publishes before the sender looks for a free shard again."""
_OVERTIME = 5.0
"""Seconds for which a lease is still extended after a batch's deadline. If the transport never returns, the lease
expires.
"""
_FIRST_BACK_OFF, _LONGEST_BACK_OFF = 1.0, 60.0


@dataclass(eq=False)
class Shard:
    """A leased shard, and how far its messages are known to be complete."""

    lease: ShardLease
    connection: BrokerConnection
    cursor: TailCursor = field(default_factory=TailCursor)
    is_proven: bool = False
    """True if every transaction that began before this sender announced its sleep has ended."""
    care: Care | None = None
    """The care with which to publish the next batch. None if nothing has been published yet."""
    has_raised: bool = False
    """True if the transport raised an error, and the event that caused the error has not been searched for yet."""
    busy_until: float | None = None
    """The deadline of the batch that is being published."""

    def learn(self, care: Care, report: Report) -> None:
        """Decide how carefully to publish next, given the report on a batch and the care with which that batch was
        published.
        """
        self.has_raised = care is not Care.SEARCH and (self.has_raised or report.raised)
        if report.unsure and not report.confirmed:
            self.care = Care.PROBE
        else:
            self.care = Care.SEARCH if self.has_raised else Care.NONE


class Sender(threading.Thread):
    """Leases a relay's shards, and publishes the messages of each shard in id order.

    The shards are served at the same time, each with its own connection, so that one shard can wait for the database
    while another waits for the broker. If the transport cannot be cloned, the shards take turns.
    """

    def __init__(
        self,
        store: Store,
        relay: BrokerRelay,
        waiting: Waiting,
        *,
        worker_id: UUID,
        stopping: threading.Event,
        on_thread_failure: Callable[[BaseException], None],
        burst: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name_of_relay = relay.declared.name
        super().__init__(name=f"outboxq-relay-{self.name_of_relay}", daemon=True)
        self._store, self._relay, self._waiting = store, relay, waiting
        self._worker_id, self._stopping, self._burst, self._clock = worker_id, stopping, burst, clock
        self._on_thread_failure = on_thread_failure
        self._shards: dict[int, Shard] = {}
        self._number = relay.declared.shards
        """The number of shards in the database. Another version of the application may declare a different number."""
        self._round = 0
        self._take_at = 0.0
        self._finds_none_free = False
        self._announced_until = 0.0
        self._announced_to = 0
        """The number of the listening connection at the time of the sender's last announcement that it is about to
        sleep.
        """
        self._pause = _FIRST_PAUSE
        self._busy = 0
        """The number of consecutive searches that found messages."""
        self._is_ending = False
        """True if the last search of a burst found nothing, and the leases have been extended since."""
        self._failing = FailureLog(log)
        self._counting = threading.Lock()
        self.published = self.refused = 0
        """The number of events that the broker has confirmed, and the number that the broker has refused."""

    def run(self) -> None:
        try:
            while not self._stopping.is_set():
                try:
                    pause = self.run_once()
                    self._failing.worked(f"the sender of relay {self.name_of_relay!r} is working again")
                    if pause is None:
                        break
                    self._waiting.wait(self.name_of_relay, pause)
                except FileUnusable as error:
                    return self._on_thread_failure(error)
                except Exception as error:  # noqa: BLE001 - the database may be unavailable for a while
                    self._failing.failed(f"the sender of relay {self.name_of_relay!r} failed; continuing", error)
                    self._forget()
                    self._stopping.wait(_FIRST_BACK_OFF)
        except BaseException as error:
            self._on_thread_failure(error)
            raise
        finally:
            self._end()

    def overdue(self) -> list[threading.Lock]:
        """Return the locks of the transports whose calls have not returned long after their deadlines."""
        shards, now = list(self._shards.values()), self._clock()
        return [one.connection.lock for one in shards if (end := one.busy_until) is not None and now > end + _OVERTIME]

    def live_leases(self, overdue: Collection[threading.Lock] = ()) -> list[ShardLease]:
        """Return the leases to extend. The list is empty if one of this sender's transports is overdue, because the
        sender's other shards are waiting for that transport. The list is also empty if this sender shares a transport
        that is `overdue` for another sender.
        """
        shards = list(self._shards.values())
        if self.overdue() or any(one.connection.lock in overdue for one in shards):
            return []
        return [one.lease for one in shards]

    def run_once(self) -> float | None:
        """Publish the next batches of each shard. Returns the number of seconds until the next search; None if the
        burst is over.
        """
        self._take()
        looks = self._work_on_all()
        if any(one.messages for one in looks):
            self._busy += 1
            self._is_ending = False
            self._pause = _FIRST_PAUSE
            if self._busy == _BUSY_AFTER and self._announced_until > self._clock():
                self._announced_until = 0.0
                self._store.relays.wake(self.name_of_relay, self._worker_id)
            return 0.0
        self._busy = 0
        has_all = len(self._shards) == self._number or self._finds_none_free
        if self._burst and has_all and all(one.is_complete or one.is_paused or one.try_in for one in looks):
            if self._is_ending:
                return None
            # A search under a lease that has lapsed finds nothing, so search once more under extended leases.
            self._store.relays.renew(self._worker_id, self.live_leases())
            self._is_ending = True
            return 0.0
        waits = [
            _POLL if one.try_in is None else min(_POLL, one.try_in) for one in looks if one.is_paused or one.try_in
        ]
        if waits:
            self._stopping.wait(min(waits))  # a notification must not make a paused relay search immediately
            return 0.0
        return self._until_look(looks)

    def _work_on_all(self) -> list[RelayLook]:
        """Publish the next batches of each shard. Returns the result of the last search in each shard, except for
        shards whose leases are lost.

        Each round begins with a different shard, because after a failure, the shards behind the failed one do not
        publish.
        """
        shards = list(self._shards.values())
        self._round += 1
        first = self._round % max(1, len(shards))
        shards = shards[first:] + shards[:first]
        if len(shards) == 1 or not all(one.connection.is_own for one in shards):
            looks = [self._work(one) for one in shards]
        else:
            looks = _at_once(self._work, shards)
        return [one for one in looks if one is not None]

    def _until_look(self, looks: Sequence[RelayLook]) -> float:
        """Return the number of seconds for which the sender may sleep. If the sender has not announced that it is about
        to sleep, make the announcement, and return 0, so that the sender searches once more before it sleeps.
        """
        longest = _LONGEST_SLEEP if len(self._shards) == self._number else _TAKE_EVERY
        if not looks:
            return longest
        is_complete = all(one.is_complete for one in looks)
        if connection := self._waiting.listening:
            if self._announced_to != connection or self._clock() >= self._announced_until:
                self._announce(connection)
                return 0.0
            is_complete = is_complete and all(one.is_proven for one in self._shards.values())
            longest = min(longest, max(0.0, self._announced_until - self._clock()))
        elif is_complete:
            return min(longest, _POLL)
        if is_complete:
            self._pause = _FIRST_PAUSE
            return longest
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        return self._pause

    def _announce(self, connection: int) -> None:
        began = self._clock()
        self._store.relays.sleep(self.name_of_relay, self._worker_id, _ANNOUNCED_FOR)
        self._announced_to, self._announced_until = connection, began + _ANNOUNCED_FOR.total_seconds()
        for one in self._shards.values():
            one.cursor = replace(one.cursor, mark_xact=0, mark_sequence=0)
            one.is_proven = False

    def _take(self) -> None:
        """Lease one more shard if that is due and not all shards are leased."""
        now = self._clock()
        while now >= self._take_at and len(self._shards) < self._number:
            # In a burst, there is no other sender to share with.
            self._take_at = now if self._burst else now + _TAKE_EVERY
            lease = self._store.relays.take(self.name_of_relay, self._worker_id)
            self._finds_none_free = lease is None
            if lease is None:
                return
            before = self._shards.get(lease.shard)  # its lease has expired, and nobody else has taken the shard
            self._shards[lease.shard] = Shard(lease, before.connection if before else self._relay.connection())
            self._announced_until = 0.0
            log.info("relay %s: sender %s has shard %d", self.name_of_relay, self._worker_id, lease.shard)

    def _work(self, shard: Shard) -> RelayLook | None:
        """Publish the shard's next batches, as long as they are full. Returns the result of the last search; None if
        the lease is lost.
        """
        for _ in range(_BATCHES):
            look = self._publish_next(shard)
            if look is None or len(look.messages) < AT_ONCE:  # after a failure, a search finds nothing
                break
        return look

    def _publish_next(self, shard: Shard) -> RelayLook | None:
        """Look for messages in the shard, and publish them. Returns None if the lease is lost."""
        marked = shard.cursor.mark_xact
        look = self._store.relays.look(shard.lease, shard.cursor)
        if not look.is_mine:
            self._lose(shard)
            return None
        shard.cursor, self._number = look.cursor, look.shards
        shard.is_proven |= look.cursor.mark_xact == 0 or marked not in {0, look.cursor.mark_xact}
        if not look.messages or self._stopping.is_set():
            return replace(look, messages=())
        care = shard.care or (Care.PROBE if look.failures else Care.NONE)
        report = self._publish(shard, look, care)
        shard.learn(care, report)
        failure = None if report.failure is None else _failure(report, look.failures)
        is_mine = self._store.relays.settle(
            shard.lease,
            confirmed=report.confirmed,
            refused=report.refused,
            options=replace(self._relay.options, on_dead_letter=look.on_refused.of_dead_letters),
            failure=failure,
            works_again=look.failures > 0 and bool(report.confirmed or report.refused),
        )
        self._note(report, failure)
        if not is_mine:
            self._lose(shard)
            return None
        with self._counting:  # the shards are served at the same time
            self.published += len(report.confirmed)
            self.refused += len(report.refused)
        return look

    def _publish(self, shard: Shard, look: RelayLook, care: Care) -> Report:
        messages = [Message(row["id"], self._event(row)) for row in look.messages]
        try:
            with shard.connection.lock:  # another relay may use the same transport
                shard.busy_until = deadline = self._clock() + self._relay.timeout.total_seconds()
                return publish(
                    shard.connection.transport,
                    messages,
                    holds=look.on_refused is OnRefused.HOLD,
                    deadline=deadline,
                    care=care,
                )
        finally:
            shard.busy_until = None

    def _event(self, row: Row) -> CloudEvent:
        try:
            headers = headers_of_json(row["headers"])
        except ValueError:  # another program wrote the headers
            headers = {}
        return CloudEvent(
            id=row["event_id"],
            source=self._relay.source,
            type=row["topic"],
            time=row["created_at"],
            data=row["payload"],
            partition_key=row["partition_key"],
            headers=headers,
        )

    def _note(self, report: Report, failure: RelayFailure | None) -> None:
        for reason in report.refused.values():
            log.error(
                "relay %s: the broker refused an event, which is now a dead letter: %s", self.name_of_relay, reason
            )
        if failure is not None:
            text = "relay %s: %s; nothing will be published for %.1f s"
            log.warning(text, self.name_of_relay, failure.reason, failure.pause.total_seconds())

    def _lose(self, shard: Shard) -> None:
        log.warning(
            "relay %s: another worker has shard %d, or the relay was changed", self.name_of_relay, shard.lease.shard
        )
        self._shards.pop(shard.lease.shard, None)
        shard.connection.close()

    def _forget(self) -> None:
        """Forget how far the messages are known to be complete, because after a failover, the server may count
        transactions from a lower number.
        """
        self._announced_until, self._is_ending = 0.0, False
        for one in self._shards.values():
            one.cursor, one.is_proven = TailCursor(), False

    def _end(self) -> None:
        """Release the shards to other workers immediately, if the database can be reached, and close the connection."""
        shards = list(self._shards.values())
        self._shards.clear()
        with suppress(Exception):
            self._store.relays.give_up(self._worker_id, [one.lease for one in shards])
        for one in shards:
            one.connection.close()
        with suppress(Exception), self._relay.lock:
            self._relay.transport.close()


def _at_once(work: Callable[[Shard], RelayLook | None], shards: Sequence[Shard]) -> list[RelayLook | None]:
    """Do this work for all shards, each in a separate thread. Raises the error of one of the threads, if any."""
    looks, errors = list[RelayLook | None](), list[BaseException]()

    def turn(shard: Shard) -> None:
        try:
            looks.append(work(shard))
        except BaseException as error:  # noqa: BLE001 - raised again in the sender's thread
            errors.append(error)

    threads = [
        threading.Thread(
            target=turn, args=(one,), name=f"outboxq-relay-{one.lease.relay}-{one.lease.shard}", daemon=True
        )
        for one in shards
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return looks


def _failure(report: Report, failures: int) -> RelayFailure:
    """Return the failure in this report, with the pause that follows: up to a second if the broker confirmed other
    events, otherwise up to a minute, depending on the number of failures.
    """
    is_partial = bool(report.confirmed)
    longest = _FIRST_BACK_OFF if is_partial else min(_FIRST_BACK_OFF * 2 ** min(failures, 6), _LONGEST_BACK_OFF)
    seconds = longest * random.uniform(0.5, 1.0)  # noqa: S311
    return RelayFailure(reason=report.failure or "", pause=timedelta(seconds=seconds), is_partial=is_partial)
