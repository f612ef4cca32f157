"""Partitions of the history on PostgreSQL: the only difference is that old tasks are deleted faster."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta
from uuid import UUID, uuid4

import pytest
import tenacity
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, event
from sqlalchemy.exc import IntegrityError

from outboxq import migrations
from outboxq.cli import main
from outboxq.database.dialects.partitioning import Partition, Partitioning
from outboxq.database.revisions import REVISION
from outboxq.database.tables import metadata
from outboxq.errors import ConfigurationError, InvalidArgument, SchemaOutOfDate, UnsupportedDatabase
from outboxq.model import TERMINAL, EventType, NewTask, OnDeadLetter, TaskStatus
from outboxq.model.batches import NewBatch, new_batch_id
from outboxq.model.periods import Every, Period, first_id, moment_of, periods
from outboxq.model.uuid7 import uuid7
from outboxq.store import NewStep, Store
from outboxq.store.retention import TimePartitions
from tests.conftest import Clock, Database
from tests.contract import helpers
from tests.dialects.conftest import report_statistics
from tests.reuse import Reused
from tests.waiting import until

DAY = timedelta(days=1)
TABLES = "SELECT relname FROM pg_class WHERE relkind IN ('r', 'p') AND relnamespace = 'public'::regnamespace"


@pytest.fixture(scope="module")
def reused(cluster, migrated_postgresql) -> Iterator[Reused]:
    template = cluster.create_database(template=migrated_postgresql)
    migrations.partition(template, ahead=6)
    reused = Reused(cluster, template)
    yield reused
    reused.drop()
    cluster.drop_database(template)


@pytest.fixture
def partitioned(reused) -> Iterator[Database]:
    """The database with its partitions: `first`, which contains today, six future months, and `default`."""
    database = Database("postgresql", reused.take())
    yield database
    try:
        if not database.corrupted:
            assert database.store.verify() == []
    finally:
        database.close()
        reused.give_back()


def layout(database: Database) -> list[Partition]:
    found = TimePartitions(database.store).layout()
    assert found is not None
    return list(found.partitions)


def tables(database: Database) -> set[object]:
    return {name for (name,) in database.rows(TABLES)}


def made_at(moment: datetime) -> UUID:
    """Return an id created at that time."""
    return UUID(int=first_id(moment).int + (uuid7().int & (1 << 80) - 1))


def made_in(one: Partition) -> UUID:
    return made_at(one.end - timedelta(days=3))


def completed(database: Database, step: str | None = None, **fields: object) -> UUID:
    claim = helpers.claimed(database, **fields)
    if step is not None:
        database.frozen.steps.complete(claim, NewStep(name=step, number=1))
    database.frozen.complete(claim)
    return claim.id


def where(database: Database, task_id: UUID) -> tuple[str, set[object]]:
    """Return the partition of the task's row, and the partitions of its events."""
    ((table,),) = database.rows(f"SELECT tableoid::regclass::text FROM task_executions WHERE id = '{task_id}'")
    events = database.rows(
        f"SELECT tableoid::regclass::text FROM execution_events WHERE task_execution_id = '{task_id}'"
    )
    return str(table), {name for (name,) in events}


def after(one: Partition) -> datetime:
    """Return a time at which this partition is older than a day, but later partitions are not."""
    return one.end + DAY


# --- periods


@pytest.mark.parametrize(
    ("every", "now", "expected"),
    [
        ("month", "2026-11-21T15:00+00:00", ["2026-11-01", "2026-12-01", "2027-01-01", "2027-02-01"]),
        ("month", "2028-01-31T23:59+00:00", ["2028-01-01", "2028-02-01", "2028-03-01", "2028-04-01"]),
        ("month", "2026-12-01T00:30+02:00", ["2026-11-01", "2026-12-01", "2027-01-01", "2027-02-01"]),
        ("week", "2026-12-31T00:00+00:00", ["2026-12-28", "2027-01-04", "2027-01-11", "2027-01-18"]),
        ("day", "2028-02-28T12:00+00:00", ["2028-02-28", "2028-02-29", "2028-03-01", "2028-03-02"]),
    ],
)
def test_periods_follow_each_other_without_a_gap(every, now, expected):
    found = periods(Every(every), datetime.fromisoformat(now), 2)
    edges = [found[0].begin, *(period.end for period in found)]
    assert [f"{edge:%Y-%m-%d}" for edge in edges] == expected
    assert [period.begin for period in found[1:]] == edges[1:-1]
    assert {period.every for period in found} == {every}
    assert all(moment_of(first_id(edge)) == edge for edge in edges)


# --- the layout


