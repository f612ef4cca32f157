"""Define what a dialect provides, and compile its statements once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from enum import StrEnum
from typing import Any, ClassVar

from sqlalchemy import Dialect as SqlalchemyDialect
from sqlalchemy import Engine
from sqlalchemy.engine import URL
from sqlalchemy.exc import PendingRollbackError

from ..grammar import Builder, Columns, Grammar, Statement, Transition
from .plans import OneStatement, Prepared, Script
from .sqlite_file import Log, OpenFile

Plan = OneStatement | Script
"""A compiled transition."""
Version = tuple[Any, ...] | None
"""A server's version, as SQLAlchemy's dialect knows it; None if SQLAlchemy has not asked for it."""

_longest: ContextVar[timedelta] = ContextVar("longest", default=timedelta(0))
"""The maximum duration, in this thread, of a statement that may read whole tables; 0 means no limit."""


@contextmanager
def statement_timeout(longest: timedelta) -> Iterator[None]:
    """Limit the duration of this thread's statements that may read whole tables. Other statements are always limited to
    one minute.
    """
    before = _longest.set(longest)
    try:
        yield
    finally:
        _longest.reset(before)


def milliseconds_of_a_statement() -> int:
    """Return the current limit in milliseconds, for PostgreSQL; 0 means no limit."""
    return _longest.get() // timedelta(milliseconds=1)


class Begin(StrEnum):
    """The kinds of outboxq's own transactions."""

    WRITE = "write"
    READ = "read"
    SNAPSHOT = "snapshot"
    """A transaction that only reads, from one snapshot."""
    ASYNCHRONOUS = "asynchronous"
    """A transaction whose writes a server crash may undo."""
    SINGLE = "single"
    """One statement that writes, run as its own transaction on a connection that has our settings."""
    SINGLE_ASYNCHRONOUS = "single asynchronous"
    """One statement whose writes a server crash may undo."""
    INSERT = "insert"
    """One statement that only writes new rows and does not need our settings, run as its own transaction."""
    HANDLER = "handler"
    """The transaction of a transactional task: the user's statements under the user's own settings."""
    MIGRATION = "migration"
    """A transaction, possibly a long one, that creates or changes our tables."""


class Compiled(dict[Builder, Prepared | Plan]):
    """Maps each function that builds a statement to the statement for one dialect. Each statement is compiled on first
    use.
    """

    def __init__(self, compile_: Callable[[Builder], Prepared | Plan]) -> None:
        super().__init__()
        self._compile = compile_

    def __missing__(self, builder: Builder) -> Prepared | Plan:
        found = self[builder] = self._compile(builder)
        return found


