"""Granting database roles what they need."""

from __future__ import annotations

import shlex
from collections.abc import Collection

from ..database.dialects import Begin, granting
from ..database.dialects.granting import grant, pack
from ..database.privileges import Feature, Kind, Right, Role, rights
from ..database.target import Target
from ..errors import ConfigurationError, InvalidArgument, NotPermitted, UnsupportedDatabase
from .rights import lacks, listed
from .transactions import Transactions


class Permissions(Transactions):
    """The rights of database roles, for databases that have them."""

    def grants(self, role: Role, name: str, features: Collection[Feature] = ()) -> list[str]:
        """Return the GRANTs that the database role `name` needs to be such a role, in the schema in which our tables lie.

        Runs in a transaction of its own that only reads. Raises InvalidArgument for features of what is no producer,
        UnsupportedDatabase on SQLite.
        """
        return self.run(lambda target: self._grants(target, role, name, features)[0], begin=Begin.READ)

    def grant(self, role: Role, name: str, features: Collection[Feature] = ()) -> list[str]:
        """Run the `grants`, all of them or none, in one transaction; returns them.

        Raises NotPermitted where the role still lacks a right then: PostgreSQL only warns of a right that the role cannot grant.
        """

        def work(target: Target) -> list[str]:
            statements, wanted = self._grants(target, role, name, features)
            if not target.run(granting.role, {"grantee": name}):
                raise ConfigurationError(f"there is no database role {name!r}; make it first: CREATE ROLE")
            for statement in statements:
                target.execute(_escaped(statement), {})
            if lacking := lacks(target, wanted, grantee=name):
                owned = "schema" if any(row["kind"] == Kind.SCHEMA for row in lacking) else "tables"
                raise NotPermitted(
                    f"nothing was granted: the present role cannot grant {listed(lacking)} to {name!r}; run it as the owner "
                    f"of the {owned}"
                )
            return statements

        return self.run(work)

    def ensure_roles(self) -> None:
        """Raise UnsupportedDatabase where the database has no roles. Nothing is asked of it."""
        if not self.dialect.has_roles:
            raise UnsupportedDatabase("SQLite has no roles: who may write the file may do everything")

    def _grants(
        self, target: Target, role: Role, name: str, features: Collection[Feature]
    ) -> tuple[list[str], tuple[Right, ...]]:
        self.ensure_roles()
        if features and role is not Role.PRODUCER:
            options = " ".join(f"--with {feature}" for feature in sorted(features))
            raise InvalidArgument(
                f"only a producer has {options}; a {role} that enqueues too is granted both: outboxq grants --role producer "
                f"{options} {shlex.quote(name)}"
            )
        if not name or "\0" in name:
            raise InvalidArgument("the name of a database role is text")
        wanted = rights(role, features)
        places = target.run(granting.missing, pack(()))
        if not places:
            raise ConfigurationError(
                f"there is no schema {self.schema!r} in this database; make it first: CREATE SCHEMA"
            )
        return [grant(right, places[0]["schema"], name) for right in wanted], wanted


def _escaped(statement: str) -> str:
    """A name may hold what the driver would take for a placeholder."""
    return statement.replace("%", "%%")
