"""Grant database roles their privileges on PostgreSQL, and name missing privileges."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from ..database.column_types import Packed
from ..database.dialects import Begin, Row
from ..database.dialects.catalogue import pg_class, pg_namespace
from ..database.grammar import ONE, Grammar, text_literal
from ..database.privileges import Feature, Kind, Privilege, Right, Role, rights
from ..database.tables import VERSION_TABLE
from ..database.target import Target
from ..errors import ConfigurationError, InvalidArgument, NotPermitted, UnsupportedDatabase

if TYPE_CHECKING:
    from .transactions import Transactions

_MOST = 3
"""Maximum number of privileges that an error message names."""


class Rights:
    """The privileges of the store's database role, as far as they are known, and methods that grant privileges to other
    roles.
    """

    def __init__(self, store: Transactions, *, works: bool) -> None:
        """`works` is True if the store belongs to a worker."""
        self._store = store
        self._works = works
        self.known: set[frozenset[Feature] | None] = {None}
        """Sets of features whose privileges the role is known to have. None stands for a transaction that does not
        enqueue.
        """

    def check(self, target: Target, enqueues: frozenset[Feature] | None) -> None:
        """Raise NotPermitted if the transaction's role is not permitted to enqueue with these features."""
        if enqueues is not None and (lacking := lacks(target, needed_to_join(enqueues))):
            raise complaint(lacking, Role.PRODUCER, enqueues)

    def ensure(self, role: Role) -> None:
        """Raise NotPermitted unless the store's database role has all privileges of this role."""
        with self.naming(), self._store.transaction(Begin.READ) as target:
            if lacking := lacks(target, rights(role)):
                raise complaint(lacking, role)

    @contextmanager
    def naming(self) -> Iterator[None]:
        """Run the block, which reads in a transaction, and pass any error from it to `explain`."""
        try:
            yield
        except Exception as error:
            self.explain(error, Begin.READ)
            raise

    def explain(self, error: BaseException, begin: Begin, enqueues: frozenset[Feature] | None = None) -> None:
        """Raise NotPermitted if this error is due to a missing privilege, which is looked up in a separate transaction.

        `begin` is the kind of transaction that failed.
        """
        if not self._store.dialect.is_denied(error):
            return
        if enqueues is not None:
            role = Role.PRODUCER
        elif self._works:
            role = Role.WORKER
        else:
            role = Role.VIEWER if begin in {Begin.READ, Begin.SNAPSHOT} else Role.OPERATOR
        lacking = list[Row]()
        with suppress(Exception), self._store.transaction(Begin.READ) as target:
            lacking = lacks(target, rights(role, enqueues or ()))
        if lacking:
            raise complaint(lacking, role, enqueues or ()) from error

    def grants(self, role: Role, name: str, features: Collection[Feature] = ()) -> list[str]:
        """Return the GRANT statements that give the database role `name` the privileges of `role` in the tables'
        schema. The statements are built in a separate transaction, which only reads. Raises InvalidArgument if features
        are given for a role other than a producer, and UnsupportedDatabase on SQLite.
        """
        return self._store.run(lambda target: self._grants(target, role, name, features)[0], begin=Begin.READ)

    def grant(self, role: Role, name: str, features: Collection[Feature] = ()) -> list[str]:
        """Run the `grants` in one transaction, and return them.

        Raises NotPermitted, and grants nothing, if the role still lacks a privilege, because PostgreSQL only issues a
        warning if it cannot grant a privilege.
        """

        def work(target: Target) -> list[str]:
            statements, wanted = self._grants(target, role, name, features)
            if not target.run(select_role, {"grantee": name}):
                raise ConfigurationError(f"unknown database role {name!r}; create it first: CREATE ROLE")
            for statement in statements:
                target.execute(statement.replace("%", "%%"), {})  # the driver would take them for placeholders
            if lacking := lacks(target, wanted, grantee=name):
                owned = "schema" if any(row["kind"] == Kind.SCHEMA for row in lacking) else "tables"
                raise NotPermitted(
                    f"nothing was granted: the current role cannot grant {listed(lacking)} to {name!r}; run this as the owner "
                    f"of the {owned}"
                )
            return statements

        return self._store.run(work)

    def ensure_roles(self) -> None:
        """Raise UnsupportedDatabase if the database has no roles, without sending a statement."""
        if not self._store.dialect.has_roles:
            raise UnsupportedDatabase("SQLite has no roles: anyone who can write to the file can do anything")

    def _grants(
        self, target: Target, role: Role, name: str, features: Collection[Feature]
    ) -> tuple[list[str], tuple[Right, ...]]:
        self.ensure_roles()
        if features and role is not Role.PRODUCER:
            options = " ".join(f"--with {feature}" for feature in sorted(features))
            raise InvalidArgument(
                f"use {options} only for a producer; if the {role} also enqueues tasks, grant it both roles: outboxq grants --role producer "
                f"{options} {shlex.quote(name)}"
            )
        if not name or "\0" in name:
            raise InvalidArgument("a database role name must be a non-empty string without NUL")
        wanted = rights(role, features)
        places = target.run(missing, pack(()))
        if not places:
            raise ConfigurationError(
                f"there is no schema {self._store.schema!r} in this database; create it first: CREATE SCHEMA"
            )
        return [grant(right, places[0]["schema"], name) for right in wanted], wanted


