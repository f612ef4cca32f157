"""Define a transition, and the few expressions that are spelled differently on the two databases.

A `Transition` is data: a chain of Core statements. Each step reads the rows that an earlier step actually changed (its
RETURNING), never the list that the caller passed. PostgreSQL runs the chain as one statement of data-modifying CTEs.
SQLite does not have such CTEs, and runs the steps one after the other in a transaction (`dialects/`). Both databases
use the same chain.

Every transaction takes its locks in the same order: outbox entry, lease, execution, then inserts. The rows of a batch
are locked in id order.

`python -m benchmarks.tunings` measures how much time is saved by the fields of a transition that exist only for speed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from functools import wraps
from typing import Any, Protocol, TypeVar

import sqlalchemy as sa
from sqlalchemy.types import TypeEngine

from ..model import TaskStatus

Columns = Mapping[str, TypeEngine[Any]]
Relations = Mapping[str, Any]
"""The relations of the steps so far, keyed by the step's name. Each relation is a FromClause with the columns that the
step returned.
"""
Statement = sa.Select[Any] | sa.Insert | sa.Update | sa.Delete
Step = Callable[[Relations], Statement]
_Insert = TypeVar("_Insert", bound=sa.Insert)


@dataclass(frozen=True, kw_only=True, slots=True)
class StepCondition:
    """A reason to run a step: a row in the batch has one of `values` in `column` or, if `values` is empty, anything but
    NULL.
    """

    column: str
    values: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Transition:
    """A chain of statements that take effect together or not at all."""

    steps: Mapping[str, Step]
    """The statements in order. A step may read `given` and the relations of earlier steps."""
    given: Columns = field(default_factory=dict)
    """The columns of the batch, which is the relation `given`; empty for a transition without a batch."""
    constant_columns: frozenset[str] = frozenset()
    """Columns that usually have one value in a whole batch. If all these columns do, each value is sent once."""
    conditions: Mapping[str, StepCondition] = field(default_factory=dict)
    """Steps that are left out unless the batch meets their condition."""
    returns: str | None = None
    """The step whose rows are the outcome; None if the transition has no such step."""
    returning: tuple[str, ...] | None = None
    """The columns of the `returns` step that the outcome includes; None means all columns."""
    joined_steps: tuple[str, ...] = ()
    """Steps whose columns are added to the outcome's row with the same `id`; None where a step has no row with that
    `id`.
    """
    joined_columns: tuple[str, ...] | None = None
    """The columns of the joined steps that are added to the outcome; None means all columns."""

    def joined(self, columns: Iterable[str]) -> list[str]:
        """Return the columns of a joined step that are added to the outcome."""
        return [key for key in columns if key != "id" and (self.joined_columns is None or key in self.joined_columns)]


class Grammar(Protocol):
    """The expressions that are spelled differently on the two databases."""

    schema: str | None
    """The schema of our tables; None if the connection's search path finds them."""
    one_statement: bool
    """True if a transition is a single statement, so that reading the rows from an earlier step costs nothing."""
    topics: sa.FromClause
    """The topics that a worker handles, as one relation for the whole statement."""
    floors: sa.FromClause | None = None
    """The pairs that the claimer knows to have many dead entries (`queue_order.FLOORS`); None if the database does not
    keep dead entries.
    """

    def __init__(self, schema: str | None = None) -> None:
        self.schema = schema
        # It is created here, because two threads could each create one on first use, and a statement with both cannot
        # be compiled.
        self.topics = self.rows("topics", {"topic": sa.Text()})

    @property
    def now(self) -> sa.ColumnElement[datetime]:
        """Return the time of the transition, which is the same in all of its steps."""

    def later(self, moment: sa.ColumnElement[Any], seconds: sa.ColumnElement[Any]) -> sa.ColumnElement[datetime]:
        """Return the time that is `seconds` after `moment`."""

    def due(self, moment: sa.ColumnElement[Any], seconds: sa.ColumnElement[Any]) -> sa.ColumnElement[datetime]:
        """Return the due time of a new task: `moment` or, if that is NULL, `seconds` from now.

        With Python's clock, `moment` is not NULL.
        """

    def is_instant(self, moment: sa.ColumnElement[Any]) -> sa.ColumnElement[bool]:
        """Return a condition that tests whether the tables allow the stored time; it is NULL if no time is stored."""

    def is_id(self, identity: sa.ColumnElement[Any]) -> sa.ColumnElement[bool]:
        """Return a condition that tests whether the stored id has the form of outboxq's ids."""

    def digit(self, identity: sa.ColumnElement[Any], place: int) -> sa.ColumnElement[str]:
        """Return one of the 32 hexadecimal digits of an id, counted from 1."""

    def between(self, earlier: sa.ColumnElement[Any], later: sa.ColumnElement[Any]) -> sa.ColumnElement[int]:
        """Return the exact number of microseconds between two times."""

    def steps(
        self, earlier: sa.ColumnElement[Any], later: sa.ColumnElement[Any], micros: sa.ColumnElement[Any]
    ) -> sa.ColumnElement[int]:
        """Return the number of whole steps of `micros` microseconds between two times."""

    def hour(self, moment: sa.ColumnElement[Any]) -> sa.ColumnElement[datetime]:
        """Return the beginning of the hour that contains a time, in UTC."""

    def among(self, column: sa.ColumnElement[Any], ids: sa.ColumnElement[Any]) -> sa.ColumnElement[bool]:
        """Return a condition that tests whether the column is one of these ids. The row is looked up by index,
        regardless of what the planner estimates.
        """

    def json(self, text: sa.ColumnElement[Any] | None = None, **pairs: sa.ColumnElement[Any]) -> sa.ColumnElement[str]:
        """Return a JSON object as text: the members of `text`, and the pairs that are not NULL."""

    def json_of_one(self, name: str, value: sa.ColumnElement[Any]) -> sa.ColumnElement[str]:
        """Return a JSON object with one pair, whose value is not NULL. This method does a third of the work that `json`
        does.

        With `json`, an enqueue of 100 tasks takes 11 % more CPU time on PostgreSQL: `python -m benchmarks.tunings`.
        """

    def instant_in(self, text: sa.ColumnElement[Any], member: str) -> sa.ColumnElement[datetime]:
        """Return the time under this name in a JSON object; NULL if there is none."""

    def text_in(self, text: sa.ColumnElement[Any], member: str) -> sa.ColumnElement[str]:
        """Return the text under this name in a JSON object; NULL if there is none."""

    def is_json(self, text: sa.ColumnElement[Any], *, an_object: bool = False) -> sa.ColumnElement[bool]:
        """Return a condition that tests whether the text is JSON or, with `an_object`, a JSON object. It never fails,
        and is NULL only if the text is NULL.
        """

    def rows(self, name: str, columns: Columns, constant: frozenset[str] = frozenset()) -> sa.FromClause:
        """Return a batch as a relation of bound parameters. Each column in `constant` has the same value in all rows;
        that value is sent once.
        """

    def each(
        self, source: sa.FromClause, name: str, choose: Callable[[sa.FromClause], sa.Select[Any]], limit: Any = 1
    ) -> tuple[sa.FromClause, Any]:
        """Join each row of `source` with up to `limit` outbox entries. Returns the join and the entries' columns.

        `choose` is called with the outbox to select from. The function returns the query with its order and its
        conditions, which may name columns of `source`.
        """

    def crowded(self, outbox: sa.ColumnElement[Any]) -> sa.ColumnElement[bool]:
        """Return a condition that tests whether `task_outbox`, whose oid is given, contains so many deleted entries
        that a claim should begin after them.
        """

    def try_lock(self, *names: sa.ColumnElement[str]) -> sa.ColumnElement[bool]:
        """Return a condition that acquires the lock with this name for the rest of the transaction. The condition is
        false if another transaction has the lock.
        """

    def position(self, given: sa.FromClause | None) -> sa.ColumnElement[int]:
        """Return the next position for each row in the batch. Positions increase in batch order.

        If `given` is None, there is only one row.
        """

    def numbered(self, family: sa.ColumnElement[Any], number: sa.ColumnElement[int]) -> sa.ColumnElement[Any]:
        """Return the id with this number (1 to 65535) in a family of ids. The last 16 bits of `family` are zero
        (`uuid7.family`).
        """

    def place(self, batch_id: sa.ColumnElement[Any], number: sa.ColumnElement[int]) -> sa.ColumnElement[Any]:
        """Return the id of the task at this place (1 to 65535) after a batch, like `model.batches.BatchLink.task_id`."""

    def identified(self, rows: sa.Select[Any]) -> sa.Select[Any]:
        """Return `rows`, a query for new rows, changed so that none of their values is computed before the transaction
        has been given its id.

        Readers of the log rely on the rule that a transaction has its id before it draws a `sequence_num`, and relay
        senders rely on the same rule for message ids. Only a transition that does not write any other rows before the
        new ones needs this method.
        """

    @property
    def oldest_open(self) -> sa.ColumnElement[int]:
        """Return the smallest id among the transactions open at this snapshot, or the id of the next transaction; see
        `tail`.
        """

    @property
    def next_transaction(self) -> sa.ColumnElement[int]:
        """Return the id that the next transaction will get. The id is read once, in a transaction that does not have
        one.
        """

    @property
    def snapshot(self) -> sa.ColumnElement[str]:
        """Return the snapshot of the transaction as text, ``oldest:beyond:open,open``: the ids of the transactions
        below `beyond` that are open in the snapshot. All transactions with the id `beyond` or a higher id are open.
        """

    def was_open(self, transaction: sa.ColumnElement[Any], ids: sa.ColumnElement[Any]) -> sa.ColumnElement[bool]:
        """Return a condition that tests whether this transaction is one of `ids`, a text such as ``{[7,8),[9,12)}``."""

    def insert(self, table: sa.Table) -> Any:
        """Return the dialect's own INSERT, which has `on_conflict_do_nothing()`."""

    def take_from_one(self, found: sa.FromClause) -> Statement:
        """Delete up to :limit due entries of these (queue, priority) pairs of one queue, best first."""

    def take_from(self, found: sa.FromClause) -> Statement:
        """Delete up to :limit due entries of these (queue, priority) pairs, best first."""

    def columns_of(self, table: str) -> sa.Select[Any]:
        """Select the column names of this table in our schema, as `name`. Selects no rows if there is no such table.

        A query that reads a missing column would abort a PostgreSQL transaction.
        """

    def missing_parts(self) -> sa.Select[Any]:
        """Select the names of our indexes and triggers that are missing, invalid or disabled, as the column `id`."""

    def misplaced_functions(self) -> sa.Select[Any]:
        """Select, as the column `id`, the names of our functions that refer to a schema other than our tables' schema."""

    def set_back(self) -> sa.Select[Any]:
        """Select one row, with the column `id`, if the position counter is less than the largest position of a task."""

    def set_forward(self) -> Transition:
        """Raise the position counter to the largest position if the counter is less than that."""

    def is_standby(self) -> sa.Select[Any]:
        """Select one row if this server is a standby, which does not accept writes."""

    def server(self) -> sa.Select[Any]:
        """Select the database's name and version, its size in bytes, and the time."""

    def oid(self, name: str) -> sa.ColumnElement[Any]:
        """Return the oid of our table or sequence with this name; NULL if there is none, as on SQLite."""


