"""Name the channel of the trigger that wakes workers, notify workers without the trigger, and prove that a listener is
receiving (PostgreSQL).

The channel is named after the schema in which the outbox table is now. So the name is the same for programs that find
the table through a search path, for programs that name the schema, and for the trigger itself.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import OID, aggregate_order_by

from ..column_types import Name
from ..grammar import Columns, Grammar, text_literal
from ..queue_order import given_queues
from ..tables import sleeping_workers, task_outbox
from .catalogue import fires, pg_class, pg_namespace

SETTING = "outboxq.notify"
"""The setting for a transaction, a role or a database: `always`, `off`, or a proof (see PROOF)."""

PROOF = "proof "
"""The prefix of a proof. The listener adds a random word to this prefix."""

ALL = text_literal("")
"""The queue name that stands for all queues, because no queue has an empty name."""

EVERYBODY, ANSWERED, AT = "*", "-", "@"
"""The prefixes of a notification to every worker, of a notification that reports an answered call, and of a time."""

RELAYED = ">"
"""The prefix of a notification to a relay's senders. The relay's name follows the prefix."""

ANSWERS: Columns = {"queue": sa.Text(), "call": sa.BigInteger()}
"""The columns of the calls that have been answered."""

_EVERYBODY = text_literal(EVERYBODY)
_outbox = sa.bindparam("outbox", type_=sa.BigInteger, required=True)
_moment = sa.bindparam("moment", type_=sa.Double, required=True)
_session = sa.bindparam("session", type_=sa.BigInteger, required=True)
_word = sa.bindparam("word", type_=sa.Text, required=True)
_notify = sa.func.current_setting(text_literal(SETTING), sa.literal_column("true"), type_=sa.Text)


def channel_of(entries: sa.ColumnElement[Any]) -> sa.ColumnElement[str]:
    """Return the channel of the outbox table with this oid, as the trigger names the channel; NULL if there is no such
    table.
    """
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

    The setting is local to the transaction. This statement must be the first or the only statement of its transaction.
    """
    said = sa.func.set_config(text_literal(SETTING), _word, sa.literal_column("true", sa.Boolean), type_=sa.Text)
    nothing = sa.select(sa.cast(sa.null(), sa.Uuid)).where(said == text_literal(""))
    return sa.insert(task_outbox).from_select([task_outbox.c.task_execution_id], nothing, include_defaults=False)


def _name() -> sa.ColumnElement[str]:
    """Return the name, truncated to the length that the server accepts for a channel."""
    schema = pg_namespace.c.nspname
    named = sa.cast(sa.cast(sa.func.concat(text_literal("task_ready_"), schema), Name), sa.Text)
    return sa.case((schema == text_literal("public"), text_literal("task_ready")), else_=named)


def _lies(entries: sa.ColumnElement[Any]) -> sa.ColumnElement[bool]:
    return (pg_class.c.oid == entries) & (pg_namespace.c.oid == pg_class.c.relnamespace)


def wake(g: Grammar) -> sa.Select[Any]:
    """Notify the workers that are sleeping until there is work in these queues. The trigger notifies them of inserts.
    This statement is for tasks that become claimable in other ways. Run it after the writes that it announces, so that
    the transaction already has an id when the statement looks for sleeping workers.
    """
    queues = given_queues(g)
    sleeps = sa.select(sleeping_workers.c.queue).where(_sleeps(g, queues))
    level = sa.func.current_setting(text_literal("transaction_isolation"), type_=sa.Text)
    return sa.select(_told(g, _EVERYBODY, queues)).where(
        _notify.is_distinct_from(text_literal("off")),
        sa.or_(
            _notify == text_literal("always"),
            level != text_literal("read committed"),
            sleeps.correlate(queues).exists(),
        ),
    )


def call(g: Grammar) -> sa.Select[Any]:
    """For each of these queues, call two of the workers that are waiting for its tasks, and name one more worker that
    checks later, as the trigger does.
    """
    queues, sleeper = given_queues(g), sleeping_workers.c
    turn = sa.func.hashint8extended(sleeper.session, sa.func.txid_current(), type_=sa.BigInteger).label("turn")
    in_turn = (
        sa.select(sleeper.session, turn)
        .where(_sleeps(g, queues), sleeper.session.is_not(None))
        .order_by(turn)
        .limit(sa.literal_column("32"))  # this transaction keeps a lock for each session that has ended
        .correlate(queues)
        .subquery("in_turn")
    )
    called = (
        sa.select(in_turn.c.session, in_turn.c.turn)
        .where(~sa.func.pg_try_advisory_xact_lock_shared(in_turn.c.session, type_=sa.Boolean))
        .limit(sa.literal_column("3"))
        .subquery("called")
    )
    names = sa.func.string_agg(
        sa.cast(called.c.session, sa.Text), aggregate_order_by(text_literal(","), called.c.turn), type_=sa.Text
    )
    head = sa.func.concat(text_literal("2,"), sa.func.txid_current(), text_literal(","), names, type_=sa.Text)
    found = sa.select(sa.case((sa.func.count() > sa.literal_column("0"), head), else_=_EVERYBODY)).select_from(called)
    return sa.select(_told(g, found.correlate(queues).scalar_subquery(), queues)).where(
        _notify.is_distinct_from(text_literal("off")),
        sa.select(sleeper.queue).where(_sleeps(g, queues)).correlate(queues).exists(),
    )


def answer(g: Grammar) -> sa.Select[Any]:
    """Tell the sleeping workers that nothing was due in these queues after the given calls had been received, and that
    a task may start at :moment.
    """
    answers, at = g.rows("answers", ANSWERS), text_literal(AT)
    moment = at.concat(sa.cast(_moment, sa.Text))  # NULL, and so left out, if there is no moment
    head = sa.func.concat(text_literal(ANSWERED), answers.c.call, moment, type_=sa.Text)
    return sa.select(_told(g, head, answers)).where(_notify.is_distinct_from(text_literal("off")))


def open_session(_: Grammar) -> sa.Select[Any]:
    """Lock the number of a listening session until its connection ends. The trigger calls only workers that hold such a
    lock.
    """
    return sa.select(sa.func.pg_advisory_lock(_session).label("locked"))


def _told(g: Grammar, head: sa.ColumnElement[str], queues: sa.FromClause) -> sa.ColumnElement[Any]:
    return sa.func.pg_notify(
        channel_of(g.oid(task_outbox.name)), sa.func.concat(head, text_literal(" "), queues.c.queue)
    ).label("told")


def _sleeps(g: Grammar, queues: sa.FromClause) -> sa.ColumnElement[bool]:
    sleeper = sleeping_workers.c
    return sa.and_(sa.or_(sleeper.queue == queues.c.queue, sleeper.queue == ALL), sleeper.wakes_at > g.now)