def test_partitioning_a_second_time_changes_nothing(partitioned):
    before = tables(partitioned)
    assert migrations.partition(partitioned.url) == []
    assert migrations.partition(partitioned.engine, dry_run=True, ahead=6) == []
    assert tables(partitioned) == before
    assert len(migrations.partition(partitioned.url, ahead=7)) == 2
    with pytest.raises(InvalidArgument, match="already partitioned by month"):
        migrations.partition(partitioned.url, every="week")


def test_partitioning_is_refused_on_sqlite(sqlite):
    with pytest.raises(UnsupportedDatabase, match="row by row"):
        migrations.partition(sqlite.url)
    assert sqlite.store.time_partitions.make() == 0


@pytest.mark.parametrize("options", [{"every": "year"}, {"ahead": 0}, {"ahead": True}])
def test_invalid_layouts_are_refused(postgresql, options):
    with pytest.raises(InvalidArgument):
        migrations.partition(postgresql.url, **options)
    assert TimePartitions(postgresql.store).layout() is None


def test_partitioning_without_tables_is_refused(cluster):
    url = cluster.create_database()
    with pytest.raises(SchemaOutOfDate, match="outboxq upgrade"):
        migrations.partition(url)
    cluster.drop_database(url)


def test_a_rolled_back_partitioning_leaves_the_tables_unchanged(postgresql):
    before = tables(postgresql)
    with postgresql.host_engine().connect() as connection:
        connection.begin()
        assert len(migrations.partition(connection)) == 10
        timeout = connection.exec_driver_sql("SHOW lock_timeout").scalar_one()
        connection.rollback()
    assert timeout == "0"  # the host's own timeout
    assert tables(postgresql) == before
    assert len(migrations.partition(postgresql.url, dry_run=True)) == 10
    assert tables(postgresql) == before


def test_existing_rows_stay_and_the_sequence_continues(postgresql):
    """All rows stay in place except those that belong elsewhere: ids from a clock that is ahead, and events without a task."""
    store = postgresql.store
    (now,) = periods(Every.MONTH, store.now(), 0)
    soon, far = made_at(now.end + DAY), made_at(now.end + timedelta(days=4000))
    old, ahead, lost = (postgresql.add(store, id=one).id for one in (uuid7(), soon, far))
    claim = postgresql.claim(1, store)[0]
    postgresql.run(
        "INSERT INTO execution_events (pipeline_execution_id, event_type, created_at) "
        "VALUES (gen_random_uuid(), 'event_unrouted', now())"
    )
    before = helpers.everything(postgresql)
    file = postgresql.rows("SELECT pg_relation_filenode('task_executions'), pg_relation_filenode('execution_events')")
    migrations.partition(postgresql.url, every="week", ahead=8)
    assert helpers.everything(postgresql) == before
    assert file == postgresql.rows(
        "SELECT pg_relation_filenode('task_executions_first'), pg_relation_filenode('execution_events_first')"
    )
    assert where(postgresql, old) == ("task_executions_first", {"execution_events_first"})
    assert where(postgresql, ahead)[0].startswith("task_executions_p")
    assert where(postgresql, lost) == ("task_executions_default", {"execution_events_default"})
    store.complete(claim)
    number, xact = postgresql.rows("SELECT sequence_num, xact_id FROM execution_events ORDER BY 1 DESC LIMIT 1")[0]
    assert number == before["execution_events"][-1][0] + 1
    assert xact is not None
    assert migrations.current(postgresql.url) == REVISION


def test_every_partition_has_the_same_indexes_without_duplicates(partitioned):
    """The old table's indexes are reused, because they are equal to the parent's."""
    shapes: dict[str, set[frozenset[str]]] = {}
    for table, definition in partitioned.rows(
        "SELECT tablename, string_agg(regexp_replace(indexdef, '^.*? USING', CASE WHEN indexdef ~ 'UNIQUE' THEN "
        "'unique' ELSE 'index' END), ';') FROM pg_indexes WHERE schemaname = 'public' GROUP BY 1"
    ):
        parent = re.match("task_executions(?=_)|execution_events(?=_)", str(table))
        if parent:
            shapes.setdefault(parent[0], set()).add(frozenset(str(definition).split(";")))
    assert {parent: len(found) for parent, found in shapes.items()} == {"task_executions": 1, "execution_events": 1}
    assert len(*shapes["execution_events"]) == 4
    options = partitioned.rows("SELECT reloptions FROM pg_class WHERE relname ~ '^task_executions_' AND relkind = 'r'")
    assert options == [(["fillfactor=50"],)] * 8


@pytest.mark.current  # older releases confuse a domain with its base type
def test_alembic_sees_no_difference_and_not_ours_excludes_partitions(partitioned):
    with partitioned.engine.connect() as connection:
        options = {"include_name": migrations.ours, "version_table": migrations.VERSION_TABLE, "compare_type": True}
        assert compare_metadata(MigrationContext.configure(connection, opts=options), metadata) == []
    assert [name for name in tables(partitioned) if migrations.not_ours(str(name), "table")] == []
    assert migrations.not_ours("task_executions_archive", "table")


