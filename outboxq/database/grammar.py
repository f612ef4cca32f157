"""Define a transition, and the few spellings that differ between the two databases.

A `Transition` is data: a chain of Core statements. Each step reads the rows that an earlier step actually changed (its
RETURNING), never the list that the caller passed. PostgreSQL runs the chain as one statement of data-modifying CTEs.
SQLite has none, and runs the steps one after the other in a transaction (`dialects/`). Both read the same chain.

Every transaction takes its locks in one order: outbox entry, lease, execution, then inserts. A batch is locked in the order of
its ids.

`python -m benchmarks.tunings` measures the fields of a transition that are there for speed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol, TypeVar

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Delete,
    Double,
    FromClause,
    Insert,
    Select,
    Table,
    Text,
    Update,
    Uuid,
    bindparam,
    literal_column,
    select,
    type_coerce,
)
from sqlalchemy.types import TypeEngine

from ..model import TaskStatus

Columns = Mapping[str, TypeEngine[Any]]
Relations = Mapping[str, Any]
"""The relations of the steps so far by name: each is a FromClause with the columns that the step returned."""
Statement = Select[Any] | Insert | Update | Delete
Step = Callable[[Relations], Statement]
_Insert = TypeVar("_Insert", bound=Insert)


@dataclass(frozen=True, kw_only=True, slots=True)
class StepCondition:
    """A reason to run a step: some row of the batch has one of `values` in `column`; without values, anything but NULL."""

    column: str
    values: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Transition:
    """A chain of statements that take effect together or not at all."""

    steps: Mapping[str, Step]
    """The statements in order. A step may read the relations of the steps before it, and `given`."""
    given: Columns = field(default_factory=dict)
    """The columns of the batch, which is the relation `given`; empty for a transition without a batch."""
    constant_columns: frozenset[str] = frozenset()
    """Columns that usually hold one value in a whole batch. If all of them do, each value is sent once."""
    conditions: Mapping[str, StepCondition] = field(default_factory=dict)
    """Steps that are left out unless the batch meets their condition."""
    returns: str | None = None
    """The step whose rows are the outcome; None for a transition without one."""
    returning: tuple[str, ...] | None = None
    """The columns of that step that the outcome has; None for all."""
    joined_steps: tuple[str, ...] = ()
    """Steps whose columns are added to the outcome's row of the same `id`, as None if there is no such row."""
    joined_columns: tuple[str, ...] | None = None
    """The columns that are added; None for all."""

    def joined(self, columns: Iterable[str]) -> list[str]:
        """Return the columns of a joined step that are added to the outcome."""
        return [key for key in columns if key != "id" and (self.joined_columns is None or key in self.joined_columns)]


