"""Manage relays to brokers: their declarations, the leases of their shards, and the messages that they have to publish.

**Order.** A message gets its id when it is emitted, and a sender publishes the messages in its shard in id order. On
PostgreSQL, a message with a lower id may be committed after one with a higher id. So a sender reads only up to an id
below which no open transaction can still add a message. It finds this id in the same way as readers of the log
(`store/tasks/event_log.py`). A mark consists of the highest id seen and the id that the next transaction will get. The
mark has passed when all transactions with smaller ids have ended. Message ids are drawn one by one, after their
transactions have their own ids (`Grammar.identified`). So once a mark has passed, each message up to the mark is
visible, unless its transaction was rolled back. A sender does not need to remember how far it has published, because
published messages are deleted.

**One sender.** A shard has one lease. Messages with the same partition key are always in one slot, and shard S of N
contains the slots whose number modulo N is S. If the number of shards changes, the leases are revoked, and no worker
gets a new one until the last of the old leases would have expired. A worker settles messages only while it has the
lease. A worker that was frozen can still publish messages that its successor publishes too, but cannot settle them.

**Wake-ups.** A sender without work announces that it is going to sleep, and the trigger notifies it of messages. A
transaction whose trigger ran before the announcement was committed does not notify the sender, but that transaction
already had its id. So the sender makes a mark after the announcement, and sleeps only if it finds no message once that
mark has passed, not even one above the mark. On SQLite, senders watch the file.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from itertools import groupby
from operator import itemgetter
from typing import Any, TypeVar
from uuid import UUID

from ...database.dialects import Begin, Row
from ...database.target import Target
from ...errors import RelayNotFound
from ...model import NewTask, TaskOptions
from ...model.relays import (
    COUNTED,
    HeldRelayKey,
    NewRelay,
    OnRefused,
    Relay,
    RelayDetail,
    RelayShard,
    ShardBacklog,
    ShardLease,
    check_relay,
    task_of,
)
from ...model.unknown_options import Answering
from ...model.uuid7 import uuid7
from ...payload.parameters import sanitize
from ..arguments import positive, storable
from ..producing.enqueue import insert_tasks
from ..task_rows import row
from ..tasks.event_log import TailCursor, marked
from ..tasks.operations import OnChange
from ..transactions import Noun, Transactions
from . import relays_sql as sql

T = TypeVar("T")
LEASE = timedelta(seconds=10)
"""The time after which another worker takes over the shards of a worker that was killed."""
_OPTIONS = TaskOptions()
AT_ONCE = 500
"""The largest number of messages that a sender reads at once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RelayLook:
    """The messages that a sender found in its shard, and the state of the relay."""

    is_mine: bool = True
    """False if the lease is lost, or if the relay was removed."""
    cursor: TailCursor = field(default_factory=TailCursor)
    """The position up to which no message is missing. Pass it to the next `look`."""
    messages: Sequence[Row] = ()
    """The next messages, in id order. There are none while the relay is paused."""
    on_refused: OnRefused = OnRefused.HOLD
    shards: int = 1
    """The relay's number of shards."""
    failures: int = 0
    try_in: float | None = None
    """Seconds until the next attempt after a failure; None if there is nothing to wait for."""
    is_paused: bool = False
    head: int = 0
    """The highest id of the relay's messages."""

    @property
    def is_complete(self) -> bool:
        """True if the relay's messages are known to be complete up to the highest id."""
        return self.cursor.settled >= self.head


@dataclass(frozen=True, kw_only=True, slots=True)
class RelayFailure:
    """A reason not to publish for a while."""

    reason: str
    pause: timedelta
    is_partial: bool
    """True if the broker confirmed other events at the same time, which shows that the broker is available."""


