"""Grant database roles their privileges, and name missing privileges."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Protocol, TypeVar

from ..database.dialects import Begin, Dialect, Row, granting
from ..database.dialects.granting import grant, pack
from ..database.privileges import Feature, Kind, Privilege, Right, Role, rights
from ..database.target import Target
from ..errors import ConfigurationError, InvalidArgument, NotPermitted, UnsupportedDatabase

T = TypeVar("T")
_MOST = 3
"""Maximum number of privileges that an error message names."""


class RunsTransactions(Protocol):
    """The methods of a store that are needed to read and grant privileges."""

    schema: str | None

    @property
    def dialect(self) -> Dialect: ...

    def transaction(self, begin: Begin) -> AbstractContextManager[Target]: ...

    def run(self, work: Callable[[Target], T], *, begin: Begin = ...) -> T: ...


class Rights:
    """The privileges of the store's database role, as far as they are known, and methods that grant them to other roles."""

    def __init__(self, store: RunsTransactions, *, works: bool) -> None:
        """`works`: the store belongs to a worker."""
        self._store = store
        self._works = works
        self.known: set[frozenset[Feature] | None] = {None}
        """Sets of features whose privileges the role is known to have. None stands for a transaction that does not
        enqueue.
        """

    def check(self, target: Target, enqueues: frozenset[Feature] | None) -> None:
        """Raise NotPermitted if the role of the transaction is not permitted to enqueue with these features."""
        if enqueues is not None and (lacking := lacks(target, needed_to_join(enqueues))):
            raise complaint(lacking, Role.PRODUCER, enqueues)

    def ensure(self, role: Role) -> None:
        """Raise NotPermitted unless the store's database role has all privileges of this role."""
        with self.naming(), self._store.transaction(Begin.READ) as target:
            if lacking := lacks(target, rights(role)):
                raise complaint(lacking, role)

    @contextmanager
    def naming(self) -> Iterator[None]:
        """Run the block, which reads in a transaction, and `explain` its error."""
        try:
            yield
        except Exception as error:
            self.explain(error, Begin.READ)
            raise

    def explain(self, error: BaseException, begin: Begin, enqueues: frozenset[Feature] | None = None) -> None:
        """Raise NotPermitted if this error is due to a missing privilege. Another transaction looks up which one it is.

        `begin` is the kind of the transaction that failed.
        """
        if not self._store.dialect.is_denied(error):
            return
        role, lacking = Role.PRODUCER if enqueues is not None else self._role(begin), list[Row]()
        with suppress(Exception), self._store.transaction(Begin.READ) as target:
            lacking = lacks(target, rights(role, enqueues or ()))
        if lacking:
            raise complaint(lacking, role, enqueues or ()) from error

    def grants(self, role: Role, name: str, features: Collection[Feature] = ()) -> list[str]:
        """Return the GRANT statements that the database role `name` needs for this role, in the schema of the tables.
        They are built in a separate transaction, which only reads. Raises InvalidArgument if features are given for a
        role other than a producer, and UnsupportedDatabase on SQLite.
        """
        return self._store.run(lambda target: self._grants(target, role, name, features)[0], begin=Begin.READ)

    def grant(self, role: Role, name: str, features: Collection[Feature] = ()) -> list[str]:
        """Run the `grants` in one transaction; returns them.

        Raises NotPermitted, and grants nothing, if the role still lacks a privilege: PostgreSQL merely warns
        about a privilege that it cannot grant.
        """

        def work(target: Target) -> list[str]:
            statements, wanted = self._grants(target, role, name, features)
            if not target.run(granting.role, {"grantee": name}):
                raise ConfigurationError(f"unknown database role {name!r}; create it first: CREATE ROLE")
            for statement in statements:
                target.execute(_escaped(statement), {})
            if lacking := lacks(target, wanted, grantee=name):
                owned = "schema" if any(row["kind"] == Kind.SCHEMA for row in lacking) else "tables"
                raise NotPermitted(
                    f"nothing was granted: the current role cannot grant {listed(lacking)} to {name!r}; run it as the owner "
                    f"of the {owned}"
                )
            return statements

        return self._store.run(work)

    def ensure_roles(self) -> None:
        """Raise UnsupportedDatabase if the database has no roles, without sending a statement."""
        if not self._store.dialect.has_roles:
            raise UnsupportedDatabase("SQLite has no roles: whoever can write the file can do everything")

    def _role(self, begin: Begin) -> Role:
        if self._works:
            return Role.WORKER
        return Role.VIEWER if begin in {Begin.READ, Begin.SNAPSHOT} else Role.OPERATOR

    def _grants(
        self, target: Target, role: Role, name: str, features: Collection[Feature]
    ) -> tuple[list[str], tuple[Right, ...]]:
        self.ensure_roles()
        if features and role is not Role.PRODUCER:
            options = " ".join(f"--with {feature}" for feature in sorted(features))
            raise InvalidArgument(
                f"only a producer has {options}; a {role} that also enqueues is granted both: outboxq grants --role producer "
                f"{options} {shlex.quote(name)}"
            )
        if not name or "\0" in name:
            raise InvalidArgument("the name of a database role must be a string that is not empty and has no NUL")
        wanted = rights(role, features)
        places = target.run(granting.missing, pack(()))
        if not places:
            raise ConfigurationError(
                f"there is no schema {self._store.schema!r} in this database; create it first: CREATE SCHEMA"
            )
        return [grant(right, places[0]["schema"], name) for right in wanted], wanted


