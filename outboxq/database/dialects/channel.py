"""Name the channel of the trigger that wakes workers, notify them without it, and prove that a listener is receiving
(PostgreSQL).

The channel is named after the schema in which the outbox table is now. So the name is the same for a program that finds the
table by a search path, a program that names the schema, and the trigger itself.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    ColumnElement,
    Insert,
    Select,
    Text,
    Uuid,
    bindparam,
    case,
    cast,
    func,
    insert,
    literal_column,
    null,
    or_,
    select,
)
from sqlalchemy.dialects.postgresql import OID

from ..column_types import Name
from ..grammar import Grammar
from ..queue_order import given_queues
from ..tables import sleeping_workers, task_outbox
from .catalogue import fires, pg_class, pg_namespace

SETTING = "outboxq.notify"
"""The setting of a transaction, a role or a database: `always`, `off`, or a proof."""

PROOF = "proof "
"""The beginning of a proof; a random word of the listener follows."""

ALL = literal_column("''", Text)
"""The queue of a worker that serves all queues; no queue has an empty name."""

_outbox = bindparam("outbox", type_=BigInteger, required=True)
_word = bindparam("word", type_=Text, required=True)


def channel_of(entries: ColumnElement[Any]) -> ColumnElement[str]:
    """Return the channel of the outbox with this oid, as the trigger names it; NULL if there is no such table."""
    return select(_name()).where(_lies(entries)).scalar_subquery()


def find(g: Grammar) -> Select[Any]:
    """Select the outbox's oid and channel, and true if an insert fires the trigger; no row if there is no such table."""
    entries = g.oid(task_outbox.name)
    outbox = cast(pg_class.c.oid, BigInteger).label("outbox")
    return select(outbox, _name().label("channel"), fires(entries).exists().label("fires")).where(_lies(entries))  # type: ignore[return-value]


def find_again(_: Grammar) -> Select[Any]:
    """Select the channel of the outbox with the oid :outbox; no row if the table is gone."""
    return select(_name().label("channel")).where(_lies(cast(_outbox, OID)))


def prove(_: Grammar) -> Insert:
    """Make the trigger send :word, which begins with PROOF, by an insert of no rows.

    The setting is local to the transaction. This statement must be the whole transaction, or its first statement.
    """
    said = func.set_config(literal_column(f"'{SETTING}'", Text), _word, literal_column("true", Boolean), type_=Text)
    nothing = select(cast(null(), Uuid)).where(said == literal_column("''", Text))
    return insert(task_outbox).from_select([task_outbox.c.task_execution_id], nothing, include_defaults=False)


def _name() -> ColumnElement[str]:
    """Return the name, cut to the length that the server accepts for a channel."""
    schema = pg_namespace.c.nspname
    named = cast(cast(func.concat(literal_column("'task_ready_'"), schema), Name), Text)
    return case((schema == literal_column("'public'", Text), literal_column("'task_ready'", Text)), else_=named)


def _lies(entries: ColumnElement[Any]) -> ColumnElement[bool]:
    return (pg_class.c.oid == entries) & (pg_namespace.c.oid == pg_class.c.relnamespace)


def wake(g: Grammar) -> Select[Any]:
    """Notify the workers that sleep on these queues. The trigger does so for inserts; this is for other ways to become claimable.

    Run it after the writes that it announces, so that the transaction has its id before it looks for sleeping workers.
    """
    queues, channel = given_queues(g), channel_of(g.oid(task_outbox.name))
    notify = func.current_setting(literal_column("'outboxq.notify'"), literal_column("true"), type_=Text)
    sleeper = sleeping_workers.c
    sleeps = select(sleeper.queue).where(
        or_(sleeper.queue == queues.c.queue, sleeper.queue == ALL), sleeper.wakes_at > g.now
    )
    level = func.current_setting(literal_column("'transaction_isolation'"), type_=Text)
    return select(func.pg_notify(channel, queues.c.queue).label("told")).where(
        notify.is_distinct_from(literal_column("'off'")),
        or_(
            notify == literal_column("'always'"),
            level != literal_column("'read committed'"),
            sleeps.correlate(queues).exists(),
        ),
    )