def test_a_partitioned_database_can_be_downgraded(partitioned):
    partitioned.corrupted = True
    partitioned.add()
    migrations.downgrade(partitioned.url, "base")
    assert tables(partitioned) == set()
    assert (
        partitioned.rows("SELECT relname FROM pg_class WHERE relkind = 'S' AND relnamespace = 'public'::regnamespace")
        == []
    )
    migrations.upgrade(partitioned.url)


def test_only_the_owner_creates_partitions_in_a_separate_schema(cluster):
    """A role that may enqueue can still do so, and only the owner creates partitions."""
    url, role = cluster.create_database(), f"outboxq_test_{uuid4().hex[:8]}"
    migrations.upgrade(url, schema="tasks")
    database = Database("postgresql", url)
    database.run(
        f"CREATE ROLE {role}; GRANT USAGE ON SCHEMA tasks TO {role}; GRANT SELECT, INSERT ON ALL TABLES IN SCHEMA tasks "
        f"TO {role}; GRANT UPDATE, DELETE ON tasks.task_executions, tasks.execution_events TO {role}; GRANT USAGE ON "
        f"SEQUENCE tasks.task_position TO {role}"
    )
    try:
        migrations.partition(url, schema="tasks", every=Every.DAY)
        database.run(f"ALTER DATABASE {database.engine.url.database} SET role = {role}")
        weak = database.own(database.host_engine())
        store = Store(weak, schema="tasks")
        handle = store.enqueue(NewTask(id=uuid7(), task_name="a", args="{}"))
        assert store.get(handle.id)
        assert store.time_partitions.make() == 0
        assert store.time_partitions.make(30) == 0
        database.run(f"RESET ROLE; ALTER DATABASE {database.engine.url.database} RESET role")
        owner = Store(database.own(database.host_engine()), schema="tasks")
        assert owner.time_partitions.make(4) == 1
        assert owner.prune(0) == 0
        assert owner.verify() == []
    finally:
        database.close()
        cluster.drop_database(url)
        admin = Database("postgresql", cluster.url)
        admin.run(f"DROP ROLE {role}")
        admin.close()


# --- life on it


def test_tasks_in_all_partitions_complete(partitioned):
    clock, store = partitioned.clock, partitioned.frozen
    ids = [partitioned.add(id=made_in(one), partition_key="k").id for one in layout(partitioned)[:3]]
    skewed = partitioned.add(id=made_at(clock.now + 9000 * DAY)).id
    for task_id in ids:
        (first,) = [claim for claim in partitioned.claim(10) if claim.id != skewed]
        assert first.id == task_id
        store.schedule_retry(task_id, clock.now + DAY, 2)
        clock.advance(DAY)
        (second,) = [claim for claim in partitioned.claim(10) if claim.id != skewed]
        assert second.attempt == 2
        store.complete(second)
    assert {store.get(task_id).status for task_id in ids} == {TaskStatus.COMPLETED}
    assert [len(store.history(task_id)) for task_id in ids] == [5] * 3
    assert {where(partitioned, task_id)[0] for task_id in ids} == {
        f"task_executions_{one.name}" for one in layout(partitioned)[:3]
    }
    store.recover()
    assert store.get(skewed).status is TaskStatus.READY
    assert store.verify() == []


def test_the_ends_of_batches_are_counted_in_each_partition(partitioned):
    """The trigger belongs to the parent, so each partition has it, including partitions that are created later."""
    migrations.partition(partitioned.url, ahead=8)
    later = layout(partitioned)[-1]
    batch = helpers.batch_with(NewTask(id=uuid7(), task_name="tests.then", args="{}"))
    partitioned.frozen.batches.create(batch)
    for task_id in (uuid7(), made_in(later)):
        partitioned.add(id=task_id, pipeline_execution_id=batch.id)
    partitioned.frozen.batches.close(batch.id)
    for claim in partitioned.claim(2):
        partitioned.frozen.complete(claim)
    assert partitioned.store.batches.get(batch.id).completed == 2
    assert [claim.id for claim in partitioned.claim()] == [batch.then[0].id]


@pytest.mark.parametrize(
    ("statement", "missing"),
    [
        ("ALTER TABLE task_executions_first DISABLE TRIGGER task_executions_batch", "task_executions_batch"),
        (
            "ALTER TABLE execution_events_default DROP CONSTRAINT execution_events_default_pkey",
            "primary key of execution_events_default",
        ),
        (
            "ALTER TABLE execution_events_first DROP CONSTRAINT pk_execution_events_first",
            "primary key of execution_events_first",
        ),
    ],
)
def test_a_missing_part_of_a_single_partition_is_found(partitioned, statement, missing):
    partitioned.corrupted = True
    partitioned.run(statement)
    [found] = partitioned.store.verify()
    assert (found.name, found.examples) == ("part_missing", (missing,))