class Grammar(Protocol):
    """The spellings that differ between the two databases."""

    schema: str | None
    """The schema of our tables; None if the connection's search path finds them."""
    topics: FromClause
    """The topics that a worker takes, as one relation for the whole statement."""
    floors: FromClause | None = None
    """The pairs with many dead entries that the claimer knows (`queue_order.FLOORS`). None if the database keeps no dead entries."""

    def __init__(self, schema: str | None = None) -> None:
        self.schema = schema
        # Made here and not at its first use: two threads could make two, and a statement with both cannot be compiled.
        self.topics = self.rows("topics", {"topic": Text()})

    @property
    def now(self) -> ColumnElement[datetime]:
        """Return the time of the transition: the same in all of its steps."""

    def later(self, moment: ColumnElement[Any], seconds: ColumnElement[Any]) -> ColumnElement[datetime]:
        """Return the time that is `seconds` after `moment`."""

    def is_instant(self, moment: ColumnElement[Any]) -> ColumnElement[bool]:
        """Return a condition: the tables allow the stored time; NULL if there is none."""

    def is_id(self, identity: ColumnElement[Any]) -> ColumnElement[bool]:
        """Return a condition: the stored id has the form of outboxq's ids."""

    def digit(self, identity: ColumnElement[Any], place: int) -> ColumnElement[str]:
        """Return one of the 32 hexadecimal digits of an id, counted from 1."""

    def between(self, earlier: ColumnElement[Any], later: ColumnElement[Any]) -> ColumnElement[int]:
        """Return the exact number of microseconds between two times."""

    def steps(
        self, earlier: ColumnElement[Any], later: ColumnElement[Any], micros: ColumnElement[Any]
    ) -> ColumnElement[int]:
        """Return the number of whole steps of `micros` microseconds between two times."""

    def hour(self, moment: ColumnElement[Any]) -> ColumnElement[datetime]:
        """Return the beginning of the hour of a time, in UTC."""

    def among(self, column: ColumnElement[Any], ids: ColumnElement[Any]) -> ColumnElement[bool]:
        """Return a condition: the column is one of these ids. It is looked up by index, even against the planner's estimate."""

    def json(self, text: ColumnElement[Any] | None = None, **pairs: ColumnElement[Any]) -> ColumnElement[str]:
        """Return a JSON object as text: the members of `text`, and the pairs that are not NULL."""

    def json_of_one(self, name: str, value: ColumnElement[Any]) -> ColumnElement[str]:
        """Return a JSON object of one pair, whose value is not NULL: a third of the work of `json`.

        With `json`, an enqueue of 100 tasks takes 11 % more CPU time on PostgreSQL: `python -m benchmarks.tunings`.
        """

    def instant_in(self, text: ColumnElement[Any], member: str) -> ColumnElement[datetime]:
        """Return the time under this name in a JSON object; NULL if there is none."""

    def text_in(self, text: ColumnElement[Any], member: str) -> ColumnElement[str]:
        """Return the text under this name in a JSON object; NULL if there is none."""

    def is_json(self, text: ColumnElement[Any], *, an_object: bool = False) -> ColumnElement[bool]:
        """Return a condition: the text is JSON (or a JSON object). It never fails, and is NULL only if the text is."""

    def rows(self, name: str, columns: Columns, constant: frozenset[str] = frozenset()) -> FromClause:
        """Return a batch as a relation of bound parameters. Its `constant` columns hold one value each, which is sent once."""

    def each(
        self, source: FromClause, name: str, choose: Callable[[FromClause], Select[Any]], limit: Any = 1
    ) -> tuple[FromClause, Any]:
        """Join each row of `source` with up to `limit` outbox entries. Returns the join and the entries' columns.

        `choose` is called with the outbox to select from. It returns the query with its order and its conditions, which may
        name columns of `source`.
        """

    @property
    def crowded(self) -> ColumnElement[bool]:
        """Return a condition: the table holds so many deleted entries that a claim should begin after them."""

    def try_lock(self, *names: ColumnElement[str]) -> ColumnElement[bool]:
        """Return a condition that takes the lock of this name until the transaction ends. It is false if another
        transaction has it.
        """

    def position(self, given: FromClause) -> ColumnElement[int]:
        """Return the next position for each row of the batch, growing in the order of the batch."""

    def numbered(self, family: ColumnElement[Any], number: ColumnElement[int]) -> ColumnElement[Any]:
        """Return the id of this number (1 to 65535) in a family of ids, whose last 16 bits are zero (`uuid7.family`)."""

    def place(self, batch_id: ColumnElement[Any], number: ColumnElement[int]) -> ColumnElement[Any]:
        """Return the id of the task at this place (1 to 65535) behind a batch, as `model.batches.Place` does."""

    def identified(self, rows: Select[Any]) -> Select[Any]:
        """Return `rows`, a query that reads no table, to be run once the transaction has its id.

        Readers of the log rely on it: a transaction has its id before it draws a `sequence_num`. Only a transition that writes
        nothing else before its events needs this.
        """

    @property
    def oldest_open(self) -> ColumnElement[int]:
        """Return the smallest id of the transactions open at this snapshot, or the id of the next transaction; see `tail`."""

    @property
    def next_transaction(self) -> ColumnElement[int]:
        """Return the id that the next transaction will get. It is asked once, in a transaction that has no id itself."""

    @property
    def snapshot(self) -> ColumnElement[str]:
        """Return the snapshot of the transaction as text, ``oldest:beyond:open,open``: the ids of the transactions below `beyond`
        that are open at it. All from `beyond` on are.
        """

    def was_open(self, transaction: ColumnElement[Any], ids: ColumnElement[Any]) -> ColumnElement[bool]:
        """Return whether this transaction is one of `ids`, a text such as ``{[7,8),[9,12)}``."""

    def insert(self, table: Table) -> Any:
        """Return the dialect's own INSERT, which has `on_conflict_do_nothing()`."""

    def take_from_one(self, found: FromClause) -> Statement:
        """Delete up to :limit due entries of these (queue, priority) pairs of one queue, best first."""

    def take_from(self, found: FromClause) -> Statement:
        """Delete up to :limit due entries of these (queue, priority) pairs, best first."""

    def columns_of(self, table: str) -> Select[Any]:
        """Select the names of the columns of this table in our schema, as `name`; none if there is no such table.

        A query that reads a missing column would abort a PostgreSQL transaction.
        """

    def missing_parts(self) -> Select[Any]:
        """Select the names of our indexes and triggers that are missing, invalid or switched off, as the column `id`."""

    def misplaced_functions(self) -> Select[Any]:
        """Select the names of our functions that name another schema than that of our tables, as the column `id`."""

    def set_back(self) -> Select[Any]:
        """Select one row, `id`, if the counter of positions is below the largest position of a task."""

    def set_forward(self) -> Transition:
        """Set the counter of positions to the largest position if it is below."""

    def is_standby(self) -> Select[Any]:
        """Select one row if this server is a standby, and takes no writes."""

    def server(self) -> Select[Any]:
        """Select the database's name and version, its bytes, and the start of the oldest transaction that has a
        snapshot.
        """

    def oid(self, name: str) -> ColumnElement[Any]:
        """Return the oid of our table or sequence of this name; NULL if there is none, as on SQLite."""


