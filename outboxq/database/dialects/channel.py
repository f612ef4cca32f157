"""Name the channel of the trigger that wakes workers, notify them without it, and prove that a listener is receiving
(PostgreSQL).

The channel is named after the schema in which the outbox table is now. So the name is the same for programs that find
the table by a search path, for programs that name the schema, and for the trigger itself.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import OID

from ..column_types import Name
from ..grammar import Grammar
from ..queue_order import given_queues
from ..tables import sleeping_workers, task_outbox
from .catalogue import fires, pg_class, pg_namespace

SETTING = "outboxq.notify"
"""The setting of a transaction, a role or a database: `always`, `off`, or a proof."""

PROOF = "proof "
"""The beginning of a proof. The listener adds a random word to it."""

ALL = sa.literal_column("''", sa.Text)
"""The queue name that stands for all queues, because no queue has an empty name."""

_outbox = sa.bindparam("outbox", type_=sa.BigInteger, required=True)
_word = sa.bindparam("word", type_=sa.Text, required=True)


def channel_of(entries: sa.ColumnElement[Any]) -> sa.ColumnElement[str]:
    """Return the channel of the outbox with this oid, as the trigger names it; NULL if there is no such table."""
    return sa.select(_name()).where(_lies(entries)).scalar_subquery()


def find(g: Grammar) -> sa.Select[Any]:
    """Select the outbox's oid and channel, and whether an insert fires the trigger. Selects no rows if there is no such
    table.
    """
    entries = g.oid(task_outbox.name)
    outbox = sa.cast(pg_class.c.oid, sa.BigInteger).label("outbox")
    return sa.select(outbox, _name().label("channel"), fires(entries).exists().label("fires")).where(_lies(entries))  # type: ignore[return-value]


def find_again(_: Grammar) -> sa.Select[Any]:
    """Select the channel of the outbox with the oid :outbox. Selects no rows if the table no longer exists."""
    return sa.select(_name().label("channel")).where(_lies(sa.cast(_outbox, OID)))


def prove(_: Grammar) -> sa.Insert:
    """Make the trigger send :word, which begins with PROOF, by inserting no rows.

    The setting is local to the transaction. This statement must be the whole transaction, or its first statement.
    """
    said = sa.func.set_config(
        sa.literal_column(f"'{SETTING}'", sa.Text), _word, sa.literal_column("true", sa.Boolean), type_=sa.Text
    )
    nothing = sa.select(sa.cast(sa.null(), sa.Uuid)).where(said == sa.literal_column("''", sa.Text))
    return sa.insert(task_outbox).from_select([task_outbox.c.task_execution_id], nothing, include_defaults=False)


def _name() -> sa.ColumnElement[str]:
    """Return the name, truncated to the length that the server accepts for a channel."""
    schema = pg_namespace.c.nspname
    named = sa.cast(sa.cast(sa.func.concat(sa.literal_column("'task_ready_'"), schema), Name), sa.Text)
    return sa.case(
        (schema == sa.literal_column("'public'", sa.Text), sa.literal_column("'task_ready'", sa.Text)), else_=named
    )


def _lies(entries: sa.ColumnElement[Any]) -> sa.ColumnElement[bool]:
    return (pg_class.c.oid == entries) & (pg_namespace.c.oid == pg_class.c.relnamespace)


def wake(g: Grammar) -> sa.Select[Any]:
    """Notify the workers that are sleeping until there is work in these queues. The trigger notifies them about
    inserts. This statement is for tasks that become claimable in other ways. Run it after the writes that it announces,
    so that the transaction has its id before it looks for sleeping workers.
    """
    queues, channel = given_queues(g), channel_of(g.oid(task_outbox.name))
    notify = sa.func.current_setting(sa.literal_column("'outboxq.notify'"), sa.literal_column("true"), type_=sa.Text)
    sleeper = sleeping_workers.c
    sleeps = sa.select(sleeper.queue).where(
        sa.or_(sleeper.queue == queues.c.queue, sleeper.queue == ALL), sleeper.wakes_at > g.now
    )
    level = sa.func.current_setting(sa.literal_column("'transaction_isolation'"), type_=sa.Text)
    return sa.select(sa.func.pg_notify(channel, queues.c.queue).label("told")).where(
        notify.is_distinct_from(sa.literal_column("'off'")),
        sa.or_(
            notify == sa.literal_column("'always'"),
            level != sa.literal_column("'read committed'"),
            sleeps.correlate(queues).exists(),
        ),
    )