def test_a_trigger_of_the_application_is_recreated(postgresql):
    postgresql.run("CREATE FUNCTION seen() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'")
    postgresql.run(
        "CREATE TRIGGER seen AFTER UPDATE ON task_executions FOR EACH ROW WHEN (NEW.task_name LIKE 'shop.%%') "
        "EXECUTE FUNCTION seen()"
    )
    migrations.partition(postgresql.url)
    found = (
        "SELECT pg_get_triggerdef(oid) FROM pg_trigger WHERE tgname = 'seen' AND tgrelid = 'task_executions'::regclass"
    )
    ((statement,),) = postgresql.rows(found)
    assert "'shop.%'" in str(statement)
    postgresql.run("DROP FUNCTION seen() CASCADE")


def test_a_trigger_that_was_disabled_stays_disabled(postgresql):
    postgresql.run("CREATE FUNCTION seen() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'")
    states = {"off": "DISABLE", "replica": "ENABLE REPLICA", "always": "ENABLE ALWAYS", "plain": "ENABLE"}
    for name, state in states.items():
        postgresql.run(f"CREATE TRIGGER {name} AFTER UPDATE ON task_executions FOR EACH ROW EXECUTE FUNCTION seen()")
        postgresql.run(f"ALTER TABLE task_executions {state} TRIGGER {name}")
    migrations.partition(postgresql.url, ahead=1)
    found = postgresql.rows(
        "SELECT tgname, tgenabled::text, count(*) FROM pg_trigger WHERE tgfoid = 'seen'::regproc GROUP BY 1, 2"
    )
    tables_with_it = len(layout(postgresql)) + 2  # the parent and the default partition have it too
    assert sorted(found) == sorted((name, state, tables_with_it) for name, state in zip(states, "DRAO", strict=True))
    postgresql.run("DROP FUNCTION seen() CASCADE")


@pytest.mark.parametrize(
    ("tie", "told"),
    [
        ("CREATE VIEW recent AS SELECT id, status FROM task_executions", "the view recent"),
        ("CREATE MATERIALIZED VIEW recent AS SELECT * FROM execution_events", "the view recent"),
        ("CREATE TABLE bills (task uuid CONSTRAINT of_task REFERENCES task_executions)", "the foreign key of_task"),
        ("ALTER TABLE task_executions ENABLE ROW LEVEL SECURITY", "row security on task_executions"),
        ("CREATE POLICY mine ON execution_events USING (true)", "the policy mine"),
        ("CREATE PUBLICATION audit FOR TABLE task_executions", "the publication audit"),
    ],
)
@pytest.mark.parametrize("dry_run", [False, True])
def test_objects_that_would_stay_with_the_oldest_partition_prevent_partitioning(postgresql, tie, told, dry_run):
    """A view would never show another task, and a policy would no longer apply."""
    before = tables(postgresql)
    with postgresql.engine.connect() as connection:
        connection.exec_driver_sql("BEGIN")
        connection.exec_driver_sql(tie)
        with pytest.raises(ConfigurationError, match=f"would stay with its oldest partition: {told}; remove"):
            migrations.partition(connection, dry_run=dry_run)
        connection.exec_driver_sql("ROLLBACK")
    assert tables(postgresql) == before


def test_ids_and_the_claims_and_ends_of_a_lease_token_remain_unique(partitioned):
    task_id = completed(partitioned, id=made_in(layout(partitioned)[2]))
    with pytest.raises(IntegrityError, match="task_executions"):
        partitioned.add(id=task_id)
    for kind in ("task_claimed", "task_completed"):
        with pytest.raises(IntegrityError, match="lease_token"):
            partitioned.run(
                "INSERT INTO execution_events (pipeline_execution_id, task_execution_id, event_type, lease_token, created_at) "
                f"VALUES ('{task_id}', '{task_id}', '{kind}', 1, now())"
            )


# --- plans


@contextlib.contextmanager
def explained(database: Database) -> Iterator[list[str]]:
    """Yield a list that collects each statement's plan before the statement runs."""
    plans: list[str] = []

    def explain(connection: Connection, _cursor: object, sql: str, parameters: object, *_: object) -> None:
        if sql.lstrip().startswith(("SELECT", "WITH")) and "version_num" not in sql:
            raw = connection.connection.dbapi_connection
            assert raw is not None
            plans.append(
                "\n".join(line for (line,) in raw.execute(f"EXPLAIN (COSTS OFF) {sql}", parameters).fetchall())
            )

    event.listen(database.engine, "before_cursor_execute", explain)
    yield plans
    event.remove(database.engine, "before_cursor_execute", explain)


