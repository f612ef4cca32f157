"""`outboxq.orm`: our tables as classes that an application reads in its Session beside its own models."""

from __future__ import annotations

import dataclasses
import pickle
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, get_args, get_type_hints
from uuid import UUID

import pytest
from sqlalchemy import Engine, Select, String, cast, create_engine, event, func, inspect, select
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    Session,
    aliased,
    defer,
    foreign,
    joinedload,
    mapped_column,
    relationship,
    selectinload,
    undefer,
)

from outboxq import Outbox, ReadOnly, migrations, orm
from outboxq.database import tables
from outboxq.database.column_types import UtcDateTime
from outboxq.errors import ConfigurationError, InvalidArgument
from outboxq.model import EventType, NewTask, TaskStatus
from outboxq.model.uuid7 import uuid7
from outboxq.orm import ExecutionEvent, OutboxEntry, TaskExecution, orm_for
from outboxq.store import Store
from tests.conftest import Database
from tests.contract.helpers import everything


class Base(DeclarativeBase):
    """The base class of an application's models."""


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    receipt_id: Mapped[UUID | None]
    receipt: Mapped[TaskExecution | None] = relationship(
        TaskExecution, primaryjoin=lambda: foreign(Order.receipt_id) == TaskExecution.id, viewonly=True
    )
    tasks: Mapped[list[TaskExecution]] = relationship(
        TaskExecution,
        primaryjoin=lambda: foreign(TaskExecution.partition_key) == "order:" + cast(Order.id, String),
        viewonly=True,
    )


@pytest.fixture
def engine(database: Database) -> Iterator[Engine]:
    engine = database.host_engine()
    Base.metadata.create_all(engine)
    yield engine
    Base.metadata.drop_all(engine)


