"""List the partitions of the history, move rows between them, and drop old ones safely (PostgreSQL)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import REGCLASS

from ...model import TaskStatus
from .. import history, tables
from ..grammar import Builder, Grammar, Statement, limit, sql_literal, text_literal
from .catalogue import (
    pg_attribute,
    pg_class,
    pg_constraint,
    pg_depend,
    pg_inherits,
    pg_namespace,
    pg_policy,
    pg_publication,
    pg_publication_rel,
    pg_rewrite,
    pg_trigger,
)

PARTITIONED: Mapping[sa.Table, str] = {tables.task_executions: "id", tables.execution_events: "task_execution_id"}
"""The partitioned tables, in the order in which they are locked, each with the column that divides it."""

_lower = sa.bindparam("lower", type_=sa.Uuid, required=True)
_upper = sa.bindparam("upper", type_=sa.Uuid, required=True)
_last_event = sa.bindparam("last_event", type_=sa.BigInteger, required=True)
_kept, _failed = (sa.bindparam(name, type_=sa.ARRAY(sa.Uuid), required=True) for name in ("kept", "failed"))


def leaf(parent: sa.Table, name: str, schema: str) -> sa.TableClause:
    """Return one of outboxq's partitions as a table."""
    return sa.table(name, *(sa.column(c.name, c.type) for c in parent.columns), schema=schema)


def found(g: Grammar) -> sa.Select[Any]:
    """Select each partition of our tables. Selects no rows for an ordinary table. `parents` holds their oids."""
    parents = [g.oid(table.name) for table in PARTITIONED]
    inherits, parent, child = pg_inherits.alias(), pg_class.alias("parent"), pg_class.alias("leaf")
    return (
        sa.select(
            parent.c.relname.label("parent"),
            child.c.relname.label("name"),
            pg_namespace.c.nspname.label("schema"),
            sa.func.pg_get_expr(child.c.relpartbound, child.c.oid).label("bound"),
            sa.func.pg_get_userbyid(parent.c.relowner).label("owner"),
            sa.func.pg_has_role(parent.c.relowner, text_literal("USAGE")).label("owned"),
        )
        .select_from(inherits)
        .join(parent, parent.c.oid == inherits.c.inhparent)
        .join(child, child.c.oid == inherits.c.inhrelid)
        .join(pg_namespace, pg_namespace.c.oid == parent.c.relnamespace)
        .where(sa.or_(*(parent.c.oid == oid for oid in parents)), parent.c.relkind == text_literal("p"))
    )


def sizes(g: Grammar) -> sa.Select[Any]:
    """Select each partition of our tables with its size in bytes, including indexes. Selects no rows for an ordinary
    table.
    """
    parents = [g.oid(table.name) for table in PARTITIONED]
    child = pg_class.alias("leaf")
    return (
        sa.select(
            child.c.relname.label("name"),
            sa.func.pg_total_relation_size(child.c.oid, type_=sa.BigInteger).label("size"),
            sa.func.pg_stat_get_live_tuples(child.c.oid, type_=sa.BigInteger).label("rows"),
        )
        .select_from(pg_inherits)
        .join(child, child.c.oid == pg_inherits.c.inhrelid)
        .where(sa.or_(*(pg_inherits.c.inhparent == oid for oid in parents)))
        .order_by(child.c.relname)
    )


def patience(_: Grammar) -> sa.Select[Any]:
    """Set the timeouts of a transaction that locks whole tables. The transaction gives up early, because all other
    sessions have to wait for it.

    The lock timeout is shorter than the usual deadlock_timeout of 1 s, so that in a deadlock, this transaction is the
    one that gives up. Sequential scans, which outboxq's other transactions avoid, are allowed.
    """
    return _set(lock_timeout="700ms", enable_seqscan="on")