def touched(plan: str) -> set[str]:
    """Return the partitions that a plan reads, by the suffixes of their names."""
    return set(re.findall(r"(?:on|using) (?:task_executions|execution_events)_(first|default|p\d{8}) ", plan + " "))


def test_reading_one_task_reads_only_one_partition(partitioned):
    one = layout(partitioned)[2]
    task_id = completed(partitioned, id=made_in(one))
    for look in (partitioned.frozen.get, partitioned.frozen.history):
        with explained(partitioned) as plans:
            assert look(task_id)
        (plan,) = [plan for plan in plans if "task_leases" in plan or "execution_events" in plan]
        assert touched(plan) == {one.name}, plan
        assert "Seq Scan" not in plan


def test_a_claim_and_an_end_read_partitions_only_by_index(partitioned):
    """Partition pruning does not work with an array of ids that the statement finds itself. So each partition's index is read."""
    partitioned.add(id=made_in(layout(partitioned)[2]))
    with explained(partitioned) as plans:
        (claim,) = partitioned.claim()
    with explained(partitioned) as ends:
        partitioned.frozen.complete(claim)
    for plan in (*plans, *ends):
        scans = re.findall(r"(\w+ (?:Only )?Scan)[^\n]* on (?:task_executions|execution_events)_\w+", plan)
        assert set(scans) <= {"Index Scan", "Index Only Scan"}, plan
    assert len(touched("\n".join(plans))) == 8


# --- pruning


def test_a_drop_deletes_only_the_tasks_of_the_partition_and_their_events(partitioned):
    old, young = layout(partitioned)[1:3]
    for _ in range(3):
        completed(partitioned, "old", id=made_in(old), idempotency_key=str(uuid4()))
    kept = completed(partitioned, "kept", id=made_in(young), idempotency_key="kept")
    partitioned.clock.now = max(partitioned.clock.now, after(layout(partitioned)[-1])) + DAY
    names = tables(partitioned)
    partitioned.clock.now = after(old)
    report_statistics(partitioned)  # all later counts belong to this test
    counted = partitioned.frozen.prune(0, dry_run=True)
    for condition, moment in (("<>", old.end - DAY), ("=", young.end - DAY)):
        partitioned.run(f"UPDATE task_executions SET completed_at = '{moment}' WHERE id {condition} '{kept}'")
        events = f"task_execution_id {condition} '{kept}' AND event_type = 'task_completed'"
        partitioned.run(f"UPDATE execution_events SET created_at = '{moment}' WHERE {events}")
    assert counted == 0  # according to the clock, the tasks ended later than that
    assert partitioned.frozen.prune(DAY, dry_run=True) == 3
    assert partitioned.frozen.prune(DAY) == 3
    first = layout(partitioned)[0]
    assert names - tables(partitioned) == {
        "task_executions_first", "execution_events_first", f"task_executions_{old.name}", f"execution_events_{old.name}"
    }  # fmt: skip
    assert first == young
    assert partitioned.counts() == (1, 4, 0)
    assert partitioned.rows("SELECT key FROM idempotency_keys") == [("kept",)]
    assert partitioned.rows("SELECT name FROM task_steps") == [("kept",)]
    dead = "SELECT coalesce(sum(n_tup_del + n_tup_upd), 0) FROM pg_stat_xact_user_tables WHERE relname ~ 'default$'"
    assert partitioned.rows(dead) == [(0,)]


@pytest.fixture
def full(partitioned) -> dict[str, UUID]:
    """Fill one old partition with a task that may be deleted, and with all kinds of tasks that may not."""
    clock, store, one = partitioned.clock, partitioned.frozen, layout(partitioned)[1]
    clock.now = one.end - timedelta(days=3)
    late = helpers.claimed(partitioned, id=made_in(one), lease=3000 * DAY)
    ids = {
        "completed": completed(partitioned, id=made_in(one), idempotency_key="completed"),
        "running": helpers.claimed(partitioned, id=made_in(one), lease=3000 * DAY).id,
        "late": late.id,
    }
    ids["cancelled"] = partitioned.add(id=made_in(one)).id
    store.cancel(ids["cancelled"])
    for name, rule in (("failed", OnDeadLetter.RELEASE), ("held", OnDeadLetter.HOLD)):
        claim = helpers.claimed(
            partitioned, id=made_in(one), partition_key=name, on_dead_letter=rule, idempotency_key=name
        )
        store.fail(claim, "x")
        ids[name] = claim.id
    batch = NewBatch(id=new_batch_id())
    store.batches.create(batch)
    ids["member"] = completed(partitioned, id=made_in(one), pipeline_execution_id=batch.id, idempotency_key="member")
    ids["ready"] = partitioned.add(id=made_in(one), idempotency_key="ready").id
    ids["delayed"] = partitioned.add(id=made_in(one), delay=3000 * DAY, pipeline_execution_id=batch.id).id
    store.batches.close(batch.id)  # the batch stays open because its second task is delayed
    clock.now = after(one)
    store.complete(late)
    clock.advance(1)
    return ids