@contextmanager
def statements(engine: Engine) -> Iterator[list[tuple[str, Any]]]:
    seen: list[tuple[str, Any]] = []

    def note(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if statement.lstrip().startswith("SELECT"):
            seen.append((statement, parameters))

    event.listen(engine, "before_cursor_execute", note)
    yield seen
    event.remove(engine, "before_cursor_execute", note)


def test_a_task_in_each_status_has_the_same_fields_as_in_the_store(database, engine):
    """Each field and each event of a Ready, Running, Completed and Failed task."""
    for number in range(4):
        database.add(
            args=f'{{"number": {number}}}',
            queue="mail",
            priority=number,
            partition_key=f"k{number}",
            timeout=timedelta(seconds=5),
            expires_at=datetime(2040, 1, 1, tzinfo=UTC),
            max_attempts=3,
        )
    completed, failed, running = database.claim(3)
    database.frozen.complete(completed, result="1")
    database.frozen.fail(failed, error="it broke")
    with Session(engine) as session:
        found = session.scalars(select(TaskExecution).options(undefer(TaskExecution.lease_expires_at))).all()
        assert {task.status for task in found} == set(TaskStatus) - {TaskStatus.CANCELLED}
        for task in found:
            expected = database.store.get(task.id)
            for field in dataclasses.fields(expected):
                value = getattr(task, field.name)
                assert (value, type(value)) == (getattr(expected, field.name), type(getattr(expected, field.name)))
            assert task.created_at.utcoffset() == timedelta(0)
            assert task.arguments == {"number": task.priority}
            history = database.store.history(task.id)
            for row, happened in zip(task.events, history, strict=True):
                for field in dataclasses.fields(happened):
                    read = row.data if field.name == "event_data" else getattr(row, field.name)
                    assert read == getattr(happened, field.name)
                assert row.task_execution is task
            assert (task.outbox_entry is not None) is (task.status is TaskStatus.READY)
        waiting = session.scalars(select(OutboxEntry)).one()
        assert waiting.task_execution.status is TaskStatus.READY
        assert (waiting.queue, waiting.expires_at) == ("mail", datetime(2040, 1, 1, tzinfo=UTC))
        assert waiting.available_at == database.clock.now
        assert session.get(TaskExecution, running.id).lease_expires_at == database.clock.now + timedelta(seconds=60)


def test_a_session_reads_the_tasks_that_it_has_enqueued_before_its_commit(database, engine):
    outbox = Outbox(engine)

    @outbox.task(name="shop.send_receipt")
    def send_receipt(order_id: int) -> None: ...

    with Session(engine) as session:
        handle = send_receipt.using(session).enqueue(7)
        session.add(Order(id=7, receipt_id=handle.id))
        session.flush()
        order = session.scalars(select(Order).where(Order.receipt.has(status=TaskStatus.READY))).one()
        assert order.receipt.arguments == {"order_id": 7}
        session.rollback()
        assert session.scalars(select(TaskExecution)).all() == []


def test_the_classes_can_be_joined_with_models_of_an_application(database, engine):
    with Session(engine) as session:
        for number in (1, 2):
            task = database.add(args=f'{{"order_id": {number}, "sent": true}}', partition_key=f"order:{number}")
            session.add(Order(id=number, receipt_id=task.id))
        database.add(args="{}")
        session.commit()
        by_id = select(Order.id, TaskExecution.status).join(Order.receipt).order_by(Order.id)
        assert session.execute(by_id).all() == [(1, TaskStatus.READY), (2, TaskStatus.READY)]
        by_key = select(Order).options(selectinload(Order.tasks)).order_by(Order.id)
        assert [[task.arguments["order_id"] for task in order.tasks] for order in session.scalars(by_key)] == [[1], [2]]
        task = aliased(TaskExecution)
        by_argument = (
            select(Order.id).join(task, task.argument("order_id") == cast(Order.id, String)).order_by(Order.id)
        )
        assert session.scalars(by_argument).all() == [1, 2]
        without = select(func.count()).select_from(TaskExecution).where(TaskExecution.argument("order_id").is_(None))
        assert session.scalar(without) == 1
        number = TaskExecution.argument("order_id")
        grouped = select(number, func.count()).where(number.is_not(None)).group_by(TaskExecution.argument("order_id"))
        assert sorted(session.execute(grouped).all()) == [("1", 1), ("2", 1)]
        last = (
            select(TaskExecution.id, func.max(ExecutionEvent.created_at))
            .join(TaskExecution.events)
            .group_by(TaskExecution.id)
        )
        assert len(session.execute(last).all()) == 3


def test_an_argument_name_that_is_not_a_parameter_name_is_refused():
    with pytest.raises(InvalidArgument, match="not the name of a parameter"):
        TaskExecution.argument("a' || args || '")
    assert "argument(task_executions.args" in str(select(TaskExecution.argument("order_id")))


@pytest.mark.parametrize(("load", "queries"), [(selectinload, 3), (joinedload, 1)])
def test_events_and_entries_of_many_tasks_load_in_few_queries(database, engine, load, queries):
    for _ in range(6):
        database.add()
    query = select(TaskExecution).options(load(TaskExecution.events), load(TaskExecution.outbox_entry))
    with Session(engine) as session, statements(engine) as seen:
        found = session.scalars(query).unique().all()
        assert [[one.event_type for one in task.events] for task in found] == [[EventType.CREATED]] * 6
        assert all(task.outbox_entry for task in found)
    assert len(seen) == queries


@pytest.mark.parametrize("how", ["lazy", "selectin", "join"])
def test_the_events_of_a_task_are_read_using_the_three_indexes(database, engine, how):
    """The indexes are partial: a query that does not repeat their conditions would read the whole history."""
    new = [NewTask(id=uuid7(), task_name="tests.work", args="{}") for _ in range(500)]
    ids = [one.id for one in database.store.enqueue_many(new)][: 1 if how == "lazy" else 3]
    database.run("ANALYZE")  # otherwise, the planner believes that the tables are empty and scans them
    options = [selectinload(TaskExecution.events)] if how == "selectin" else []
    query: Select[Any] = select(TaskExecution).where(TaskExecution.id.in_(ids)).options(*options)
    if how == "join":
        query = query.join(TaskExecution.events)
    with Session(engine) as session:
        with statements(engine) as seen:
            assert [len(task.events) for task in session.scalars(query).unique()] == [1] * len(ids)
        statement, parameters = seen[0 if how == "join" else -1]
        assert "execution_events" in statement
        explain = "EXPLAIN" if database.name == "postgresql" else "EXPLAIN QUERY PLAN"
        plan = "\n".join(
            str(row) for row in session.connection().exec_driver_sql(f"{explain} {statement}", parameters).all()
        )
    assert set(re.findall(r"(?:uq|ix)_execution_events_\w+", plan)) == {
        "uq_execution_events_claim",
        "uq_execution_events_end",
        "ix_execution_events_other",
    }, plan
    # The plan searches each index for the task, and reads none from end to end.
    searched = r"Index Cond: \(+task_execution_id =|SEARCH execution_events\w* USING INDEX \w+ \(task_execution_id=\?"
    assert len(re.findall(searched, plan)) == 3, plan


def test_a_pipeline_contains_the_tasks_created_together(database, engine):
    outbox = Outbox(engine)

    @outbox.task(name="shop.send_receipt")
    def send_receipt(order_id: int) -> None: ...

    handles = send_receipt.using(outbox).enqueue_many([(1,), (2,), (3,)])
    alone = send_receipt.using(outbox).enqueue(4)
    with Session(engine) as session:
        found = session.scalars(select(TaskExecution).options(selectinload(TaskExecution.pipeline))).all()
        for task in found:
            assert [one.id for one in task.pipeline] == ([] if task.id == alone.id else [one.id for one in handles])


def test_an_engine_bound_to_the_class_also_serves_the_table(database, engine):
    """A Session with an engine for each class and no other engine: `using(session)` finds the engine of our tables."""
    outbox = Outbox(engine)

    @outbox.task(name="shop.send_receipt")
    def send_receipt(order_id: int) -> None: ...

    with Session(binds={TaskExecution: engine}) as session:
        send_receipt.using(session).enqueue(1)
        assert len(session.scalars(select(TaskExecution)).all()) == 1
        session.commit()


# --- An application's own declarations


def test_the_classes_add_nothing_to_other_metadata(database, engine):
    assert set(Base.metadata.tables) == {"orders"}
    assert "orders" not in tables.metadata.tables
    assert TaskExecution.__table__ is tables.task_executions
    for mapped in (TaskExecution, ExecutionEvent, OutboxEntry):
        assert mapped.__mapper__.registry is not Base.registry
        assert mapped.__table__.foreign_keys == set()
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)
    assert "task_executions" in inspect(engine).get_table_names()