class Relays(Noun, Answering):
    """The relays to message brokers."""

    _noun = "outbox.store.relays"

    def declare(self, relays: Iterable[NewRelay], *, using: object = None) -> None:
        """Store these relays. Other relays are kept. If nothing has changed, nothing is written.

        The topics are subscriptions of the task `relay.NAME`, so `subscriptions.replace` stores them. Raises
        InvalidArgument.
        """
        wanted = {one.name: one for one in relays}
        for one in wanted.values():
            check_relay(one)
        if not wanted:
            return

        def work(target: Target) -> None:
            with target.atomic():
                before = {one["name"]: one["shards"] for one in _lock(target, sorted(wanted))}
                target.run(sql.declare, self._store.values(target), [_row(wanted[name]) for name in sorted(wanted)])
                for name in sorted(wanted):
                    if before.get(name) != wanted[name].shards:
                        _divide(target, name, wanted[name].shards)

        # Most workers start with unchanged relays. They do not lock any rows.
        cells = itemgetter(*sql.RELAY)
        stored = set(map(cells, self._store.run_one(sql.select_relays, using=using)))
        if not stored.issuperset(map(_row, wanted.values())):
            self._store.run(work, using=using)

    def list(self, *, using: object = None) -> list[Relay]:
        """Return all relays with their backlog, sorted by name."""
        return self._store.run(lambda target: read_relays(self._store, target), using=using, begin=Begin.READ)

    def show(self, name: str, *, keys: int = 50, using: object = None) -> RelayDetail:
        """Return a relay with its backlog per shard, and up to `keys` partition keys held by refused events. Raises
        RelayNotFound.
        """
        positive(keys, "keys")

        def work(target: Target) -> RelayDetail:
            found = _found(target, [one for one in read_relays(self._store, target) if one.name == name], name)
            values = self._store.values(target, relay=name, queue=task_of(name), most=COUNTED, limit=keys)
            return RelayDetail(
                at=self._store.now_in(target),
                relay=found,
                backlogs=[ShardBacklog(**one) for one in target.run(sql.select_shard_backlogs, values)],
                held_keys=[HeldRelayKey(**one) for one in target.run(sql.select_held_keys, values)],
            )

        return self._store.run(work, using=using, begin=Begin.READ)

    def pause(
        self, name: str, *, reason: str | None = None, on_change: OnChange | None = None, using: object = None
    ) -> None:
        """Stop publishing until `resume`. Events are still written. A sender finishes the batch that it is publishing.

        Pausing a paused relay keeps the original time and reason. `on_change` is called in the transaction if the relay
        was not paused. Raises RelayNotFound.
        """
        self._change(sql.pause, name, using, on_change, reason=storable(reason, "reason"))

    def resume(self, name: str, *, on_change: OnChange | None = None, using: object = None) -> None:
        """End a relay's pause, whether requested by a person or caused by failures.

        `on_change` is called in the transaction if the relay was paused in either way. Raises RelayNotFound.
        """
        self._change(sql.resume, name, using, on_change)

    def remove(self, name: str, *, using: object = None) -> int:
        """Delete the relay, its topics and its messages, which are then never published. Returns the number of these
        messages.

        The idempotency keys of its events are deleted too, so a relay that is created again gets the next event with
        such a key. Its dead letters are kept. A worker whose code still declares the relay creates the relay again when
        the worker starts. Raises RelayNotFound.
        """

        def work(target: Target) -> int:
            with target.atomic():
                _found(target, _lock(target, [name]), name)
                return len(target.run(sql.remove, {"relay": name}))

        return self._store.run(work, using=using, committed=lambda target, _: not _lock(target, [name]))

    def take(self, relay: str, worker_id: UUID) -> ShardLease | None:
        """Lease a shard that has no sender, and return the lease; None if there is no such shard."""
        values = {"relay": relay, "worker_id": worker_id, "lease_seconds": LEASE.total_seconds()}
        for found in self._store.run_one(sql.take_shard, begin=Begin.SINGLE, **values):
            return ShardLease(relay=relay, shard=found["shard"], token=found["lease_token"], worker_id=worker_id)
        return None

    def renew(self, worker_id: UUID, leases: Collection[ShardLease]) -> set[tuple[str, int]]:
        """Extend a worker's leases. Returns the relay and shard of each lease that the worker still holds."""

        def work(target: Target) -> list[Row]:
            values = self._store.values(target, worker_id=worker_id, lease_seconds=LEASE.total_seconds())
            return target.run(sql.renew, values, [_held(one) for one in leases])

        found = self._store.run(work, begin=Begin.ASYNCHRONOUS) if leases else []
        return {(one["relay"], one["shard"]) for one in found}

    def give_up(self, worker_id: UUID, leases: Collection[ShardLease]) -> None:
        """End the leases of a worker that is stopping."""
        if leases:
            rows, values = [_held(one) for one in leases], {"worker_id": worker_id}
            self._store.run(lambda target: target.run(sql.give_up, self._store.values(target, **values), rows))

    def sleep(self, relay: str, worker_id: UUID, longest: timedelta) -> None:
        """Ask that the worker be notified of the relay's messages (PostgreSQL)."""
        values = {"relay": relay, "worker_id": worker_id, "pause_seconds": longest.total_seconds()}
        self._store.run_one(sql.sleep, begin=Begin.SINGLE_ASYNCHRONOUS, **values)

    def wake(self, relay: str, worker_id: UUID) -> None:
        """End the request made by `sleep`, because a worker that always finds messages to publish need not be notified."""
        self._store.run_one(sql.wake, begin=Begin.SINGLE_ASYNCHRONOUS, relay=relay, worker_id=worker_id)

    def look(self, lease: ShardLease, cursor: TailCursor, *, limit: int = AT_ONCE) -> RelayLook:
        """Return the next messages in the shard. The module docstring explains up to which id a sender may read."""

        def work(target: Target) -> RelayLook:
            values = self._store.values(target, **asdict(lease))
            found = target.run(sql.look, values)
            if not found:
                return RelayLook(is_mine=False)
            [seen] = found
            # The statements run in this order, so that the second one sees all messages up to the cursor.
            now, holds = marked(cursor, seen), seen["on_refused"] == OnRefused.HOLD
            waits = seen["paused"] or (seen["try_in"] is not None and seen["try_in"] > 0)
            values |= {"queue": task_of(lease.relay), "shards": seen["shards"], "settled": now.settled, "limit": limit}
            return RelayLook(
                cursor=now,
                messages=() if waits else target.run(sql.FOLLOWING[holds], values),
                on_refused=OnRefused(seen["on_refused"]),
                try_in=seen["try_in"] if waits and not seen["paused"] else None,
                is_paused=seen["paused"],
                **{name: seen[name] for name in ("shards", "failures", "head")},
            )

        return self._store.run(work, begin=Begin.READ)

    def settle(
        self,
        lease: ShardLease,
        *,
        confirmed: Collection[int] = (),
        refused: Mapping[int, str] | None = None,
        options: TaskOptions = _OPTIONS,
        failure: RelayFailure | None = None,
        works_again: bool = False,
    ) -> bool:
        """Record what the broker answered, in one transaction: delete confirmed messages, and turn refused ones into
        dead letters. Returns False, and writes nothing, if the lease is lost.

        `refused` maps the id of a message to the broker's reason, and `options` are the options of the dead letters.
        """

        def work(target: Target) -> bool:
            values = self._store.values(target, **asdict(lease))
            with target.atomic():
                if not target.run(sql.settle, values, [(one,) for one in confirmed] or [(0,)]):
                    return False
                if refused:
                    taken = target.run(sql.take_out, values, [(one,) for one in refused])
                    _bury(target, values, [(_dead_letter(lease, one, options), refused[one["id"]]) for one in taken])
                if failure is not None:
                    pause = {"pause_seconds": failure.pause.total_seconds(), "restarts": failure.is_partial}
                    target.run(sql.back_off, {**values, **pause, "error": sanitize(failure.reason, limit=500)})
                elif works_again:
                    target.run(sql.work_again, values)
            return True

        # A server crash may undo this transaction. The broker then receives the messages again, as after any other
        # fault.
        return self._store.run(work, begin=Begin.ASYNCHRONOUS)

    def _change(self, builder: Any, name: str, using: object, on_change: OnChange | None, **values: Any) -> None:
        def work(target: Target) -> None:
            with target.atomic():
                if not target.run(builder, self._store.values(target, relay=name, **values)):
                    _found(target, [one for one in target.run(sql.select_relays) if one["name"] == name], name)
                elif on_change is not None:
                    on_change(target, 1)

        self._store.run(work, using=using)