Builder = Callable[[Grammar], Statement] | Callable[[Grammar], Transition]
"""A function that builds one statement. The statement is compiled once for each dialect, and cached with this function
as the key.
"""


def one_step(
    name: str, given: Columns, *, returns: bool = False
) -> Callable[[Callable[[Grammar, Any], Statement]], Callable[[Grammar], Transition]]:
    """Turn a function of a Grammar and the columns of a batch into the builder of a transition, whose only step, with
    this name, is the statement that the function returns. With `returns`, the step's rows are the outcome.
    """

    def builder_of(build: Callable[[Grammar, Any], Statement]) -> Callable[[Grammar], Transition]:
        # The annotations are not copied, because the builder takes only a Grammar.
        @wraps(build, assigned=("__module__", "__name__", "__qualname__", "__doc__"))
        def builder(g: Grammar) -> Transition:
            steps: Mapping[str, Step] = {name: lambda r: build(g, r["given"].c)}
            return Transition(given=given, steps=steps, returns=name if returns else None)

        return builder

    return builder_of


def number(value: float) -> sa.ColumnElement[float]:
    """Return a number that is part of the statement's text.

    SQLAlchemy derives a parameter's name from a bare literal next to it, and version 2.0 loses the value if that name
    contains a dot.
    """
    return sa.type_coerce(sa.literal_column(str(value), sa.Double), sa.Double)