def gone(database: Database, ids: dict[str, UUID]) -> set[str]:
    rows = {row[0] for row in database.rows("SELECT id FROM task_executions")}
    return {name for name, task_id in ids.items() if task_id not in rows}


@pytest.mark.parametrize(
    ("statuses", "expected", "whole"),
    [
        ({TaskStatus.COMPLETED, TaskStatus.CANCELLED}, {"completed", "cancelled"}, False),
        (TERMINAL, {"completed", "cancelled", "failed", "held"}, True),
        pytest.param({TaskStatus.FAILED}, {"failed", "held"}, False, marks=pytest.mark.full),
    ],
)
def test_tasks_to_be_kept_are_moved_with_their_history(partitioned, full, statuses, expected, whole):
    one = layout(partitioned)[1]
    before = {name: partitioned.frozen.history(task_id) for name, task_id in full.items()}
    raw = {row[0]: row for row in partitioned.rows("SELECT * FROM execution_events")}
    options = {"statuses": statuses, "whole_partitions": whole}
    assert partitioned.frozen.prune(DAY, **options, dry_run=True) == len(expected)
    assert partitioned.frozen.prune(DAY, **options) == len(expected)
    assert partitioned.frozen.prune(DAY, **options, dry_run=True) == 0
    assert one not in layout(partitioned)
    assert gone(partitioned, full) == expected
    for name in full.keys() - expected:
        assert partitioned.frozen.history(full[name]) == before[name]
        assert where(partitioned, full[name]) == ("task_executions_default", {"execution_events_default"})
    assert all(raw[row[0]] == row for row in partitioned.rows("SELECT * FROM execution_events"))  # including xact_id
    keys = {str(key) for (key,) in partitioned.rows("SELECT key FROM idempotency_keys")}
    assert keys == {"completed", "failed", "held", "ready", "member"} - expected
    letters = {row[0] for row in partitioned.rows("SELECT task_execution_id FROM dead_letters")}
    assert letters == {full[name] for name in ("failed", "held")} - {full[name] for name in expected}
    assert partitioned.store.verify() == []


def test_a_drop_of_a_dead_letter_that_holds_its_key_wakes_workers_for_the_next_task(partitioned, monkeypatch):
    old, young = layout(partitioned)[1:3]
    partitioned.clock.now = old.end - timedelta(days=3)
    keyed = {"queue": "mail", "partition_key": "a"}
    claim = helpers.claimed(partitioned, id=made_in(old), on_dead_letter=OnDeadLetter.HOLD, **keyed)
    partitioned.frozen.fail(claim, "broken")
    following = partitioned.add(id=made_in(young), **keyed)
    partitioned.clock.now = after(old)
    told = helpers.woken(partitioned.frozen, monkeypatch)
    assert partitioned.frozen.prune(DAY, statuses=[TaskStatus.FAILED]) == 1
    assert (old in layout(partitioned), told) == (False, ["mail"])
    assert [claim.id for claim in partitioned.claim()] == [following.id]


def test_moved_tasks_can_still_run_and_be_pruned(partitioned, full):
    partitioned.frozen.prune(DAY)
    (claim,) = partitioned.claim(10)
    assert claim.id == full["ready"]
    partitioned.frozen.complete(claim)
    partitioned.frozen.cancel(full["running"], force=True)
    partitioned.frozen.redrive(full["held"])
    assert {claim.id for claim in partitioned.claim(10)} == {full["held"]}
    partitioned.clock.advance(3 * DAY)
    assert partitioned.frozen.recover()
    partitioned.claim(10)
    partitioned.clock.advance(3 * DAY)
    assert partitioned.frozen.prune(DAY, statuses=TERMINAL) == 4  # late, ready, running and failed
    assert gone(partitioned, full) == full.keys() - {"held", "delayed", "member"}


def test_with_whole_partitions_rows_wait_for_their_partition(partitioned):
    old, young = layout(partitioned)[1:3]
    partitioned.clock.now = old.end - timedelta(days=3)
    ids = {"old": completed(partitioned, id=made_in(old)), "first": completed(partitioned)}
    partitioned.clock.now = young.end - 2 * DAY
    ids["young"] = completed(partitioned, id=made_in(young))
    ids["default"] = completed(partitioned, id=made_at(young.end + 9000 * DAY))
    partitioned.clock.now = young.end - timedelta(hours=1)
    for options, expected in (
        ({"whole_partitions": True}, {"old", "first"}),
        ({}, {"old", "first", "young"}),
    ):
        before = gone(partitioned, ids)
        count = len(expected - before)
        assert partitioned.frozen.prune(DAY, **options, dry_run=True) == count
        assert partitioned.frozen.prune(DAY, **options) == count
        assert gone(partitioned, ids) == expected