def lacks(target: Target, wanted: Iterable[Right], *, grantee: str | None = None) -> list[Row]:
    """Return a row for each of these privileges that the role of the transaction, or `grantee`, lacks. It never
    raises an error.
    """
    if not target.dialect.has_roles:
        return []
    values = {"grantee": grantee, **pack(tuple(wanted))}
    return [row for row in target.run(granting.missing, values) if row["kind"] is not None]


def needed_to_join(features: Collection[Feature]) -> list[Right]:
    """Return the privileges that a producer needs in a caller's transaction.

    A plain producer reads tasks only when its own transaction runs again, and in the SQL function.
    """
    return [
        right
        for right in rights(Role.PRODUCER, features)
        if features or (right.name, right.privilege) != ("task_executions", Privilege.SELECT)
    ]


def complaint(lacking: list[Row], role: Role, features: Collection[Feature] = ()) -> ConfigurationError:
    """Return the error that names the role, the missing privileges and the command that grants them, or the table that
    hides one of outboxq's tables.
    """
    if hidden := next((row for row in lacking if row["hidden_by"] is not None), None):
        return ConfigurationError(
            f"the search_path finds a table {hidden['name']} in the schema {hidden['hidden_by']!r} before outboxq's table in "
            f"{hidden['schema']!r}; pass the schema of outboxq's tables: schema={hidden['schema']!r} (in commands: --schema)"
        )
    who, schema = lacking[0]["role"], lacking[0]["schema"]
    options = "".join(f" --with {feature}" for feature in sorted(features))
    needer = f"{'an' if role is Role.OPERATOR else 'a'} {role}"
    return NotPermitted(
        f"the database role {who!r} lacks {listed(lacking)} in the schema {schema!r}, which {needer} needs; let the owner of the "
        f"tables run: outboxq grants --role {role}{options} {shlex.quote(who)} --apply"
    )


def listed(lacking: list[Row]) -> str:
    named = list(dict.fromkeys(_named(row) for row in lacking))
    more = f" and {len(named) - _MOST} more" if len(named) > _MOST else ""
    return ", ".join(named[:_MOST]) + more


def _named(row: Row) -> str:
    return f"{row['privilege']} on {'the schema' if row['kind'] == Kind.SCHEMA else row['name']}"


def _escaped(statement: str) -> str:
    """Escape percent signs in names, which the driver would take for placeholders."""
    return statement.replace("%", "%%")
