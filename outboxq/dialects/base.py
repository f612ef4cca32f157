"""The seam between the databases: what a dialect has to say, and the statements compiled for it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Protocol

from sqlalchemy import Connection, Engine, FromClause, Select
from sqlalchemy import Dialect as SqlalchemyDialect
from sqlalchemy.engine import URL

from ..errors import ConfigurationError
from ..statements import by_hand, checks, claim, ends, enqueue, reading, recovery, retention
from ..statements.grammar import Columns, Grammar, Statement, Transition
from ..tables import VERSION_TABLE
from .prepared import Execute, Prepared, Row


class Begin(StrEnum):
    """What kind of transaction of our own begins."""

    WRITE = "write"
    READ = "read"
    SNAPSHOT = "snapshot"
    """Reads only, all of it as of one moment."""
    ASYNCHRONOUS = "asynchronous"
    """Writes what a crash of the server may take back."""
    HANDLER = "handler"
    """Of a transactional task: the user's statements, under the user's own settings."""


class Plan(Protocol):
    """A transition, compiled for one database."""

    @property
    def sql(self) -> str: ...

    def run(
        self, execute: Execute, values: Mapping[str, Any], rows: Sequence[Sequence[Any]] | None = None
    ) -> list[Row]:
        """Run it, on the batch `rows` where it takes one; its outcome, in no particular order."""
        ...


class Dialect(ABC):
    """What one database does differently. Everything else is shared."""

    name: ClassVar[str]
    begin: ClassVar[Mapping[Begin, str]]
    """How a transaction of our own begins."""
    reads_before_writing: ClassVar[bool]
    """Look before a claim or a recovery begins to write: where writers queue for one lock, idle workers must not."""
    connection_options: ClassVar[Mapping[str, Any]]
    """How a connection of any engine is taken for a transaction that begins with our own words."""
    one_statement: ClassVar[bool]
    """A transition is one statement, so it needs no savepoint to be atomic in a caller's transaction."""

    def __init__(self, compiler: SqlalchemyDialect, schema: str | None) -> None:
        self.compiler = compiler
        self.schema = schema

    @property
    def channel(self) -> str:
        """Where the trigger notifies of the tables in our schema, if the database can."""
        return f"task_ready_{self.schema}" if self.schema else "task_ready"

    @property
    @abstractmethod
    def grammar(self) -> Grammar: ...

    @abstractmethod
    def compile(self, transition: Transition) -> Plan: ...

    @abstractmethod
    def take_from_one(self) -> Statement:
        """Delete up to :limit due entries of the queue given, best first."""

    @abstractmethod
    def take_from(self, queues: FromClause) -> Statement:
        """Delete up to :limit due entries of these queues, best first."""

    @abstractmethod
    def pack(self, name: str, columns: Columns, rows: Sequence[Sequence[Any]]) -> dict[str, Any]:
        """The parameters of `grammar.rows(name, columns)`."""

    @abstractmethod
    def find_table(self, name: str) -> Select[Any]:
        """One row if the table exists in our schema. (Reading one that does not would abort a PostgreSQL transaction.)"""

    @abstractmethod
    def is_standby(self) -> Select[Any]:
        """One row if this server only follows another, and takes no writes."""

    @abstractmethod
    def database_name(self, url: URL) -> str | None:
        """The database a URL leads to, as a connection to it would name it."""

    @abstractmethod
    def moment(self, clock: datetime | None) -> datetime | None:
        """The :now to bind: an injected clock's, else what makes the database use its own (or Python's, where it has none)."""

    @abstractmethod
    def is_transient(self, error: BaseException) -> bool:
        """Whether the same transaction may well succeed when run again from its start."""

    @abstractmethod
    def own_url(self, url: URL) -> URL:
        """The URL for an engine of our own. Raises ConfigurationError for a driver or a place that cannot serve us."""

    def sleeping(self) -> Mapping[str, Prepared]:
        """The statements of `statements/sleeping.py`, by name; none where the database cannot notify."""
        return {}

    def start(self, connection: Connection, begin: Begin) -> None:
        """Begin a transaction of our own on a connection that is in none."""
        connection.exec_driver_sql(self.begin[begin])

    def set_up(self, engine: Engine) -> None:  # noqa: B027 - most databases need nothing
        """Make an engine's connections fit for us."""

    def begin_for_real(self, engine: Engine) -> None:
        """Have a caller's engine begin real transactions. Raises ConfigurationError where the driver does so anyway."""
        raise ConfigurationError(f"configure_sqlite() is for SQLite engines; this one is for {engine.dialect.name}")

    def prepare(self, statement: Statement) -> Prepared:
        return Prepared(statement, self.compiler, self.schema)

    @cached_property
    def statements(self) -> Statements:
        return Statements(self)


