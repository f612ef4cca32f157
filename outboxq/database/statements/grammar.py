"""What a transition is, and the few spellings in which the databases differ.

A `Transition` is data: a chain of Core statements, each reading only what an earlier one really changed (its RETURNING),
never the list that was asked for. PostgreSQL runs the chain as one statement of data-modifying CTEs; SQLite, which has
none, runs the steps one after the other inside the transaction (`dialects/`). Both read the same chain.

Locks are taken in one order everywhere: outbox entry, lease, execution, then inserts; batches in the order of their ids.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from typing import Any

from sqlalchemy import ColumnElement, Delete, FromClause, Insert, Select, Table, Text, Update, literal_column
from sqlalchemy.types import TypeEngine

Columns = Mapping[str, TypeEngine[Any]]
Relations = Mapping[str, Any]
"""The rows of the steps so far, each by its name: a FromClause with the step's returned columns."""
Statement = Select[Any] | Insert | Update | Delete


@dataclass(frozen=True, kw_only=True, slots=True)
class StepCondition:
    """A reason to run a step: some row has one of `values` in a column; without values, anything but NULL."""

    relation: str
    """An earlier step; or `given`, the batch."""
    column: str
    values: frozenset[str] = frozenset()

    def is_met(self, cells: Iterable[Any]) -> bool:
        """Return True if one of these cells of the column is a reason."""
        found = set(cells)
        return not self.values.isdisjoint(found) if self.values else not found <= {None}


@dataclass(frozen=True, kw_only=True)
class Transition:
    """A chain of statements that happen together or not at all."""

    name: str
    """The name of its golden file."""
    steps: Mapping[str, Callable[[Relations], Statement]]
    """The statements in order. A step may read the relations of the steps before it, and `given`."""
    given: Columns = field(default_factory=dict)
    """The columns of the batch, which is the relation `given`; empty for a transition without a batch."""
    constant_columns: frozenset[str] = frozenset()
    """Columns that mostly hold one value in a whole batch. Where all of them do, each value is sent once."""
    conditions: Mapping[str, StepCondition] = field(default_factory=dict)
    """Steps that may be left out. On PostgreSQL only a condition on `given` spares the step: the rows of steps are not known."""
    returns: str | None = None
    """The step whose rows are the outcome; None for a transition without one."""
    returning: tuple[str, ...] | None = None
    """The columns of that step that the outcome has; None for all."""
    joined_steps: tuple[str, ...] = ()
    """Steps whose columns are added to the outcome's row of the same `id`, as None where they have no such row."""
    joined_columns: tuple[str, ...] | None = None
    """The columns that are added; None for all."""

    def joined(self, columns: Iterable[str]) -> list[str]:
        """Return the columns of a joined step that are added to the outcome."""
        return [key for key in columns if key != "id" and (self.joined_columns is None or key in self.joined_columns)]