class Dialect(ABC):
    """The part of outboxq that is specific to one database. Everything else is shared."""

    name: ClassVar[str]
    begin: ClassVar[Mapping[Begin, str]]
    """The statement that begins each kind of transaction."""
    watch_client: ClassVar[str] = ""
    """The statement that makes the server stop the transaction's statements when the client is killed; "" if there is
    no server.
    """
    reads_before_writing: ClassVar[bool]
    """True if a claim or a recovery must read before it begins to write, so that idle workers do not queue for the
    single write lock.
    """
    connection_options: ClassVar[Mapping[str, Any]]
    """Execution options for an application's connections, if we begin transactions on them ourselves."""
    one_writer: ClassVar[bool]
    """True if a transaction that writes blocks all other writers until it ends."""
    one_statement: ClassVar[bool]
    """True if a transition is one statement, which is atomic in a caller's transaction without a savepoint."""
    notifies: ClassVar[bool]
    """True if the database notifies sleeping workers of new tasks (`dialects/channel.py`)."""
    stops_midway: ClassVar[bool]
    """True if a signal may raise an exception in the middle of a statement, which leaves the connection unusable."""
    has_roles: ClassVar[bool]
    """True if a connection's role determines its privileges."""
    has_partitions: ClassVar[bool]
    """True if the history can be divided by time (`partitioning.py`)."""
    measures_tables: ClassVar[bool]
    """True if the database knows the size of each table (`outboxq db`)."""
    driver_connection: ClassVar[type]
    """The class of the driver's connections that `fetch` accepts."""
    driver_error: ClassVar[type[Exception]]
    """The class of the driver's errors."""
    has_clock: ClassVar[bool]
    """True if the database has its own clock. Otherwise, each statement takes Python's time as a parameter."""

    def __init__(self, compiler: SqlalchemyDialect, schema: str | None, grammar: Grammar) -> None:
        self.compiler = compiler
        self.schema = schema
        self.grammar = grammar
        self.compiled = Compiled(self._compile)

    @abstractmethod
    def fetch(
        self, raw: Any, sql: str, parameters: Mapping[str, Any], info: MutableMapping[Any, Any] | None = None
    ) -> list[tuple[Any, ...]]:
        """Run a statement on a driver's connection, and return the rows in the driver's own types. Raises
        `driver_error`.

        `info` is SQLAlchemy's record of the connection, if there is one.
        """

    def is_unreadable(self, sql: str, error: BaseException) -> bool:  # noqa: ARG002 - most drivers read everything
        """Return whether the driver could not read a row that a read-only statement returned. `fetch` can read such a
        row.
        """
        return False

    def read_again(self, cursor: Any, found: Any) -> list[tuple[Any, ...]]:  # noqa: ARG002 - most drivers read everything
        """Return the rows of a result that the driver refused to read at first."""
        return list(cursor.fetchall())

    @abstractmethod
    def pack(self, name: str, columns: Columns, rows: Sequence[Sequence[Any]]) -> dict[str, Any]:
        """Return the parameters for `grammar.rows(name, columns)`."""

    @abstractmethod
    def database_name(self, url: URL) -> str | None:
        """Return the name of the database that a URL points to, in the form in which a connection returns it."""

    def place(self, url: URL | None, name: Callable[[], str | None]) -> str:
        """Return a description of the database that a URL points to, without a password.

        `name` returns the connection's name for the database, for an engine whose URL does not contain it.
        """
        found = (None if url is None else self.address(url)) or name()
        called = "the database" if found is None else self.called(found)
        return called if self.schema is None else f"the PostgreSQL schema {self.schema!r} of {called}"

    def address(self, url: URL) -> str | None:
        """Return the address of a URL's database in readable form, without the password; None if the URL does not
        contain an address.
        """
        kept = {name: value for name, value in url.query.items() if name in {"host", "port", "service"}}
        return url.set(query=kept).render_as_string() if url.host or url.database or kept else None

    def called(self, address: str) -> str:
        """Return the address with a noun before it."""
        return f"the database {address}"

    def log_of(self, url: URL) -> Log | None:  # noqa: ARG002
        """Return the log next to a SQLite file; None if there is none."""
        return None

    def is_in_memory(self, url: URL) -> bool:  # noqa: ARG002
        """Return True if a URL refers to a database in memory."""
        return False

    def missing_file(self, url: URL) -> str | None:  # noqa: ARG002
        """Return the file that a connection would create, if its directory exists; None if it would not create a file."""
        return None

    @abstractmethod
    def is_transient(self, error: BaseException) -> bool:
        """Return True if the same transaction may succeed when it runs again from its start."""

    def is_of_standby(self, error: BaseException, raw: Any) -> bool:  # noqa: ARG002 - some databases have no standbys
        """Return whether the error says that the server behind a driver's connection is a standby, which does not
        accept writes.
        """
        return False

    def is_locked_out(self, error: BaseException) -> bool:  # noqa: ARG002 - some databases lock only whole files
        """Return whether another transaction kept a row locked for longer than our transaction waits."""
        return False

    def is_cut_off(self, error: BaseException) -> bool:  # noqa: ARG002
        """Return whether a statement was cancelled, either by another session or because it ran for too long."""
        return False

    def is_starting(self, error: BaseException) -> bool:  # noqa: ARG002
        """Return whether an attempt to connect failed because the server is starting, or is not listening yet."""
        return False

    def gives_up_waiting(self, error: BaseException) -> bool:  # noqa: ARG002
        """Return whether a statement that locks whole tables failed because of a timeout or a deadlock."""
        return False

    @abstractmethod
    def cannot_write_now(self, error: BaseException) -> bool:
        """Return whether the database does not accept writes because it lacks disk space or memory, or because its disk
        is failing.
        """

    def hide_rows(self, error: BaseException) -> None:  # noqa: B027
        """Remove a row's values from the text of a database error."""

    @abstractmethod
    def comes_from_outside(self, error: BaseException) -> bool:
        """Return whether this error, SQLAlchemy's or the driver's, ended a transaction for an external reason: a lost
        connection, a restart, a deadlock, or a full disk.
        """

    @abstractmethod
    def is_spoilt(self, raw: Any) -> bool:
        """Return whether an error has ended or aborted a driver connection's transaction."""

    def is_aborted(self, raw: Any) -> bool:  # noqa: ARG002
        """Return whether a driver's connection is lost, or refuses further statements until its transaction is rolled back."""
        return False

    def was_interrupted(self, raw: Any, error: BaseException, known: Collection[BaseException] = ()) -> bool:
        """Return whether `error`, or an error that led to it, ended a driver connection's transaction for an external
        reason.

        `known` contains errors from this same connection. Any other error counts only if this connection's transaction
        has ended or is aborted, because a handler may have more than one connection.
        """
        spoilt, gone = self.is_spoilt(raw), getattr(raw, "closed", False)
        return any(
            (self.comes_from_outside(one) and (spoilt or any(one is each for each in known)))
            or (gone and isinstance(one, PendingRollbackError))
            for one in causes(error)
        )

    @abstractmethod
    def is_bad_value(self, error: BaseException) -> bool:
        """Return whether the error is due to a single row: the database cannot compute with one of its values, or the
        row violates a constraint.
        """

    @abstractmethod
    def is_undefined(self, error: BaseException) -> bool:
        """Return whether the database does not recognize a table, a column or a function that a statement names."""

    @abstractmethod
    def normalize_url(self, url: URL) -> URL:
        """Return the URL to use for our own engine. Raises ConfigurationError for a driver or a database that outboxq
        cannot use.
        """

    def is_denied(self, error: BaseException) -> bool:  # noqa: ARG002
        """Return whether the database refused a statement because the role lacks a privilege."""
        return False

    @abstractmethod
    def begin_statements(self, begin: Begin, info: MutableMapping[Any, Any], version: Version) -> Iterable[str]:
        """Return the messages that begin our transaction on a connection without an open transaction; `info` is
        SQLAlchemy's record of the connection, and `version` is the server's version.
        """

    @abstractmethod
    def execute_begin(self, raw: Any, text: str, execute: Callable[[str], object]) -> None:
        """Send a message from `begin_statements` over a driver's connection, to which `execute` belongs."""

    def abandon(self, raw: Any) -> None:  # noqa: B027
        """Roll back a transaction that another thread has left open, if it prevents all other transactions from
        writing. From then on, the connection refuses writes, and the thread has to close it.
        """

    @abstractmethod
    def is_open(self, raw: Any, /) -> bool:
        """Return whether a transaction is open on a driver's connection, or would be opened for the next statement."""

    @abstractmethod
    def mark(self, raw: Any, execute: Callable[[str, Mapping[str, Any]], object]) -> bool:
        """Mark the transaction that HANDLER has just begun, without a round trip. Returns False if that is not
        possible.

        The mark ends with the transaction, so a transaction that begins after the user's COMMIT is not marked.
        """

    @abstractmethod
    def is_marked(self, raw: Any, execute: Callable[[str, Mapping[str, Any]], object]) -> bool:
        """Return whether the open transaction is the marked one. Call this method only once, and before the transaction
        ends.
        """

    def set_up(self, engine: Engine) -> None:  # noqa: B027 - most databases need nothing
        """Configure an engine's connections for outboxq."""

    def ensure_readable(self, raw: Any) -> None:  # noqa: B027
        """Raise UnsupportedDatabase if strings would not be read back as they were written. The check does not need a
        round trip.
        """

    def explain(self, error: Exception, raw: Callable[[], Any]) -> None:  # noqa: B027
        """Add a remedy to the error from a failed statement, or raise a better error. `raw` returns the driver's
        connection.
        """

    def keep_settings(self, engine: Engine) -> None:  # noqa: B027
        """Apply our transactions' initial settings to the connections of an engine that only we use."""

    def hurry(self, engine: Engine) -> None:  # noqa: B027
        """Shorten each wait for a lock on the connections of an engine that only we use. After a wait, the connection
        requests the lock again.
        """

    def keep_private(self, engine: Engine) -> None:  # noqa: B027
        """Make an engine create the database file with permissions for its owner only."""

    def open_file(self, raw: Any) -> OpenFile | None:  # noqa: ARG002
        """Return the file that a driver's connection has open; None if the database is not a file."""
        return None

    def is_damaged(self, error: BaseException) -> bool:  # noqa: ARG002
        """Return whether the database reports that its file is damaged or is not a database."""
        return False

    def count_batches_at_once(self) -> str | None:
        """Return the statement that makes the open transaction count finished batch tasks immediately instead of at its
        commit; None if the database does this anyway.
        """
        return None

    def plan_once(self) -> str | None:
        """Return the statement that makes the open transaction plan each of our statements once instead of at each use;
        None if the database does this anyway.
        """
        return None

    def count_rows(self, table: str) -> str | None:  # noqa: ARG002
        """Return the message that tells the planner how many rows our table has now; None if the database's planner
        does not use this number.
        """
        return None

    def version(self, raw: Any) -> int | None:  # noqa: ARG002
        """Return a number that changes when another connection commits; None if the database does not have such a
        number.
        """
        return None

    def begin_for_real(self, engine: Engine) -> None:  # noqa: B027 - most drivers do so anyway
        """Make a caller's engine begin every transaction explicitly."""

    def warm(self, *builders: Builder) -> None:
        """Compile these statements now, in the forms that most batches need, so that no later call has to wait for a
        compilation.
        """
        for builder in builders:
            if not isinstance(compiled := self.compiled[builder], Prepared):
                compiled.compile()

    def _compile(self, builder: Builder) -> Prepared | Plan:
        built = builder(self.grammar)
        return self.plan(built) if isinstance(built, Transition) else self.prepare(built)

    def prepare(self, statement: Statement) -> Prepared:
        """Compile a statement whose text differs from call to call, without caching it."""
        return Prepared(statement, self.compiler, self.schema)

    @abstractmethod
    def plan(self, transition: Transition) -> Plan:
        """Return the plan for running a transition on this database."""


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and every error in its chain of causes and contexts, each of them once."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        waiting += [one.__cause__, one.__context__]


def signal_behind(error: BaseException, before: BaseException | None) -> BaseException | None:
    """Return the exception that `error` replaced, such as KeyboardInterrupt, if it is not an instance of Exception;
    otherwise None.

    `before` is the exception that was already being handled when the work began.
    """
    known = () if before is None else {id(one) for one in causes(before)}
    return next((one for one in causes(error) if not isinstance(one, Exception) and id(one) not in known), None)
