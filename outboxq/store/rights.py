"""The rights that a database role lacks, and the sentence that says so."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractContextManager, suppress

from ..database.dialects import Begin, Row, granting
from ..database.dialects.granting import pack
from ..database.privileges import Feature, Kind, Privilege, Right, Role, rights
from ..database.target import Target
from ..errors import ConfigurationError, NotPermitted

Transaction = Callable[[Begin], AbstractContextManager[Target]]
_MOST = 3
"""So many rights are named in a sentence."""


class Rights:
    """What a store knows of the rights of its database role."""

    def __init__(self, *, works: bool) -> None:
        """`works`: the store is a worker's own."""
        self._works = works
        self.known: set[frozenset[Feature] | None] = {None}
        """Enqueues for which the rights are known to be there, of the role that enqueued so first. None: it is no enqueue."""

    def check(self, target: Target, enqueues: frozenset[Feature] | None) -> None:
        """Raise NotPermitted where the role of the transaction may not enqueue so."""
        if enqueues is not None and (lacking := lacks(target, needed_to_join(enqueues))):
            raise complaint(lacking, Role.PRODUCER, enqueues)

    def explained(
        self, error: BaseException, look: Transaction, begin: Begin, enqueues: frozenset[Feature] | None = None
    ) -> BaseException:
        """Return the error that says which right the role lacks; the database's own, if it lacks none that we know of.

        `begin`: how the transaction began that the error ended. `look` begins another one.
        """
        role = Role.PRODUCER if enqueues is not None else self._role(begin)
        with suppress(Exception), look(Begin.READ) as target:
            if lacking := lacks(target, rights(role, enqueues or ())):
                return complaint(lacking, role, enqueues or ())
        return error

    def _role(self, begin: Begin) -> Role:
        if self._works:
            return Role.WORKER
        return Role.VIEWER if begin in {Begin.READ, Begin.SNAPSHOT} else Role.OPERATOR


def lacks(target: Target, wanted: Iterable[Right], *, grantee: str | None = None) -> list[Row]:
    """Return a row for each of the rights that the role of the transaction, or `grantee`, lacks. It raises nothing."""
    if not target.dialect.has_roles:
        return []
    values = {"grantee": grantee, **pack(tuple(wanted))}
    return [row for row in target.run(granting.missing, values) if row["kind"] is not None]


def needed_to_join(features: Collection[Feature]) -> list[Right]:
    """Return what a producer needs in a caller's transaction.

    A plain one reads the tasks only where its own transaction is run again, and in the SQL function.
    """
    return [
        right
        for right in rights(Role.PRODUCER, features)
        if features or (right.name, right.privilege) != ("task_executions", Privilege.SELECT)
    ]


def complaint(lacking: list[Row], role: Role, features: Collection[Feature] = ()) -> ConfigurationError:
    """Return the error that says who lacks what, and which command grants it; or which table hides one of ours."""
    if hidden := next((row for row in lacking if row["hidden_by"] is not None), None):
        return ConfigurationError(
            f"the search_path finds a table {hidden['name']} in the schema {hidden['hidden_by']!r} before that of outboxq in "
            f"{hidden['schema']!r}; say where outboxq's tables lie: schema={hidden['schema']!r} (in commands: --schema)"
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