def test_another_base_can_have_classes_with_the_same_names():
    class Other(DeclarativeBase): ...

    class TaskExecution(Other):
        __tablename__ = "my_executions"
        id: Mapped[int] = mapped_column(primary_key=True)

    assert str(select(TaskExecution.id)) == "SELECT my_executions.id \nFROM my_executions"
    assert orm.TaskExecution.__table__ is tables.task_executions


@pytest.mark.parametrize("kind", [TaskExecution, ExecutionEvent, OutboxEntry])
def test_every_column_is_declared_with_its_type(kind):
    hints = get_type_hints(kind)
    attributes = set(inspect(kind).attrs.keys())
    assert set(hints) == attributes
    for column in kind.__table__.columns:
        if column.key == "xact_id":
            assert "xact_id" not in hints
            continue
        (declared,) = get_args(hints[column.key])
        kinds = get_args(declared) or (declared,)
        assert (type(None) in kinds) is column.nullable, column.key
        assert (datetime if isinstance(column.type, UtcDateTime) else column.type.python_type) in kinds, column.key


# --- Writing is refused


def test_objects_cannot_be_created_or_changed(database, engine):
    database.add(partition_key="k")
    before = everything(database)
    with Session(engine) as session:
        task = session.scalars(select(TaskExecution)).one()
        for kind in (TaskExecution, ExecutionEvent, OutboxEntry):
            with pytest.raises(ReadOnly, match="cannot be created: enqueue"):
                kind(queue="mail")
        for name, value in {
            "status": TaskStatus.COMPLETED,
            "queue": "other",
            "result": "1",
            "outbox_entry": None,
        }.items():
            with pytest.raises(
                ReadOnly, match=rf"TaskExecution .* \(its {name} was set\): use the methods of outbox.store"
            ):
                setattr(task, name, value)
        with pytest.raises(ReadOnly, match="its events were"):
            task.events.append(task.events[0])
        with pytest.raises(ReadOnly, match="its events were"):
            task.events.clear()
        with pytest.raises(ReadOnly, match="its event_type was"):
            task.events[0].event_type = "task_completed"
        with pytest.raises(ReadOnly, match="its available_at was"):
            task.outbox_entry.available_at = datetime.now(UTC)
        assert (task.status, task.queue, task.result) == (TaskStatus.READY, "default", None)
        assert not session.dirty
        session.add(Order(id=1))
        session.commit()  # the transaction survives the refusals
        assert session.get(Order, 1)
    assert everything(database) == before