def read_relays(store: Transactions, target: Target, *, topics: bool = True) -> list[Relay]:
    """Return all relays with their backlog, sorted by name, with or without their topics. If there are no relays, this
    runs one statement.
    """
    values = store.values(target, limit=COUNTED)
    if not (found := target.run(sql.select_backlogs, values)):
        return []
    shards = _by_relay(target.run(sql.select_shards, values))
    named = _by_relay(target.run(sql.select_topics, values)) if topics else {}
    return [
        Relay(
            topics=[topic["topic"] for topic in named.get(one["name"], ())],
            shards=[_shard(shard) for shard in shards.get(one["name"], ())],
            on_refused=OnRefused(one["on_refused"]),
            **{key: one[key] for key in _SHOWN},
        )
        for one in found
    ]


_SHOWN = (
    *("name", "paused_at", "pause_reason", "failing_since", "next_try_at", "created_at", "last_error"),
    *("messages", "oldest_at", "dead_letters", "redriven"),
)
"""The fields of a Relay that are columns of `select_backlogs`."""


def _lock(target: Target, names: Iterable[str]) -> list[Row]:
    return target.run(sql.lock_relays, target.dialect.pack("names", sql.NAMES, [(name,) for name in names]))


def _divide(target: Target, relay: str, shards: int) -> None:
    """Divide the relay into this number of shards. No worker may send the relay's messages until the leases of the old
    shards would have expired.
    """
    before = target.run(sql.lock_shards, {"relay": relay})
    token = max((one["lease_token"] for one in before), default=0) + 1
    free_at = max((one["lease_expires_at"] for one in before if one["lease_expires_at"] is not None), default=None)
    target.run(sql.drop_shards, {"relay": relay})
    target.run(sql.add_shards, {}, [(relay, shard, token, free_at) for shard in range(shards)])