def scanning(_: Grammar) -> sa.Select[Any]:
    """Set the timeouts of a transaction that reads a whole partition, and that no other session waits for.

    :statement_timeout is a string that includes the unit.
    """
    return _set(statement_timeout=sa.bindparam("statement_timeout", type_=sa.Text, required=True), enable_seqscan="on")


def keep(g: Grammar, executions: sa.FromClause, events: sa.FromClause) -> sa.Select[Any]:
    """Select, for a partition, the number of tasks that may be dropped, the ids of the Failed tasks among them, the ids
    of the tasks to keep, and the last event's `sequence_num`.
    """
    done, task = history.done(g, executions.c), executions.c
    columns: list[sa.ColumnElement[Any]] = [
        sa.func.count().filter(done).label("tasks"),
        _ids(task).filter(done, task.status == sql_literal(TaskStatus.FAILED)).label("failed"),
        _ids(task).filter(done.is_not(sa.true())).label("kept"),
        sa.select(sa.func.coalesce(sa.func.max(events.c.sequence_num), sa.literal_column("0"), type_=sa.BigInteger))
        .scalar_subquery()
        .label("last_event"),
    ]
    return sa.select(*columns).select_from(executions)


def kept_since(g: Grammar, executions: sa.FromClause, events: sa.FromClause) -> sa.Select[Any]:
    """Select the tasks that must be kept even though `keep` counted them as droppable or did not see them. Only two
    changes are possible in the partition. A dead letter can leave the status Failed and, if a producer's clock is
    wrong, a new task can appear. A task affected by one of these changes has an outbox entry or a lease, or has been
    claimed since, which is recorded in an event whose number was drawn after `keep` ran. The query therefore reads few
    rows.
    """
    new = [
        sa.select(task_id).where(task_id >= _lower, task_id < _upper)
        for task_id in (tables.task_outbox.c.task_execution_id, tables.task_leases.c.task_execution_id)
    ]
    new.append(sa.select(events.c.task_execution_id).where(events.c.sequence_num > _last_event))
    looked_at = sa.union_all(*new, sa.select(sa.func.unnest(_failed))).subquery("looked_at")
    done = history.done(g, executions.c)
    ids = sa.select(looked_at.c[0].label("id")).subquery("ids")
    return sa.select(executions.c.id).where(g.among(executions.c.id, ids.c.id), done.is_not(sa.true()))


def _ids(task: Any) -> Any:
    return sa.func.array_agg(task.id, type_=sa.ARRAY(sa.Uuid))


def keys_ahead(g: Grammar, executions: sa.FromClause, _: sa.FromClause) -> Statement:
    """Lock up to :limit idempotency keys of tasks that will be dropped and can no longer change their status.

    A locked key is skipped, because the transaction that has locked it is taking it over.
    """
    keys, task = tables.idempotency_keys, executions.c
    key = keys.alias("key")
    final = task.status.in_([sql_literal(TaskStatus.COMPLETED), sql_literal(TaskStatus.CANCELLED)])
    ids = (
        sa.select(key.c.task_execution_id)
        .select_from(key)
        .join(executions, task.id == key.c.task_execution_id)
        .where(key.c.task_execution_id >= _lower, key.c.task_execution_id < _upper, final, history.done(g, task))
        .limit(limit)
        .with_for_update(of=key, skip_locked=True)
        .subquery("ids")
    )
    is_mine = g.among(keys.c.task_execution_id, ids.c.task_execution_id)
    return sa.delete(keys).where(is_mine).returning(keys.c.task_execution_id)


def _forget(helper: sa.Table, _: Grammar) -> sa.Delete:
    """Delete the rows of all tasks between two ids except the kept tasks."""
    task_id = helper.c.task_execution_id
    return sa.delete(helper).where(task_id >= _lower, task_id < _upper, task_id != sa.func.all(_kept))


FORGET: Mapping[str, Builder] = {
    helper.name: partial(_forget, helper)
    for helper in (
        tables.idempotency_keys,
        tables.dead_letters,
        tables.partition_claims,
        tables.schedule_ticks,
        tables.task_steps,
    )
}
"""Deletes the rows in other tables that belong to tasks in a dropped partition."""