class Grammar(ABC):
    """What the two databases spell differently inside a statement."""

    schema: str | None = None
    """The schema of our tables; None: the connection's own finds them."""

    @cached_property
    def topics(self) -> FromClause:
        """The topics that a worker takes, as one relation however often a statement asks."""
        return self.rows("topics", {"topic": Text()})

    @property
    @abstractmethod
    def now(self) -> ColumnElement[datetime]:
        """The moment of the transition: the same wherever it stands in one transition."""

    @abstractmethod
    def later(self, moment: ColumnElement[Any], seconds: ColumnElement[Any]) -> ColumnElement[datetime]:
        """The instant that lies so many seconds after another."""

    @abstractmethod
    def is_instant(self, moment: ColumnElement[Any]) -> ColumnElement[bool]:
        """The stored instant is one that the tables take; NULL for none."""

    @abstractmethod
    def is_id(self, identity: ColumnElement[Any]) -> ColumnElement[bool]:
        """The stored id is one of ours."""

    @abstractmethod
    def between(self, earlier: ColumnElement[Any], later: ColumnElement[Any]) -> ColumnElement[int]:
        """Whole microseconds from one instant to the other, exactly."""

    @abstractmethod
    def among(self, column: ColumnElement[Any], ids: ColumnElement[Any]) -> ColumnElement[bool]:
        """The rows whose column is one of these ids, looked up by index whatever the planner believes of the table."""

    @abstractmethod
    def json(self, text: ColumnElement[Any] | None = None, **pairs: ColumnElement[Any]) -> ColumnElement[str]:
        """A JSON object as text: `text`'s members and the pairs that are not NULL."""

    @abstractmethod
    def json_of_one(self, name: str, value: ColumnElement[Any]) -> ColumnElement[str]:
        """The same of this one pair, whose value is not NULL: a third of the work."""

    @abstractmethod
    def instant_in(self, text: ColumnElement[Any], member: str) -> ColumnElement[datetime]:
        """The instant under this name in a JSON object; NULL where there is none."""

    @abstractmethod
    def text_in(self, text: ColumnElement[Any], member: str) -> ColumnElement[str]:
        """The text under this name in a JSON object; NULL where there is none."""

    @abstractmethod
    def is_json(self, text: ColumnElement[Any], *, an_object: bool = False) -> ColumnElement[bool]:
        """The text is JSON (an object); never an error, whatever it is, and NULL only where the text is."""

    @abstractmethod
    def rows(self, name: str, columns: Columns, constant: frozenset[str] = frozenset()) -> FromClause:
        """A batch given as bound parameters; its `constant` columns hold one value each, which is sent once."""

    @abstractmethod
    def each(
        self, source: FromClause, name: str, choose: Callable[[FromClause], Select[Any]], limit: Any = 1
    ) -> tuple[FromClause, Any]:
        """`source` joined with the outbox entries, up to `limit` for each of its rows, that `choose` selects; their columns.

        `choose` is given the outbox to select from, correlated with `source`, with its conditions and its order.
        """

    @property
    @abstractmethod
    def crowded(self) -> ColumnElement[bool]:
        """Deleted outbox entries that could not be cleaned up yet are so many that a claim should begin behind them."""

    @abstractmethod
    def try_lock(self, *names: ColumnElement[str]) -> ColumnElement[bool]:
        """Take the lock of that name until the transaction ends, unless another transaction has it; never waits."""

    @abstractmethod
    def position(self, given: FromClause) -> ColumnElement[int]:
        """The next position for each row of the batch, growing in the order of the batch."""

    @abstractmethod
    def numbered(self, family: ColumnElement[Any], number: ColumnElement[int]) -> ColumnElement[Any]:
        """The id of this number (1 to 65535) in a family of ids, whose own last 16 bits are zero (`uuid7.family`)."""

    @abstractmethod
    def identified(self, rows: Select[Any]) -> Select[Any]:
        """`rows`, a query that reads no table, once the transaction has its id.

        A reader of the log relies on it: whoever draws a `sequence_num` has an id already. A transition that has written
        something else before its events has one anyway.
        """

    @property
    @abstractmethod
    def oldest_open(self) -> ColumnElement[int]:
        """The smallest id of the transactions that were open when this snapshot was taken, else of the next; see `tail`."""

    @property
    @abstractmethod
    def next_transaction(self) -> ColumnElement[int]:
        """The id that the next transaction will be given; asked for once, in a transaction that has none itself."""

    @abstractmethod
    def insert(self, table: Table) -> Any:
        """The dialect's own INSERT, for `on_conflict_do_nothing()`."""

    @abstractmethod
    def take_from_one(self, found: FromClause) -> Statement:
        """Delete up to :limit due entries of the pairs found, which are of one queue, best first."""

    @abstractmethod
    def take_from(self, found: FromClause) -> Statement:
        """Delete up to :limit due entries of the (queue, priority) pairs found, best first."""

    @abstractmethod
    def find_column(self, table: str, name: str) -> Select[Any]:
        """One row if the table exists in our schema and has this column. (Reading what does not exist would abort a PostgreSQL
        transaction.)
        """

    @abstractmethod
    def missing_parts(self) -> Select[Any]:
        """The names of our indexes and triggers that are missing, invalid or switched off; the column `id`."""

    @abstractmethod
    def set_back(self) -> Select[Any]:
        """One row, `id`, if the counter of positions stands below the largest position of a task."""

    @abstractmethod
    def set_forward(self) -> Transition:
        """Have the counter of positions go on behind the largest, if it stands below."""

    @abstractmethod
    def is_standby(self) -> Select[Any]:
        """One row if this server only follows another, and takes no writes."""

    def oid(self, name: str) -> ColumnElement[Any]:
        """The oid of our table or sequence of this name; NULL: there is none. For a database with oids."""
        raise NotImplementedError(f"{type(self).__name__} has no oids")


Builder = Callable[[Grammar], Statement] | Callable[[Grammar], Transition]
"""Builds one statement; it is compiled once for each dialect, and asked for by the builder itself."""


def word(value: StrEnum) -> ColumnElement[str]:
    """A status or event type, written into the SQL: partial indexes and plans need to see it."""
    return literal_column(f"'{value}'")
