"""Granting database roles what they need."""

from __future__ import annotations

from collections.abc import Collection

from ..dialects import Begin
from ..dialects.granting import grant, pack
from ..errors import ConfigurationError, InvalidArgument, NotPermitted, UnsupportedDatabase
from ..privileges import Feature, Right, Role, rights
from ..target import Target
from .base import Transactions
from .rights import lacks, listed


class Permissions(Transactions):
    """For databases with roles."""

    def grants(self, role: Role, name: str, features: Collection[Feature] = ()) -> list[str]:
        """Return the GRANTs that the database role `name` needs to be such a role, in the schema in which our tables lie.

        Runs in a transaction of its own that only reads. Raises InvalidArgument for features of what is no producer,
        UnsupportedDatabase on SQLite.
        """
        return self._run(lambda target: self._grants(target, role, name, features)[0], begin=Begin.READ)

    def grant(self, role: Role, name: str, features: Collection[Feature] = ()) -> list[str]:
        """Run the `grants`, all of them or none, in one transaction; returns them.

        Raises NotPermitted where the role still lacks a right then: PostgreSQL only warns of what somebody cannot grant.
        """

        def work(target: Target) -> list[str]:
            statements, wanted = self._grants(target, role, name, features)
            if not target.dialect.statements.rights["role"].run(target.execute, {"grantee": name}):
                raise ConfigurationError(f"there is no database role {name!r}; make it first: CREATE ROLE")
            for statement in statements:
                target.execute(_escaped(statement), {})
            if lacking := lacks(target, wanted, grantee=name):
                raise NotPermitted(
                    f"nothing was granted: the present role cannot grant {listed(lacking)} to {name!r}; run it as the owner "
                    "of the tables"
                )
            return statements

        return self._run(work)

    def _grants(
        self, target: Target, role: Role, name: str, features: Collection[Feature]
    ) -> tuple[list[str], tuple[Right, ...]]:
        if not target.dialect.statements.rights:
            raise UnsupportedDatabase("SQLite has no roles: who may write the file may do everything")
        if features and role is not Role.PRODUCER:
            raise InvalidArgument(
                "only a producer has features: a worker, viewer or operator has all of its rights anyway"
            )
        if not name or "\0" in name:
            raise InvalidArgument("the name of a database role is text")
        wanted = rights(role, features)
        places = target.dialect.statements.rights["missing"].run(target.execute, pack(()))
        if not places:
            raise ConfigurationError(
                f"there is no schema {self.schema!r} in this database; make it first: CREATE SCHEMA"
            )
        return [grant(right, places[0]["schema"], name) for right in wanted], wanted


def _escaped(statement: str) -> str:
    """A name may hold what the driver would take for a placeholder."""
    return statement.replace("%", "%%")
