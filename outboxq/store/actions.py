"""Record the changes that people make. Each record is written in the same transaction as its change."""

from __future__ import annotations

import builtins
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar
from uuid import UUID

import sqlalchemy as sa

from ..database.column_types import Instant
from ..database.dialects import Begin, Row
from ..database.grammar import Grammar, Statement, limit
from ..database.tables import operator_actions
from ..database.target import Target
from ..model.actions import NewAction, OperatorAction
from ..model.display import as_json
from ..payload.parameters import sanitize
from .arguments import aware, identifier, parameters, positive, storable
from .transactions import Noun

T = TypeVar("T")
KEPT = timedelta(days=90)
"""Minimum time for which a record is kept, so that a person cannot delete the records of recent changes."""
_NOTHING: Mapping[str, Any] = MappingProxyType({})
_AT_ONCE = 1_000
_LONGEST = 1_000
"""Maximum length of a name or a reason, in bytes."""


class Actions(Noun):
    """The changes that people have made."""

    def record(
        self,
        action: NewAction,
        change: Callable[[Target], T],
        *,
        number: Callable[[T], int] = lambda _: 1,
        replaced: Callable[[T], Mapping[str, Any]] = lambda _: _NOTHING,
        using: object = None,
    ) -> T:
        """Make a change and record it in one transaction, and return what `change` returns.

        `change` is called with the open transaction, which it passes on as `using` to the store's methods. `number`
        returns the number of changes to record. If this number is 0, nothing is recorded. `replaced` returns the former
        values, which are added to the record's details. If `change` raises an error, nothing is written.
        """

        def work(target: Target) -> T:
            with target.atomic(savepoint=not target.own):  # a refused change leaves the caller's transaction usable
                made = change(target)
                if changes := number(made):
                    self._add(replace(action, details={**action.details, **replaced(made)}), target, changes)
            return made

        def committed(target: Target, _: T) -> bool:
            return bool(target.run(is_written, {"id": action.id}))

        return self._store.run(work, using=using, committed=committed)

    def adding(self, action: NewAction) -> Callable[[Target, int], None]:
        """Return the `on_change` callback for a bulk change. The callback adds the number of tasks in each transaction
        to the record.
        """
        return partial(self._add, action)

    def adding_to(self, action_id: UUID) -> Callable[[Target, int], None]:
        """Return the `on_change` callback for a bulk change that another process has recorded; see `begin`."""

        def add(target: Target, number: int) -> None:
            target.run(count_up, {"id": action_id, "changed": number})

        return add

    def begin(self, action: NewAction, *, using: object = None) -> None:
        """Record a bulk change that another process will make. That process adds the number of tasks in each of its
        transactions to this record.
        """
        self._store.run(partial(self._add, action, number=0), using=using)

    def get(self, action_id: UUID, *, using: object = None) -> OperatorAction | None:
        """Return the record with this id; None if there is no such record."""
        rows = self._store.run_one(one, using=using, id=identifier(action_id))
        return _action_of(rows[0]) if rows else None

    def list(
        self,
        *,
        action: str | None = None,
        operator: str | None = None,
        target: str | None = None,
        since: datetime | None = None,
        before: UUID | None = None,
        limit: int = 100,
        using: object = None,
    ) -> builtins.list[OperatorAction]:
        """Return up to `limit` changes by people, newest first. `before` is the id of the last change on the previous
        page. Raises InvalidArgument.
        """
        values: dict[str, Any] = {
            "action": storable(action, "action"),
            "operator": storable(operator, "operator"),
            "named_target": storable(target, "target"),
            "since": None if since is None else aware(since, "since"),
            "before": _LAST if before is None else identifier(before),
            "limit": positive(limit),
        }
        builder = newest if target is None else newest_of_target
        rows = self._store.run_one(builder, using=using, **values)
        return [_action_of(row) for row in rows]

    def prune(self, before: datetime, stop: Callable[[], bool], *, using: object = None) -> None:
        """Delete the records written before this time, except those from the last 90 days."""
        values = {"older": before, "least": -KEPT.total_seconds(), "limit": _AT_ONCE}
        gone = _AT_ONCE
        while gone == _AT_ONCE and not stop():
            gone = len(self._store.run_one(prune, using=using, begin=Begin.WRITE, **values))

    def _add(self, action: NewAction, target: Target, number: int) -> None:
        values = {
            "id": identifier(action.id),
            "operator": sanitize(action.operator.name, limit=_LONGEST) or None,
            "interface": action.operator.interface.value,
            "action": action.action,
            "named_target": None if action.target is None else sanitize(action.target, limit=_LONGEST),
            "details": json.dumps(as_json(action.details)),
            "reason": sanitize(action.reason, limit=_LONGEST) or None,
            "changed": number,
        }
        target.run(add, self._store.values(target, **values))


def _action_of(row: Row) -> OperatorAction:
    return OperatorAction(**{**row, "details": json.loads(row["details"])})


_LAST = UUID(int=2**128 - 1)
_action = operator_actions.c
_written: dict[str, Any] = {
    name: sa.bindparam("named_target" if name == "target" else name, type_=_action[name].type, required=True)
    for name in ("id", "operator", "interface", "action", "target", "details", "reason", "changed")
}
_wanted_action, _wanted_operator = parameters(sa.Text, "action", "operator")
_since, _older = parameters(Instant, "since", "older")
_least = sa.bindparam("least", type_=sa.Double, required=True)
_before = sa.bindparam("before", type_=sa.Uuid, required=True)


def add(g: Grammar) -> sa.Insert:
    """Write the record, or add :changed to the record that another transaction of the same change has written."""
    values = {**_written, "at": g.now}
    new = g.insert(operator_actions).from_select(list(values), sa.select(*values.values()))
    total = _action.changed + new.excluded.changed
    return new.on_conflict_do_update(index_elements=[_action.id], set_={"changed": total})  # type: ignore[no-any-return]


def count_up(_: Grammar) -> sa.Update:
    """Add :changed to the record :id. A record that has been pruned in the meantime is not written again."""
    record = sa.update(operator_actions).where(_action.id == _written["id"])
    return record.values(changed=_action.changed + _written["changed"]).returning(_action.id)


def is_written(_: Grammar) -> sa.Select[Any]:
    """Select one row if the record exists."""
    return sa.select(_action.id).where(_action.id == _written["id"])


def one(_: Grammar) -> sa.Select[Any]:
    """Select the record :id."""
    return sa.select(operator_actions).where(_action.id == _written["id"])


def newest(_: Grammar) -> sa.Select[Any]:
    """Select a page of the matching records, newest first."""
    matches = (
        sa.or_(_wanted_action.is_(None), _action.action == _wanted_action),
        sa.or_(_wanted_operator.is_(None), _action.operator == _wanted_operator),
        sa.or_(_since.is_(None), _action.at >= _since),
    )
    before = sa.select(operator_actions).where(_action.id < _before, *matches)
    return before.order_by(_action.id.desc()).limit(limit)


def newest_of_target(g: Grammar) -> sa.Select[Any]:
    """Select a page of the matching records for :target, newest first."""
    return newest(g).where(_action.target == _written["target"])


def prune(g: Grammar) -> Statement:
    """Delete up to :limit records that were written before :older and are older than :least seconds."""
    is_old = sa.and_(_action.at < _older, _action.at < g.later(g.now, _least))
    some = sa.select(_action.id).where(is_old).limit(limit)
    return sa.delete(operator_actions).where(_action.id.in_(some)).returning(_action.id)
