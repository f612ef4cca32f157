"""What a transition is, and the few spellings in which the databases differ.

A `Transition` is data: a chain of Core statements, each reading only what an earlier one really changed (its RETURNING),
never the list that was asked for. PostgreSQL runs the chain as one statement of data-modifying CTEs; SQLite, which has
none, runs the steps one after the other inside the transaction (`dialects/`). Both read the same chain.

Locks are taken in one order everywhere: outbox entry, lease, execution, then inserts; batches in the order of their ids.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol

from sqlalchemy import ColumnElement, Delete, FromClause, Insert, Select, Table, Update, literal_column
from sqlalchemy.types import TypeEngine

Columns = Mapping[str, TypeEngine[Any]]
Relations = Mapping[str, Any]
"""The rows of the steps so far, each by its name: a FromClause with the step's returned columns."""
Statement = Select[Any] | Insert | Update | Delete


@dataclass(frozen=True, kw_only=True)
class Transition:
    """A chain of statements that happens as one."""

    name: str
    """Of its golden file."""
    steps: Mapping[str, Callable[[Relations], Statement]]
    """In order; a step may read the relations of the steps before it, and `given`."""
    given: Columns = field(default_factory=dict)
    """The columns of the batch it is given; the relation `given`."""
    passes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """What later steps read of a step that returns more than that."""
    returns: str | None = None
    """The step whose rows are the outcome; None: nobody asks."""
    completed_by: tuple[str, ...] = ()
    """Further steps, whose columns of the same `id` complete each row of the outcome; None where they have no such row."""


class Grammar(Protocol):
    """What the two databases spell differently inside a statement."""

    @property
    def now(self) -> ColumnElement[datetime]:
        """The moment of the transition: the same wherever it stands in one transition."""
        ...

    def later(self, moment: ColumnElement[Any], seconds: ColumnElement[Any]) -> ColumnElement[datetime]: ...

    def among(self, column: ColumnElement[Any], ids: ColumnElement[Any]) -> ColumnElement[bool]:
        """The rows whose column is one of these ids, looked up by index whatever the planner believes of the table."""
        ...

    def json(self, text: ColumnElement[Any] | None = None, **pairs: ColumnElement[Any]) -> ColumnElement[str]:
        """A JSON object as text: `text`'s members and the pairs that are not NULL."""
        ...

    def instant_in(self, text: ColumnElement[Any], member: str) -> ColumnElement[datetime]:
        """The instant under this name in a JSON object; NULL where there is none."""
        ...

    def text_in(self, text: ColumnElement[Any], member: str) -> ColumnElement[str]:
        """The text under this name in a JSON object; NULL where there is none."""
        ...

    def rows(self, name: str, columns: Columns) -> FromClause:
        """A batch given as bound parameters."""
        ...

    def position(self, given: FromClause) -> ColumnElement[int]:
        """The next position for each row of the batch, growing in the order of the batch."""
        ...

    def insert(self, table: Table) -> Any:
        """The dialect's own INSERT, for `on_conflict_do_nothing()`."""
        ...


def word(value: StrEnum) -> ColumnElement[str]:
    """A status or event type, written into the SQL: partial indexes and plans need to see it."""
    return literal_column(f"'{value}'")
