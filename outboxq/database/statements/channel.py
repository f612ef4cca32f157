"""The channel of the trigger that wakes workers, and the proof that who listens to it hears the trigger (PostgreSQL).

It is named after the schema in which the outbox lies now: neither after what a program was told nor after where the tables
were made. So who looks the table up by a search path, who names its schema, and the trigger itself all come to the same.
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
    column,
    func,
    insert,
    literal_column,
    null,
    select,
    table,
)
from sqlalchemy.dialects.postgresql import OID

from ..column_types import Name
from ..tables import task_outbox
from .checks.parts import fires
from .grammar import Grammar

SETTING = "outboxq.notify"
"""Of a transaction, a role or a database: `always`, `off`, or a proof."""

PROOF = "proof "
"""What a proof begins with; a word of the prover's follows."""

_DEFAULT = "public"
_class = table("pg_class", column("oid"), column("relnamespace"), schema="pg_catalog")
_namespace = table("pg_namespace", column("oid"), column("nspname", Text), schema="pg_catalog")
_outbox = bindparam("outbox", type_=BigInteger, required=True)
_word = bindparam("word", type_=Text, required=True)


def channel_of(entries: ColumnElement[Any]) -> ColumnElement[str]:
    """Return the channel of the outbox with this oid, as the trigger names it; NULL: there is no such table."""
    return select(_name()).where(_lies(entries)).scalar_subquery()


def find(g: Grammar) -> Select[Any]:
    """Return the oid of our outbox, its channel, and whether an insert fires the trigger; no row: there is no such table."""
    entries = g.oid(task_outbox.name)
    found = (
        cast(_class.c.oid, BigInteger).label("outbox"),
        _name().label("channel"),
        fires(entries).exists().label("fires"),
    )
    return select(*found).where(_lies(entries))  # type: ignore[return-value]


def find_again(_: Grammar) -> Select[Any]:
    """Return the channel of the outbox with the oid :outbox; no row: it is gone."""
    return select(_name().label("channel")).where(_lies(cast(_outbox, OID)))


def prove(_: Grammar) -> Insert:
    """Have the trigger notify of :word, which begins with PROOF, by an insert of no rows.

    The setting is local to the transaction, which this statement must be by itself or the first of.
    """
    said = func.set_config(literal_column(f"'{SETTING}'", Text), _word, literal_column("true", Boolean), type_=Text)
    nothing = select(cast(null(), Uuid)).where(said == literal_column("''", Text))
    return insert(task_outbox).from_select([task_outbox.c.task_execution_id], nothing, include_defaults=False)


def _name() -> ColumnElement[str]:
    """A name is cut off where the server would refuse a longer one as a channel's."""
    schema = _namespace.c.nspname
    named = cast(cast(func.concat(literal_column("'task_ready_'"), schema), Name), Text)
    return case((schema == literal_column(f"'{_DEFAULT}'", Text), literal_column("'task_ready'", Text)), else_=named)


def _lies(entries: ColumnElement[Any]) -> ColumnElement[bool]:
    return (_class.c.oid == entries) & (_namespace.c.oid == _class.c.relnamespace)
