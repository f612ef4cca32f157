"""Define the table of the changes that people made."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Index, Text, Uuid

from .. import bounds
from ..column_types import BoundedInstant
from ..typed_table import TypedColumns, typed_table
from .tasks import metadata


class OperatorActionsColumns(TypedColumns):
    """A row for each change that a person made, written in the transaction of the change."""

    id = Column(Uuid, primary_key=True)  # created by the front end, so that a transaction that is run again adds no row
    at = Column(BoundedInstant, nullable=False)
    operator = Column(Text)  # the person; NULL: unknown
    interface = Column(Text, nullable=False)  # 'command line', 'dashboard', 'admin' or 'program'
    action = Column(Text, nullable=False)  # the noun and the verb: queue pause
    target = Column(Text)  # an id or a name; NULL: everything that matches the filters in `details`
    details = Column(Text, nullable=False)  # a JSON object: the values or filters that the person gave
    reason = Column(Text)
    changed = Column(BigInteger, nullable=False)  # a bulk change adds to it in each of its transactions


operator_actions = typed_table(
    "operator_actions",
    metadata,
    OperatorActionsColumns,
    Index("ix_operator_actions_target", "target", "id"),
    *bounds.of("operator_actions"),
)
