"""Give idempotency keys back to dead letters that are redriven: a key that was free while its task was Failed may be taken.

Keys are locked before everything else, in their order, so that no transaction takes a key over while its task is redriven.
"""

from __future__ import annotations

from sqlalchemy import Text, Uuid, func, literal_column, null, select, true, union_all, update

from ..tables import dead_letters, idempotency_keys
from .grammar import Columns, Grammar, Relations, Statement, Transition

TAKEN_BACK: Columns = {"id": Uuid(), "scope": Text(), "key": Text(), "holder": Uuid()}
"""A task that gets its key back, and the task that holds the key."""

_held, _letter = idempotency_keys.c, dead_letters.c


def lock(g: Grammar) -> Transition:
    """Lock the keys of these tasks until the transaction ends, also those that other tasks hold. A free key is acquired.

    Each row is updated without a change. So no transaction above READ COMMITTED can take the key over by an older snapshot.
    """

    def wanted(r: Relations) -> Statement:
        given = r["given"].c.id
        own = select(_held.scope, _held.key, _held.task_execution_id.label("id")).where(
            g.among(_held.task_execution_id, given), _held.until_finished
        )
        lost = select(_letter.task_name, _letter.lost_key, _letter.task_execution_id).where(
            g.among(_letter.task_execution_id, given), _letter.lost_key.is_not(None)
        )
        both = union_all(own, lost).subquery("both")
        nth = func.row_number().over(partition_by=(both.c.scope, both.c.key), order_by=both.c.id)
        return select(*both.c, nth.label("nth"))

    def locked(r: Relations) -> Statement:
        wanted = r["wanted"].c
        first = (
            select(wanted.scope, wanted.key, wanted.id, true(), g.now)
            .where(wanted.nth == literal_column("1"))
            .order_by(wanted.scope, wanted.key)
        )
        names = ["scope", "key", "task_execution_id", "until_finished", "created_at"]
        return (  # type: ignore[no-any-return]
            g.insert(idempotency_keys)
            .from_select(names, first)
            .on_conflict_do_update(index_elements=["scope", "key"], set_={"key": _held.key})
            .returning(_held.task_execution_id.label("id"))
        )

    return Transition(given={"id": Uuid()}, steps={"wanted": wanted, "locked": locked}, returns="locked")


def lost(g: Grammar) -> Transition:
    """Select the keys of these dead letters that other tasks hold. They must be locked first."""

    def found(r: Relations) -> Statement:
        lost = select(
            _letter.task_execution_id.label("id"), _letter.task_name.label("scope"), _letter.lost_key.label("key")
        )
        return lost.where(g.among(_letter.task_execution_id, r["given"].c.id), _letter.lost_key.is_not(None))

    return Transition(given={"id": Uuid()}, steps={"found": found}, returns="found")


def take_back(g: Grammar) -> Transition:
    """Give locked keys back to the tasks that had lost them. A Failed task that holds such a key is recorded as having
    lost it.
    """

    def key(r: Relations) -> Statement:
        given = r["given"].c
        return (
            update(idempotency_keys)
            .where(
                g.among(_held.task_execution_id, given.holder),
                _held.task_execution_id == given.holder,
                _held.scope == given.scope,
                _held.key == given.key,
            )
            .values(task_execution_id=given.id, expires_at=null(), until_finished=true(), created_at=g.now)
            .returning(_held.task_execution_id.label("id"))
        )

    def letter(r: Relations) -> Statement:
        given = r["given"].c
        return (
            update(dead_letters)
            .where(g.among(_letter.task_execution_id, given.holder), _letter.task_execution_id == given.holder)
            .values(lost_key=given.key)
        )

    return Transition(given=TAKEN_BACK, steps={"letter": letter, "key": key}, returns="key")