def _dead_letter(lease: ShardLease, message: Row, options: TaskOptions) -> NewTask:
    """Return the task that publishes a refused event after a redrive. The task's arguments contain the time of the
    emit.
    """
    return NewTask(
        id=uuid7(),
        pipeline_execution_id=message["event_id"],
        task_name=task_of(lease.relay),
        args=f'{{"emitted_at":"{message["created_at"].isoformat()}","payload":{message["payload"]}}}',
        **{name: message[name] for name in ("topic", "partition_key", "headers")},
        **vars(options.with_key(message["partition_key"])),
    )


def _bury(target: Target, values: Mapping[str, Any], dead_letters: Sequence[tuple[NewTask, str]]) -> None:
    if dead_letters:
        target.run(insert_tasks, values, [row(task) for task, _ in dead_letters])
        errors = [(task.id, sanitize(f"EventRefused: {reason}", limit=500)) for task, reason in dead_letters]
        target.run(sql.bury, values, errors)


def _found(target: Target, rows: Sequence[T], name: str) -> T:
    """Return the first row. Raises RelayNotFound if there is none. The error names the relays that exist."""
    if not rows:
        known = ", ".join(one["name"] for one in target.run(sql.select_relays)) or "none"
        raise RelayNotFound(f"there is no relay {name!r}; the relays to brokers are: {known}")
    return rows[0]


def _row(relay: NewRelay) -> tuple[object, ...]:
    return relay.name, relay.shards, relay.on_refused.value


def _held(lease: ShardLease) -> tuple[object, ...]:
    return lease.relay, lease.shard, lease.token


def _by_relay(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Group these rows, which are sorted by relay."""
    return {relay: list(several) for relay, several in groupby(rows, itemgetter("relay"))}


def _shard(found: Row) -> RelayShard:
    sent = dict.fromkeys(("worker_id", "worker", "lease_expires_at"))
    if found["worker_id"] is not None:
        sent = {name: found[name] for name in sent}
    return RelayShard(shard=found["shard"], **sent)