def queues_to_wake(_: Grammar) -> sa.Select[Any]:
    """Select the queues in which a dead letter between two ids holds a partition key. Kept tasks are left out."""
    claim = tables.partition_claims.c
    task_id = claim.task_execution_id
    dropped = (task_id >= _lower, task_id < _upper, task_id != sa.func.all(_kept))
    return sa.select(claim.queue).where(claim.held, *dropped).distinct()


def bring_executions(_: Grammar, executions: sa.FromClause, _events: sa.FromClause) -> sa.Insert:
    """Move the kept tasks into the partition that they now belong to, by inserting them into the parent table."""
    return _bring(tables.task_executions, sa.select(*executions.c).where(executions.c.id == sa.func.any(_kept)))


def bring_events(_: Grammar, _executions: sa.FromClause, events: sa.FromClause) -> sa.Insert:
    """Move the events of the kept tasks without changing the numbers of the events. The query has one part for each of
    the three disjoint indexes.
    """
    event = events.c
    mine = sa.select(*event).where(event.task_execution_id == sa.func.any(_kept))
    parts = sa.union_all(*(mine.where(kind) for kind in history.kinds(event).values())).subquery("parts")
    return _bring(tables.execution_events, sa.select(*parts.c))


def take_over(parent: sa.Table, source: sa.TableClause, target: sa.TableClause) -> sa.Insert:
    """Move the rows between :lower and :upper from another partition to this one."""
    key = source.c[PARTITIONED[parent]]
    return _take(source, target, (key >= _lower) & (key < _upper))


def give_up(parent: sa.Table, source: sa.TableClause) -> sa.Insert:
    """Move the rows with ids of :upper or higher, and the rows without a task, into their partitions, by inserting them
    into the parent table.
    """
    key = source.c[PARTITIONED[parent]]
    beyond = key >= _upper
    return _take(source, parent, beyond | key.is_(None) if parent is tables.execution_events else beyond)


def next_number(_: Grammar) -> sa.Select[Any]:
    """Draw the next sequence_num of a table that has it as an identity column."""
    sequence = sa.func.pg_get_serial_sequence(
        sa.bindparam("table", type_=sa.Text, required=True), text_literal("sequence_num")
    )
    return sa.select(sa.func.nextval(sa.cast(sequence, REGCLASS)).label("number"))


def set_number(_: Grammar) -> sa.Select[Any]:
    """Set the next number of a sequence."""
    sequence = sa.cast(sa.bindparam("sequence", type_=sa.Text, required=True), REGCLASS)
    number = sa.bindparam("number", type_=sa.BigInteger, required=True)
    return sa.select(sa.func.setval(sequence, number, sa.literal_column("false")).label("number"))


def privileges(relation: sa.ColumnElement[Any]) -> sa.Select[Any]:
    """Select the privileges that were granted on a table and on its columns, one row each; `grantee` is None for
    PUBLIC, and `column` is None for the whole table.
    """
    on_table = sa.select(sa.null().label("column"), pg_class.c.relacl.label("acl")).where(pg_class.c.oid == relation)
    on_columns = sa.select(pg_attribute.c.attname, pg_attribute.c.attacl).where(pg_attribute.c.attrelid == relation)
    owned = on_table.union_all(on_columns).subquery("owned")
    given = sa.func.aclexplode(owned.c.acl).table_valued("grantee", "privilege_type", "is_grantable", name="given")
    return (
        sa.select(
            sa.func.nullif(
                sa.func.pg_get_userbyid(given.c.grantee), sa.func.pg_get_userbyid(sa.literal_column("0"))
            ).label("grantee"),
            given.c.privilege_type,
            given.c.is_grantable,
            owned.c.column,
        )
        .select_from(owned)
        .join(given, sa.true())
    )