Builder = Callable[[Grammar], Statement] | Callable[[Grammar], Transition]
"""A function that builds one statement. The statement is compiled once for each dialect, and found by this function."""


def number(value: float) -> ColumnElement[float]:
    """Return a number that is part of the statement's text.

    SQLAlchemy names a parameter next to a bare literal after the literal, and 2.0 loses the value of a name with a
    point.
    """
    return type_coerce(literal_column(str(value), Double), Double)


def sql_literal(value: StrEnum) -> ColumnElement[str]:
    """Return a status or event type as a literal of the SQL text, which partial indexes and the planner need to see."""
    return literal_column(f"'{value}'")


class SqlStatus:
    """The statuses as literals."""

    READY = sql_literal(TaskStatus.READY)
    RUNNING = sql_literal(TaskStatus.RUNNING)
    COMPLETED = sql_literal(TaskStatus.COMPLETED)
    FAILED = sql_literal(TaskStatus.FAILED)
    CANCELLED = sql_literal(TaskStatus.CANCELLED)


def insert_values(new: _Insert, values: Mapping[str, Any], rows: FromClause, *where: ColumnElement[bool]) -> _Insert:
    """Complete the INSERT `new`: it writes `values` for each of `rows` for which all of `where` are true."""
    return new.from_select(list(values), select(*values.values()).select_from(rows).where(*where))


def joined(first: FromClause, second: FromClause) -> FromClause:
    """Return the rows of both relations that have the same `id`."""
    return first.join(second, first.c.id == second.c.id)


def text_literal(words: object) -> ColumnElement[str]:
    """Return our own words as a literal in the SQL text."""
    return literal_column(f"'{words}'", Text)


limit = bindparam("limit", type_=BigInteger, required=True)
"""The largest number of rows that a statement takes."""
worker_id = bindparam("worker_id", type_=Uuid, required=True)
"""The worker that claims, holds or ends tasks."""