def test_objects_cannot_be_deleted(database, engine):
    database.add()
    before = everything(database)
    with Session(engine) as session:
        session.delete(session.scalars(select(TaskExecution)).one())
        with pytest.raises(ReadOnly, match=r"TaskExecution .* cannot be deleted here: cancel the task"):
            session.commit()
    assert everything(database) == before


def test_changes_that_bypass_the_attributes_are_refused_at_the_flush(database, engine):
    database.add()
    before = everything(database)
    with Session(engine) as session:
        task = session.scalars(select(TaskExecution)).one()
        task.__dict__["queue"] = "other"
        inspect(task)._modified_event(task.__dict__, inspect(task).manager["queue"].impl, "default")
        with pytest.raises(ReadOnly, match="written here"):
            session.commit()
    with Session(engine) as session:
        fresh = TaskExecution.__new__(TaskExecution)
        inspect(TaskExecution).class_manager.setup_instance(fresh)
        session.add(fresh)
        with pytest.raises(ReadOnly, match="written here"):
            session.commit()
    assert everything(database) == before


def test_an_unchanged_object_can_be_moved_between_sessions(database, engine):
    database.add()
    with Session(engine) as session:
        task = session.scalars(select(TaskExecution).options(selectinload(TaskExecution.events))).one()
        session.expunge_all()
    carried = pickle.loads(pickle.dumps(task))
    assert repr(carried) == f"<TaskExecution {task.id}>"
    assert (carried.status, len(carried.events)) == (TaskStatus.READY, 1)
    with Session(engine) as session:
        merged = session.merge(carried)
        assert merged in session
        session.refresh(merged)
        session.expire(merged)
        assert merged.status is TaskStatus.READY
        session.commit()


def test_a_query_can_defer_columns(database, engine):
    database.add(args='{"a": 1}')
    with Session(engine) as session, statements(engine) as seen:
        task = session.scalars(select(TaskExecution).options(defer(TaskExecution.args))).one()
        assert len(seen) == 1
        assert "args" not in seen[0][0]
        assert "task_leases" not in seen[0][0]
        assert task.arguments == {"a": 1}


# --- A separate schema


def test_each_schema_has_separate_classes(cluster):
    url = cluster.create_database()
    engine, found = create_engine(url), {}
    for schema in (None, "jobs_a", "jobs_b"):
        migrations.upgrade(url, schema=schema)
        outbox = Outbox(engine, schema=schema)
        outbox.task(name=f"work.{schema}")(_work).using(outbox).enqueue()
        classes = orm_for(schema)
        assert orm_for(schema) is classes
        with Session(engine) as session:
            task = session.scalars(
                select(classes.TaskExecution).options(selectinload(classes.TaskExecution.events))
            ).one()
            assert task.outbox_entry.task_execution is task
            assert [happened.event_type for happened in task.events] == ["task_created"]
            assert task.lease_expires_at is None
            with pytest.raises(ReadOnly, match="TaskExecution of outboxq.orm"):
                task.queue = "other"
            found[schema] = task.task_name
        assert Store(engine, schema=schema).verify() == []
    engine.dispose()
    assert found == {schema: f"work.{schema}" for schema in (None, "jobs_a", "jobs_b")}
    assert orm_for(None).TaskExecution is TaskExecution


def _work() -> None: ...


def test_a_schema_that_would_need_quoting_is_refused():
    with pytest.raises(ConfigurationError, match="not a plain lower-case name"):
        orm_for("Jobs; --")
