"""Accept each message from another program only once, and forget it when its retention time has passed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import sqlalchemy as sa

from ...database.grammar import ONE, Columns, Grammar, Relations, Statement, Transition, limit, one_step
from ...database.privileges import Feature
from ...database.tables import inbox_messages
from ...database.target import Target
from ...model import NewTask, duration
from ...model.options import bad_name, bad_span, is_name, is_span
from ..arguments import parameters
from ..producing.enqueue import enqueue_many
from ..tasks.idempotency import written
from ..transactions import Noun

KEPT = timedelta(days=7)
"""Time for which a message is remembered by default."""
_ACCEPTS = frozenset({Feature.INBOX})
_PRUNED_AT_ONCE = 1_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Arrival:
    """A message that a consumer might not have yet, and the task for it."""

    consumer: str
    source: str
    message_id: str
    keep: timedelta
    task: NewTask

    @property
    def key(self) -> tuple[str, str, str]:
        """The values that identify the message."""
        return self.consumer, self.source, self.message_id


class InboxMessages(Noun):
    """The messages that the consumers of this application have accepted."""

    def accept(
        self, consumer: str, message_id: str, *, source: str = "", keep: timedelta | float = KEPT, using: object
    ) -> bool:
        """Record that the consumer has this message, in the transaction that `using` specifies. Returns False if the
        consumer already had the message.

        If another transaction is accepting the same message, the call waits until that transaction ends. A rollback
        undoes the acceptance. At isolation levels above READ COMMITTED, the database may raise a serialization failure
        instead. Raises InvalidArgument, InvalidTarget and SchemaOutOfDate before anything is written.
        """
        name = f"message {str(message_id)[:200]!r}"
        for key, value in (("consumer", consumer), ("message_id", message_id)):
            if not is_name(value):
                raise bad_name(key, name)
        if source != "" and not is_name(source):
            raise bad_name("source", name)
        if not is_span(kept := duration(keep, "keep"), timedelta(microseconds=1)):
            raise bad_span("keep", name)
        given = {"consumer": consumer, "source": source, "message_id": message_id, "keep_seconds": kept.total_seconds()}

        def work(target: Target) -> bool:
            return bool(target.run(accept, self._store.values(target, **given)))

        return self._store.run(work, using=using, enqueues=_ACCEPTS)

    def receive(self, arrivals: Sequence[Arrival], *, using: object = None) -> int:
        """Enqueue the task of each message that its consumer does not have yet, and record in the same transaction that the
        consumer has the message. Returns the number of these tasks, which are enqueued in the order of the messages.

        Messages are accepted in key order, so that two calls never deadlock. A message that occurs twice is accepted
        once, at its first position.
        """
        first = {one.key: one for one in reversed(arrivals)}

        def work(target: Target) -> int:
            with target.atomic():
                rows = [(*key, one.keep.total_seconds()) for key, one in first.items()]
                found = target.run(accept_many, self._store.values(target), rows)
                new = {(one["consumer"], one["source"], one["id"]) for one in found}
                tasks = [one.task for one in arrivals if one.key in new and first[one.key] is one]
                enqueue_many(self._store, tasks, using=target)
            return len(tasks)

        def committed(target: Target, number: int) -> bool:
            given = [(one.task.id,) for one in first.values()]
            return number > 0 and bool(target.run(written, self._store.values(target), given))

        return self._store.run(work, using=using, enqueues=_ACCEPTS, committed=committed) if arrivals else 0

    def prune(self, stop: Callable[[], bool] = lambda: False, *, using: object = None) -> int:
        """Forget the messages whose retention time has passed, and return their number."""

        def work(target: Target) -> int:
            with target.atomic():
                return len(target.run(prune, self._store.values(target, limit=_PRUNED_AT_ONCE)))

        gone, found = 0, _PRUNED_AT_ONCE
        while found == _PRUNED_AT_ONCE and not stop():
            gone += (found := self._store.run(work, using=using))
        return gone


_message = inbox_messages.c
_KEY: tuple[sa.ColumnElement[Any], ...] = (_message.consumer, _message.source, _message.message_id)
_consumer, _source, _message_id = parameters(sa.Text, "consumer", "source", "message_id")
(_keep,) = parameters(sa.Double, "keep_seconds")
MESSAGES: Columns = {"consumer": sa.Text(), "source": sa.Text(), "message_id": sa.Text(), "keep_seconds": sa.Double()}


def accept(g: Grammar) -> Transition:
    """Write the message unless the consumer already has it. Returns a row if the message was written.

    ON CONFLICT DO NOTHING waits for a concurrent acceptance to commit or roll back. The statement does not return any
    columns, so that a consumer does not need the privilege to read other consumers' messages.
    """
    values = {"consumer": _consumer, "source": _source, "message_id": _message_id, "expires_at": g.later(g.now, _keep)}
    new = g.insert(inbox_messages).values(values).on_conflict_do_nothing()
    accepted = new.returning(ONE.label("id"))
    return Transition(steps={"accepted": lambda _: accepted}, returns="accepted")


@one_step("accepted", MESSAGES, returns=True)
def accept_many(g: Grammar, given: Any) -> Statement:
    """Write the messages that their consumers do not have, and return their keys. Returning the keys requires the
    privilege to read them.
    """
    key = (given.consumer, given.source, given.message_id)
    # The condition is always true. Without a WHERE, SQLite would read ON CONFLICT as the ON of a join.
    rows = sa.select(*key, g.later(g.now, given.keep_seconds)).where(given.message_id.is_not(None)).order_by(*key)
    new = g.insert(inbox_messages).from_select(["consumer", "source", "message_id", "expires_at"], rows)
    known = (_message.consumer, _message.source, _message.message_id.label("id"))
    return new.on_conflict_do_nothing().returning(*known)  # type: ignore[no-any-return]


def prune(g: Grammar) -> Transition:
    """Delete up to :limit messages whose retention time has passed."""
    over = sa.select(*_KEY).where(_message.expires_at <= g.now).order_by(_message.expires_at).limit(limit)
    doomed = over.with_for_update(skip_locked=True)

    def gone(r: Relations) -> Statement:
        doomed = r["doomed"].c
        mine = sa.tuple_(*_KEY).in_(sa.select(doomed.consumer, doomed.source, doomed.message_id))
        return sa.delete(inbox_messages).where(mine).returning(_message.message_id.label("id"))

    return Transition(steps={"doomed": lambda _: doomed, "gone": gone}, returns="gone")
