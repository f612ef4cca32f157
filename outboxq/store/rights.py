"""The rights that a database role lacks, and the sentence that says so."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable

from ..dialects import Row
from ..dialects.granting import pack
from ..errors import NotPermitted
from ..privileges import Feature, Kind, Privilege, Right, Role, rights
from ..target import Target

_MOST = 3
"""So many rights are named in a sentence."""


def lacks(target: Target, wanted: Iterable[Right], *, grantee: str | None = None) -> list[Row]:
    """Return a row for each of the rights that the role of the transaction, or `grantee`, lacks. It raises nothing."""
    if (missing := target.dialect.statements.rights.get("missing")) is None:
        return []
    values = {"grantee": grantee, **pack(tuple(wanted))}
    return [row for row in missing.run(target.execute, values) if row["kind"] is not None]


def needed_to_join(features: Collection[Feature]) -> list[Right]:
    """Return what a producer needs in a caller's transaction.

    A plain one reads the tasks only where its own transaction is run again, and in the SQL function.
    """
    return [
        right
        for right in rights(Role.PRODUCER, features)
        if features or (right.name, right.privilege) != ("task_executions", Privilege.SELECT)
    ]


def complaint(lacking: list[Row], role: Role, features: Collection[Feature] = ()) -> NotPermitted:
    """Return the error that says who lacks what, and which command grants it."""
    who, schema = lacking[0]["role"], lacking[0]["schema"]
    options = "".join(f" --with {feature}" for feature in sorted(features))
    return NotPermitted(
        f"the database role {who!r} may not {listed(lacking)} in the schema {schema!r}, which a {role} needs; let the owner of the "
        f"tables run: outboxq grants --role {role}{options} {shlex.quote(who)} --apply"
    )


def listed(lacking: list[Row]) -> str:
    named = list(dict.fromkeys(_named(row) for row in lacking))
    more = f" and {len(named) - _MOST} more" if len(named) > _MOST else ""
    return ", ".join(named[:_MOST]) + more


def _named(row: Row) -> str:
    return f"{row['privilege']} the schema" if row["kind"] == Kind.SCHEMA else f"{row['privilege']} {row['name']}"