def test_too_many_rows_to_move_are_pruned_row_by_row(partitioned, full, monkeypatch):
    monkeypatch.setattr("outboxq.store.retention.MOVED_AT_MOST", 3)
    one = layout(partitioned)[1]
    assert partitioned.frozen.prune(DAY, whole_partitions=True, dry_run=True) == 2
    assert partitioned.frozen.prune(DAY, whole_partitions=True) == 2
    assert one in layout(partitioned)
    assert gone(partitioned, full) == {"completed", "cancelled"}


def test_a_prune_in_a_transaction_of_the_caller_drops_no_partition(partitioned, full):
    before = tables(partitioned)
    with partitioned.host_engine().connect() as connection, connection.begin():
        assert partitioned.frozen.prune(DAY, using=connection) == 2
    assert tables(partitioned) == before
    assert gone(partitioned, full) == {"completed", "cancelled"}


def test_an_interrupted_drop_changes_nothing(partitioned, full, monkeypatch):
    before, names = helpers.everything(partitioned), tables(partitioned)

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(TimePartitions, "_free_keys", lambda *_: None)
    monkeypatch.setattr(TimePartitions, "make", lambda _: 0)
    monkeypatch.setattr(Partitioning, "drop", die)
    with pytest.raises(KeyboardInterrupt):
        partitioned.frozen.prune(DAY)
    assert helpers.everything(partitioned) == before
    assert tables(partitioned) - names == set()
    monkeypatch.undo()
    assert partitioned.frozen.prune(DAY) == 2
    assert full.keys() >= gone(partitioned, full) == {"completed", "cancelled"}


def test_a_drop_whose_commit_response_was_lost_is_counted_once(partitioned, full, monkeypatch):
    store = helpers.lossy(partitioned, monkeypatch)
    monkeypatch.setattr(TimePartitions, "_free_keys", lambda *_: None)
    monkeypatch.setattr("outboxq.store.retention._PAUSE", tenacity.wait_none())
    assert store.prune(DAY) == 2
    assert gone(partitioned, full) == {"completed", "cancelled"}


def test_two_simultaneous_prunes_drop_once(partitioned, full):
    found = helpers.at_once(*[lambda: partitioned.frozen.prune(DAY)] * 2)
    assert sorted(found, key=repr) == [0, 2]
    assert gone(partitioned, full) == {"completed", "cancelled"}


def test_a_drop_waits_for_an_open_transaction_without_blocking_others(partitioned, full):
    with helpers.transaction(partitioned) as connection:
        partitioned.frozen.enqueue(NewTask(id=uuid7(), task_name="a", args="{}"), using=connection)
        with helpers.stuck(partitioned, lambda: partitioned.frozen.prune(DAY)) as pruning:
            partitioned.add()  # waits until the prune gives up its lock request
            assert not pruning.done()
            connection.commit()
            assert pruning.result(60) == 2
    assert gone(partitioned, full) == {"completed", "cancelled"}


# --- in use


@contextlib.contextmanager
def busy(database: Database, threads: int = 3) -> Iterator[list[UUID]]:
    """Enqueue, claim and complete tasks in several threads. Yield the list of completed tasks, and check that there were no errors."""
    stopped, done, errors = threading.Event(), list[UUID](), list[BaseException]()

    def live() -> None:
        store, worker = Store(database.engine, clock=Clock(database.clock.now)), uuid4()
        try:
            while not stopped.is_set():
                store.enqueue_many([NewTask(id=uuid7(), task_name="a", args="{}") for _ in range(3)])
                for claim in store.claim_ready_task(3, worker_id=worker, queues=["default"]):
                    store.complete(claim)
                    done.append(claim.id)
        except BaseException as error:  # noqa: BLE001 - shown by the test
            errors.append(error)

    running = [threading.Thread(target=live) for _ in range(threads)]
    for thread in running:
        thread.start()
    try:
        until(lambda: len(done) > 20 or errors)
        yield done
        before = len(done)
        until(lambda: len(done) > before + 20 or errors)
    finally:
        stopped.set()
        for thread in running:
            thread.join(60)
    assert errors == []
    assert len(set(done)) == len(done)


def test_a_partition_can_be_dropped_while_tasks_run(partitioned, full):
    with busy(partitioned) as done:
        assert partitioned.frozen.prune(DAY, statuses=[TaskStatus.FAILED]) == 2
        assert partitioned.frozen.time_partitions.make(8) > 0
    kept = {row[0] for row in partitioned.rows("SELECT id FROM task_executions WHERE status = 'Completed'")}
    assert set(done) <= kept
    assert full["ready"] in done