class Checked(NamedTuple):
    """An invariant, ready to be asked for."""

    meaning: str
    query: Prepared


class Statements:
    """Every statement of outboxq for one dialect and schema, compiled at its first use."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect

    def _compile(self, transition: Transition) -> Plan:
        return self._dialect.compile(transition)

    @property
    def _g(self) -> Grammar:
        return self._dialect.grammar

    @cached_property
    def enqueue(self) -> Plan:
        return self._compile(enqueue.enqueue(self._g))

    @cached_property
    def enqueue_keyed(self) -> Plan:
        return self._compile(enqueue.enqueue_keyed(self._g))

    @cached_property
    def keyed_tasks(self) -> Plan:
        return self._compile(enqueue.keyed_tasks())

    @cached_property
    def claim_from_one(self) -> Plan:
        return self._compile(claim.claim(self._g, "claim_from_one_queue", self._dialect.take_from_one))

    @cached_property
    def claim_from_given(self) -> Plan:
        queues = claim.given_queues(self._g)
        return self._compile(claim.claim(self._g, "claim_from_given_queues", lambda: self._dialect.take_from(queues)))

    @cached_property
    def claim_from_all(self) -> Plan:
        queues = claim.every_queue()
        return self._compile(claim.claim(self._g, "claim_from_all_queues", lambda: self._dialect.take_from(queues)))

    @cached_property
    def any_due(self) -> Prepared:
        return self._dialect.prepare(claim.any_due(self._g, claim.pairs(claim.every_queue())))

    @cached_property
    def any_due_given(self) -> Prepared:
        return self._dialect.prepare(claim.any_due(self._g, claim.pairs(claim.given_queues(self._g))))

    @cached_property
    def next_available_at(self) -> Prepared:
        return self._dialect.prepare(claim.next_available_at(self._g, claim.pairs(claim.every_queue())))

    @cached_property
    def next_available_at_given(self) -> Prepared:
        return self._dialect.prepare(claim.next_available_at(self._g, claim.pairs(claim.given_queues(self._g))))

    @cached_property
    def sleeping(self) -> Mapping[str, Prepared]:
        return self._dialect.sleeping()

    @cached_property
    def end(self) -> Plan:
        return self._compile(ends.end(self._g))

    @cached_property
    def heartbeat(self) -> Plan:
        return self._compile(ends.heartbeat(self._g))

    @cached_property
    def recover(self) -> Plan:
        return self._compile(recovery.recover(self._g))

    @cached_property
    def by_hand(self) -> Plan:
        return self._compile(by_hand.by_hand(self._g))

    @cached_property
    def request_cancel(self) -> Plan:
        return self._compile(by_hand.request_cancel(self._g))

    @cached_property
    def any_expired(self) -> Prepared:
        return self._dialect.prepare(recovery.any_expired(self._g))

    @cached_property
    def ended_by(self) -> Prepared:
        return self._dialect.prepare(reading.ended_by())

    @cached_property
    def now(self) -> Prepared:
        return self._dialect.prepare(reading.now(self._g))

    @cached_property
    def get(self) -> Prepared:
        return self._dialect.prepare(reading.get())

    @cached_property
    def history(self) -> Prepared:
        return self._dialect.prepare(reading.history())

    @cached_property
    def ready_for_retry(self) -> Prepared:
        return self._dialect.prepare(reading.ready_for_retry(self._g))

    @cached_property
    def stats(self) -> Prepared:
        return self._dialect.prepare(reading.stats(self._g))

    @cached_property
    def version_table(self) -> Prepared:
        return self._dialect.prepare(self._dialect.find_table(VERSION_TABLE))

    @cached_property
    def is_standby(self) -> Prepared:
        return self._dialect.prepare(self._dialect.is_standby())

    @cached_property
    def version(self) -> Prepared:
        return self._dialect.prepare(reading.version())

    @cached_property
    def checks(self) -> Mapping[str, Checked]:
        return {
            name: Checked(check.meaning, self._dialect.prepare(check.broken(self._g)))
            for name, check in checks.checks().items()
        }

    @cached_property
    def repairs(self) -> Mapping[str, Plan]:
        return {name: self._compile(repair(self._g)) for name, repair in checks.repairs().items()}

    @cached_property
    def prune(self) -> Plan:
        return self._compile(retention.prune(self._g))

    @cached_property
    def prunable(self) -> Prepared:
        return self._dialect.prepare(retention.prunable())