def triggers(relation: sa.ColumnElement[Any]) -> sa.Select[Any]:
    """Select the name of each trigger on a table, the statement that creates it, and the words with which ALTER TABLE
    sets the trigger's state; NULL if the trigger has the state of a new trigger.
    """
    states = {"D": "DISABLE", "R": "ENABLE REPLICA", "A": "ENABLE ALWAYS"}
    state = sa.case({key: text_literal(words) for key, words in states.items()}, value=pg_trigger.c.tgenabled)
    create = sa.func.pg_get_triggerdef(pg_trigger.c.oid)
    return (
        sa.select(pg_trigger.c.tgname.label("name"), create.label("statement"), state.label("state"))
        .where(pg_trigger.c.tgrelid == relation, ~pg_trigger.c.tgisinternal)
        .order_by(pg_trigger.c.tgname)
    )


def tied(relation: sa.ColumnElement[Any]) -> sa.Select[Any]:
    """Select the application's objects that would stay with a table when the table becomes a partition: row security
    and its policies, views, foreign keys and publications.
    """

    def called(kind: str, name: Any) -> sa.ColumnElement[str]:
        return sa.func.concat(text_literal(f"{kind} "), name).label("object")

    user, rewrites = pg_class.alias("user"), sa.cast(text_literal("pg_catalog.pg_rewrite"), REGCLASS)
    view = sa.cast(sa.cast(user.c.oid, REGCLASS), sa.Text)
    found = sa.union(
        sa.select(called("row security on", pg_class.c.relname)).where(
            pg_class.c.oid == relation, pg_class.c.relrowsecurity
        ),
        sa.select(called("the policy", pg_policy.c.polname)).where(pg_policy.c.polrelid == relation),
        sa.select(called("the view", view))
        .join_from(pg_depend, pg_rewrite, (pg_depend.c.classid == rewrites) & (pg_depend.c.objid == pg_rewrite.c.oid))
        .join(user, user.c.oid == pg_rewrite.c.ev_class)
        .where(pg_depend.c.refobjid == relation, user.c.oid != relation),
        sa.select(called("the foreign key", pg_constraint.c.conname)).where(
            pg_constraint.c.confrelid == relation, pg_constraint.c.contype == text_literal("f")
        ),
        sa.select(called("the publication", pg_publication.c.pubname))
        .join_from(pg_publication_rel, pg_publication, pg_publication.c.oid == pg_publication_rel.c.prpubid)
        .where(pg_publication_rel.c.prrelid == relation),
    ).subquery("found")
    return sa.select(found.c.object).order_by(found.c.object)


def owner(relation: sa.ColumnElement[Any]) -> sa.Select[Any]:
    """Select a table's owner and schema."""
    return (
        sa.select(sa.func.pg_get_userbyid(pg_class.c.relowner).label("owner"), pg_namespace.c.nspname.label("schema"))
        .select_from(pg_class)
        .join(pg_namespace, pg_namespace.c.oid == pg_class.c.relnamespace)
        .where(pg_class.c.oid == relation)
    )


def _set(**settings: str | sa.ColumnElement[str]) -> sa.Select[Any]:
    """Set configuration parameters until the transaction ends."""
    words = {name: text_literal(value) if isinstance(value, str) else value for name, value in settings.items()}
    return sa.select(*(sa.func.set_config(text_literal(name), words[name], sa.true()).label(name) for name in words))


def _bring(parent: sa.Table, rows: sa.Select[Any]) -> sa.Insert:
    return sa.insert(parent).from_select([c.name for c in parent.columns], rows)


def _take(source: sa.TableClause, target: sa.TableClause, which: sa.ColumnElement[bool]) -> sa.Insert:
    names = [c.key for c in source.c]
    taken = sa.delete(source).where(which).returning(*source.c).cte("taken")
    return sa.insert(target).from_select(names, sa.select(*(taken.c[name] for name in names)))