def test_a_task_that_is_enqueued_and_ends_between_the_check_and_the_drop_is_kept(partitioned, full, monkeypatch):
    """The task's id is older than the task, because its producer's clock is wrong."""
    store, lived = partitioned.frozen, []
    look = TimePartitions._look

    def and_live(*arguments):
        found = look(*arguments)
        lived.append(partitioned.add(queue="new").id)
        for claim in partitioned.claim(10, queues=["new"]):
            store.complete(claim)
        return found

    monkeypatch.setattr(TimePartitions, "_look", and_live)
    store.prune(DAY)
    assert lived
    assert [store.get(task_id).status for task_id in lived] == [TaskStatus.COMPLETED] * len(lived)


def test_the_tables_can_be_partitioned_while_tasks_run(postgresql):
    with busy(postgresql) as done:
        assert len(migrations.partition(postgresql.url)) == 10
    kept = {row[0] for row in postgresql.rows("SELECT id FROM task_executions WHERE status = 'Completed'")}
    assert set(done) <= kept


def test_missing_partitions_can_be_created_while_tasks_run(partitioned):
    """Tasks in the default partition are moved to their own partitions. Events without a task stay."""
    partitioned.run(
        "DO $$ DECLARE name text; BEGIN FOR name IN SELECT relname FROM pg_class WHERE relname ~ '_(p[0-9]{8}|first)$' AND "
        "relkind = 'r' LOOP EXECUTE 'DROP TABLE ' || name; END LOOP; END $$"
    )
    assert layout(partitioned) == []
    old = partitioned.add(partitioned.store).id
    assert where(partitioned, old)[0] == "task_executions_default"
    with busy(partitioned):
        assert partitioned.store.time_partitions.make() == 4
        assert partitioned.store.time_partitions.make() == 0
    (now, *_) = layout(partitioned)
    assert where(partitioned, old) == (f"task_executions_{now.name}", {f"execution_events_{now.name}"})
    assert partitioned.rows("SELECT count(*) FROM task_executions_default") == [(0,)]


@pytest.mark.parametrize(
    "every", [pytest.param(every, marks=[] if every is Every.MONTH else [pytest.mark.full]) for every in Every]
)
def test_the_next_partitions_are_as_long_as_the_last(postgresql, every):
    migrations.partition(postgresql.url, every=every, ahead=1)
    last = layout(postgresql)[-1]
    assert postgresql.store.time_partitions.make(1) == 0
    assert postgresql.store.time_partitions.make(3) == 2
    new = layout(postgresql)[-2:]
    assert [one.lower for one in new] == [last.upper, new[0].upper]
    assert {Period(begin=moment_of(one.lower), end=one.end).every for one in new} == {every}


@pytest.mark.parametrize("ahead", [-1, True, "3"])
def test_an_invalid_number_of_partitions_is_refused(partitioned, ahead):
    with pytest.raises(InvalidArgument):
        partitioned.store.time_partitions.make(ahead)


# --- the command


def test_the_command_prints_the_tables_it_creates(postgresql, capsys):
    def run(*arguments: str) -> tuple[str, str]:
        main([*arguments, "--url", postgresql.url], standalone_mode=False)
        out = capsys.readouterr()
        return out.out, out.err

    told, sentence = run("partition", "--every", "day", "--ahead", "2", "--dry-run")
    assert sentence == "8 tables would be created\n"
    assert TimePartitions(postgresql.store).layout() is None
    made, sentence = run("partition", "--every", "day", "--ahead", "2", "--yes")
    assert (made, sentence) == (told, "8 tables were created\n")
    assert set(made.split()) <= tables(postgresql)
    assert (
        run("prune", "--older-than", "0d", "--whole-partitions", "--yes")[0]
        == "0 tasks were deleted with their events\n"
    )


def test_the_command_is_refused_on_sqlite(sqlite, capsys):
    with pytest.raises(SystemExit):
        main(["partition", "--url", sqlite.url], standalone_mode=False)
    assert "only PostgreSQL" in capsys.readouterr().err


def test_an_event_without_a_task_is_in_the_default_partition_and_pruned_by_rows(partitioned):
    partitioned.run(
        "INSERT INTO execution_events (pipeline_execution_id, event_type, created_at) SELECT gen_random_uuid(), "
        f"'{EventType.UNROUTED}', '{partitioned.clock.now}'::timestamptz - n * interval '1 day' FROM generate_series(0, 4) n"
    )
    assert partitioned.rows("SELECT DISTINCT tableoid::regclass::text FROM execution_events") == [
        ("execution_events_default",)
    ]
    assert partitioned.frozen.prune(2 * DAY, batch=1) == 0
    assert partitioned.counts() == (0, 3, 0)