def sql_literal(value: StrEnum) -> sa.ColumnElement[str]:
    """Return a status or event type as a literal, because the planner and partial indexes need the value in the SQL
    text.
    """
    return sa.literal_column(f"'{value}'")


class SqlStatus:
    """The statuses as literals."""

    READY = sql_literal(TaskStatus.READY)
    RUNNING = sql_literal(TaskStatus.RUNNING)
    COMPLETED = sql_literal(TaskStatus.COMPLETED)
    FAILED = sql_literal(TaskStatus.FAILED)
    CANCELLED = sql_literal(TaskStatus.CANCELLED)


def insert_values(
    new: _Insert, values: Mapping[str, Any], rows: sa.FromClause | None, *where: sa.ColumnElement[bool]
) -> _Insert:
    """Complete the INSERT `new`, so that it writes `values` for each of `rows` that meets all conditions in `where`.

    If `rows` is None, the INSERT writes `values` once.
    """
    row = sa.select(*values.values()).where(*where)
    return new.from_select(list(values), row if rows is None else row.select_from(rows))


def joined(first: sa.FromClause, second: sa.FromClause) -> sa.FromClause:
    """Return the rows of both relations that have the same `id`."""
    return first.join(second, first.c.id == second.c.id)


def text_literal(words: object) -> sa.ColumnElement[str]:
    """Return a string of our own as a literal in the SQL text."""
    return sa.literal_column(f"'{words}'", sa.Text)


def materialized(rows: sa.SelectBase, name: str) -> sa.CTE:
    """Return these rows as a CTE that is evaluated only once."""
    return rows.cte(name).prefix_with("MATERIALIZED")


ZERO, ONE = (sa.literal_column(digit, sa.Integer) for digit in "01")
"""Numbers as literals in the SQL text."""
limit = sa.bindparam("limit", type_=sa.BigInteger, required=True)
"""The largest number of rows that a statement selects or changes."""
worker_id = sa.bindparam("worker_id", type_=sa.Uuid, required=True)
"""The worker that claims, holds or ends tasks."""
