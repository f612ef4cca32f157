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
    FromClause,
    Insert,
    Select,
    Text,
    Uuid,
    and_,
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
from sqlalchemy.dialects.postgresql import OID, aggregate_order_by

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

EVERYBODY = "*"
"""The head of a notification that calls every worker."""

NAME_LENGTH = 12
"""The number of characters at the end of a worker's id by which a notification names it."""

_EVERYBODY = literal_column(f"'{EVERYBODY}'", Text)
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
    queues = given_queues(g)
    notify = func.current_setting(literal_column("'outboxq.notify'"), literal_column("true"), type_=Text)
    sleeps = select(sleeping_workers.c.queue).where(_sleeps(g, queues))
    level = func.current_setting(literal_column("'transaction_isolation'"), type_=Text)
    return select(_told(g, _EVERYBODY, queues)).where(
        notify.is_distinct_from(literal_column("'off'")),
        or_(
            notify == literal_column("'always'"),
            level != literal_column("'read committed'"),
            sleeps.correlate(queues).exists(),
        ),
    )


def call(g: Grammar) -> Select[Any]:
    """Call two of the workers that sleep on each of these queues, and name three that look later, as the trigger does."""
    queues, sleeper = given_queues(g), sleeping_workers.c
    turn = func.uuid_hash_extended(sleeper.worker_id, func.txid_current(), type_=BigInteger)
    called = (
        select(
            func.right(cast(sleeper.worker_id, Text), literal_column(str(NAME_LENGTH))).label("name"),
            turn.label("turn"),
        )
        .where(_sleeps(g, queues), sleeper.any_topic)
        .order_by(turn)
        .limit(literal_column("5"))
        .correlate(queues)
        .subquery("called")
    )
    names = func.string_agg(called.c.name, aggregate_order_by(literal_column("','"), called.c.turn), type_=Text)
    head = func.concat(literal_column("'2,'"), names)
    found = select(case((func.count() > literal_column("0"), head), else_=_EVERYBODY)).select_from(called)
    notify = func.current_setting(literal_column(f"'{SETTING}'"), literal_column("true"), type_=Text)
    return select(_told(g, found.correlate(queues).scalar_subquery(), queues)).where(
        notify.is_distinct_from(literal_column("'off'")),
        select(sleeper.queue).where(_sleeps(g, queues)).correlate(queues).exists(),
    )


def _told(g: Grammar, head: ColumnElement[str], queues: FromClause) -> ColumnElement[Any]:
    return func.pg_notify(
        channel_of(g.oid(task_outbox.name)), func.concat(head, literal_column("' '"), queues.c.queue)
    ).label("told")


def _sleeps(g: Grammar, queues: FromClause) -> ColumnElement[bool]:
    sleeper = sleeping_workers.c
    return and_(or_(sleeper.queue == queues.c.queue, sleeper.queue == ALL), sleeper.wakes_at > g.now)