def lacks(target: Target, wanted: Iterable[Right], *, grantee: str | None = None) -> list[Row]:
    """Return a row for each of these privileges that the transaction's role, or `grantee`, lacks. This never raises an
    error.
    """
    if not target.dialect.has_roles:
        return []
    values = {"grantee": grantee, **pack(tuple(wanted))}
    return [row for row in target.run(missing, values) if row["kind"] is not None]


def needed_to_join(features: Collection[Feature]) -> list[Right]:
    """Return the privileges that a producer needs in a caller's transaction.

    A plain producer reads tasks only in the SQL function, and when a separate transaction is retried.
    """
    not_needed = () if features else (("task_executions", Privilege.SELECT),)
    return [one for one in rights(Role.PRODUCER, features) if (one.name, one.privilege) not in not_needed]


def complaint(lacking: list[Row], role: Role, features: Collection[Feature] = ()) -> ConfigurationError:
    """Return the error, which names either the table that hides one of outboxq's tables, or the role, the missing
    privileges and the command that grants them.
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
        f"the database role {who!r} lacks {listed(lacking)} in the schema {schema!r}, which {needer} needs; have the owner of the "
        f"tables run: outboxq grants --role {role}{options} {shlex.quote(who)} --apply"
    )


def listed(lacking: list[Row]) -> str:
    places = [(row["privilege"], "the schema" if row["kind"] == Kind.SCHEMA else row["name"]) for row in lacking]
    named = [f"{privilege} on {place}" for privilege, place in dict.fromkeys(places)]
    more = f" and {len(named) - _MOST} more" if len(named) > _MOST else ""
    return ", ".join(named[:_MOST]) + more


_roles = sa.table("pg_roles", sa.column("rolname", sa.Text), schema="pg_catalog")
_PARTS = ("kind", "name", "privilege", "column")
_grantee = sa.bindparam("grantee", None, type_=sa.Text)


def grant(right: Right, schema: str, role: str) -> str:
    """Return the statement that grants the privilege on an object in `schema`, with every identifier in quotes."""
    from psycopg import sql  # imported here, because most programs that import this module do not use PostgreSQL

    names = (schema,) if right.kind is Kind.SCHEMA else (schema, right.name)
    columns = sql.SQL(", ").join(map(sql.Identifier, right.columns))
    text = sql.SQL("GRANT {} ON {} {} TO {}").format(
        sql.SQL(right.privilege.value) + (sql.SQL(" ({})").format(columns) if right.columns else sql.SQL("")),
        sql.SQL(right.kind.value),
        sql.Identifier(*names),
        sql.Identifier(role),
    )
    return text.as_string(None)


def pack(rights: Sequence[Right]) -> dict[str, Any]:
    """Return the parameters of `missing`: a row for each column of a privilege, or a single row if the privilege does
    not name columns.
    """
    given = [
        (right.kind.value, right.name, right.privilege.value, one) for right in rights for one in right.columns or ("",)
    ]
    return {f"right_{part}": [row[at] for row in given] for at, part in enumerate(_PARTS)}


def select_role(_: Grammar) -> sa.Select[Any]:
    """Select one row if the role :grantee exists."""
    return sa.select(ONE.label("found")).select_from(_roles).where(_roles.c.rolname == _grantee)


def missing(g: Grammar) -> sa.Select[Any]:
    """Select the given privileges that :grantee, or the current role, lacks in our schema, and the name of that role.

    If our statements find the tables through the search path, this also selects the tables that are hidden by a table
    in another schema (`hidden_by`).

    The statement returns at least one row, with a NULL `name` if nothing is missing. It never fails, even for a role
    without any privileges.
    """
    lies_in, by_path = _schema_of(g), g.schema is None
    arrays = [sa.bindparam(f"right_{part}", type_=Packed(sa.Text()), required=True) for part in _PARTS]
    cells = (sa.column(part, sa.Text) for part in _PARTS)
    wanted = sa.func.unnest(*arrays).table_valued(*cells).render_derived(name="wanted")
    who = sa.func.coalesce(_grantee, sa.func.current_user(), type_=sa.Text)
    place = sa.select(pg_namespace.c.oid, pg_namespace.c.nspname).where(pg_namespace.c.oid == lies_in).subquery("place")
    may = sa.case(
        (
            wanted.c.kind == text_literal(Kind.SCHEMA),
            sa.func.has_schema_privilege(who, place.c.oid, wanted.c.privilege),
        ),
        (pg_class.c.oid.is_(None), sa.literal_column("true", sa.Boolean)),  # a missing table is reported elsewhere
        (
            wanted.c.kind == text_literal(Kind.SEQUENCE),
            sa.func.has_sequence_privilege(who, pg_class.c.oid, wanted.c.privilege),
        ),
        (wanted.c.column == text_literal(""), sa.func.has_table_privilege(who, pg_class.c.oid, wanted.c.privilege)),
        else_=sa.func.has_column_privilege(who, pg_class.c.oid, wanted.c.column, wanted.c.privilege),
    )
    other, there = pg_class.alias("other"), pg_namespace.alias("there")
    seen = sa.func.to_regclass(sa.func.quote_ident(wanted.c.name)) if by_path else sa.null()
    is_hidden = (other.c.oid == seen, there.c.oid == other.c.relnamespace, other.c.oid != pg_class.c.oid)
    hidden_by = sa.select(there.c.nspname).where(*is_hidden).correlate(wanted, pg_class).scalar_subquery()
    its_name = sa.and_(pg_class.c.relname == wanted.c.name, pg_class.c.relnamespace == place.c.oid)
    right = sa.select(*(wanted.c[part] for part in _PARTS), hidden_by.label("hidden_by")).select_from(wanted)
    found = right.outerjoin(pg_class, its_name).where(sa.or_(~may, hidden_by.is_not(None)))
    lacks = found.correlate(place).lateral("lacks")
    parts = (lacks.c[part] for part in (*_PARTS, "hidden_by"))
    found_in = sa.select(who.label("role"), place.c.nspname.label("schema"), *parts)
    return found_in.select_from(place.outerjoin(lacks, sa.true()))


def _schema_of(g: Grammar) -> sa.ColumnElement[Any]:
    """Return the oid of our schema: the schema with the configured name, or else the schema in which our tables are
    found, or would be created, through the search path.
    """
    if g.schema is not None:
        return sa.select(pg_namespace.c.oid).where(pg_namespace.c.nspname == text_literal(g.schema)).scalar_subquery()
    found = sa.select(pg_class.c.relnamespace).where(pg_class.c.oid == g.oid(VERSION_TABLE)).scalar_subquery()
    made = sa.select(pg_namespace.c.oid).where(pg_namespace.c.nspname == sa.cast(sa.func.current_schema(), sa.Text))
    return sa.func.coalesce(found, made.scalar_subquery())
